"""The memory plan: its numbers are those of the models, what it promises holds, and what does not fit is
refused with numbers."""

import gc
from itertools import pairwise

import mlx.core as mx
import pytest
from mlx_lm.models import llama, qwen3_5
from tiny import DENSE, FAMILIES, HYBRID, drafter_config, make_target, random_prompt, write_drafter

from splashlite import memory
from splashlite.drafter import load_drafter
from splashlite.errors import SplashliteError, UsageError
from splashlite.sessions import Session, Store
from splashlite.sessions import session as sessions
from splashlite.target import Target
from splashlite.target.state import RecurrentRows

GB = 10**9
BIG = HYBRID | {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_value_heads": 48,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
}


@pytest.fixture(scope="module")
def big():
    """A 27B hybrid of which nothing is computed."""
    model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(BIG))
    model.set_dtype(mx.bfloat16)
    return Target(model, BIG, (5, 19, 33, 47, 61))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = write_drafter(tmp_path_factory.mktemp("drafter"), drafter_config(window=24))
    return make_target("hybrid"), load_drafter(folder, dtype=mx.float32)


@pytest.fixture
def machine(monkeypatch):
    """A machine with 64 GB, of which Metal recommends 48."""
    about = {"memory_size": 64 * GB, "max_recommended_working_set_size": 48 * GB}
    monkeypatch.setattr(mx, "device_info", lambda *_: about)
    return about


def test_a_27b_hybrids_needs_are_known_without_computing_anything(big):
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    needs = memory.needs_of(big)
    assert mx.get_peak_memory() - before < 1_000_000
    assert needs.token_bytes == 16 * 2 * 4 * 256 * 2
    convolution = 3 * (2 * 16 * 128 + 48 * 128) * 2
    assert needs.recurrent_bytes == 48 * (48 * 128 * 128 * 4 + convolution)
    assert 50 * GB < needs.weights_bytes < 58 * GB and needs.drafter_bytes == needs.window_bytes == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_every_familys_needs_are_those_of_its_state(name, pair):
    target, drafter = make_target(name), pair[1]
    needs, session = memory.needs_of(target, drafter), Session(target, drafter, Store(0))
    session.begin(random_prompt(301))
    rows = sum(array.nbytes for layer in session.live.lasting for array in layer.cut(0, 300))
    assert needs.token_bytes == rows / 300
    recurrent = [layer for layer in session.target_state.layers if isinstance(layer, RecurrentRows)]
    assert needs.recurrent_bytes == sum(array.nbytes for layer in recurrent for array in layer.arrays())
    held = sum(array.nbytes for layer in session.live.passing for array in layer.buffers())
    assert held <= needs.window_bytes + needs.recurrent_bytes


def test_what_does_not_fit_is_refused_with_numbers(big, machine):
    with pytest.raises(SplashliteError) as refused:
        memory.plan(big, trained=262144)
    for part in (
        "needs 5",
        "48.0 GB may be used",
        "target 5",
        "recurrent state 15",
        "a smaller model",
        "--max-memory",
    ):
        assert part in str(refused.value)


def test_the_context_that_is_offered_fits_and_the_next_one_does_not(big, machine):
    machine |= {"memory_size": 128 * GB, "max_recommended_working_set_size": 62 * GB}
    with pytest.raises(SplashliteError, match="take a context of [0-9]+ or less") as refused:
        memory.plan(big, trained=262144, context=200_000)
    most = int(str(refused.value).split("take a context of ")[1].split()[0])
    assert memory.plan(big, trained=262144, context=most).total_bytes <= 62 * GB
    with pytest.raises(SplashliteError):
        memory.plan(big, trained=262144, context=most + 512)


@pytest.mark.parametrize("limit", [None, 58 * GB, 62 * GB, 110 * GB])
@pytest.mark.parametrize("context", [None, 2048])
@pytest.mark.parametrize("cache", [None, GB])
def test_a_plan_never_exceeds_its_limit(big, machine, limit, context, cache):
    machine |= {"memory_size": 128 * GB, "max_recommended_working_set_size": 100 * GB}
    plan = memory.plan(big, trained=262144, context=context, max_memory=limit, cache_bytes=cache)
    assert plan.total_bytes <= plan.limit_bytes == (limit or 100 * GB)
    assert plan.context == context or plan.context >= 1024
    assert plan.cache_bytes == cache or cache is None
    assert sum(size for _, size in plan.parts()) == plan.total_bytes


@pytest.mark.parametrize("name", ["dense", "windowed", "hybrid"])
@pytest.mark.parametrize("spare", [0, 100_000])
def test_another_text_fits_beside_the_first(name, spare, pair, machine, monkeypatch):
    """Both texts' state together is within the limit, at whatever length the first one stands."""
    monkeypatch.setattr(sessions, "PREFILL_CHUNK", 256)
    target, drafter = make_target(name), pair[1]
    needs = memory.needs_of(target, drafter)
    limit = needs.fixed_bytes + needs.context_bytes(4000) + spare
    plan = memory.plan(target, drafter, trained=4096, context=4000, max_memory=limit, cache_bytes=0)
    state = limit - needs.weights_bytes - needs.drafter_bytes - needs.working_bytes - needs.scores_bytes(4000)
    for first in (300, 700):
        second = plan.beside(first)
        assert second > 500
        held = 0
        for length in (first, second):
            session = Session(target, drafter, Store(0))
            session.begin(random_prompt(length + 1))
            held += sum(array.nbytes for layer in session.live.lasting + session.live.passing for array in layer.buffers())
        assert held <= state + memory.SPARE_ROWS * needs.token_bytes
    assert plan.beside(1300) == plan.beside(300) - 1000 and plan.beside(10**6) == 0


def test_a_small_model_gets_all_that_it_was_trained_for(pair):
    assert memory.plan(*pair, trained=4096).context == 4096
    assert memory.plan(*pair, trained=600).context == 600
    assert memory.plan(*pair, trained=4096, context=1000).context == 1000


@pytest.mark.parametrize(
    "about",
    [{}, {"memory_size": 8 * GB}, {"memory_size": 8 * GB, "max_recommended_working_set_size": 5 * GB}],
)
def test_keys_that_the_device_does_not_tell_may_be_absent(monkeypatch, about):
    monkeypatch.setattr(mx, "device_info", lambda *_: about)
    machine = memory.machine_bytes()
    assert machine == 8 * GB or not about
    assert memory.limit_bytes() == about.get("max_recommended_working_set_size", int(machine * 0.75))


@pytest.mark.parametrize("wrong", [0, -5, 1.5, True, 10**18])
def test_a_wrong_limit_is_refused(wrong):
    with pytest.raises(UsageError, match="up to this machine's"):
        memory.limit_bytes(wrong)


@pytest.mark.parametrize(
    "text, size",
    [("24GB", 24 * GB), ("800 mb", 8 * 10**8), ("1.5GiB", 3 << 29), ("4096", 4096), ("2g", 2 * GB)],
)
def test_amounts_of_memory(text, size):
    assert memory.as_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-3GB", "12 apples", "1e9", "nan"])
def test_what_is_no_amount_of_memory_is_refused(text):
    with pytest.raises(UsageError, match="write it like 24GB"):
        memory.as_bytes(text)


def peak_bytes(session, prompt) -> int:
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    session.begin(prompt)
    return mx.get_peak_memory() - before


@pytest.mark.parametrize(
    "name, length",
    [("dense", 2048), ("windowed", 2048), pytest.param("hybrid", 4096, marks=pytest.mark.slow)],
)
def test_memory_is_linear_in_the_prompt(name, length, tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "PREFILL_CHUNK", 256)
    drafter = load_drafter(write_drafter(tmp_path, drafter_config(window=24)), dtype=mx.float32)
    target = make_target(name)
    peaks = [
        peak_bytes(Session(target, drafter, Store(0)), random_prompt(each)) for each in (length, 2 * length)
    ]
    assert peaks[1] < 2.5 * peaks[0]
    assert peaks[1] < 4 * length * length * 4, "no array of the prompt's length squared"


def test_steps_shrink_as_the_text_grows_so_that_scores_do_not(pair, monkeypatch):
    for name, value in (("PREFILL_CHUNK", 32), ("LEAST_CHUNK", 8), ("SCORES", 32 * 64)):
        monkeypatch.setattr(sessions, name, value)
    for length in (50, 70, 200, 400):
        session, stops = Session(*pair, Store(0)), []
        session.begin(random_prompt(length + 1), lambda done, total, stops=stops: stops.append(done))
        steps = list(pairwise(stops))
        assert max((end - begin) * end for begin, end in steps) <= sessions.most_scores(length) <= 32 * length
        sizes = [end - begin for begin, end in steps[:-1]]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] == 32 and (length < 400 or sizes[-1] == 8)
    assert sessions.most_scores(200) == 32 * 64 and sessions.most_scores(400) == 8 * 400


def test_a_long_context_is_planned_with_the_smaller_steps(big, machine):
    needs = memory.needs_of(big)
    assert needs.scores_bytes(8192) == needs.scores_bytes(65536) == 24 * 2 * 2048 * 8192
    assert needs.scores_bytes(131072) == 24 * 2 * 256 * 131072


@pytest.mark.parametrize(
    "shape", [{}, {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8, "head_dim": 32}]
)
@pytest.mark.parametrize("length", [1000, 2500])
def test_the_plan_holds(shape, length, monkeypatch):
    """A prompt that fills the context takes what the plan says, and not much less."""
    monkeypatch.setattr(sessions, "PREFILL_CHUNK", 512)
    config = DENSE | shape
    model = llama.Model(llama.ModelArgs.from_dict(config))
    mx.eval(model.parameters())
    target = Target(model, config, (0, 2, 3))
    plan = memory.plan(target, trained=length, cache_bytes=0)
    peak = peak_bytes(Session(target, None, Store(0)), random_prompt(length)) + plan.needs.weights_bytes
    assert 0.5 * plan.total_bytes < peak <= plan.total_bytes
