"""The hybrid target reproduces transformers' logits and every layer's output."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from splashlite.target import Target, load_target

CASE = Path(__file__).parent.parent / "data" / "parity" / "qwen3_5_target"
LAYERS = tuple(range(8))


def close(ours, theirs):
    np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def expected():
    return mx.load(str(CASE / "expected.safetensors"))


@pytest.fixture(scope="module")
def target():
    model, config = load_target(CASE / "checkpoint", dtype="float32")
    return Target(model, config, taps=LAYERS)


def check_taps(features, expected, rows):
    tapped = mx.split(features, len(LAYERS), axis=-1)
    for layer in LAYERS[:-1]:  # transformers returns its last hidden state behind the final norm
        close(tapped[layer], expected[f"hidden.{layer + 1}"][:, rows])


def test_verify_of_the_whole_text(target, expected):
    seen = target.verify(target.new_state(), expected["input_ids"])
    close(seen.logits, expected["logits"][0])
    check_taps(seen.features, expected, slice(None))
    close(target.stack.backbone.norm(mx.split(seen.features, 8, axis=-1)[7]), expected["hidden.8"])


@pytest.mark.parametrize("prefilled", [1, 3, 24, 39])
def test_prefill_then_verify(target, expected, prefilled):
    state = target.new_state()
    features = target.prefill(state, expected["input_ids"][:, :prefilled])
    check_taps(features, expected, slice(0, prefilled))
    seen = target.verify(state, expected["input_ids"][:, prefilled:])
    close(seen.logits, expected["logits"][0, prefilled:])
    check_taps(seen.features, expected, slice(prefilled, None))
