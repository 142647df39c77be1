"""The pairs on this machine: which are known, what of them is here, whether they fit, and taking them away."""

import os
import re
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants

from splashlite.errors import SplashliteError
from splashlite.pairs.fetch import Hub, Local, Source, Wheel, final_path
from splashlite.pairs.resolve import Pair, known_names, resolve
from splashlite.pairs.weights import weight_files

SPARE_BYTES = 2_000_000_000  # for everything else that runs, and for the KV cache of a long text


@dataclass(frozen=True)
class Half:
    """A target or a drafter as it is on this machine. `path` is where it is whole, None where it is missing or partial;
    `disk_bytes` is what it takes on disk, `shipped` says that it came with splashlite and stays."""

    source: Source
    path: Path | None
    disk_bytes: int
    shipped: bool

    @property
    def state(self) -> str:
        if self.path:
            return "here"
        return "partly here" if self.disk_bytes else "not here"


def pairs() -> list[Pair]:
    """Every pair known by name."""
    return [resolve(name) for name in known_names()]


def halves(pair: Pair) -> list[Half]:
    """The target's half and, where there is one, the drafter's."""
    return [half(source) for source in (pair.target, pair.drafter) if source is not None]


def half(source: Source) -> Half:
    """What of a source is on this machine; asks no network."""
    found = [_place(place) for place in source.places]
    return next((each for each in found if each.path), max(found, key=lambda each: each.disk_bytes))


def memory_bytes(pair: Pair) -> int | None:
    """Bytes of weights that the pair loads: of its files where they are here, else from the size in the target's name.

    None when neither says anything.
    """
    sizes = [half(source).disk_bytes for source in (pair.target, pair.drafter) if source is not None]
    if all(half(source).path for source in (pair.target, pair.drafter) if source is not None):
        return sum(sizes)
    return named_bytes(str(pair.target))


def named_bytes(name: str) -> int | None:
    """An estimate from a repository's name: "Qwen3.8-27B-4bit" is 27e9 weights of 4.5 bits (scales included)."""
    billions = re.findall(r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)B(?![A-Za-z])", name, re.IGNORECASE)
    if not billions:
        return None
    bits = re.search(r"(\d+)-?bit", name, re.IGNORECASE)
    width = int(bits[1]) + 0.5 if bits else 4.25 if "gpt-oss" in name.lower() else 16
    return int(float(billions[0]) * 1e9 * width / 8)


def usable_bytes() -> int:
    """Memory that a model may take: on a Mac the GPU's default share, three quarters; elsewhere all but a reserve."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total * 3 // 4 if sys.platform == "darwin" else total - SPARE_BYTES // 2


def fits(pair: Pair) -> bool | None:
    """Whether this machine's memory holds the pair with something to spare; None when its size is not known."""
    needed = memory_bytes(pair)
    return None if needed is None else needed + min(SPARE_BYTES, needed // 4) <= usable_bytes()


def removable(pair: Pair) -> list[tuple[str, int]]:
    """(what, bytes) of every downloaded part of the pair, partial downloads included."""
    return [(name, size) for name, size, _ in _parts(pair)]


def remove(pair: Pair) -> int:
    """Delete what was downloaded for the pair; returns the bytes freed. What shipped with splashlite, and local
    folders, stay."""
    freed = 0
    for _, size, delete in _parts(pair):
        delete()
        freed += size
    hub_cache.cache_clear()
    return freed


def _parts(pair: Pair):
    places = [place for source in (pair.target, pair.drafter) if source for place in source.places]
    seen = set()
    for place in places:
        if not isinstance(place, Local) and place.sha256:
            folder = final_path(place.file, place.sha256).parent
            if folder.is_dir() and folder not in seen:
                seen.add(folder)
                yield Path(place.file).name, _size(folder), lambda folder=folder: shutil.rmtree(folder)
        elif isinstance(place, Hub) and (repo := hub_cache().get(place.repo)) and place.repo not in seen:
            seen.add(place.repo)
            yield place.repo, repo.size_on_disk, lambda repo=repo: shutil.rmtree(repo.repo_path)


def _place(place: Local | Hub | Wheel) -> Half:
    source = Source((place,))
    if isinstance(place, Local):
        shipped = place.path.name == "drafter"
        return Half(source, place.path if place.path.exists() else None, _size(place.path), shipped)
    if place.sha256:
        final = final_path(place.file, place.sha256)
        return Half(source, final if final.is_file() else None, _size(final.parent), False)
    repo = hub_cache().get(place.repo)
    if repo is None:
        return Half(source, None, 0, False)
    return Half(source, _snapshot(place), repo.size_on_disk, False)


def _snapshot(place: Hub) -> Path | None:
    """The hub cache's folder of a repository, when its config and all its weights are there."""
    config = huggingface_hub.try_to_load_from_cache(
        place.repo, "config.json", cache_dir=constants.HF_HUB_CACHE, revision=place.revision
    )
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    try:
        weight_files(folder)
    except SplashliteError:
        return None
    return folder


@cache
def hub_cache() -> dict:
    """The Hugging Face cache's repositories by id."""
    try:
        repos = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE).repos
    except huggingface_hub.CacheNotFound:
        return {}
    return {repo.repo_id: repo for repo in repos if repo.repo_type == "model"}


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())
