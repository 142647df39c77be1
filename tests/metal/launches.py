"""What a decode cycle of the 27B pair launches and moves, counted in MLX's own graph on any machine.

`python -m tests.metal.launches` prints the table of docs/kernels.md. Weights are hollow: arrays of the real shapes over
one element, which are traced and never computed. On a CPU mx.fast operations fall apart into primitives where Metal has
one kernel each, and a trace takes compiled functions apart; stand-ins of one launch take their places, and that of
mlx-lm's recurrence kernel.
"""

import json
import math
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models import qwen3_5

from splashlite import kernels
from splashlite.decode.accept import accept
from splashlite.decode.sampling import Params, Sampler
from splashlite.drafter.dflash2 import DFlash2
from splashlite.drafter.draft import Draft
from splashlite.drafter.load import _quantizable
from splashlite.kernels import backend, reference
from splashlite.pairs import keys
from splashlite.pairs.check import DrafterConfig
from splashlite.target import Target
from splashlite.target.state import AttentionRows, Tape

DRAFTER = Path(__file__).parent.parent / "data" / "checkpoints" / "qwen3.8-27b-dflash2" / "config.json"
TARGET = {
    "model_type": "qwen3_5",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_value_heads": 48,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rms_norm_eps": 1e-6,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    },
}
BLOCK, COMMITTED, CONTEXT = 8, 5, 2048  # rows per cycle, rows that the cycle before committed, tokens before them
PLAIN_DRAFT_LAUNCHES = 384  # mlx-vlm 0.7.10's DFlash 2 draft pass, counted in the same way

FUSED = {"silu", "swiglu", "precise_swiglu", "compute_g"}  # the compiled functions in use, all of them element-wise
VIEWS = {
    "Reshape",
    "Transpose",
    "Broadcast",
    "ExpandDims",
    "Squeeze",
    "Flatten",
    "Unflatten",
    "Slice",
    "Split",
    "AsStrided",
    "View",
    "StopGradient",
}


@dataclass
class Cost:
    """Launches by primitive or kernel; bytes read and written, those of matrix weights apart."""

    launches: Counter
    weight_bytes: int
    other_bytes: int

    @property
    def total(self) -> int:
        return self.launches.total()


def count(function, *inputs) -> Cost:
    """Trace function(*inputs), which returns arrays, and count what Metal would launch for them."""
    nodes = []
    mx.export_function(nodes.append, function, *inputs)
    size, launches, weights, moved = {}, Counter(), 0, 0
    for node in nodes:
        if node["type"] == "constants":
            size.update({name: _nbytes(array.shape, array.dtype) for name, array in node["constants"]})
        if node["type"] == "inputs":
            size.update({name: _nbytes(shape, dtype) for name, shape, dtype in node["inputs"]})
        if node["type"] != "primitive":
            continue
        read = [size[name] for name, _, _ in node["inputs"]]
        written = {name: _nbytes(shape, dtype) for name, shape, dtype in node["outputs"]}
        size.update(written)
        if node["name"] in VIEWS:
            size.update({name: min(each, read[0]) for name, each in written.items()})
            continue
        name = _name(node)
        launches[name] += 1
        if name in ("QuantizedMatmul", "quantized_rows"):
            weights += sum(read[1:])
            read = read[:1]
        moved += _moved(name, node, read, sum(written.values()))
    return Cost(launches, weights, moved)


def _name(node) -> str:
    if node["name"] != "CustomKernel":
        return node["name"]
    known = (*backend.registry, *STAND_INS)
    generated = node["arguments"][0].removeprefix("custom_kernel_").removeprefix("splashlite_")
    return max((name for name in known if generated.startswith(name)), key=len)


def _nbytes(shape, dtype) -> int:
    return math.prod(shape) * dtype.size


def _moved(name: str, node, read: list[int], written: int) -> int:
    if name in ("Gather", "GatherAxis"):  # the rows that are asked for, not the table
        return sum(read[1:]) + 2 * written
    if name == "SliceUpdate":  # in place
        return 2 * read[1]
    if name == "selector_walk":
        (_, (n, k), _), (_, (_, rank), dtype) = node["inputs"][0], node["inputs"][2]
        return sum(read[:3]) + n * (k + 1) * rank * dtype.size + written
    return sum(read) + written


# ---- one launch each, as on Metal ----

STAND_INS = ("rms_norm", "rope", "sdpa", "dequantize", "compiled", "mlx_lm_gated_delta")


def _one_launch(name: str, outputs):
    """A function that traces as a single launch called `name`, with the outputs that `outputs(*arrays)` describes."""

    def run(*arrays, **_):
        arrays = [array for array in arrays if isinstance(array, mx.array)]
        described = outputs(*arrays)
        names = [f"in{i}" for i in range(len(arrays))]
        made = mx.fast.metal_kernel(
            name=name, input_names=names, output_names=[f"out{i}" for i in range(len(described))], source=";"
        )
        results = made(
            inputs=arrays,
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[shape for shape, _ in described],
            output_dtypes=[dtype for _, dtype in described],
        )
        return results[0] if len(results) == 1 else tuple(results)

    return run


def _like_first(x, *_):
    return [(x.shape, x.dtype)]


def _fused(name: str):
    """A compiled element-wise function of that name as the one launch that it is outside a trace."""

    def outputs(*arrays):
        shape = mx.broadcast_shapes(*(array.shape for array in arrays))
        return [(shape, mx.float32 if name == "compute_g" else arrays[0].dtype)]

    return _one_launch("compiled", outputs)


def _dequantized(weight, scales, biases, group_size, bits, *_, **__):
    run = _one_launch("dequantize", lambda w, s, b: [((*w.shape[:-1], w.shape[-1] * 32 // bits), s.dtype)])
    return run(weight, scales, biases)


def _attention(queries, keys, values, **_):
    run = _one_launch("sdpa", lambda q, k, v: [((*q.shape[:3], v.shape[3]), q.dtype)])
    return run(queries, keys, values)


@contextmanager
def as_on_metal(with_kernels: bool):
    """Trace as Metal would run: our kernels or, without them, plain MLX; mx.fast operations as one launch."""
    recurrence = _one_launch(
        "mlx_lm_gated_delta", lambda q, k, v, g, beta, state: [(v.shape, q.dtype), (state.shape, state.dtype)]
    )
    with ExitStack() as stack:
        stack.enter_context(patch.object(mx.fast, "rms_norm", _one_launch("rms_norm", _like_first)))
        stack.enter_context(patch.object(mx.fast, "rope", _one_launch("rope", _like_first)))
        stack.enter_context(patch.object(mx.fast, "scaled_dot_product_attention", _attention))
        stack.enter_context(patch.object(mx, "dequantize", _dequantized))
        stack.enter_context(patch.object(reference, "_recurrence", recurrence))
        for module in [module for name, module in sys.modules.items() if name.startswith(("mlx", "splashlite"))]:
            for name in FUSED & vars(module).keys():
                stack.enter_context(patch.object(module, name, _fused(name)))
        stack.enter_context(patch.object(backend, "_runner", lambda launch, arguments: launch(**arguments)))
        stack.enter_context(kernels.forced("emulator" if with_kernels else "reference"))
        yield


# ---- the 27B pair, hollow ----


def hollow(array: mx.array) -> mx.array:
    """An array of the same shape and dtype that takes no memory."""
    empty = mx.broadcast_to(mx.zeros((1,), array.dtype), array.shape)
    mx.eval(empty)
    return empty


def the_27b_pair() -> tuple[Target, DFlash2]:
    """Target and drafter of the real shapes, both in 4 bits, groups of 64."""
    model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict({"model_type": "qwen3_5", "text_config": TARGET}))
    nn.quantize(model, 64, 4)
    fields = keys.read(json.loads(DRAFTER.read_text()), DRAFTER).fields
    drafter = DFlash2(DrafterConfig(**fields))
    nn.quantize(drafter, 64, 4, class_predicate=_quantizable)
    for module in (model, drafter):
        module.eval()
        module.update(tree_map(lambda each: hollow(_published(each)), module.parameters()))
    return Target(model, TARGET, drafter.config.target_layer_ids), drafter


def _published(array: mx.array) -> mx.array:
    return mx.zeros(array.shape, mx.bfloat16) if array.dtype == mx.float32 else array


def target_state(target: Target):
    """The state behind CONTEXT tokens, with the last block's tape still to be committed."""
    bf16, f32 = (lambda *shape: hollow(mx.zeros(shape, mx.bfloat16))), (lambda *shape: hollow(mx.zeros(shape)))
    state = target.new_state()
    for rows in state.layers:
        rows.committed = rows.offset = CONTEXT
        if isinstance(rows, AttentionRows):
            rows.keys, rows.values = bf16(1, 4, CONTEXT + 256, 256), bf16(1, 4, CONTEXT + 256, 256)
        else:
            rows.state, rows.conv, rows.accepted = f32(1, 48, 128, 128), bf16(1, 3, 10240), COMMITTED
            rows.tape = Tape(
                bf16(1, BLOCK, 16, 128),
                bf16(1, BLOCK, 48, 128),
                f32(1, BLOCK, 48),
                bf16(1, BLOCK, 48),
                bf16(1, 3 + BLOCK, 10240),
            )
    return state


def draft_context(drafter: DFlash2):
    """The drafter's context at the same place: the rows that the last cycle committed wait to be projected."""
    context = drafter.new_context()
    for rows in context.layers:
        rows.end = CONTEXT - COMMITTED
        rows.keys, rows.values = (hollow(mx.zeros((1, 8, CONTEXT + 256, 128), mx.bfloat16)) for _ in range(2))
    context.commit(hollow(mx.zeros((1, COMMITTED, 25600), mx.bfloat16)))
    return context


def decode_cycle(with_kernels: bool) -> dict[str, Cost]:
    """The costs of one greedy cycle's draft pass, and of its verification and acceptance."""
    target, drafter = the_27b_pair()
    sampler = Sampler(Params(temperature=0.0), [], target.vocab_rows)

    def draft(anchor):
        return drafter.propose(target, anchor, draft_context(drafter), BLOCK - 1).tokens

    def verify(block):
        seen = target.verify(target_state(target), block[None])
        return accept(sampler, seen.logits, Draft(block[1:]), CONTEXT), seen.features

    with as_on_metal(with_kernels):
        return {
            "draft": count(draft, mx.array([1], mx.uint32)),
            "verify": count(verify, mx.arange(BLOCK, dtype=mx.uint32)),
        }


def must_move() -> dict[str, tuple[int, int]]:
    """What no implementation can avoid per part: matrix weights once; and, in other_bytes, the recurrent state read and
    written, the keys and values that are seen read, and the logits written and read."""
    target, drafter = the_27b_pair()
    matrices = {
        "draft": _matrix_bytes(drafter) + _matrix_bytes(target.stack.head),
        "verify": _matrix_bytes(target.model),
    }
    recurrent = 2 * sum(
        rows.state.nbytes for rows in target_state(target).layers if not isinstance(rows, AttentionRows)
    )
    target_kv = 16 * 2 * CONTEXT * 4 * 256 * 2
    draft_kv = len(drafter.layers) * 2 * (drafter.config.sliding_window - 1) * 8 * 128 * 2
    logits = 2 * target.vocab_rows * 2
    return {
        "draft": (matrices["draft"], draft_kv + (BLOCK - 1) * logits),
        "verify": (matrices["verify"], recurrent + target_kv + BLOCK * logits),
    }


def _matrix_bytes(module: nn.Module) -> int:
    layers = [each for _, each in module.named_modules() if isinstance(each, nn.QuantizedLinear)]
    return sum(array.nbytes for layer in layers for array in (layer.weight, layer.scales, layer.biases))


def table() -> list[str]:
    """The rows of the table in docs/kernels.md."""
    rows = []
    costs = {name: decode_cycle(flag) for name, flag in (("plain MLX operations", False), ("with the kernels", True))}
    least = must_move()
    for part in ("draft", "verify"):
        for name, cost in costs.items():
            rows.append(
                f"| {part} | {name} | {cost[part].total:,} | {cost[part].weight_bytes / 1e9:.2f} GB "
                f"| {cost[part].other_bytes / 1e6:,.0f} MB |"
            )
        weights, other = least[part]
        rows.append(f"| {part} | any implementation | | {weights / 1e9:.2f} GB | {other / 1e6:,.0f} MB |")
    return rows


if __name__ == "__main__":
    print("\n".join(table()))
    for flag in (False, True):
        for part, cost in decode_cycle(flag).items():
            print(part, "with the kernels:" if flag else "without:", dict(cost.launches.most_common()))
