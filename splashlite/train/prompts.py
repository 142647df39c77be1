"""What the target is asked: the user's own files, or the built-in questions, as token ids."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from splashlite.errors import UsageError
from splashlite.train.questions import questions

KEYS = {"messages", "prompt", "text"}
ROLES = ("system", "user", "assistant", "tool", "developer")


@dataclass(frozen=True)
class Prompt:
    """Token ids up to where the target answers; `answer` holds the answer's where the file brought one."""

    ids: list[int]
    answer: list[int] | None = None


def built_in(tokenizer, seed: int) -> Iterator[Prompt]:
    """Endless."""
    for _, question in questions(seed):
        yield Prompt(tokenizer.apply_chat_template([{"role": "user", "content": question}]))


def from_files(files: list[Path], tokenizer) -> Iterator[Prompt]:
    """Every line of JSONL files: {"messages": [...]}, {"prompt": "..."} as one message of the user's, or {"text": "..."} that
    is continued as it stands; other keys mean nothing here.

    Messages that end with the assistant's turn bring their own answer, which is read and not generated. Raises UsageError
    naming the file and the line; what a line holds is looked at at once, what the chat template makes of it in its turn.
    """
    records = [(where, check(record, where)) for file in files for where, record in read(file)]
    return (_prompt(record, where, tokenizer) for where, record in records)


def read(file: Path) -> list[tuple[str, dict]]:
    """(where, object) for each line of a JSONL file that is not empty; raises UsageError for what is none."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as problem:
        raise UsageError(f"{file} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise UsageError(f"{file} is no text in UTF-8: {problem.reason} at byte {problem.start:,}") from None
    named = [(f"{file}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    return [(where, _parsed(line, where)) for where, line in named]


def _parsed(line: str, where: str) -> dict:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{where} is not JSON: {problem}") from None
    if not isinstance(record, dict) or len(KEYS & record.keys()) != 1:
        raise UsageError(f'{where} must be an object with one of "messages", "prompt" and "text"')
    return record


def check(record: dict, where: str) -> dict:
    """A record with a prompt as the message that it is: `messages` or `text`. Raises UsageError for one that is not fit."""
    for key in ("text", "prompt"):
        if key in record and not (isinstance(record[key], str) and record[key]):
            raise UsageError(f"{where}: {key} must be a string that is not empty")
    if "messages" in record:
        _check_messages(record["messages"], where)
    return {"messages": [{"role": "user", "content": record["prompt"]}]} if "prompt" in record else record


def _check_messages(messages, where: str) -> None:
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise UsageError(f"{where}: messages must be a list of objects with role and content")
    for each in messages:
        if each.get("role") not in ROLES:
            raise UsageError(f"{where}: a message's role must be one of {', '.join(ROLES)}, not {each.get('role')!r}")


def _prompt(record: dict, where: str, tokenizer) -> Prompt:
    if "text" in record:
        return Prompt(tokenizer.encode(record["text"]))
    messages = record["messages"]
    try:
        if messages[-1]["role"] != "assistant":
            return Prompt(tokenizer.apply_chat_template(messages))
        asked = tokenizer.apply_chat_template(messages[:-1])
        whole = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    except UsageError as problem:
        raise UsageError(f"{where}: {problem}") from None
    if whole[: len(asked)] != asked:
        raise UsageError(
            f"{where}: the chat template rewrites the conversation around its last answer: leave that answer out"
        )
    answer = whole[len(asked) :]
    end = next((place for place, token in enumerate(answer) if token in tokenizer.eos_ids), len(answer))
    if end == 0:
        raise UsageError(f"{where}: the last answer is empty: leave it out, and the target answers")
    return Prompt(asked, answer[: end + 1])  # what a template writes behind the end token is never generated
