"""Names to pairs: which target and which drafter are meant, and how they are best sampled."""

import difflib
import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from splashlite.data import data_folder
from splashlite.errors import SplashliteError, UsageError
from splashlite.pairs import hub
from splashlite.pairs.fetch import Hub, Local, Source, Wheel
from splashlite.pairs.keys import is_drafter
from splashlite.pairs.weights import read_config, read_json

DEMO = "smollm2-135m"
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class Pair:
    """A target with its drafter (None: plain decoding), and what is known about the two.

    `sampling` holds the published defaults (temperature, top_k, top_p, min_p), empty where they are not known here:
    the target's own generation_config.json (`read_sampling`) then says. `why` says how the pair was found.
    `model_type` is the target's architecture where it is known without its config.json.
    """

    name: str | None
    target: Source
    drafter: Source | None
    sampling: dict
    licence: str | None
    notes: tuple[str, ...]
    why: str
    model_type: str | None = None


def resolve(name: str | None = None, *, target: str | None = None, drafter: str | None = None) -> Pair:
    """The pair that is meant.

    `name` is a pair's name in models/, a drafter's repository id (`owner/name`, or `owner/name@revision`) or a local
    drafter folder; `target` and `drafter` replace each half by a repository id, a local folder or (target) a .gguf
    file. With nothing at all it is the demo pair. The network is asked only for the card of a drafter that is not
    known here.

    Raises UsageError for a name that means nothing, SplashliteError when a drafter does not say what its target is.
    """
    if name is None and drafter is not None:
        name, drafter = drafter, None
    if name is None and target is None:
        name = DEMO
    if name is None:
        return _for_target(target)
    pair = _named(name, target)
    if target is not None:
        pair = replace(
            pair,
            target=_source(target),
            sampling=_sampling_of(target),
            why=f"{pair.why}, with target {target}",
            model_type=None,
        )
    if drafter is not None:
        pair = replace(pair, drafter=_source(drafter), why=f"{pair.why}, with drafter {drafter}")
    return pair


def read_sampling(folder) -> dict:
    """The sampling defaults that a target folder publishes in its generation_config.json, {} where it has none."""
    path = Path(folder) / "generation_config.json"
    if not path.is_file():
        return {}
    published = read_json(path)
    if published.get("do_sample") is False:
        return {"temperature": 0.0}
    found = {key: published[key] for key in _SAMPLING if published.get(key) is not None}
    for key, value in found.items():
        if type(value) not in (int, float):
            raise SplashliteError(f"{path}: {key} must be a number, not {value!r}")
    return found


def known_names() -> list[str]:
    """The names of the pairs in models/."""
    return sorted(_known())


def _named(name: str, target: str | None) -> Pair:
    for pair in _known().values():
        if name.lower() == pair.name:
            return pair.pair(f"{pair.name} is a pair that splashlite knows")
        if name.split("@")[0].lower() in map(str.lower, pair.drafters):
            return pair.pair(f"{name} is the drafter of {pair.name}", drafter=_source(name))
        if name.split("@")[0].lower() in map(str.lower, pair.targets):
            raise UsageError(
                f"{name} is a target, not a drafter: load {pair.name}, or pass it with --target (target= in Python), and a drafter"
            )
    if _is_local(name):
        return _unknown(
            name, read_config(Path(name).expanduser()), _read(Path(name).expanduser() / "README.md"), target
        )
    if _is_repository(name):
        if target is not None:  # nothing to look up
            return Pair(None, _source(target), _source(name), {}, None, (), f"{name} was given as the drafter")
        repo, _, revision = name.partition("@")
        config = hub.small_file(repo, revision or None, "config.json")
        card = hub.small_file(repo, revision or None, "README.md")
        return _unknown(name, read_json(config) if config else {}, _read(card), target)
    near = [each for each in _known() if name and each.startswith(name.lower())] or difflib.get_close_matches(
        name.lower(), _known()
    )
    hint = f"did you mean {' or '.join(near[:5])}?" if near else f"known pairs are {', '.join(known_names())}"
    raise UsageError(f"{name!r} is no known pair, no drafter's repository id and no folder: {hint}")


def _unknown(name: str, config: dict, card: str, target: str | None) -> Pair:
    """A drafter that is not in models/: its config.json or its card names the base model."""
    if not is_drafter(config):
        raise UsageError(f"{name} is not a DFlash drafter: if it is a target, pass it with --target (target= in Python)")
    if target is not None:
        return Pair(None, _source(target), _source(name), {}, None, (), f"{name} was given as the drafter")
    base = config.get("base_model_name_or_path") or _base_model(card)
    if not base:
        raise SplashliteError(f"{name} does not name its base model: name its target with --target (target= in Python)")
    if not isinstance(base, str) or not _is_repository(base):
        raise SplashliteError(
            f"{name} names {base!r} as its base model, which is no single repository id: name its target with --target (target= in Python)"
        )
    why = f"{name} names {base} as its base model"
    for pair in _known().values():
        if base.lower() in map(str.lower, pair.targets):
            return replace(pair.pair(why, drafter=_source(name)), name=None, licence=None, notes=())
    return Pair(None, _source(base), _source(name), {}, None, (), why)


def _for_target(target: str) -> Pair:
    """The drafter for a target that was given alone: a known one, or none."""
    source = _source(target)
    for pair in _known().values():
        if target.split("@")[0].lower() in map(str.lower, pair.targets):
            return replace(pair.pair(f"{target} is the target of {pair.name}"), target=source)
    why = f"no drafter is known for {target}: it decodes plainly, name a drafter with --drafter (drafter= in Python) to speculate"
    return Pair(None, source, None, {}, None, (), why)


def _sampling_of(target: str) -> dict:
    for pair in _known().values():
        if target.split("@")[0].lower() in map(str.lower, pair.targets):
            return pair.sampling
    return {}


def _source(text: str) -> Source:
    path = Path(text).expanduser()
    if _is_local(text) or path.suffix == ".gguf":
        if not path.exists():
            raise UsageError(
                f"there is nothing at {path}: give a model folder, a .gguf file or a repository id (owner/name)"
            )
        return Source((Local(path),))
    if not _is_repository(text):
        raise UsageError(f"{text!r} is neither a model folder nor a repository id (owner/name)")
    repo, _, revision = text.partition("@")
    return Source((Hub(repo, revision or None),))


def _is_local(text: str) -> bool:
    return text.startswith((".", "/", "~")) or (text != "" and Path(text).is_dir())


def _is_repository(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?", text) is not None and ".." not in text


def _read(path: Path | None) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path is not None and path.is_file() else ""


def _base_model(card: str):
    """`base_model` of a model card's YAML head: a repository id, a list of them, or None."""
    import yaml

    head = re.match(r"---\s*\n(.*?)\n---", card, re.DOTALL)
    try:
        content = yaml.safe_load(head[1]) if head else None
    except yaml.YAMLError:
        return None
    base = content.get("base_model") if isinstance(content, dict) else None
    return base[0] if isinstance(base, list) and len(base) == 1 else base


@dataclass(frozen=True)
class _Known:
    """One pair.toml."""

    name: str
    target: Source
    targets: tuple[str, ...]
    drafter: Source
    drafters: tuple[str, ...]
    sampling: dict
    licence: str
    notes: tuple[str, ...]
    model_type: str

    def pair(self, why: str, drafter: Source | None = None) -> Pair:
        return Pair(
            self.name,
            self.target,
            drafter or self.drafter,
            dict(self.sampling),
            self.licence,
            self.notes,
            why,
            self.model_type,
        )


@cache
def _known() -> dict[str, _Known]:
    return {path.parent.name: _read_pair(path) for path in sorted(data_folder("models").glob("*/pair.toml"))}


def _read_pair(path: Path) -> _Known:
    """A pair.toml: [target] id, model_type, by_quantization, default (or files); [drafter] ids or folder, also; ..."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    target, drafter = content["target"], content["drafter"]
    sizes = target.get("by_quantization", {})
    if "files" in target:
        chosen = Source(tuple(_place(file) for file in target["files"]))
    else:
        chosen = Source((Hub(sizes[target["default"]]),))
    if "folder" in drafter:
        drafts = Source((Local(path.parent / drafter["folder"]),))
    else:
        drafts = Source(tuple(Hub(repo) for repo in drafter["ids"]))
    return _Known(
        name=path.parent.name,
        target=chosen,
        targets=(target["id"], *sizes.values()),
        drafter=drafts,
        drafters=(*drafter.get("ids", ()), *drafter.get("also", ())),
        sampling=content.get("sampling", {}),
        licence=content["licence"],
        notes=tuple(content.get("notes", ())),
        model_type=target["model_type"],
    )


def _place(file: dict) -> Hub | Wheel:
    return Hub(**file) if "repo" in file else Wheel(**file)


def target_id(name: str | None) -> str:
    """The repository id that a target is known by: None is the demo pair's, a name that is not known stays as it is."""
    known = _known()
    if name is None:
        return known[DEMO].targets[0]
    for pair in known.values():
        if name.split("@")[0].lower() in map(str.lower, pair.targets):
            return pair.targets[0]
    return name
