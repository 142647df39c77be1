"""Whole decodes on the Metal sources: every kernel of every cycle in the emulator, and the text of the references."""

import mlx.core as mx
import mlx.nn as nn
import pytest
import tiny
from mlx_lm.models import qwen3_5

import splashlite
from metal import emulator
from splashlite import kernels
from splashlite.cache import cache_folder
from splashlite.drafter import load_drafter
from splashlite.kernels import backend
from splashlite.target import Target

pytestmark = pytest.mark.usefixtures("only_emulated")

# The tiny hybrid with key heads wide enough for the recurrence kernel.
WIDE = tiny.HYBRID | {"linear_key_head_dim": 32, "linear_value_head_dim": 16}
PROMPT = tiny.random_prompt(11)
DEMO = "smollm2-135m"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    tiny.FAMILIES["wide_hybrid"] = (qwen3_5, WIDE)
    try:
        target = tiny.make_target("wide_hybrid")
    finally:
        del tiny.FAMILIES["wide_hybrid"]
    folder = tiny.write_drafter(tmp_path_factory.mktemp("drafter"), tiny.drafter_config())
    return target, load_drafter(folder, dtype=mx.float32)


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels that were launched, in one thread order for speed."""
    names = set()
    run = emulator.runner(orders=(0,))
    kernels.install_runner(lambda launch, arguments: names.add(_name_of(launch)) or run(launch, arguments))
    yield names
    kernels.install_runner(emulator.runner(emulator.ALL_ORDERS))


def _name_of(launch) -> str:
    return next(name for name, kernel in backend.registry.items() if kernel.launch is launch)


def reply(pair, right, **request):
    target, drafter = pair
    if right is not None:
        truth = PROMPT + tiny.make_engine(target).generate(PROMPT, max_tokens=16).tokens
        drafter = tiny.Scripted(drafter, truth, right)
    return tiny.make_engine(target, drafter).generate(PROMPT, max_tokens=12, width=8, **request)


@pytest.mark.parametrize("right", [None, 0, 3, 7])
def test_greedy_decoding_on_the_metal_sources_writes_the_references_text(pair, launched, right):
    with kernels.forced("reference"):
        expected = reply(pair, right, temperature=0.0)
    with kernels.forced("emulator"):
        emulated = reply(pair, right, temperature=0.0)
    assert emulated.tokens == expected.tokens and emulated.stats.accepted == expected.stats.accepted
    assert launched == {"dynamic_conv", "dynamic_conv_add_norm", "gated_delta", "selector_walk", "top_k"}
    assert set(emulated.stats.kernels.values()) == {"emulator"}


@pytest.mark.slow
def test_a_quantized_target_verifies_its_blocks_on_the_metal_sources(pair, launched):
    target, drafter = pair
    tiny.FAMILIES["wide_hybrid"] = (qwen3_5, WIDE)
    model = tiny.make_model("wide_hybrid")
    del tiny.FAMILIES["wide_hybrid"]
    nn.quantize(model, 32, 4)
    assert kernels.use_block_linears(model) > 20
    quantized = Target(model, WIDE, target.taps)
    with kernels.forced("reference"):
        expected = reply((quantized, drafter), 3, temperature=0.0)
    with kernels.forced("emulator"):
        emulated = reply((quantized, drafter), 3, temperature=0.0)
    assert emulated.tokens == expected.tokens and emulated.stats.accepted == expected.stats.accepted
    assert "quantized_rows" in launched


@pytest.mark.parametrize("seed", [None, 7])
def test_sampled_decoding_on_the_metal_sources_writes_the_references_text(pair, launched, seed, monkeypatch):
    monkeypatch.setattr("splashlite.decode.sampling._fresh_seed", lambda: 5)  # both runs draw the same uniforms
    texts = []
    for chosen in ("reference", "emulator"):
        with kernels.forced(chosen):
            texts.append(reply(pair, None, temperature=0.8, top_k=20, seed=seed).tokens)
    assert texts[0] == texts[1]
    assert "selector_walk" in launched


@pytest.mark.slow
def test_the_demo_pair_writes_the_same_few_tokens_on_the_metal_sources(launched):
    if not any((cache_folder() / "files").glob("*/SmolLM2*")):
        pytest.skip(f"{DEMO} has not been downloaded: splashlite chat {DEMO}")
    engine = splashlite.load(DEMO)
    prompt = [{"role": "user", "content": "Count from one to ten."}]
    texts = []
    for chosen in ("reference", "emulator"):
        with kernels.forced(chosen):
            texts.append(engine.generate(prompt, max_tokens=4, temperature=0.0, width=engine.drafter.block_size).tokens)
    assert texts[0] == texts[1]
    assert launched == {"dynamic_conv", "dynamic_conv_add_norm", "selector_walk", "top_k"}
