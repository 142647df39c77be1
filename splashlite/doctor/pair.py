"""One pair: its files, whether its halves belong together, and what it does when it runs."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from splashlite.chat.numbers import size
from splashlite.doctor.finding import FINE, PROBLEM, WARNING, Finding, examined
from splashlite.pairs.fetch import Local
from splashlite.pairs.resolve import Pair
from splashlite.shelf import stock
from splashlite.shelf.weigh import CONTEXT


def files(pair: Pair, told: Callable[[str], None]) -> Iterator[Finding]:
    """Whether both halves are here, whole and unchanged, and fit into memory. `told(line)` hears what takes long."""
    for name, each in zip(("target", "drafter"), stock.halves(pair), strict=False):
        if each.path is None:
            todo = f"splashlite pull {pair.name or each.source}"
            yield Finding(name, WARNING, f"{each.source} is {each.state}", todo)
        else:
            yield from examined(name, lambda name=name, each=each: _sound(name, each, told))
    yield _fits(pair)


def _sound(name: str, each: stock.Half, told: Callable[[str], None]) -> Finding:
    for path, digest in _digests(each):
        told(f"reading {path.name}")
        if _sha256(path) != digest:
            todo = "splashlite rm the pair and pull it again"
            return Finding(name, PROBLEM, f"{path} is not what was published: it was changed or is damaged", todo)
    if each.path.is_dir():
        from splashlite.pairs.weights import read_weights

        read_weights(each.path)
    else:
        from splashlite.pairs.gguf import read_header

        read_header(each.path)
    where = each.path if str(each.path) == str(each.source) else f"{each.source} in {each.path}"
    return Finding(name, FINE, f"{size(each.disk_bytes)}, whole: {where}")


def _digests(each: stock.Half) -> Iterator[tuple[Path, str]]:
    """(file, published SHA-256) of every file whose digest is known: pinned ones, and the hub's large files, which its
    cache keeps under their digests."""
    for place in each.source.places:
        if not isinstance(place, Local) and place.sha256:
            yield each.path, place.sha256
            return
    for path in sorted(each.path.rglob("*")) if each.path.is_dir() else ():
        if path.is_symlink() and len(path.resolve().name) == 64:
            yield path, path.resolve().name


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _fits(pair: Pair) -> Finding:
    known = stock.weight(pair)
    if known is None:
        return Finding("fit", WARNING, "how much memory the pair needs is not known before it is here", "pull it")
    context = f", {size(known.total_bytes)} with a context of {CONTEXT:,}" if known.total_bytes else ", beside its context"
    about = "" if known.exact else "about "
    what = f"{about}{size(known.weights_bytes)} of weights as loaded{context}; {size(stock.usable_bytes())} may be used"
    if not stock.fits(known):
        return Finding("fit", PROBLEM, what, "choose a smaller pair or a smaller quantization of the target")
    return Finding("fit", FINE, what)
