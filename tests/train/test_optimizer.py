"""Muon moves matrices as PyTorch's does, and leaves tables and vectors to AdamW."""

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest

from splashlite.train import optimizer

torch = pytest.importorskip("torch")


def gradients(shape, steps=4):
    return [np.random.default_rng(step).standard_normal(shape).astype(np.float32) for step in range(steps)]


@pytest.mark.parametrize("shape", [(48, 48), (96, 32), (24, 80)])
def test_matrices_move_as_pytorchs_muon_moves_them(shape):
    """PyTorch orthogonalises in bfloat16, so entries agree to its rounding and not better."""
    begin = np.random.default_rng(9).standard_normal(shape).astype(np.float32)
    theirs = torch.nn.Parameter(torch.tensor(begin))
    reference = torch.optim.Muon([theirs], lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    ours, mine = {"weight": mx.array(begin)}, optimizer.create("muon", 1e-2, 0.1)
    mine.init(ours)
    for gradient in gradients(shape):
        theirs.grad = torch.tensor(gradient)
        reference.step()
        ours = mine.apply_gradients({"weight": mx.array(gradient)}, ours)
    moved, expected = np.array(ours["weight"]) - begin, theirs.detach().numpy() - begin
    assert np.linalg.norm(moved - expected) < 0.03 * np.linalg.norm(expected)
    assert 0.8 < np.linalg.norm(moved) / np.linalg.norm(expected) < 1.25


def test_an_update_is_as_large_as_adamws_usually_is():
    for shape in ((64, 64), (128, 32), (32, 128)):
        ours, mine = {"weight": mx.zeros(shape)}, optimizer.create("muon", 1e-3, 0.0)
        mine.init(ours)
        for gradient in gradients(shape, 1):
            ours = mine.apply_gradients({"weight": mx.array(gradient)}, ours)
        size = float(mx.sqrt((ours["weight"] ** 2).mean())) / 1e-3
        assert 0.1 < size < 0.3, (shape, size)


def test_tables_and_vectors_are_adamws():
    shapes = {"norm": (16,), "base_kernel": (2, 2, 16), "predecessor_codebook": (50, 4)}
    begin = {name: mx.ones(shape) for name, shape in shapes.items()}
    ours, theirs = dict(begin), dict(begin)
    mine, adamw = optimizer.create("muon", 1e-2, 0.1), optim.AdamW(1e-2, betas=[0.9, 0.95], weight_decay=0.1)
    mine.init(ours)
    adamw.init(theirs)
    for step in range(3):
        given = {name: mx.array(gradients(shape)[step]) for name, shape in shapes.items()}
        ours, theirs = mine.apply_gradients(given, ours), adamw.apply_gradients(given, theirs)
    for name in shapes:
        assert mx.array_equal(ours[name], theirs[name]), name
        assert not mx.array_equal(ours[name], begin[name]), name
