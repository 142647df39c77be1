"""Text, stop position and usage do not depend on how the tokens were cut into blocks."""

import mlx.core as mx
import pytest
from pairs.toys import byte_level
from toychain import ChainTarget, Ruler

from splashlite.drafter.context import DraftContext
from splashlite.drafter.draft import Draft
from splashlite.engine import Engine
from splashlite.target import Seen
from splashlite.target.state import TargetState

TOKENIZER = byte_level(merges=[(b"E", b"N"), (b"o", b"n")])
END = TOKENIZER.encode("<|end|>")[0]
PROMPT = [65, 66]
TEXT = "one ENX two – naïve 👩‍👩‍👧 🇩🇪 END\nthree"
BLOCK = 6


class Script(ChainTarget):
    """Writes one text, then its end token."""

    def __init__(self, text):
        self.words = TOKENIZER.encode(text) + [END] * 50
        self.config = {"model_type": "script", "max_position_embeddings": 4096}
        self.vocab_rows = END + 1

    def new_state(self):
        return TargetState([Ruler()])

    def verify(self, state, ids):
        first = state.layers[0].committed + 1 - len(PROMPT)
        state.layers[0].offset += ids.shape[1]
        words = mx.array(self.words[first : first + ids.shape[1]])
        return Seen((mx.arange(self.vocab_rows) == words[:, None]) * 10.0, mx.zeros((1, ids.shape[1], 1)))


class Prophet:
    """Proposes the text itself, right for a number of tokens that changes with every call."""

    block_size = BLOCK

    def __init__(self, target, pattern):
        self.target, self.pattern, self.calls = target, pattern, 0

    def new_context(self):
        return DraftContext([None])

    def absorb(self, context):
        features = context.take_pending()
        context.layers[0].end += 0 if features is None else features.shape[1]

    def propose(self, target, anchor, context, n, chance=None):
        self.absorb(context)
        first = context.length + 1 - len(PROMPT)
        right = self.pattern[self.calls % len(self.pattern)]
        self.calls += 1
        words = [w if i < right else 1 for i, w in enumerate(self.target.words[first : first + n])]
        return Draft(mx.array(words, mx.uint32))


PATTERNS = [(0,), (1,), (2,), (5,), (0, 5, 2), (3, 1, 4), (5, 5, 0)]


def replies(text, **options):
    """The plain reply, and every drafted one with what its stream said."""
    target = Script(text)
    eos = frozenset({END})
    plain = Engine(target, None, TOKENIZER, eos_ids=eos).generate(PROMPT, **options)
    for pattern in PATTERNS:
        for width in (2, 3, BLOCK):
            engine = Engine(target, Prophet(target, pattern), TOKENIZER, eos_ids=eos)
            pieces = list(engine.stream(PROMPT, width=width, **options))
            yield plain, engine, pieces


def joined(pieces):
    return "".join(piece.text for piece in pieces), sum((piece.tokens for piece in pieces), []), pieces[-1].finish_reason


@pytest.mark.parametrize("stop", [None, "END\n", ["END\n", "END"], "ENX", "two", "–", "👧", "e", ["zzz", "three"], "👩‍👩", "three!"], ids=repr)
def test_stop_strings_end_every_reply_at_the_same_place(stop):
    stops = [stop] if isinstance(stop, str) else stop or []
    cut = min((TEXT.find(s) for s in stops if s in TEXT), default=len(TEXT))
    for plain, engine, pieces in replies(TEXT, max_tokens=500, stop=stop):
        assert joined(pieces) == (plain.text, plain.tokens, "stop")
        assert plain.text == TEXT[:cut]
        assert pieces[-1].stats.completion_tokens == plain.stats.completion_tokens == len(plain.tokens)
        assert all("\N{REPLACEMENT CHARACTER}" not in piece.text for piece in pieces)
        assert engine.session.whole() and engine.session.tokens[: len(PROMPT + plain.tokens)] == PROMPT + plain.tokens


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 5, 7, 19, 20, 21, 22, 23, 24, 40])
def test_a_budget_cuts_every_reply_at_the_same_place(max_tokens):
    for plain, engine, pieces in replies(TEXT, max_tokens=max_tokens, stop="never"):
        assert joined(pieces) == (plain.text, plain.tokens, plain.finish_reason)
        assert plain.text == TOKENIZER.decode(plain.tokens) and len(plain.tokens) == max_tokens


@pytest.mark.parametrize("length", range(12))
def test_the_end_token_is_met_at_every_place_in_a_block(length):
    for plain, engine, pieces in replies("abcdefghijkl"[:length], max_tokens=500):
        assert joined(pieces) == (plain.text, plain.tokens, "stop") and plain.text == "abcdefghijkl"[:length]
        assert engine.session.tokens == PROMPT + plain.tokens + [END] and engine.session.whole()
