"""Questions that the target makes up itself: behind the opening of a user's turn it writes what users asked it in its own
training, so that a fine-tune's drafter is trained on what that fine-tune is for (Magpie, arXiv 2406.08464).
"""

import json
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
) -> tuple[int, int]:
    """Add questions to a JSONL file until it holds at least `count`, none twice and none that `splashlite bench` asks.

    Each line is {"prompt": ...}. Every finished batch is kept, and what is drawn next depends on how many there are, so a call
    that goes on ends as an uninterrupted one. Returns how many the file holds, and how many of these are new. Raises UsageError
    for a file of another kind and a target without a chat template, SplashliteError when the target makes up none.
    """
    before, (opening, end) = held(file), user_turn(tokenizer)
    lines, known = list(before), set(before).union(prompt.content for prompt in shipped())
    progress(len(lines), count)
    if len(lines) < count:
        _add(file, [])  # says at once when that cannot be done
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
                found.append(question)
        if not found:
            raise SplashliteError(
                f"the target made up no question in {BATCH} attempts: it was not trained on a user's turns; "
                "use the built-in questions, or your own with --prompts"
            )
        _add(file, found)
        lines += found
        progress(len(lines), count)
    return len(lines), len(lines) - len(before)


def user_turn(tokenizer: Tokenizer) -> tuple[list[int], int]:
    """The ids up to where a user's first message stands, and the token behind it."""
    if not tokenizer.has_chat_template:
        raise UsageError(
            "the target has no chat template, so there is no user's turn that it could write: give `train data` a file of "
            'lines with "text" by --prompts'
        )
    text = tokenizer.render([{"role": "user", "content": MARK}])
    before, *after = text.split(MARK)
    if len(after) != 1 or not after[0].strip():
        raise UsageError(
            "the chat template shows no end of a user's turn: use the built-in questions, or your own with --prompts"
        )
    return tokenizer.encode(before, add_special_tokens=False), tokenizer.encode(after[0], add_special_tokens=False)[0]


def held(file: Path) -> list[str]:
    """The questions of a file that this module made; none when there is no file."""
    records = prompts.read(file) if file.exists() else []
    if not all("prompt" in record for _, record in records):
        raise UsageError(f"{file} holds more than questions: name a new file, or one that this command made")
    for where, record in records:
        prompts.check(record, where)
    return [record["prompt"] for _, record in records]


def _add(file: Path, questions: list[str]) -> None:
    """In one piece, behind what is there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    open_ended = file.exists() and file.stat().st_size and not file.read_bytes().endswith(b"\n")
    lines = "".join(json.dumps({"prompt": question}, ensure_ascii=False) + "\n" for question in questions)
    with file.open("a", encoding="utf-8") as out:
        out.write("\n" * bool(open_ended and questions) + lines)
