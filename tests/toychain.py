"""A target and a drafter that are Markov chains: exact distributions are known, and a cycle costs next to nothing."""

from types import SimpleNamespace

import mlx.core as mx
import numpy as np

from splashlite import kernels
from splashlite.drafter.context import DraftContext
from splashlite.drafter.draft import Draft
from splashlite.engine import Engine
from splashlite.target import Seen
from splashlite.target.state import TargetState

VOCAB = 12
BLOCK = 5


class Ruler:
    """A layer that carries nothing but its position."""

    def __init__(self):
        self.committed = self.offset = 0

    def commit(self, rows):
        assert 0 <= rows <= self.offset - self.committed
        self.committed += rows
        self.offset = self.committed

    def can_return(self, length):
        return length <= self.committed

    def return_to(self, length):
        self.committed = self.offset = length

    def snapshot(self):
        return self.committed

    restore = return_to

    def arrays(self):
        return []

    buffers = arrays


class ChainTarget:
    """The next token's logits are a row of a table, chosen by the token before it."""

    def __init__(self, table):
        self.table = mx.array(table, mx.float32)
        self.config = {"model_type": "chain", "max_position_embeddings": 10**6}
        self.vocab_rows = VOCAB

    def new_state(self):
        return TargetState([Ruler()])

    def prefill(self, state, ids):
        state.layers[0].offset += ids.shape[1]
        state.commit(ids.shape[1])
        return mx.zeros((1, ids.shape[1], 1))

    def verify(self, state, ids):
        state.layers[0].offset += ids.shape[1]
        return Seen(self.table[ids[0]], mx.zeros((1, ids.shape[1], 1)))


class ChainDrafter:
    """The selector's own walk over a table that resembles the target's: q is k-sparse, conditioned and really drawn."""

    block_size = BLOCK

    def __init__(self, table, candidates=6, one_hot=False):
        self.table = mx.array(table, mx.float32)
        self.candidates = mx.array(np.random.default_rng(0).permutation(VOCAB)[:candidates].astype(np.uint32))
        self.one_hot = one_hot
        self.config = SimpleNamespace(target_layer_ids=(0,))

    def new_context(self):
        return DraftContext([None])

    def absorb(self, context):
        features = context.take_pending()
        if features is not None:
            context.layers[0].end += features.shape[1]

    def propose(self, target, anchor, context, n, chance=None):
        self.absorb(context)
        ids = mx.repeat(self.candidates[None], n, axis=0)
        k = ids.shape[1]
        books = (mx.zeros((n, k)), mx.ones((n, VOCAB)), self.table, mx.eye(VOCAB), anchor.astype(mx.uint32))
        if chance is None or self.one_hot:
            return Draft(kernels.selector_walk(ids, *books)[0])
        how = {"noise": chance.noise(ids)} if chance.coupled else {"uniforms": chance.uniforms(n)}
        path, _, scores = kernels.selector_walk(ids, *books, temperature=chance.temperature, **how)
        return Draft(path, ids, mx.softmax(scores / chance.temperature, axis=-1))


def tables(seed=0, likeness=0.7):
    rng = np.random.default_rng(seed)
    target = rng.normal(size=(VOCAB, VOCAB)) * 1.5
    return target, target + rng.normal(size=(VOCAB, VOCAB)) * likeness


def chain_engine(drafter=None, seed=0):
    target, _ = tables(seed)
    return Engine(ChainTarget(target), drafter, None, eos_ids=frozenset())
