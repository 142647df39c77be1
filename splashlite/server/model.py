"""What the server needs to know about the loaded model: its names, its template, its formats, its
vocabulary as bytes."""

from time import time

import llguidance.hf

from splashlite.server import formats
from splashlite.server.problems import Problem, invalid
from splashlite.server.template import Template


class Model:
    """Built once, on the engine's thread, when the engine has been loaded."""

    def __init__(self, engine):
        self.engine, self.tokenizer, self.context = engine, engine.tokenizer, engine.context
        if self.tokenizer is None:
            raise Problem(
                500, "this target's folder has no tokenizer, and the API speaks text: add its tokenizer.json"
            )
        self.vocab_rows, self.eos_ids = engine.target.vocab_rows, engine.eos_ids
        self.template = Template(self.tokenizer)
        self.format = formats.of(self.template.text)
        self.vocabulary = llguidance.hf.from_tokenizer(
            self.tokenizer.hugging_face, eos_token=sorted(self.eos_ids) or None
        )
        self.about = engine.describe()
        self.loaded_at = int(time())
        self.name, self.aliases = _names(engine, self.about)
        self.drafter = _short(self.about["drafter"])

    def require(self, name: str | None) -> str:
        """The name to answer with. A name in a request never loads anything."""
        if name is None or name in self.aliases:
            return name or self.name
        shown = name if len(name) <= 100 else name[:100] + "..."
        raise Problem(
            404,
            f"the model {shown!r} is not served here: this server has {self.name!r}",
            code="model_not_found",
            param="model",
        )

    def check_ids(self, field: str, ids: list[int]) -> None:
        """Raises Problem for an id that the model has no row for."""
        if any(not 0 <= token < self.vocab_rows for token in ids):
            raise invalid(field, f"token ids are whole numbers from 0 to {self.vocab_rows - 1}")

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to the text; nothing for a row of the head that has no token."""
        return self.vocabulary.decode_bytes([token]) if token < len(self.tokenizer) else b""


def _names(engine, about: dict) -> tuple[str, frozenset[str]]:
    pair = engine.pair
    names = [pair.name if pair is not None else None, _short(about["target"]), _short(about["drafter"])]
    names = [name for name in names if name]
    return names[0], frozenset(names)


def _short(source: str | None) -> str | None:
    """A repository id, without its revision; of a path only its last two parts, so that no reply tells
    where files are."""
    if source is None or not source.startswith(("/", "~", ".")):
        return source.partition("@")[0] if source else None
    return "/".join(source.rstrip("/").split("/")[-2:])
