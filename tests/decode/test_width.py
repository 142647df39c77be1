"""The width policy against scripted costs and scripted acceptance, on a clock of its own."""

import random
import re
import time

import pytest
from toychain import BLOCK, ChainDrafter, chain_engine, tables

from splashlite.decode.cost import Costs
from splashlite.decode.survival import Survival
from splashlite.decode.width import Adaptive

GPU = Costs((10.0, 10.3, 10.6, 11.0, 11.5, 18.0, 18.5, 19.0), (0.0,) + (3.0,) * 7)  # flat to five rows, then a cliff
CPU = Costs((10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0), (0.0,) + (2.5,) * 7)
# A small target: drafts are dear.
SMALL = Costs((79.0, 91.5, 102.0, 102.0, 108.5, 109.5, 110.0, 110.0), (0.0, 27.0, 28.5, 30.5, 32.0, 34.0, 35.5, 37.0))
DEAR = Costs((10.0, 19.0, 28.0, 37.0, 46.0, 55.0, 64.0, 73.0), (0.0,) + (5.0,) * 7)  # rows save nothing


def expected(rows, rate):
    return sum(rate**k for k in range(rows))


def best(costs, rate):
    """The best rows, and tokens per millisecond there."""
    speed = [expected(rows, rate) / ms for rows, ms in enumerate(costs.cycle_ms(), start=1)]
    return speed.index(max(speed)) + 1, max(speed)


def drive(policy, costs, rate, cycles, rng):
    """Run the policy against drafts that survive with probability `rate`; rows chosen, tokens and milliseconds."""
    chosen, tokens, ms = [], 0, 0.0
    for _ in range(cycles):
        rows = policy.choose(10**6)
        accepted = 0
        while accepted < rows - 1 and rng.random() < rate:
            accepted += 1
        took = costs.cycle_ms()[rows - 1] * rng.uniform(0.97, 1.03)
        policy.observe(rows, accepted, took)
        chosen.append(rows)
        tokens, ms = tokens + accepted + 1, ms + took
    return chosen, tokens, ms


@pytest.mark.parametrize("costs", [GPU, CPU, DEAR], ids=["gpu", "cpu", "dear"])
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6, 0.8, 0.95])
def test_finds_the_optimum_within_twenty_cycles(costs, rate):
    shares = []
    for seed in range(40):
        policy, rng = Adaptive(costs, Survival(7)), random.Random(seed)
        drive(policy, costs, rate, 20, rng)
        shares.append(expected_speed(policy, costs, rate, rng) / best(costs, rate)[1])
    assert sum(shares) / len(shares) > 0.95


def expected_speed(policy, costs, rate, rng):
    chosen, _, _ = drive(policy, costs, rate, 60, rng)
    ms = costs.cycle_ms()
    return sum(expected(rows, rate) for rows in chosen) / sum(ms[rows - 1] for rows in chosen)


@pytest.mark.parametrize("before, after", [(0.9, 0.1), (0.1, 0.9), (0.3, 0.95), (0.95, 0.3)])
def test_follows_a_change_within_twenty_cycles(before, after):
    shares = []
    for seed in range(40):
        policy, rng = Adaptive(CPU, Survival(7)), random.Random(seed)
        drive(policy, CPU, before, 80, rng)
        drive(policy, CPU, after, 20, rng)
        shares.append(expected_speed(policy, CPU, after, rng) / best(CPU, after)[1])
    assert sum(shares) / len(shares) > 0.93


@pytest.mark.parametrize("costs", [CPU, DEAR], ids=["cpu", "dear"])
def test_parks_where_drafting_loses_and_probes_for_less_than_a_twentieth(costs):
    policy, rng = Adaptive(costs, Survival(7)), random.Random(2)
    drive(policy, costs, 0.02, 20, rng)
    chosen, tokens, ms = drive(policy, costs, 0.02, 400, rng)
    assert chosen.count(1) > 360 and any(rows > 1 for rows in chosen)
    assert ms / tokens < 1.05 * costs.verify_ms[0]


@pytest.mark.parametrize("rate, plain_share", [(0.1, 0.9), (0.2, 0.85), (0.3, 0.55)])
def test_a_plain_cost_kept_from_a_busy_machine_does_not_keep_drafting_for_ever(rate, plain_share):
    """Drafting never pays at these rates; the kept costs say that plain decoding takes twice its time."""
    kept, shares = Costs((20.0, *CPU.verify_ms[1:]), CPU.draft_ms), []
    for seed in range(20):
        policy, rng = Adaptive(kept, Survival(7)), random.Random(seed)
        drive(policy, CPU, 0.9, 10, rng)
        drive(policy, CPU, rate, 70, rng)
        chosen, tokens, ms = drive(policy, CPU, rate, 300, rng)
        assert ms / tokens < 1.05 * CPU.verify_ms[0]
        shares.append(chosen.count(1) / 300)
    assert sum(shares) / len(shares) > plain_share


@pytest.mark.parametrize("rate", [0.5, 0.6, 0.9])
def test_a_few_unlucky_drafts_do_not_park_what_pays(rate):
    """One short reply after the other, each of which remembers most of what was learned."""
    shares = []
    for seed in range(40):
        rng, survival, tokens, ms = random.Random(seed), Survival(7), 0.0, 0.0
        for _ in range(4):
            survival = survival.faded(0.7)
            for rows in drive(Adaptive(SMALL, survival), SMALL, rate, 40, rng)[0]:
                tokens, ms = tokens + expected(rows, rate), ms + SMALL.cycle_ms()[rows - 1]
        shares.append(tokens / ms / best(SMALL, rate)[1])
    assert sum(shares) / len(shares) > {0.5: 0.974, 0.6: 0.983, 0.9: 0.997}[rate]


def test_plain_cycles_that_were_computed_ahead_do_not_make_plain_decoding_look_free():
    """While the reader of a stream pauses, a parked cycle is done before it is waited for: its time says nothing."""
    policy = Adaptive(CPU, Survival(7))
    for _ in range(600):
        rows = policy.choose(10**6)
        ahead = rows == 1 and not policy.comparing and policy.until_probe % 9 == 0
        policy.observe(rows, 0, 0.2 if ahead else CPU.cycle_ms()[rows - 1])
    assert policy.ms[0] > 0.75 * CPU.verify_ms[0]


@pytest.mark.parametrize("pause", [0.0, 0.03])
def test_a_slow_reader_does_not_make_plain_decoding_look_dear(monkeypatch, pause):
    """Parked cycles run while the reader is away: how long it was away says nothing about their cost."""
    policies = []
    monkeypatch.setattr("splashlite.decode.width.Adaptive", lambda *about: policies.append(Adaptive(*about)) or policies[-1])
    engine = chain_engine(ChainDrafter(tables()[1]))
    engine.costs = Costs((5.0,) * BLOCK, (0.0,) + (200.0,) * (BLOCK - 1))  # parks at once
    stats = None
    for piece in engine.stream([3, 1], max_tokens=80, temperature=0):
        time.sleep(pause)
        stats = piece.stats
    assert stats.parked_cycles > 60
    assert policies[0].ms[0] < 5.5
    assert policies[0].pace < 1.5


@pytest.mark.parametrize("rate, wins", [(0.9, True), (0.5, True), (0.1, False)])
def test_a_machine_that_is_slow_for_a_while_changes_no_choice(rate, wins):
    """Whatever the width, cycles take 1.6 times as long for 40 cycles, and then as long as before."""
    steady, shares = [], []
    for found, factor in ((steady, 1.0), (shares, 1.6)):
        for seed in range(20):
            policy, rng, drafted = Adaptive(CPU, Survival(7)), random.Random(seed), 0
            drive(policy, CPU, rate, 60, rng)
            for slow in [factor] * 40 + [1.0] * 40:
                costs = Costs(tuple(slow * ms for ms in CPU.verify_ms), tuple(slow * ms for ms in CPU.draft_ms))
                drafted += drive(policy, costs, rate, 1, rng)[0][0] > 1
            found.append(drafted / 80)
    steady, slowed = sum(steady) / 20, sum(shares) / 20
    assert steady > 0.9 if wins else steady < 0.2
    assert abs(slowed - steady) < 0.03


def test_comparing_costs_little_where_drafting_wins():
    rng, speeds = random.Random(3), []
    for policy in (Adaptive(GPU, Survival(7)), Always(best(GPU, 0.8)[0])):
        drive(policy, GPU, 0.8, 100, rng)
        chosen, tokens, ms = drive(policy, GPU, 0.8, 4000, rng)
        speeds.append(tokens / ms)
    assert speeds[0] > 0.97 * speeds[1]


class Always:
    def __init__(self, rows):
        self.rows = rows

    def choose(self, budget):
        return self.rows

    def observe(self, rows, accepted, ms):
        pass


def test_the_reason_for_parking_is_what_its_numbers_say():
    parked = 0
    for seed in range(60):
        survival, rate, rng = Survival(7), 0.3 + 0.005 * seed, random.Random(seed)
        survival.seen, survival.kept = [10000.0] * 7, [10000 * rate] * 7  # so much is known that nothing is in doubt
        policy = Adaptive(CPU, survival)
        drive(policy, CPU, rate, 60, rng)
        if policy.reason():
            said = r"plain decoding is faster here, ([\d.]+) ms a token against ([\d.]+) ms with \d drafts?"
            plain, drafted = map(float, re.fullmatch(said, policy.reason()).groups())
            assert plain <= drafted
            parked += 1
    assert parked > 7


def test_budget_bounds_the_rows():
    policy = Adaptive(GPU, Survival(7))
    assert policy.choose(1) == 1 and policy.choose(2) == 2


def test_flat_costs_use_the_block_while_drafts_survive():
    policy, rng = Adaptive(Costs.flat(8), Survival(7)), random.Random(0)
    chosen, _, _ = drive(policy, Costs.flat(8), 0.9, 50, rng)
    assert chosen.count(8) > 40


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_a_long_context_from_the_first_cycle_on_changes_no_relation(rate):
    """Costs were measured behind a short text; behind a long one every cycle takes 1.9 times as long, the first one more."""
    long = Costs(tuple(1.9 * ms for ms in SMALL.verify_ms), tuple(1.9 * ms for ms in SMALL.draft_ms))
    kept, found = SMALL.cycle_ms()[0] / SMALL.cycle_ms()[2], []
    for seed in range(30):
        policy, rng = Adaptive(SMALL, Survival(7)), random.Random(seed)
        rows = policy.choose(100)
        policy.observe(rows, 0, 1.5 * long.cycle_ms()[rows - 1])
        drive(policy, long, rate, 60, rng)
        found.append(policy.ms[0] / policy.ms[2] / kept)
    assert sum(found) / len(found) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.6])
def test_without_measured_costs_what_does_not_pay_is_given_up_all_the_same(rate):
    """No cost is known, and drafts are dear: the first plain cycle that is timed among them shows it."""
    dear = Costs((40.0, *(35.0 + 25 * rows for rows in range(1, 8))), (0.0,) + (25.0,) * 7)
    for seed in range(20):
        policy, rng = Adaptive(Costs.flat(8), Survival(7)), random.Random(seed)
        drive(policy, dear, rate, 150, rng)
        assert drive(policy, dear, rate, 100, rng)[0].count(1) > 80


@pytest.mark.parametrize("ms", [0.0, -5.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_not_learned_from(ms):
    policy = Adaptive(CPU, Survival(7))
    for _ in range(20):
        policy.observe(policy.choose(100), 0, ms)
    assert policy.ms == list(CPU.cycle_ms()) and policy.pace == 1


class Whim:
    """Random widths, and random stretches of plain decoding that look like parking."""

    def __init__(self, seed):
        self.rng, self.plain = random.Random(seed), 0

    @property
    def parked(self):
        return self.plain > 0

    def choose(self, budget):
        if self.plain:
            self.plain -= 1
            return 1
        if self.rng.random() < 0.3:
            self.plain = self.rng.randrange(5)
        return min(self.rng.randrange(1, BLOCK + 1), budget)

    def observe(self, rows, accepted, ms):
        pass

    def reason(self):
        return "a whim"


@pytest.fixture
def whims(monkeypatch):
    """Every automatic width is a whim."""
    seeds = iter(range(10**6))
    monkeypatch.setattr("splashlite.decode.width.Adaptive", lambda costs, survival: Whim(next(seeds)))


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.0, "seed": 3}, {"temperature": 0, "repetition_penalty": 1.3},
                                     {"temperature": 1.3, "top_k": 8, "seed": 9, "presence_penalty": 0.5}], ids=str)
def test_text_does_not_depend_on_widths_or_parking(whims, options):
    _, like = tables()
    plain = chain_engine().generate([3, 1], max_tokens=70, **options).tokens
    histories = set()
    for _ in range(12):
        engine = chain_engine(ChainDrafter(like))
        engine.costs = Costs.flat(BLOCK)
        reply = engine.generate([3, 1], max_tokens=70, **options)
        assert reply.tokens == plain and engine.session.whole()
        histories.add(tuple(reply.stats.accepted) + (reply.stats.rows,))
        assert reply.stats.parked_cycles and sum(reply.stats.accepted[1:])
    assert len(histories) > 6


def test_a_cycle_is_told_its_own_time_wherever_it_is_told_one(monkeypatch):
    """On a device where starting a cycle waits until it is computed, as MLX's CPU backend nearly does. Plain cycles are
    started before the one ahead of them is read, so that its reading comes a whole cycle late, and the last one's at once."""
    clock, told = [0.0], []

    class Told(Whim):
        def observe(self, rows, accepted, ms):
            told.append((rows, ms))

    monkeypatch.setattr("splashlite.decode.width.Adaptive", lambda *about: Told(5))
    monkeypatch.setattr("splashlite.decode.loop.perf_counter", lambda: clock[0])
    engine = chain_engine(ChainDrafter(tables()[1]))
    engine.costs = Costs.flat(BLOCK)
    verify = engine.target.verify

    def slow(state, block):
        clock[0] += 0.01 * block.shape[-1]
        return verify(state, block)

    monkeypatch.setattr(engine.target, "verify", slow)
    engine.generate([3, 1], max_tokens=300, temperature=0)
    known = [(rows, ms) for rows, ms in told if ms is not None]
    assert all(ms == pytest.approx(10 * rows) for rows, ms in known)
    assert sum(rows == 1 for rows, _ in known) > 20 and all(ms is not None for rows, ms in told if rows > 1)


def test_the_first_token_of_plain_decoding_waits_for_no_second_cycle(monkeypatch):
    """Later ones do: the next cycle is started before they are read."""
    engine, begun = chain_engine(), []
    verify = engine.target.verify
    monkeypatch.setattr(engine.target, "verify", lambda *about: begun.append(1) or verify(*about))
    ahead = [len(begun) - number for number, _ in enumerate(engine.stream([3, 1], max_tokens=6, temperature=0), start=1)]
    assert ahead == [0, 1, 1, 1, 1, 0]
