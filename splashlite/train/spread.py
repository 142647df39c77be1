"""`fc` as it is trained: its change counts in spreads of each input channel.

A few of a target's feature channels are hundreds of times larger than the others, and Adam moves every weight equally far:
at one rate for all, what fc reads would be replaced at each step. Around their mean and in units of their spread they are
alike.
"""

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from splashlite.drafter.dflash import Backbone
from splashlite.target import Target
from splashlite.train.batches import features
from splashlite.train.corpus import Sequence

TEXTS = 64  # that tell the channels' means and spreads


class Spread(nn.Module):
    """A linear map without bias, x [..., in] -> [..., out], whose weight is start + (change P) / spread; P takes the
    direction of the channels' mean away, along which there is nothing to learn."""

    def __init__(self, start: mx.array, rows: mx.array):
        """start [out, in]; rows [N, in] are the features that tell the channels' means and spreads."""
        super().__init__()
        rows = rows.astype(mx.float32)
        self.start, self.change = start.astype(mx.float32), mx.zeros(start.shape)
        self.middle, self.spread = rows.mean(axis=0), mx.sqrt(mx.var(rows, axis=0)) + 1e-3
        self.freeze(keys=["start", "middle", "spread"])

    @property
    def weight(self) -> mx.array:
        mean = self.middle / self.spread
        along = self.change @ mean / mx.maximum((mean * mean).sum(), 1e-12)
        return self.start + (self.change - along[:, None] * mean) / self.spread

    def __call__(self, x: mx.array) -> mx.array:
        return x @ self.weight.astype(x.dtype).T


def widen(drafter: Backbone, target: Target, texts: list[Sequence]) -> None:
    """Make a drafter's fc one that is trained in spreads; answers tell them, as blocks stand in answers."""
    step = -(-len(texts) // TEXTS)
    rows = [features(target, [text], len(text) - 1)[0, text.prompt_length - 1 :] for text in texts[::step]]
    drafter.fc = Spread(drafter.fc.weight, mx.concatenate(rows))
    mx.eval(drafter.parameters())


def published(drafter: Backbone) -> dict[str, mx.array]:
    """All weights under their published names."""
    weights = dict(tree_flatten(drafter.parameters()))
    if isinstance(drafter.fc, Spread):
        weights = {name: array for name, array in weights.items() if not name.startswith("fc.")}
        weights["fc.weight"] = drafter.fc.weight
    return weights
