"""From a published drafter folder to a drafter that can propose."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn

from splashlite import kernels
from splashlite.drafter.dflash import Backbone, DFlash
from splashlite.drafter.dflash2 import DFlash2
from splashlite.drafter.vocabulary import read_vocabulary
from splashlite.errors import UsageError
from splashlite.pairs.check import read_drafter

KINDS = {"dflash": DFlash, "dflash2": DFlash2}
GROUP_SIZE = 64


def load_drafter(folder: Path, *, dtype: mx.Dtype, draft_bits: int | None = None) -> Backbone:
    """A drafter in `dtype`, evaluated on the calling thread.

    draft_bits 4 or 8 quantizes the matrices (affine, groups of 64); norms, codebooks and base kernels stay in `dtype`.
    float16 is refused: the draft residual stream overflows it. Raises SplashliteError for a folder that is not exactly in
    the published format, UsageError for another draft_bits.
    """
    if draft_bits not in (None, 4, 8):
        raise UsageError(f"draft_bits={draft_bits!r} is not supported: use 4, 8 or None (as published)")
    config, weights = read_drafter(folder)
    drafter = KINDS[config.kind](config)
    drafter.vocabulary = read_vocabulary(folder, vocab_rows=config.vocab_size, least=config.selector_top_k or 1)
    drafter.load_weights([(name, array.astype(dtype)) for name, array in weights.items()], strict=True)
    if draft_bits:
        nn.quantize(drafter, group_size=GROUP_SIZE, bits=draft_bits, class_predicate=_quantizable)
    kernels.use_block_linears(drafter)
    drafter.eval()
    mx.eval(drafter.parameters())
    return drafter


def _quantizable(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and module.weight.shape[1] % GROUP_SIZE == 0
