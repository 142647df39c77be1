"""A run learns, resumes exactly, and leaves a folder that the engine loads and decodes losslessly with."""

import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx.utils import tree_flatten
from test_data import Words, about

from splashlite.drafter import load_drafter
from splashlite.errors import SplashliteError, UsageError
from splashlite.train import data, linear, output, spread, start
from splashlite.train.batches import Mixture, Recipe, batch, features
from splashlite.train.fit import LOG, Plan, Run
from splashlite.train.objective import Objective
from splashlite.train.simulate import Acceptance, simulate

PLAN = Plan(
    recipe=Recipe(texts=8, anchors=8, block=6, columns=None, longest=200, seed=0),
    objective=Objective(gamma=3.0, soft=0.5, selector=1.0),
    steps=12, optimizer="adamw", rate=3e-3, warmup=0.05, least=0.1, decay=0.01, clip=1.0,
    accumulate=1, dtype="float32", check=4, examined=6, held_out=8, begun_from="random layers",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A tiny hybrid target and some of its answers: (target, corpus)."""
    return answers(tmp_path_factory, 5700)


@pytest.fixture(scope="module")
def much(tmp_path_factory):
    return answers(tmp_path_factory, 11500)


def answers(tmp_path_factory, tokens: int):
    target = tiny.make_target("hybrid")
    folder = tmp_path_factory.mktemp("corpus")
    return target, data.make(folder, target, Words(), about(target, limit=24), [], tokens=tokens)


def begin(made, kind="dflash2", seed=0, linearly=False):
    """A new drafter with its config.json: random, or the best linear one, trained in spreads."""
    target, corpus = made
    shape = start.Shape(kind, layers=2, block=6, rank=8, top_k=4, window=None, mask_id=tiny.VOCAB - 1, copied=None)
    stated = start.configure(shape, target, corpus.about.taps)
    rows = features(target, [corpus[0]], len(corpus[0]) - 1)[0]
    drafter = start.create(stated, shape, target, rows, seed)
    if linearly:
        texts = Mixture([corpus], held_out=8, longest=200).some(200)
        linear.begin(drafter, target, texts, seed)
        spread.widen(drafter, target, texts)
    return drafter, stated


def run_in(folder, made, plan, drafter) -> Run:
    target, corpus = made
    return Run(folder, plan, drafter, target, Mixture([corpus], held_out=8, longest=200))


def quiet(done, total, **numbers):
    pass


def weights(drafter) -> dict:
    return {name: np.array(array) for name, array in tree_flatten(drafter.parameters())}


def log(folder) -> list[dict]:
    records = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    return [{key: value for key, value in each.items() if key != "seconds"} for each in records]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dflash2", "dflash"])
def test_a_hybrid_target_gets_a_drafter_that_training_explains(tmp_path, much, kind):
    target, corpus = much
    plan = replace(PLAN, steps=300, check=50)
    drafter, stated = begin(much, kind, linearly=True)
    run = run_in(tmp_path / "run", much, plan, drafter)
    exam = [corpus[index] for corpus, index in run.exam]
    chance, untrained = simulate(begin(much, kind)[0], target, exam), simulate(drafter, target, exam)
    assert untrained.length > chance.length
    run.start()
    run.go(quiet)
    best, step, accepted = run.best()
    for before in (chance, untrained):
        assert accepted.length > before.length + 0.4 and accepted.survival[0] > before.survival[0] + 0.1
    assert accepted.survival == sorted(accepted.survival, reverse=True)
    story = output.Story(
        "owner/tiny", "the best linear drafter", ("built-in",), corpus.answer_tokens, len(corpus), plan, step, accepted
    )
    output.write(tmp_path / "drafter", stated, best, story)

    loaded = load_drafter(tmp_path / "drafter", dtype=mx.float32)
    plain, fast = (
        tiny.make_engine(target, eos_ids=Words.eos_ids),
        tiny.make_engine(target, loaded, eos_ids=Words.eos_ids),
    )
    cycles = committed = 0
    for text in exam:
        prompt = text.tokens[: text.prompt_length].tolist()
        reply = fast.generate(prompt, max_tokens=24, width=6)
        assert reply.tokens == plain.generate(prompt, max_tokens=24).tokens
        cycles, committed = cycles + reply.stats.cycles, committed + reply.stats.acceptance_length * reply.stats.cycles
    assert committed / cycles > untrained.length + 0.3
    card = (tmp_path / "drafter" / "README.md").read_text()
    assert "base_model: owner/tiny" in card and f"{accepted.length:.2f} tokens committed per cycle" in card


@pytest.mark.exact
def test_simulated_decoding_is_decoding(tmp_path, made):
    """The cycles that are simulated over an answer are those that the engine runs to write it."""
    target, corpus = made
    drafter, stated = begin(made)
    run = run_in(tmp_path / "run", made, replace(PLAN, steps=40, check=40), drafter)
    run.start()
    run.go(quiet)
    engine = tiny.make_engine(target, drafter)
    for text in [corpus[index] for corpus, index in run.exam][:3]:
        length = len(text) - text.prompt_length
        reply = engine.generate(text.tokens[: text.prompt_length].tolist(), max_tokens=length, width=6)
        assert reply.tokens == text.tokens[text.prompt_length :].tolist()
        assert reply.stats.cycles == simulate(drafter, target, [text]).cycles


@pytest.mark.parametrize(
    ("linearly", "dtype", "optimizer", "accumulate"),
    [(False, "float32", "adamw", 1), (True, "float32", "muon", 2), (True, "bfloat16", "adamw", 1)],
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, monkeypatch, made, linearly, dtype, optimizer, accumulate):
    monkeypatch.setattr("splashlite.train.workers.cores", lambda: 2)
    plan = replace(PLAN, dtype=dtype, optimizer=optimizer, accumulate=accumulate)
    whole, _ = begin(made, linearly=linearly)
    begun = weights(whole)
    run = run_in(tmp_path / "whole", made, plan, whole)
    run.start()
    run.go(quiet)

    class Stop(Exception):
        pass

    def stop(done, total, **numbers):
        if done == 6:  # between two checkpoints
            raise Stop

    cut, _ = begin(made, linearly=linearly)
    first = run_in(tmp_path / "cut", made, plan, cut)
    first.start()
    with pytest.raises(Stop):
        first.go(stop)
    fresh, _ = begin(made, seed=9)  # everything must come from the checkpoint
    if linearly:
        spread.widen(fresh, made[0], [made[1][0]])
    second = run_in(tmp_path / "cut", made, plan, fresh)
    second.resume()
    assert second.step == 4
    second.go(quiet)
    assert log(tmp_path / "cut") == log(tmp_path / "whole")
    for name, array in weights(whole).items():
        assert array.dtype == np.float32 and np.array_equal(weights(fresh)[name], array), name
        assert np.array_equal(begun[name], array) == (name in ("fc.start", "fc.middle", "fc.spread")), name
    assert all(np.array_equal(a, b) for a, b in zip(run.best()[0].values(), second.best()[0].values(), strict=True))


def test_a_run_that_was_cut_off_at_once_is_resumed_and_keeps_what_it_began_with(tmp_path, made):
    """Such a rate makes nothing better, so the best weights stay those of the only examination before the first step."""

    def stop(done, total, **numbers):
        raise KeyboardInterrupt

    plan = replace(PLAN, steps=4, rate=50.0)
    first = run_in(tmp_path, made, plan, begin(made)[0])
    first.start()
    with pytest.raises(KeyboardInterrupt):
        first.go(stop)
    second = run_in(tmp_path, made, plan, begin(made, seed=9)[0])
    second.resume()
    second.go(quiet)
    weights, step, _ = second.best()
    assert step == 0 and np.array_equal(weights["norm.weight"], begin(made)[0].norm.weight)
    assert [each["step"] for each in log(tmp_path) if "acceptance" in each] == [0, 4]


def test_the_best_drafter_so_far_is_told_of_at_once(tmp_path, made):
    run, told = run_in(tmp_path, made, replace(PLAN, steps=40, check=10), begin(made)[0]), []
    run.start()
    run.go(quiet, lambda: told.append(run.best()[1]))
    lengths = {each["step"]: each["acceptance"]["length"] for each in log(tmp_path) if "acceptance" in each}
    records = [step for step, length in lengths.items() if all(length > lengths[s] for s in lengths if s < step)]
    assert told == records and len(told) > 1


@pytest.mark.exact
@pytest.mark.parametrize("kind", ["dflash2", "dflash"])
def test_batches_side_by_side_are_batches_one_after_the_other(tmp_path, monkeypatch, made, kind):
    """Five batches a step, computed by one worker and by three: the same losses and the same weights."""
    runs, plan = {}, replace(PLAN, steps=4, check=4, accumulate=5)
    for cores in (1, 3):
        monkeypatch.setattr("splashlite.train.workers.cores", lambda cores=cores: cores)
        drafter, _ = begin(made, kind)
        run = run_in(tmp_path / f"{cores}", made, plan, drafter)
        assert run.workers.count == cores
        run.start()
        run.go(quiet)
        runs[cores] = log(tmp_path / f"{cores}"), weights(drafter)
    assert runs[1][0] == runs[3][0]
    for name, array in runs[1][1].items():
        assert np.array_equal(array, runs[3][1][name]), name


def test_what_goes_wrong_in_one_of_the_batches_is_said(tmp_path, monkeypatch, made):
    monkeypatch.setattr("splashlite.train.workers.cores", lambda: 2)
    run = run_in(tmp_path / "run", made, replace(PLAN, accumulate=2), begin(made)[0])

    def damaged(mixture, target, recipe, number):
        if number == 1:
            raise SplashliteError("shard 3 is damaged")
        return batch(mixture, target, recipe, number)

    monkeypatch.setattr("splashlite.train.fit.batch", damaged)
    run.start()
    with pytest.raises(SplashliteError, match="shard 3 is damaged"):
        run.go(quiet)


def test_a_longer_block_is_trained_from_a_drafter_of_a_shorter_one(made):
    drafter, stated = begin(made)
    for length in (3, 9):
        assert start.lengthened(stated, drafter, length)["dflash_config"]["block_size"] == drafter.block_size == length
    twice = start.lengthened({"block_size": 4, "dflash_config": {"block_size": 4}}, drafter, 8)
    assert twice["block_size"] == twice["dflash_config"]["block_size"] == 8
    start.lengthened(stated, drafter, None)
    assert drafter.block_size == 8


def test_the_card_tells_a_block_size_that_is_stated_outside(made):
    """Published DFlash drafters state it beside dflash_config, not in it."""
    config = tiny.drafter_config("dflash")
    config["block_size"] = 4
    del config["dflash_config"]["block_size"]
    accepted = Acceptance(2.0, 2.0, 0.5, [0.5, 0.3, 0.2], 10)
    story = output.Story("owner/tiny", "the drafter old", ("built-in",), 100, 4, PLAN, 12, accepted)
    assert "block size 4" in output.card(config, 1000, story)


def test_the_card_counts_one_as_one(made):
    accepted = Acceptance(2.0, 2.0, 0.5, [0.5, 0.3, 0.2], 10)
    story = output.Story("owner/tiny", "the drafter old", ("built-in",), 1, 1, PLAN, 12, accepted, given=1)
    card = output.card(tiny.drafter_config(), 1000, story)
    assert "1 token of answers, 1 answer given" in card and "trained on 1 answer." in card


def test_another_run_is_not_resumed(tmp_path, made):
    run = run_in(tmp_path, made, PLAN, begin(made)[0])
    run.start()
    for changes, says in [
        ({"rate": 1e-3}, "rate 0.003, not 0.001:"),
        ({"steps": 1200}, "steps 12, not 1,200:"),
        ({"held_out": 4}, "held out 8, not 4:"),
        ({"recipe": replace(PLAN.recipe, texts=2)}, "texts 8, not 2:"),
        ({"recipe": replace(PLAN.recipe, columns=512)}, "columns left out, not 512:"),
        ({"objective": replace(PLAN.objective, gamma=4.0)}, "gamma 3.0, not 4.0:"),
        ({"objective": replace(PLAN.objective, gamma=None)}, r"gamma 3.0, not none \(--dpace\):"),
    ]:
        with pytest.raises(UsageError, match=f"holds a run with {says} ask for the same to resume it"):
            run_in(tmp_path, made, replace(PLAN, **changes), begin(made)[0]).resume()


def test_a_run_on_other_data_is_not_resumed(tmp_path, made):
    target, corpus = made
    run_in(tmp_path, made, PLAN, begin(made)[0]).start()
    mixture = Mixture([corpus, corpus], held_out=8, longest=200)
    with pytest.raises(UsageError, match="data of 1 folder, not of 2 folders:"):
        Run(tmp_path, PLAN, begin(made)[0], target, mixture).resume()


def test_a_run_without_a_checkpoint_is_not_resumed(tmp_path, made):
    run_in(tmp_path, made, PLAN, begin(made)[0]).start()
    with pytest.raises(UsageError, match="no checkpoint yet"):
        run_in(tmp_path, made, PLAN, begin(made)[0]).resume()


def test_accumulated_batches_count_equally(tmp_path, made):
    """A step's gradient over two batches is the mean of theirs, as far as lengths tell: |a + b|^2 + |a - b|^2 is
    2 |a|^2 + 2 |b|^2, and losses are means."""
    target, corpus = made
    drafter = begin(made)[0]
    runs = {count: run_in(tmp_path / f"{count}", made, replace(PLAN, accumulate=count), drafter) for count in (1, 2)}
    found, parts = zip(*(runs[1]._gradients(batch(runs[1].mixture, target, PLAN.recipe, number)) for number in (0, 1)))
    flat = [mx.concatenate([array.flatten() for _, array in tree_flatten(part)]) for part in parts]
    assert not mx.allclose(*flat, rtol=0.1)
    runs[2].start()
    taken = runs[2]._step()
    assert np.isclose(taken["norm"], mx.linalg.norm((flat[0] + flat[1]) / 2).item(), rtol=1e-4)
    assert np.isclose(taken["base"], (found[0]["base"] + found[1]["base"]).item() / 2, rtol=1e-5)


def test_a_new_drafter_is_a_no_op_on_top_of_its_layers(made):
    """Identity convolutions and a silent selector: a new DFlash 2 drafter proposes what its layers alone would."""
    target, corpus = made
    second, _ = begin(made)
    first, _ = begin(made, "dflash")
    shared = {
        name: array
        for name, array in tree_flatten(second.parameters())
        if "conv" not in name and "selector" not in name
    }
    first.load_weights(list(shared.items()))
    texts = [corpus[i] for i in range(3)]
    a, b = simulate(first, target, texts), simulate(second, target, texts)
    assert (a.length, a.survival) == (b.length, b.survival) and b.length == b.first_choice


@pytest.mark.parametrize("name", sorted(tiny.FAMILIES))
@pytest.mark.parametrize("kind", ["dflash2", "dflash"])
def test_every_target_can_be_given_a_drafter(tmp_path, name, kind):
    target = tiny.make_target(name)
    shape = start.Shape(kind, layers=1, block=4, rank=8, top_k=4, window=None, mask_id=tiny.VOCAB - 1, copied=None)
    stated = start.configure(shape, target, tiny.TAPS)
    drafter = start.create(stated, shape, target, mx.random.normal((20, 3 * target.hidden_size)), 0)
    accepted = Acceptance(1.0, 1.0, 0.5, [0.5, 0.3, 0.2], 10)
    story = output.Story("owner/tiny", "random layers", ("built-in",), 100, 4, PLAN, 0, accepted)
    output.write(tmp_path, stated, dict(tree_flatten(drafter.parameters())), story)
    loaded = load_drafter(tmp_path, dtype=mx.float32)
    engine = tiny.make_engine(target, loaded)
    assert len(engine.generate(tiny.random_prompt(9), max_tokens=6, width=3).tokens) == 6


def test_a_drafter_of_another_type_is_written_in_the_one_that_is_stated(tmp_path, made):
    """float32 and torch_dtype, as others publish them: what was trained from them is bfloat16, and says so."""
    config = tiny.drafter_config()
    config["torch_dtype"] = config.pop("dtype")
    drafter = load_drafter(tiny.write_drafter(tmp_path / "old", config), dtype=mx.float32)
    story = output.Story("owner/tiny/", "the drafter old", ("built-in",), 100, 4, PLAN, 0, Acceptance(1.0, 1.0, 0.5, [0.5], 1))
    output.write(tmp_path / "new", config, dict(tree_flatten(drafter.parameters())), story)
    assert load_drafter(tmp_path / "new", dtype=mx.float32).config == drafter.config
    assert "# A DFlash 2 drafter for tiny\n" in (tmp_path / "new" / "README.md").read_text()


@pytest.mark.parametrize("name", ["dense", "hybrid"])
def test_a_new_drafter_has_keys_for_each_head_and_a_copy_those_of_its_target(name):
    target = tiny.make_target(name)
    shape = start.Shape("dflash2", 2, 6, 8, 4, None, tiny.VOCAB - 1, copied=None)
    stated = start.configure(shape, target, tiny.TAPS)
    assert stated["num_key_value_heads"] == stated["num_attention_heads"] == 4
    assert start.configure(replace(shape, copied=(1, 3)), target, tiny.TAPS)["num_key_value_heads"] == 2


def test_layers_are_copied_from_a_target_of_the_same_shape_and_refused_otherwise():
    dense = tiny.make_target("dense")
    shape = start.Shape("dflash2", 2, 6, 8, 4, None, tiny.VOCAB - 1, copied=(1, 3))
    stated = start.configure(shape, dense, tiny.TAPS)
    drafter = start.create(stated, shape, dense, mx.random.normal((20, 3 * 64)), 0)
    assert mx.array_equal(drafter.layers[1].mlp.down_proj.weight, dense.layers[3].mlp.down_proj.weight)
    assert mx.array_equal(drafter.layers[0].self_attn.k_proj.weight, dense.layers[1].self_attn.k_proj.weight)
    for copied in ((1,), (1, 4)):
        with pytest.raises(UsageError, match="for each of the drafter's 2"):
            start.create(stated, replace(shape, copied=copied), dense, mx.random.normal((20, 3 * 64)), 0)
    hybrid = tiny.make_target("hybrid")
    with pytest.raises(UsageError, match="layer 1 of the target has no self_attn.q_proj"):
        start.create(start.configure(shape, hybrid, tiny.TAPS), shape, hybrid, mx.random.normal((20, 3 * 64)), 0)
