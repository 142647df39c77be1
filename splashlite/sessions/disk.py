"""Prefixes on disk: one safetensors file per segment, written once, checked whenever it is read.

A folder per pair, private to the user. Whatever is not exactly what was written (another version, another
model, a changed byte) is dropped with one line of notice.
"""

import hashlib
import json
import logging
import os
import struct
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from splashlite import blas
from splashlite.cache import cache_folder
from splashlite.errors import UsageError
from splashlite.sessions.segment import Source

FORMAT = "splashlite prefix 1"
PART = ".part.safetensors"
HEADER_BYTES = 1 << 24
WORDS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}  # by bytes
log = logging.getLogger("splashlite")


class Spoiled(Exception):
    """A file is not what was written."""


class Disk:
    """At most `limit_bytes` of files, those of all pairs together; the least recently used goes first.

    pair: what the state depends on besides the text, as `fingerprint` gives it. folder: None is the user's
    cache folder. Files are readable by the user alone: they hold what was said.
    """

    def __init__(self, pair: str, limit_bytes: int, folder: Path | None = None):
        if not isinstance(limit_bytes, int) or isinstance(limit_bytes, bool) or limit_bytes <= 0:
            raise UsageError(
                f"limit_bytes is {limit_bytes!r}: the disk tier's size is a positive whole number of bytes"
            )
        self.pair, self.limit_bytes, self.written_bytes = pair, limit_bytes, 0
        self.root = Path(folder) if folder is not None else cache_folder() / "prefixes"
        self.folder = self.root / pair[:32]
        self.writable = True
        for each in (self.root, self.folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            each.chmod(0o700)

    def scan(self) -> list[tuple[np.ndarray, Source]]:
        """The texts [end] uint32 that are there, beginnings first; of each file only its header and its token
        ids are read."""
        found = []
        for file in sorted(self.folder.glob("*.safetensors")):
            if file.name.endswith(PART):
                file.unlink(missing_ok=True)  # a write that was cut short
                continue
            try:
                found.append(self._header(file))
            except FileNotFoundError:
                continue
            except Spoiled as problem:
                self.drop(file, str(problem))
        return sorted(found, key=lambda saved: saved[1].begin)

    def read(self, source: Source) -> tuple[list[mx.array], list | None] | None:
        """A file's rows, and its point where it has one; None, with a notice, when the file is not what was
        written."""
        try:
            _, said = self._header(source.file)
            arrays, metadata = mx.load(str(source.file), return_metadata=True)
            if said != source or metadata["digest"] != digest(arrays, metadata):
                raise Spoiled("its contents have changed")
        except FileNotFoundError:
            return None
        except (Spoiled, RuntimeError) as problem:
            self.drop(source.file, str(problem))
            return None
        rows, point = _numbered(arrays, "rows"), _numbered(arrays, "point")
        pairs = [(source.end, point[i : i + 2]) for i in range(0, len(point), 2)]
        return rows, pairs if source.pointed else None

    def write(self, text: np.ndarray, begin: int, rows: list[mx.array], point: list | None) -> Source | None:
        """Save the rows of text[begin:] and the point at its end; None, with a notice, when they cannot be
        written."""
        copies = [leaf for _, leaf in tree_flatten(point or []) if isinstance(leaf, mx.array)]
        arrays = {f"rows.{i}": array for i, array in enumerate(rows)}
        arrays |= {f"point.{i}": array for i, array in enumerate(copies)} | {
            "text": mx.array(text, mx.uint32)
        }
        mx.eval(arrays)
        size = sum(array.nbytes for array in arrays.values())
        if not self.writable or size > self.limit_bytes:
            return None
        metadata = {
            "format": FORMAT,
            "pair": self.pair,
            "begin": str(begin),
            "pointed": str(point is not None),
        }
        metadata["digest"] = digest(arrays, metadata)
        file = self.folder / f"{metadata['digest'][:32]}.safetensors"
        part = file.with_suffix(f".{os.getpid()}{PART}")
        try:
            part.unlink(missing_ok=True)
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            mx.save_safetensors(str(part), arrays, metadata)
            part.replace(file)
        except (OSError, RuntimeError) as problem:
            part.unlink(missing_ok=True)
            self.writable = False
            log.warning(
                "prefixes are not kept on disk any more: %s cannot be written (%s)", self.folder, problem
            )
            return None
        self.written_bytes += size
        return Source(file, begin, len(text), point is not None)

    def touch(self, files: list[Path]) -> None:
        """Used now; a text's beginning a little later than its end, so that it is dropped after it."""
        for file in reversed(files):
            try:
                os.utime(file)
            except FileNotFoundError:
                pass

    def trim(self) -> list[Path]:
        """Drop the least recently used files until the limit holds; those that went."""
        files = []
        for file in self.root.glob("*/*.safetensors"):
            try:
                about = file.stat()
            except FileNotFoundError:
                continue
            files.append((about.st_mtime_ns, file, about.st_size))
        total, gone = sum(size for _, _, size in files), []
        for _, file, size in sorted(files):
            if total <= self.limit_bytes:
                break
            file.unlink(missing_ok=True)
            total -= size
            gone.append(file)
        return gone

    def drop(self, file: Path, why: str) -> None:
        log.warning("a saved prefix was dropped: %s (%s)", why, file)
        file.unlink(missing_ok=True)

    def _header(self, file: Path) -> tuple[np.ndarray, Source]:
        """A file's text and what it holds. Raises Spoiled when it is not one of this format and pair, in one
        piece."""
        with open(file, "rb") as opened:
            try:
                (length,) = struct.unpack("<Q", opened.read(8))
                tensors = json.loads(opened.read(min(length, HEADER_BYTES)))
                metadata, (first, last) = tensors.pop("__metadata__"), tensors["text"]["data_offsets"]
                opened.seek(8 + length + first)
                text = np.frombuffer(opened.read(last - first), "<u4")
                whole = 8 + length + max(tensor["data_offsets"][1] for tensor in tensors.values())
                begin, pointed = int(metadata["begin"]), metadata["pointed"] == "True"
                format, pair = metadata["format"], metadata["pair"]
            except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError):
                raise Spoiled("it is not a saved prefix") from None
            if format != FORMAT:
                raise Spoiled(f"its format is {format!r}, not {FORMAT!r}")
            if pair != self.pair:
                raise Spoiled("it belongs to another model")
            if os.fstat(opened.fileno()).st_size != whole or not 0 <= begin < len(text):
                raise Spoiled("it is not complete")
            return text, Source(file, begin, len(text), pointed)


def digest(arrays: dict[str, mx.array], metadata: dict[str, str]) -> str:
    """SHA-256 over everything but the digest itself: metadata, names, types, shapes and bytes."""
    total = hashlib.sha256(repr(sorted((k, v) for k, v in metadata.items() if k != "digest")).encode())
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        flat = mx.contiguous(array).reshape(-1).view(mx.uint8)
        mx.eval(flat)
        total.update(memoryview(flat))
    return total.hexdigest()


def fingerprint(target, drafter=None) -> str:
    """What a state depends on besides its text: both models' configs and parameters, and what computes here.

    Reads all weights once, at the memory's own speed: each matrix row goes in as the sum of its words.
    """
    total = hashlib.sha256(
        f"{FORMAT} {mx.__version__} {mx.default_device()} {blas.found()} {target.taps}".encode()
    )
    for model, config in ((target.model, target.config), (drafter, getattr(drafter, "config", None))):
        total.update(repr(config).encode())
        for name, array in sorted(tree_flatten(model.parameters())) if model is not None else ():
            sums = mx.sum(mx.atleast_1d(array).view(WORDS[array.dtype.size]), axis=-1)
            total.update(f"{name} {array.dtype} {array.shape}".encode() + np.array(sums).tobytes())
    return total.hexdigest()


def _numbered(arrays: dict[str, mx.array], kind: str) -> list[mx.array]:
    names = sorted(
        (name for name in arrays if name.startswith(f"{kind}.")), key=lambda name: int(name.split(".")[1])
    )
    return [arrays[name] for name in names]
