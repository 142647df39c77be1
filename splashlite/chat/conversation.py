"""A conversation: what was said, and its file format."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from splashlite.chat.settings import setting, written
from splashlite.errors import SplashliteError

FORMAT = "splashlite chat 1"


@dataclass
class Conversation:
    """Turns of one chat. `document` is text that goes in front of the first question."""

    system: str | None = None
    turns: list[dict] = field(default_factory=list)
    document: str | None = None

    def ask(self, text: str) -> None:
        """Add a question."""
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """Add the reply; an empty one takes its question back, so that turns keep alternating."""
        if text.strip():
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.turns.pop()

    def undo(self) -> str | None:
        """Take the last question and its reply back; returns the question, or None when there was none."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        return None

    def clear(self) -> None:
        self.turns.clear()
        self.document = None

    @property
    def last_reply(self) -> str | None:
        return next((turn["content"] for turn in reversed(self.turns) if turn["role"] == "assistant"), None)

    @property
    def messages(self) -> list[dict]:
        """What the engine gets."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        turns = [dict(turn) for turn in self.turns]
        if self.document and turns:
            turns[0]["content"] = f"{self.document}\n\n{turns[0]['content']}".strip()
        return system + turns

    def save(self, path: Path, settings: dict) -> None:
        """Write the conversation and its settings as JSON. Raises SplashliteError when the file cannot be written."""
        values = {name: written(value) for name, value in settings.items()}
        text = json.dumps({"format": FORMAT, **asdict(self), "settings": values}, ensure_ascii=False, indent=2)
        try:
            path.write_text(text + "\n", encoding="utf-8", errors="replace")
        except OSError as error:
            raise SplashliteError(f"{path} was not written: {error.strerror}") from None

    @classmethod
    def load(cls, path: Path) -> tuple["Conversation", dict]:
        """(conversation, settings) from a file that `save` wrote. Raises SplashliteError for anything else."""
        try:
            saved = json.loads(read_text(path))
            if saved.get("format") != FORMAT:
                raise ValueError
            turns = [{"role": turn["role"], "content": turn["content"]} for turn in saved["turns"]]
            texts = [saved["system"] or "", saved["document"] or "", *(turn["content"] for turn in turns)]
            if [turn["role"] for turn in turns] != ["user", "assistant"] * (len(turns) // 2):
                raise ValueError
            if not all(isinstance(text, str) for text in texts):
                raise ValueError
            settings = {name: setting(name).parse(text) for name, text in saved["settings"].items()}
            return cls(saved["system"], turns, saved["document"]), settings
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SplashliteError(f"{path} is not a conversation: /load opens files that /save wrote") from None


def with_files(paths) -> str | None:
    """Text files as one document, each under its name; None when there are none."""
    return "\n\n".join(f"{path.name}:\n\n{read_text(path)}" for path in paths) or None


def read_text(path: Path) -> str:
    """A UTF-8 text file. Raises SplashliteError when it cannot be read or holds something else."""
    try:
        return decoded(path.read_bytes(), str(path))
    except OSError as error:
        raise SplashliteError(f"{path} cannot be read: {error.strerror}") from None


def decoded(data: bytes, name: str) -> str:
    """`data` as UTF-8 text with plain newlines. Raises SplashliteError naming the first byte that is not."""
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{data[error.start]:02x} at {error.start:,}"
        raise SplashliteError(f"{name} is not UTF-8 text ({byte}): convert it first, for example with iconv") from None
