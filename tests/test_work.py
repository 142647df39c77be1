"""What a cycle may cost: host synchronisations, projected rows, head rows, and memory that does not grow."""

import gc
import weakref

import mlx.core as mx
import pytest
from tiny import BLOCK, Scripted, drafter_config, make_engine, make_target, random_prompt, write_drafter

from splashlite.drafter import load_drafter
from splashlite.sessions import Session, Store

PROMPT = random_prompt(40)


@pytest.fixture(scope="module", params=["hybrid", "dense"])
def target(request):
    return make_target(request.param)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory):
    return load_drafter(write_drafter(tmp_path_factory.mktemp("d"), drafter_config(window=16)), dtype=mx.float32)


def spied(monkeypatch, owner, name, log):
    whole = getattr(owner, name)

    def spy(*arguments, **options):
        log.append((name, arguments))
        return whole(*arguments, **options)

    monkeypatch.setattr(owner, name, spy)


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.0}, {"temperature": 1.0, "seed": 1},
                                     {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2}], ids=str)
@pytest.mark.parametrize("speculative", [True, False])
def test_one_host_synchronisation_per_cycle(target, drafter, monkeypatch, options, speculative):
    engine = make_engine(target, drafter)
    stream = engine.stream(PROMPT, max_tokens=60, speculative=speculative, **options)
    next(stream)
    log = []
    for name in ("tolist", "item", "__int__", "__float__", "__bool__"):
        spied(monkeypatch, mx.array, name, log)
    spied(monkeypatch, mx, "eval", log)
    for _ in range(10):
        next(stream)
        assert [name for name, _ in log] == ["tolist"], log
        log.clear()


def test_each_committed_token_is_projected_once(target, drafter, monkeypatch):
    truth = PROMPT + make_engine(target).generate(PROMPT, max_tokens=60).tokens
    engine, rows = make_engine(target, Scripted(drafter, truth, lambda call: call % BLOCK)), []
    whole = type(drafter).project
    monkeypatch.setattr(type(drafter), "project", lambda self, features: (rows.append(features.shape[1]), whole(self, features))[1])
    cycles = [len(piece.tokens) for piece in engine.stream(PROMPT, max_tokens=60)]
    assert rows[0] == 15, "of the prompt only what the window can still see"
    assert rows[1:] == cycles, "and then every cycle's tokens once, at the next draft or at the end"


def test_prefill_computes_no_logits_and_verify_one_row_each(target, drafter, monkeypatch):
    log = []
    spied(monkeypatch, type(target), "head", log)
    engine = make_engine(target, drafter)
    stream = engine.stream(PROMPT, max_tokens=20, width=4)
    next(stream)
    assert [arguments[1].shape[1] for _, arguments in log] == [3, 4], "three drafts and four verified rows"


def test_memory_stays_flat_over_many_replies(target, drafter):
    """Seeds, prompts and where each stream is left come back after 60 replies; a kilobyte more of each would be seen."""
    engine = make_engine(target, drafter)
    engine.session = Session(target, drafter, Store(0))
    samples = []
    for i in range(120):
        prompt = random_prompt(30 + i % 6, seed=i % 5)
        stream = engine.stream(prompt, max_tokens=20, temperature=i % 2, seed=i % 3, width=2 + i % 4)
        for _ in range(1 + i % 4):
            next(stream)
        if i % 3:
            stream.close()
        else:
            list(stream)
        del stream
        gc.collect()
        samples.append(mx.get_active_memory())
    first, second = samples[:60], samples[60:]
    assert max(second) <= max(first) + 60 * 1024 and min(second) <= min(first) + 60 * 1024, (first[-5:], second[-5:])


def test_nothing_of_a_finished_reply_is_kept_alive(target, drafter):
    engine = make_engine(target, drafter)
    piece = list(engine.stream(PROMPT, max_tokens=10))[-1]
    stats = weakref.ref(piece.stats)
    del piece
    gc.collect()
    assert stats() is None


def test_a_windowed_drafter_keeps_only_its_window(target, drafter):
    engine = make_engine(target, drafter)
    engine.generate(random_prompt(2000), max_tokens=400)
    kept = sum(array.nbytes for layer in engine.session.draft_context.layers for array in layer.buffers())
    assert kept <= 2 * 2 * 2 * 16 * 768 * 4 and engine.session.draft_context.length == 2399
