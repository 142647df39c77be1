"""From a model folder or a GGUF file to a target's weights."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path
from mlx_lm.models import llama
from mlx_lm.utils import load_model

from splashlite import kernels
from splashlite.errors import SplashliteError, UsageError
from splashlite.pairs.gguf import read_gguf
from splashlite.pairs.keys import is_drafter
from splashlite.pairs.weights import read_config, weight_files
from splashlite.target.families import supported

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def on_cpu() -> bool:
    return mx.default_device() == mx.cpu


def as_dtype(dtype: str | mx.Dtype | None) -> mx.Dtype | None:
    """A dtype by name or object; None stays None. Raises UsageError for one that is not a floating type here."""
    if dtype is None or dtype in DTYPES.values():
        return dtype
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is not known: use one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def load_target(path: Path, *, dtype: str | mx.Dtype | None = None) -> tuple[nn.Module, dict]:
    """An mlx-lm model and its config; of the weights nothing is read yet: evaluate them on this thread.

    dtype None means float32 on a CPU, where it is the fast type, and the checkpoint's own type on a GPU (bfloat16 for a
    GGUF file, whose scales are float16). A GGUF file is dequantized on a CPU and stays packed on a GPU; a folder's
    quantized weights always stay quantized. Raises SplashliteError when the model is not one that can be run.
    """
    wanted = as_dtype(dtype)
    if path.suffix == ".gguf":
        model, config = _from_gguf(path, wanted)
    else:
        model, config = _from_folder(path)
        wanted = wanted or (mx.float32 if on_cpu() else None)
        if wanted is not None:
            _cast(model, wanted)
    kernels.use_block_linears(model)
    model.eval()
    return model, config


def activation_dtype(model: nn.Module) -> mx.Dtype:
    """The type that the target's layers compute in."""
    return model.layers[0].input_layernorm.weight.dtype


def _from_gguf(path: Path, dtype: mx.Dtype | None) -> tuple[nn.Module, dict]:
    dtype = dtype or (mx.float32 if on_cpu() else mx.bfloat16)
    config, weights, quantization = read_gguf(path, dequantize=on_cpu(), dtype=dtype)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    if quantization:
        nn.quantize(model, class_predicate=lambda name, module: quantization.get(name, False))
    model.load_weights(list(weights.items()), strict=True)
    return model, config


def _from_folder(path: Path) -> tuple[nn.Module, dict]:
    config = read_config(path)
    if is_drafter(config):
        raise SplashliteError(f"{path} holds a drafter, not a target: pass it with --drafter and name a target with --target (drafter=, target= in Python)")
    supported(config.get("model_type"))
    weight_files(path)
    try:
        return load_model(path, lazy=True, strict=True)
    except (ValueError, FileNotFoundError, KeyError, TypeError) as problem:
        raise SplashliteError(f"the target in {path} cannot be loaded: {problem}") from problem


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    keep = getattr(model, "cast_predicate", lambda name: True)

    def cast(name: str, value):
        floating = isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating)
        return value.astype(dtype) if floating and keep(name) else value

    model.update(tree_map_with_path(cast, model.parameters()))
