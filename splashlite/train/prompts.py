"""What the target is asked: the user's own files, or the built-in questions, as token ids."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from splashlite.errors import UsageError
from splashlite.train.questions import questions

KEYS = {"messages", "prompt", "text"}


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
    naming the file and the line.
    """
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError(f"{file} cannot be read: {problem}") from None
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _prompt(_record(line, f"{file}, line {number}"), f"{file}, line {number}", tokenizer)


def _record(line: str, where: str) -> dict:
    try:
        record = json.loads(line)
    except ValueError as problem:
        raise UsageError(f"{where} is not JSON: {problem}") from None
    if not isinstance(record, dict) or len(KEYS & record.keys()) != 1:
        raise UsageError(f'{where} must be an object with one of "messages", "prompt" and "text"')
    return record


def _prompt(record: dict, where: str, tokenizer) -> Prompt:
    for key in ("text", "prompt"):
        if key in record and not (isinstance(record[key], str) and record[key]):
            raise UsageError(f"{where}: {key} must be a string that is not empty")
    if "text" in record:
        return Prompt(tokenizer.encode(record["text"]))
    messages = [{"role": "user", "content": record["prompt"]}] if "prompt" in record else record["messages"]
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise UsageError(f"{where}: messages must be a list of objects with role and content")
    if messages[-1].get("role") != "assistant":
        return Prompt(tokenizer.apply_chat_template(messages))
    asked = tokenizer.apply_chat_template(messages[:-1])
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    if whole[: len(asked)] != asked:
        raise UsageError(
            f"{where}: the chat template rewrites the conversation around its last answer: leave that answer out"
        )
    answer = whole[len(asked) :]
    end = next((place for place, token in enumerate(answer) if token in tokenizer.eos_ids), len(answer))
    if end == 0:
        raise UsageError(f"{where}: the last answer is empty: leave it out, and the target answers")
    return Prompt(asked, answer[: end + 1])  # what a template writes behind the end token is never generated
