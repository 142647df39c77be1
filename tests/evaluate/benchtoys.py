"""Engines that cost next to nothing, with a tokenizer, for the benchmark's tests."""

import tiny
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers
from toychain import ChainDrafter, ChainTarget, tables
from transformers import PreTrainedTokenizerFast

from splashlite.decode.cost import Costs
from splashlite.engine import Engine
from splashlite.pairs.tokenizer import Tokenizer

SAMPLING = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def chain(**options) -> Engine:
    """A Markov chain with a drafter that resembles it; prompts are token ids below 12."""
    table, likeness = tables()
    return Engine(
        ChainTarget(table), ChainDrafter(likeness), None, costs=Costs.flat(ChainDrafter.block_size), **options
    )


def byte_tokenizer() -> Tokenizer:
    """One token for each byte below 120, and nothing for the others."""
    characters = ["Ġ", *sorted(pre_tokenizers.ByteLevel.alphabet())[:119]]  # Ġ is the space
    fast = Fast(models.BPE({character: i for i, character in enumerate(characters)}, []))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=fast))


def words(folder, context: int = 4096) -> Engine:
    """A random pair that can be asked in words; `folder` is where its drafter is written."""
    import mlx.core as mx

    from splashlite.drafter import load_drafter

    drafter = load_drafter(tiny.write_drafter(folder, tiny.drafter_config()), dtype=mx.float32)
    target = tiny.make_target("dense")
    costs = Costs.flat(drafter.block_size)
    return Engine(target, drafter, byte_tokenizer(), sampling=SAMPLING, context=context, costs=costs)
