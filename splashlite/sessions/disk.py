"""Prefixes on disk: one safetensors file per segment, written once, checked whenever it is read.

A folder per pair, private to the user. Whatever is not exactly what was written (another version, another
model, a changed byte) is dropped with one line of notice, or skipped with one when it cannot be deleted.
"""

import hashlib
import json
import logging
import os
import secrets
import stat
import struct
import time
from pathlib import Path
from typing import BinaryIO

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from splashlite import blas
from splashlite.cache import cache_folder
from splashlite.errors import UsageError
from splashlite.sessions.segment import Source

FORMAT = "splashlite prefix 1"
PART = ".part.safetensors"
PART_SECONDS = 3600  # without a further byte, and whoever was writing a part is dead
HEADER_BYTES = 1 << 24
WORDS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}  # by bytes
# what foreign bytes do to a parser
GARBLED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, struct.error)
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
        self.writable, self._too_small = True, False
        try:
            self._make_folders()
        except OSError as problem:
            self._give_up(problem)

    def scan(self) -> list[tuple[np.ndarray, Source]]:
        """The texts [end] uint32 that are there, beginnings first; of each file only its header and its token
        ids are read."""
        found = []
        for file in sorted(self.folder.glob("*.safetensors")):
            if file.name.endswith(PART):
                if _abandoned(file):
                    _delete(file)
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
            if said != source or metadata.get("digest") != digest(arrays, metadata):
                raise Spoiled("its contents have changed")
        except FileNotFoundError:
            return None
        except (Spoiled, *GARBLED) as problem:
            self.drop(source.file, str(problem))
            return None
        rows, point = _numbered(arrays, "rows"), _numbered(arrays, "point")
        pairs = [(source.end, point[i : i + 2]) for i in range(0, len(point), 2)]
        return rows, pairs if source.pointed else None

    def write(self, text: np.ndarray, begin: int, rows: list[mx.array], point: list | None) -> Source | None:
        """Save the rows of text[begin:] and the point at its end; None, with a notice the first time, when they
        cannot be written or are more than the limit."""
        copies = [leaf for _, leaf in tree_flatten(point or []) if isinstance(leaf, mx.array)]
        arrays = {f"rows.{i}": array for i, array in enumerate(rows)}
        arrays |= {f"point.{i}": array for i, array in enumerate(copies)} | {
            "text": mx.array(text, mx.uint32)
        }
        size = sum(array.nbytes for array in arrays.values())
        if not self.writable or not self.fits(size):
            return None
        mx.eval(arrays)
        metadata = {
            "format": FORMAT,
            "pair": self.pair,
            "begin": str(begin),
            "pointed": str(point is not None),
        }
        metadata["digest"] = digest(arrays, metadata)
        file = self.folder / f"{metadata['digest'][:32]}.safetensors"
        part = file.with_suffix(f".{secrets.token_hex(4)}{PART}")
        try:
            self._make_folders()  # somebody may have cleared the cache
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            mx.save_safetensors(str(part), arrays, metadata)
            part.replace(file)
        except (OSError, RuntimeError) as problem:
            _delete(part)
            self._give_up(problem)
            return None
        self.written_bytes += size
        return Source(file, begin, len(text), point is not None)

    def fits(self, size: int) -> bool:
        """Whether a prefix of `size` bytes can be kept at all; said once when one cannot."""
        if size > self.limit_bytes and not self._too_small:
            self._too_small = True
            log.warning(
                "a prefix of %.1f MB is not kept on disk, where all of them may take %.1f MB: allow more with --cache-disk",
                size / 1e6,
                self.limit_bytes / 1e6,
            )
        return size <= self.limit_bytes

    def missing(self, files: list[Path]) -> list[Path]:
        """Those that are not there any more."""
        return [file for file in files if not os.path.lexists(file)]

    def touch(self, files: list[Path]) -> None:
        """Used now; a text's beginning a little later than its end, so that it is dropped after it."""
        now = time.time_ns()  # the file system's own clock ticks too slowly to tell them apart
        for later, file in enumerate(reversed(files)):
            try:
                os.utime(file, ns=(now, now + later))
            except OSError:
                continue  # gone, or somebody else's

    def trim(self) -> list[Path]:
        """Drop the least recently used files until the limit holds; those that went."""
        files = []
        for file in self.root.glob("*/*.safetensors"):
            try:
                about = file.lstat()
            except OSError:
                continue
            if stat.S_ISREG(about.st_mode) and (not file.name.endswith(PART) or _abandoned(file)):
                files.append((about.st_mtime_ns, file, about.st_size))
        total, gone = sum(size for _, _, size in files), []
        for _, file, size in sorted(files):
            if total <= self.limit_bytes:
                break
            if _delete(file):
                total -= size
                gone.append(file)
        return gone

    def drop(self, file: Path, why: str) -> None:
        log.warning("a saved prefix was %s: %s (%s)", "dropped" if _delete(file) else "skipped", why, file)

    def _make_folders(self) -> None:
        for each in (self.root, self.folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            each.chmod(0o700)

    def _give_up(self, problem: Exception) -> None:
        self.writable = False
        log.warning("prefixes are not kept on disk from here on: %s cannot be written (%s)", self.folder, problem)

    def _header(self, file: Path) -> tuple[np.ndarray, Source]:
        """A file's text and what it holds. Raises FileNotFoundError, and Spoiled when it is not one of this
        format and pair, in one piece."""
        try:
            if not stat.S_ISREG(file.lstat().st_mode):
                raise Spoiled("it is not a file")
            with open(file, "rb") as opened:
                return self._parsed(file, opened)
        except FileNotFoundError:
            raise
        except OSError as problem:
            raise Spoiled(f"it cannot be read: {problem.strerror}") from None
        except GARBLED:
            raise Spoiled("it is not a saved prefix") from None

    def _parsed(self, file: Path, opened: BinaryIO) -> tuple[np.ndarray, Source]:
        (length,) = struct.unpack("<Q", opened.read(8))
        tensors = json.loads(opened.read(min(length, HEADER_BYTES)))
        metadata = tensors.pop("__metadata__")
        if metadata["format"] != FORMAT:
            raise Spoiled(f"its format is {metadata['format']!r}, not {FORMAT!r}")
        if metadata["pair"] != self.pair:
            raise Spoiled("it belongs to another model")
        first, last = tensors["text"]["data_offsets"]
        whole = 8 + length + max(tensor["data_offsets"][1] for tensor in tensors.values())
        if os.fstat(opened.fileno()).st_size != whole or not 0 <= first <= last:
            raise Spoiled("it is not complete")
        opened.seek(8 + length + first)
        text, begin = np.frombuffer(opened.read(last - first), "<u4"), int(metadata["begin"])
        if not 0 <= begin < len(text):
            raise Spoiled("it is not complete")
        return text, Source(file, begin, len(text), metadata["pointed"] == "True")


def _delete(file: Path) -> bool:
    """Whether it is gone now; what is a folder or somebody else's stays."""
    try:
        file.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _abandoned(part: Path) -> bool:
    """Whether nobody is writing it any more. Its age says so, in whatever process or container that was."""
    try:
        return time.time() - part.lstat().st_mtime > PART_SECONDS
    except OSError:
        return False


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
