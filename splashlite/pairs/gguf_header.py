"""The header of a GGUF file: its metadata and its list of tensors, every length checked against the file.

The format is llama.cpp's (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), versions 2 and 3.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path

from splashlite.errors import SplashliteError

_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    30: "BF16",
}
# elements and bytes per block of the types that MLX reads exactly
_BLOCKS = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q8_0": (32, 34)}
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_ITEMS = 1 << 24


@dataclass(frozen=True)
class Tensor:
    """One entry of the file's tensor list; `shape` is row-major, as MLX writes it."""

    type: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Header:
    """What stands before the tensor data: key-value metadata and the list of tensors."""

    metadata: dict
    tensors: dict[str, Tensor]


def read_header(path) -> Header:
    """Metadata and tensor list of a GGUF file (versions 2 and 3), every length and offset checked against its size.

    Raises SplashliteError when the file is not GGUF, is cut short, or uses a tensor type that MLX cannot read exactly.
    """
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            return _parse(_Reader(file, size), size)
        except _Damaged as damage:
            raise SplashliteError(f"{path} cannot be read as GGUF: {damage}; fetch the file again") from None
        except UnicodeDecodeError:
            raise SplashliteError(
                f"{path} cannot be read as GGUF: a string is not UTF-8; fetch the file again"
            ) from None


class _Damaged(Exception):
    pass


class _Reader:
    def __init__(self, file, size: int):
        self._file, self._size = file, size

    def take(self, count: int) -> bytes:
        if count > self._size - self._file.tell():
            raise _Damaged("it ends inside its header")
        return self._file.read(count)

    def number(self, code: str):
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        return self.take(self.number("Q")).decode()

    def value(self, kind: int):
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(self._code(kind))
        kind, count = self.number("I"), self.number("Q")
        if count > _MOST_ITEMS:
            raise _Damaged(f"an array claims {count} items")
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        code = self._code(kind)
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(code))))

    def position(self) -> int:
        return self._file.tell()

    @staticmethod
    def _code(kind: int) -> str:
        if kind not in _SCALARS:
            raise _Damaged(f"value type {kind} is unknown")
        return _SCALARS[kind]


def _parse(reader: _Reader, size: int) -> Header:
    if reader.take(4) != b"GGUF":
        raise _Damaged("it does not begin with GGUF")
    version = reader.number("I")
    if version not in (2, 3):
        raise _Damaged(f"version {version} is not supported (2 and 3 are)")
    tensor_count, pair_count = reader.number("Q"), reader.number("Q")
    if max(tensor_count, pair_count) > _MOST_ITEMS:
        raise _Damaged(f"it claims {tensor_count} tensors and {pair_count} keys")
    metadata = {}
    for _ in range(pair_count):
        key = reader.string()
        if key in metadata:
            raise _Damaged(f"{key} stands there twice")
        metadata[key] = reader.value(reader.number("I"))
    tensors = {}
    for _ in range(tensor_count):
        name = reader.string()
        if name in tensors:
            raise _Damaged(f"tensor {name} stands there twice")
        tensors[name] = _tensor(name, reader)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment % 8:
        raise _Damaged(f"general.alignment is {alignment!r}")
    start = -(-reader.position() // alignment) * alignment
    for name, tensor in tensors.items():
        elements, block_bytes = _BLOCKS[tensor.type]
        end = start + tensor.offset + math.prod(tensor.shape) // elements * block_bytes
        if tensor.offset % alignment or end > size:
            raise _Damaged(f"tensor {name} reaches to byte {end} of a file of {size}")
    return Header(metadata, tensors)


def _tensor(name: str, reader: _Reader) -> Tensor:
    rank = reader.number("I")
    if not 1 <= rank <= 4:
        raise _Damaged(f"tensor {name} has {rank} dimensions")
    shape = tuple(reader.number("Q") for _ in range(rank))[::-1]
    kind, offset = reader.number("I"), reader.number("Q")
    label = _TYPES.get(kind, f"type {kind}")
    if label not in _BLOCKS:
        raise _Damaged(
            f"tensor {name} is {label}; {', '.join(_BLOCKS)} are supported, so use such a file or a safetensors folder"
        )
    if 0 in shape or shape[-1] % _BLOCKS[label][0]:
        raise _Damaged(f"tensor {name} has shape {list(shape)}, which {label} cannot hold")
    return Tensor(label, shape, offset)
