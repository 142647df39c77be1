"""The pairs on this machine: which are known, what of them is here, whether they fit, and taking them away."""

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants

from splashlite.errors import SplashliteError
from splashlite.memory import limit_bytes
from splashlite.pairs.fetch import Hub, Local, Source, Wheel, final_path
from splashlite.pairs.resolve import Pair, known_names, resolve
from splashlite.pairs.weights import weight_files
from splashlite.shelf import weigh
from splashlite.shelf.weigh import Weight

SPARE_BYTES = 2_000_000_000  # for state and working memory, where no config tells how much


@dataclass(frozen=True)
class Half:
    """A target or a drafter as it is on this machine. `path` is where it is whole, None where it is missing or partial;
    `disk_bytes` is what it takes on disk."""

    source: Source
    path: Path | None
    disk_bytes: int

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
    found = [_place(source, place) for place in source.places]
    return next((each for each in found if each.path), max(found, key=lambda each: each.disk_bytes))


def weight(pair: Pair) -> Weight | None:
    """What the pair takes in memory: told from its files where they are here, else from the target's name; None when
    neither says anything."""
    paths = [each.path for each in halves(pair)]
    if all(paths) and (known := weigh.weigh(paths[0], paths[1] if pair.drafter else None)):
        return known
    return weigh.named(str(pair.target), pair.drafter is not None)


def weights_bytes(pair: Pair) -> int | None:
    """Bytes of weights that the pair loads, None when nothing tells."""
    known = weight(pair)
    return known.weights_bytes if known else None


def missing_bytes(pair: Pair) -> int:
    """About what is still to be downloaded; 0 where nothing tells."""
    target, *drafter = [each.path for each in halves(pair)]
    name = str(pair.target)
    parts = weigh.named_bytes(name, on_disk=True)
    if parts is None:
        return 0
    return (0 if target else parts) + (2 * weigh.named_drafter(name) if drafter and not drafter[0] else 0)


def usable_bytes() -> int:
    """Memory that a pair may take: the memory plan's limit."""
    return limit_bytes()


def fits(known: Weight | None) -> bool | None:
    """Whether this machine's memory holds a pair with a context of CONTEXT tokens; None when its size is not known."""
    if known is None:
        return None
    needed = known.total_bytes or known.weights_bytes + min(SPARE_BYTES, known.weights_bytes // 4)
    return needed <= usable_bytes()


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


def _place(source: Source, place: Local | Hub | Wheel) -> Half:
    if isinstance(place, Local):
        return Half(source, place.path if place.path.exists() else None, _size(place.path))
    if place.sha256:
        final = final_path(place.file, place.sha256)
        return Half(source, final if final.is_file() else None, _size(final.parent))
    repo = hub_cache().get(place.repo)
    if repo is None:
        return Half(source, None, 0)
    return Half(source, _snapshot(place), repo.size_on_disk)


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
