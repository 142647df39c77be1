"""A new drafter begins as the best linear one.

Much of the target's next final row follows linearly from what a block's rows can see, the anchor's embedding and the features
of the token before it. Ridge regression finds that map in a minute, where gradient descent needs hours, so it is put into
the new drafter's weights: `fc` keeps of the features what foretells, at one scale; heads look at the last token of the text
or at the anchor; the first layer's values and outputs carry the map; all other outputs begin at zero.
"""

import mlx.core as mx
import numpy as np

from splashlite.drafter.dflash import Backbone
from splashlite.errors import UsageError
from splashlite.target import Target
from splashlite.train.batches import blocks, final_rows
from splashlite.train.corpus import Sequence
from splashlite.train.forward import attended, sublayers
from splashlite.train.objective import Blocks, embedded

PLACES = 96  # anchors of each text
LEAST = 64  # places in all of them together
TEXTS, NUMBERS = 512, 400_000_000  # at most: texts, and numbers of a fit's inputs, which are all in memory
RIDGES = (0.01, 0.1, 1.0, 10.0)  # of the mean square of an input: the more, the fewer places there are to learn from
SHARP = 2.0  # by which queries are longer than a fresh norm makes them, so that a head looks at one place
NEAR, SLOW, FAST = (0.012, 0.8), 0.012, 0.15  # radians that a rotary pair turns per token


def enough(target: Target) -> int:
    """How many texts a fit for this target learns from."""
    return max(1, min(TEXTS, NUMBERS // (PLACES * target.hidden_size * (len(target.taps) + 1))))


def begin(drafter: Backbone, target: Target, texts: list[Sequence], seed: int) -> float:
    """Set the drafter's weights; returns which share of the final rows' variance the linear map explains in texts that it
    was not fitted to.

    Raises UsageError for a drafter with a single head for keys, which cannot look at two places, and for too few answers.
    """
    if drafter.config.num_kv_heads < 2:
        raise UsageError("a drafter with one head for keys cannot begin as the linear one: use --random")
    rng = np.random.default_rng([seed, 3])
    shuffled = [texts[index] for index in rng.permutation(len(texts))]
    read = [_read(target, text, rng) for text in shuffled if len(text) > text.prompt_length + 1]
    seen, places = [blocks for blocks, _ in read], sum(len(rows) for _, rows in read)
    if places < LEAST:
        raise UsageError(
            f"the answers have only {places} places to learn from and a linear beginning needs {LEAST}: "
            "make more data, or use --random"
        )
    rows = np.concatenate([rows for _, rows in read])
    _project(drafter, target, seen, rows)
    length = np.sqrt(np.square(rows).mean(axis=0))
    for layer in drafter.layers:
        layer.self_attn.q_norm.weight = mx.full(layer.self_attn.q_norm.weight.shape, SHARP)
        layer.self_attn.o_proj.weight = mx.zeros_like(layer.self_attn.o_proj.weight)
        layer.mlp.down_proj.weight = mx.zeros_like(layer.mlp.down_proj.weight)
    _look(drafter, target, 0, seen)
    explained, certain = _carry(drafter, target, seen, rows / length)
    drafter.norm.weight = mx.array(certain * length)
    for place in range(1, len(drafter.layers)):
        _look(drafter, target, place, seen)
    mx.eval(drafter.parameters())
    return explained


def _read(target: Target, text: Sequence, rng: np.random.Generator) -> tuple[Blocks, np.ndarray]:
    """Some places of one text, as blocks of an anchor and one mask, and the target's final row behind each anchor [A, H];
    every anchor has the answer before it."""
    places = np.arange(text.prompt_length, len(text) - 1)
    anchors = np.sort(rng.permutation(places)[:PLACES])
    rows = final_rows(target, text)[mx.array(anchors + 1 - text.prompt_length)]
    return blocks(target, [text], anchors[None], 2), np.array(rows.astype(mx.float32))


def _project(drafter: Backbone, target: Target, seen: list[Blocks], rows: np.ndarray) -> None:
    """Of the features before an anchor, fc keeps what foretells the next final row, and one channel that is about constant."""
    before = np.concatenate([np.array(each.features[0, each.anchors[0] - 1].astype(mx.float32)) for each in seen])
    anchor = np.concatenate([_unit(np.array(embedded(drafter, target, each)[0, :, 0])) for each in seen])
    before, anchor, rows = (each[: _cut(each)] for each in (before, anchor, rows))
    middle, spread = before.mean(axis=0), before.std(axis=0) + 1e-3
    inputs = np.concatenate([(before - middle) / spread, anchor, np.ones((len(rows), 1), np.float32)], axis=1)
    map_ = _fitted(inputs, rows / np.sqrt(np.square(rows).mean(axis=0)))[0][: before.shape[1]]
    foretold = (before - middle) / spread @ map_
    powers, directions = np.linalg.eigh(np.cov(foretold.T))
    powers, directions = np.maximum(powers[:0:-1], 1e-6 * powers[-1]), directions[:, :0:-1]  # all but the weakest
    channels = (map_ / spread[:, None]) @ directions * powers**-0.35
    channels -= np.outer(middle, middle @ channels) / (middle @ middle)
    channels /= (before @ channels).std()
    constant = 2 * middle / (middle @ middle)
    drafter.fc.weight = mx.array(np.concatenate([channels, constant[:, None]], axis=1).T.astype(np.float32))


def _look(drafter: Backbone, target: Target, place: int, seen: list[Blocks]) -> None:
    """Even heads of a layer look at the text's last token, odd ones at the anchor; a little of their random weights stays,
    except in the first layer.

    Linear forms tell text, anchor and mask apart; keys turn each into a direction in rotary pairs whose speed fits: quick
    ones for what is near, slow ones for what is meant wherever it stands.
    """
    attention = drafter.layers[place].self_attn
    few = seen[: 1 + 1500 * len(seen) // sum(each.anchors.size for each in seen)]
    kinds = [[], [], []]
    for each in few:
        inputs = _inputs(drafter, target, each, place)
        length = int(each.anchors.max())
        kinds[0].append(np.array(drafter.project(each.features)[0, :length]))
        kinds[1].append(np.array(inputs[:, 0]))
        kinds[2].append(np.array(inputs[:, 1]))
    text, anchor, mask = _forms([np.concatenate(each) for each in kinds])
    D, group = attention.head_dim, attention.heads // attention.kv_heads
    speed = drafter.config.rope_theta ** (-np.arange(D // 2) / (D // 2))
    near, slow, fast = (
        _pairs((speed > NEAR[0]) & (speed < NEAR[1]), D),
        _pairs(speed <= SLOW, D),
        _pairs(speed > FAST, D),
    )
    keep = 0.0 if place == 0 else 0.1
    keys, queries = np.array(attention.k_proj.weight), np.array(attention.q_proj.weight)
    for head in range(attention.kv_heads):
        found, missed = (near, slow) if head % 2 == 0 else (slow, fast)
        form, rest = (text, anchor + mask) if head % 2 == 0 else (anchor, text + mask)
        at = slice(head * D, (head + 1) * D)
        keys[at] = keep * keys[at] + np.outer(found, form) + np.outer(missed, rest)
        at = slice(head * group * D, (head + 1) * group * D)
        queries[at] = keep * queries[at] + np.tile(np.outer(found, anchor + mask), (group, 1))
    attention.k_proj.weight, attention.q_proj.weight = mx.array(keys), mx.array(queries)


def _carry(drafter: Backbone, target: Target, seen: list[Blocks], aims: np.ndarray) -> tuple[float, float]:
    """Fit the first layer's values and outputs to what its heads look at.

    Returns the share of variance they explain, and how long the guesses should be that stand for rows of length 1: the
    less certain, the shorter; both as found in the texts that are kept from a fit.
    """
    attention = drafter.layers[0].self_attn
    D, group = attention.head_dim, attention.heads // attention.kv_heads
    looked = [np.concatenate([_mixture(drafter, target, each, head) for each in seen]) for head in (0, group)]
    own = np.array(embedded(drafter, target, seen[0])[0, 0, 1])  # the mask's, which the row begins with
    map_, guess = _fitted(np.concatenate(looked, axis=1), aims - own)
    guess, later, mean = guess + own, aims[-len(guess) :], aims[: -len(guess)].mean(axis=0)
    values = np.zeros(attention.v_proj.weight.shape, np.float32)
    outputs = np.zeros(attention.o_proj.weight.shape, np.float32)
    for parity, part in enumerate(np.split(map_, 2)):
        heads = range(parity, attention.kv_heads, 2)
        given = looked[parity] @ part
        _, directions = np.linalg.eigh(given.T @ given)
        directions = directions[:, ::-1][:, : D * len(heads)]
        carried = part @ directions
        balance = np.sqrt(np.sqrt(np.square(carried).sum(axis=0)) + 1e-9)
        for number, head in enumerate(heads):
            these = slice(number * D, (number + 1) * D)
            width = carried[:, these].shape[1]
            values[head * D : head * D + width] = (carried[:, these] / balance[these]).T
            for query in range(head * group, (head + 1) * group):
                outputs[:, query * D : query * D + width] = directions[:, these] * balance[these] / group
    attention.v_proj.weight, attention.o_proj.weight = mx.array(values), mx.array(outputs)
    explained = 1 - np.square(guess - later).sum() / np.square(later - mean).sum()
    return max(0.0, float(explained)), float(max(0.1, (_unit(guess) * later).mean()))


def _inputs(drafter: Backbone, target: Target, blocks: Blocks, place: int) -> mx.array:
    """What layer `place` sees of the block rows, after its norm: [A, 2, H]."""
    x = sublayers(drafter, embedded(drafter, target, blocks), blocks.features, blocks.anchors, layers=place)
    return drafter.layers[place].input_layernorm(x)


def _mixture(drafter: Backbone, target: Target, blocks: Blocks, head: int) -> np.ndarray:
    """What a head's weights make of everything the mask's row sees, before any value: [A, H]."""
    block, text = _inputs(drafter, target, blocks, 0), drafter.project(blocks.features)
    attention = drafter.layers[0].self_attn
    shared, query = divmod(head, attention.heads // attention.kv_heads)
    parts = attended(attention, block, text, blocks.anchors)
    outside, inside, sums = (part[0, shared, query, :, 1] for part in parts)
    return np.array((outside @ text[0] + (inside[:, None] @ block)[:, 0]) / sums)


def _forms(kinds: list[np.ndarray]) -> np.ndarray:
    """One linear form for each kind of vectors, about 1 on its own and 0 on the others: [kinds, H]."""
    inputs = np.concatenate([each / np.sqrt(len(each)) for each in kinds])
    wanted = np.zeros((len(inputs), len(kinds)))
    begin = 0
    for number, each in enumerate(kinds):
        wanted[begin : begin + len(each), number] = 1 / np.sqrt(len(each))
        begin += len(each)
    return _ridge(inputs, wanted, (1e-4,))[0].T


def _fitted(inputs: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A linear map of all rows, as steady as foretells the last ones best from the others, and what these foretold."""
    cut = _cut(inputs)
    guesses = [inputs[cut:] @ each for each in _ridge(inputs[:cut], wanted[:cut], RIDGES)]
    best = min(range(len(RIDGES)), key=lambda index: np.square(guesses[index] - wanted[cut:]).sum())
    return _ridge(inputs, wanted, RIDGES[best : best + 1])[0], guesses[best]


def _cut(rows: np.ndarray) -> int:
    """How many rows a fit may learn from, which is then judged by the others; they are in the order of their texts."""
    return len(rows) * 7 // 8


def _ridge(inputs: np.ndarray, wanted: np.ndarray, shares: tuple[float, ...]) -> list[np.ndarray]:
    """Ridge regression for each penalty, a share of the inputs' mean square; solved among rows where these are fewer."""
    tall = inputs.shape[0] >= inputs.shape[1]
    square = inputs.T @ inputs if tall else inputs @ inputs.T
    power, given = np.square(inputs).sum() / inputs.shape[1], inputs.T @ wanted if tall else wanted
    solved = [
        np.linalg.solve(square + share * power * np.eye(len(square)), given).astype(np.float32) for share in shares
    ]
    return solved if tall else [inputs.T @ each for each in solved]


def _pairs(chosen: np.ndarray, head_dim: int) -> np.ndarray:
    """A key of full length in the chosen rotary pairs, or in the last pair where none is."""
    key = np.zeros(head_dim)
    key[np.flatnonzero(chosen) if chosen.any() else head_dim // 2 - 1] = 1
    return key * np.sqrt(head_dim / key.sum())


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + 1e-6)
