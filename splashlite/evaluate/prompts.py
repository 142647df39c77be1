"""What the benchmark asks: the prompts that ship with it, or a file of the user's own."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from splashlite.errors import UsageError

HERE = Path(__file__).parent
DOCUMENT = "document"  # the class whose questions stand behind document.md


@dataclass(frozen=True)
class Prompt:
    """One prompt of a class; `content` is a text or a list of chat messages."""

    kind: str
    content: str | list[dict]


def shipped(most: int | None = None) -> list[Prompt]:
    """The package's own prompts, class by class; `most` limits those of one class (the long document: half as
    many)."""
    document = (HERE / "document.md").read_text(encoding="utf-8")
    prompts = []
    for kind, questions in tomllib.loads((HERE / "prompts.toml").read_text(encoding="utf-8")).items():
        if kind == DOCUMENT:
            few = None if most is None else max(1, most // 2)
            prompts += [Prompt(kind, f"{document}\n\n{question}") for question in questions[:few]]
        else:
            prompts += [Prompt(kind, question) for question in questions[:most]]
    return prompts


def from_file(path: Path) -> list[Prompt]:
    """The prompts of a file: one per line, or JSON objects, one per line.

    An object has "prompt" (a text) or "messages" (chat messages with role and content), and may have "class".
    Raises UsageError with the number of the line that is neither, and when the file has no prompt at all.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as problem:
        raise UsageError(f"{path} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise UsageError(f"{path} cannot be read as text: {problem}") from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise UsageError(f"{path} has no prompts: write one on each line")
    if not numbered[0][1].startswith("{"):
        return [Prompt(path.stem, line) for _, line in numbered]
    return [_from_json(line, path.stem, f"{path}, line {number}") for number, line in numbered]


def _from_json(line: str, kind: str, where: str) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{where} is not JSON: {problem}") from None
    if not isinstance(entry, dict):
        raise UsageError(
            f'{where} holds {entry!r}: it must be an object, {{"class": "mail", "prompt": "..."}}'
        )
    unknown = entry.keys() - {"class", "prompt", "messages"}
    if unknown:
        raise UsageError(f'{where} has "{min(unknown)}": only class, prompt and messages are known')
    if ("prompt" in entry) == ("messages" in entry):
        raise UsageError(f'{where} must have either "prompt" or "messages"')
    kind = entry.get("class", kind)
    if not isinstance(kind, str) or not kind.strip():
        raise UsageError(f'{where}: "class" must be a word')
    content = entry.get("prompt", entry.get("messages"))
    sound = _is_text(content) if "prompt" in entry else _are_messages(content)
    if not sound:
        wanted = "a text" if "prompt" in entry else "a list of messages, each with role and content"
        raise UsageError(f"{where} must give {wanted}, and not an empty one")
    return Prompt(kind, content)


def _is_text(content) -> bool:
    return isinstance(content, str) and bool(content.strip())


def _are_messages(content) -> bool:
    return (
        isinstance(content, list)
        and bool(content)
        and all(
            isinstance(each, dict) and isinstance(each.get("role"), str) and "content" in each
            for each in content
        )
    )


def encoded(engine, prompts: list[Prompt], room: int) -> tuple[list[tuple[str, list[int]]], list[str]]:
    """Each prompt as (class, token ids), and notes on classes that do not fit the context with `room` tokens
    of reply.

    A text is put through the target's chat template where it has one. Raises UsageError when there is no
    tokenizer, or when nothing fits.
    """
    if engine.tokenizer is None:
        raise UsageError(
            "this target's folder has no tokenizer, and the benchmark asks in words: use another target"
        )
    fitting, longest = [], {}
    for prompt in prompts:
        content = prompt.content
        if isinstance(content, str) and engine.tokenizer.has_chat_template:
            content = [{"role": "user", "content": content}]
        template = isinstance(content, list)
        ids = engine.tokenizer.apply_chat_template(content) if template else engine.tokenizer.encode(content)
        if len(ids) + room <= engine.context:
            fitting.append((prompt.kind, ids))
        else:
            longest[prompt.kind] = max(longest.get(prompt.kind, 0), len(ids))
    notes = [
        f"{kind}: prompts are left out, the longest has {length:,} tokens and the context of "
        f"{engine.context:,} also has to hold {room:,} of reply"
        for kind, length in longest.items()
    ]
    if not fitting:
        raise UsageError(f"no prompt fits: {notes[0]}")
    return fitting, notes
