"""What a pair takes in memory, told from the files' headers and configs: nothing is loaded for it.

The arithmetic is the memory plan's. What a checkpoint holds beside its text model (vision, audio, further predictors) is
not loaded and not counted.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from splashlite import memory
from splashlite.errors import SplashliteError
from splashlite.pairs.gguf import gguf_config
from splashlite.pairs.gguf_header import read_header
from splashlite.pairs.keys import read as read_drafter_keys
from splashlite.pairs.weights import read_config, weight_files
from splashlite.sessions import session

CONTEXT = memory.LEAST_CONTEXT  # tokens of the context that a pair is weighed with
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
PACKED_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
UNUSED = {"vision_tower", "visual", "vision_model", "audio_tower", "embed_vision", "embed_audio", "multi_modal_projector", "mtp"}


@dataclass(frozen=True)
class Weight:
    """Bytes of a pair: of its weights as they are loaded here, and of all that it takes with a context of CONTEXT tokens
    (None where the config does not tell); `exact` is False where the weights were estimated from names."""

    weights_bytes: int
    total_bytes: int | None
    exact: bool


def weigh(target: Path, drafter: Path | None) -> Weight | None:
    """A pair whose files are here; None when they cannot be read, which loading them will explain."""
    try:
        weights = target_bytes(target) + (drafter_bytes(drafter) if drafter is not None else 0)
        return Weight(weights, _total(weights, target, drafter), exact=True)
    except (SplashliteError, OSError, ValueError, KeyError, TypeError):
        return None


def named(name: str, drafter: bool) -> Weight | None:
    """A pair that is not here, from the target's name; None when it holds no size."""
    weights = named_bytes(name)
    if weights is None:
        return None
    more = named_drafter(name) * _wide() if drafter else 0
    return Weight(weights + more, None, exact=False)


def named_bytes(name: str, on_disk: bool = False) -> int | None:
    """An estimate from a repository's name: "Qwen3.8-27B-4bit" is 27e9 weights of 4 bits, in groups of 64 with a scale and
    a bias of 16 bits each, which become 32 bits wide on a CPU, as other weights do."""
    billions = _billions(name)
    if billions is None:
        return None
    bits = re.search(r"(\d+)-?bit", name, re.IGNORECASE)
    wide = 16 if on_disk else 8 * _wide()
    if bits:
        width = int(bits[1]) + 2 * wide / 64
    elif "gguf" in name.lower() and wide == 16:
        width = 5
    else:
        width = 4.25 if "gpt-oss" in name.lower() else wide
    return int(billions * 1e9 * width / 8)


def named_drafter(name: str) -> int:
    """About how many weights a drafter for the target of that name has: those published hold a seventh of what the target
    uses per token, and at most two billion."""
    active = re.search(r"-A(\d+(?:\.\d+)?)B(?![A-Za-z])", name, re.IGNORECASE)
    return int(min((float(active[1]) if active else _billions(name)) / 7, 2) * 1e9)


def target_bytes(path: Path) -> int:
    """Bytes of a target's weights as they are loaded on this machine."""
    wide = _wide()
    if path.suffix != ".gguf":
        return sum(count * (4 if wide == 4 and kind in FLOAT_BYTES else size) for kind, count, size in _tensors(path))
    total = 0
    for tensor in read_header(path).tensors.values():
        count = math.prod(tensor.shape)
        packed = PACKED_BITS.get(tensor.type) if wide != 4 else None
        total += count * packed // 8 + count // 32 * 2 * wide if packed else count * wide
    return total


def drafter_bytes(folder: Path) -> int:
    """Bytes of a drafter's weights as they are loaded on this machine."""
    return sum(count for _, count, _ in _tensors(folder)) * _wide()


def stored_as(path: Path) -> str | None:
    """The quantization that most weights of a GGUF file are stored in, None for a file that is not quantized."""
    if path.suffix != ".gguf":
        return None
    sizes = {}
    for tensor in read_header(path).tensors.values():
        sizes[tensor.type] = sizes.get(tensor.type, 0) + math.prod(tensor.shape)
    most = max(sizes, key=sizes.get)
    return most if most in PACKED_BITS else None


def _billions(name: str) -> float | None:
    found = re.search(r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)([BM])(?![A-Za-z])", name, re.IGNORECASE)
    return float(found[1]) / (1000 if found[2] in "Mm" else 1) if found else None


def _wide() -> int:
    """Bytes of a number that is not quantized: a CPU computes in float32, a GPU in the checkpoint's 16 bits."""
    return 4 if mx.default_device() == mx.cpu else 2


def _tensors(folder: Path):
    """(type, numbers, bytes) of every tensor of a folder that is loaded."""
    for file in weight_files(folder):
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > file.stat().st_size:
                raise ValueError(f"{file} is damaged")
            header = json.loads(opened.read(length))
        for name, entry in header.items():
            if name != "__metadata__" and UNUSED.isdisjoint(name.split(".")):
                begin, end = entry["data_offsets"]
                yield entry["dtype"], math.prod(entry["shape"]), end - begin


def _total(weights: int, target: Path, drafter: Path | None) -> int | None:
    whole = gguf_config(target) if target.suffix == ".gguf" else read_config(target)
    config, size = whole.get("text_config") or whole, _wide()
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    vocab, count = config.get("vocab_size"), config.get("num_hidden_layers")
    if not all((hidden, heads, vocab, count)):
        return None
    row = 2 * (config.get("num_key_value_heads") or heads) * (config.get("head_dim") or hidden // heads) * size
    lasting, windows = _rows(_kinds(config, count), config.get("sliding_window"), row)
    block, taps = 1, 0
    if drafter is not None:
        fields = read_drafter_keys(read_config(drafter), drafter / "config.json").fields
        block, taps = fields["block_size"], len(fields["target_layer_ids"])
        row = 2 * fields["num_kv_heads"] * fields["head_dim"] * size
        more, held = _rows(fields["layer_types"], fields["sliding_window"], row)
        lasting, windows = lasting + more, windows + held
    working = memory.working_bytes(config, size, block, hidden=hidden, taps=taps, vocab=vocab) + 512 * lasting
    scores = heads * size * session.most_scores(CONTEXT) if size == 4 else 0
    return weights + windows + working + CONTEXT * lasting + scores


def _kinds(config: dict, count: int) -> list[str]:
    """Each layer's kind of attention."""
    if config.get("layer_types"):
        return config["layer_types"]
    every = config.get("full_attention_interval") or 1
    return ["full_attention" if (layer + 1) % every == 0 else "linear_attention" for layer in range(count)]


def _rows(kinds, window: int | None, row: int) -> tuple[int, int]:
    """(bytes that one more token adds for good, bytes of all full windows)."""
    full = sum(kind == "full_attention" for kind in kinds)
    sliding = sum(kind == "sliding_attention" for kind in kinds)
    return full * row, sliding * row * ((window or 0) + session.PREFILL_CHUNK + memory.SPARE_ROWS)
