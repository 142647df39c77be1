"""Questions that the target makes up itself: behind the opening of a user's turn it writes what users asked it in its own
training, so that a fine-tune's drafter is trained on what that fine-tune is for (Magpie, arXiv 2406.08464).
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from splashlite.errors import SplashliteError, UsageError
from splashlite.evaluate.prompts import shipped
from splashlite.pairs.tokenizer import Tokenizer
from splashlite.target import Target
from splashlite.train import answers, prompts
from splashlite.train.prompts import Prompt

BATCH = 128  # questions that are drawn together; their draws depend on it, so it must stay what it is
LONGEST = 96  # tokens; a question that has not ended by then is dropped
TOP = 16  # most likely tokens among which each is drawn, at temperature 1
MARK = "splashlite-question"


def ask(
    file: Path,
    target: Target,
    tokenizer: Tokenizer,
    *,
    count: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Add questions to a JSONL file until it holds `count`, none twice and none that `splashlite bench` asks.

    Each line is {"prompt": ...}. Every finished batch is kept, and what is drawn next depends on how many there are, so a call
    that goes on ends as an uninterrupted one. Returns how many the file holds. Raises UsageError for a file of another kind
    and a target without a chat template, SplashliteError when the target makes up none.
    """
    lines = _lines(file)
    known = {line["prompt"] for line in lines} | {prompt.content for prompt in shipped()}
    opening, end = user_turn(tokenizer)
    progress(len(lines), count)
    while len(lines) < count:
        numbers = [len(lines) * BATCH + place for place in range(BATCH)]
        drawn = answers.generate(
            target, [Prompt(opening)] * BATCH, [1.0] * BATCH, numbers,
            seed=seed, limit=LONGEST, ends={end, *tokenizer.eos_ids}, top=TOP, features=False,
        )  # fmt: skip
        mx.clear_cache()
        found = []
        for each in drawn:
            ids = each.tokens[len(opening) :].tolist()
            question = tokenizer.decode(ids[:-1]).strip() if ids[-1] == end else ""
            if question and question not in known:
                known.add(question)
                found.append({"prompt": question})
        if not found:
            raise SplashliteError(
                f"the target made up no question in {BATCH} attempts: it was not trained on a user's turns; "
                "use the built-in questions, or your own with --prompts"
            )
        lines += found
        _write(file, lines)
        progress(len(lines), count)
    return len(lines)


def user_turn(tokenizer: Tokenizer) -> tuple[list[int], int]:
    """The ids up to where a user's first message stands, and the token behind it."""
    text = tokenizer.render([{"role": "user", "content": MARK}])
    before, *after = text.split(MARK)
    if len(after) != 1 or not after[0].strip():
        raise UsageError(
            "the chat template shows no end of a user's turn: use the built-in questions, or your own with --prompts"
        )
    return tokenizer.encode(before, add_special_tokens=False), tokenizer.encode(after[0], add_special_tokens=False)[0]


def _lines(file: Path) -> list[dict]:
    lines = [record for _, record in prompts.read(file)] if file.exists() else []
    if not all(isinstance(line.get("prompt"), str) for line in lines):
        raise UsageError(f"{file} holds more than questions: name a new file, or one that this command made")
    return lines


def _write(file: Path, lines: list[dict]) -> None:
    """All of it at once, so that an interruption leaves the file as it was."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    os.replace(partial, file)
