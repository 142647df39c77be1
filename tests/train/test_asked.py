"""Questions that the target makes up: its own words behind a user's opening, the same after any interruption."""

import json

import mlx.core as mx
import pytest
import tiny

from splashlite.cli import run
from splashlite.errors import SplashliteError, UsageError
from splashlite.evaluate.prompts import Prompt
from splashlite.train import asked, prompts

BASE, END = 0x100, 3  # a letter's code is its token's id and BASE


class Characters:
    """A token is a letter of its own; a user's turn stands between token 2 and END."""

    eos_ids, has_chat_template = frozenset({1}), True
    template = "{2}{question}{3}{4}"

    def encode(self, text, add_special_tokens=True):
        return [ord(each) - BASE for each in text]

    def decode(self, ids):
        return "".join(chr(BASE + each) for each in ids)

    def render(self, messages):
        return self.template.format(*self.decode(range(5)), question=messages[0]["content"])

    def apply_chat_template(self, messages):
        return self.encode(self.render(messages))


@pytest.fixture(scope="module")
def target():
    return tiny.make_target("dense")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch, request):
    if "slow" not in request.keywords:
        monkeypatch.setattr(asked, "BATCH", 32)


def questions(file) -> list[str]:
    return [json.loads(line)["prompt"] for line in file.read_text().split("\n")[:-1]]


def ask(file, target, count, **more) -> list[str]:
    asked.ask(file, target, Characters(), count=count, seed=2, **more)
    return questions(file)


@pytest.mark.exact
def test_an_interrupted_call_goes_on_to_the_same_questions(tmp_path, target):
    heard = []
    whole = ask(tmp_path / "whole", target, 60, progress=lambda done, total: heard.append((done, total)))
    assert len(whole) >= 60 and len(set(whole)) == len(whole) and all(whole)
    assert heard[0] == (0, 60) and heard[-1] == (len(whole), 60) and len(heard) > 2
    first = ask(tmp_path / "cut", target, 1)
    assert 1 <= len(first) < 60 and ask(tmp_path / "cut", target, len(first)) == first
    assert ask(tmp_path / "cut", target, 60) == whole
    assert [each.name for each in tmp_path.iterdir()] in (["whole", "cut"], ["cut", "whole"])


@pytest.mark.exact
def test_a_question_is_what_the_target_writes_behind_a_users_opening(tmp_path, target):
    for question in ask(tmp_path / "made", target, 20):
        ids = [2, *Characters().encode(question), END]
        rows, _ = target.read(target.new_state(), mx.array([ids[:-1]]))
        logits = target.head(rows)[0]
        chosen = mx.take_along_axis(logits, mx.array(ids[1:])[:, None], axis=-1)
        assert ((logits > chosen).sum(axis=-1) < asked.TOP).all()


def test_they_are_prompts_that_the_data_take(tmp_path, target):
    made = ask(tmp_path / "made", target, 10)
    taken = list(prompts.from_files([tmp_path / "made"], Characters()))
    assert [each.ids for each in taken] == [[2, *Characters().encode(question), END, 4] for question in made]
    assert all(each.answer is None for each in taken)


def test_only_a_line_feed_ends_a_prompt_in_a_file(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "\u0120\u2028\u0121"}\n', encoding="utf-8")
    (prompt,) = prompts.from_files([file], Characters())
    assert Characters().decode(prompt.ids[1:-2]) == "\u0120\u2028\u0121"


def test_what_the_benchmark_asks_is_left_out(tmp_path, target, monkeypatch):
    first, *others = ask(tmp_path / "made", target, 1)
    monkeypatch.setattr(asked, "shipped", lambda: [Prompt("chat", first)])
    assert others and ask(tmp_path / "again", target, 1) == others


def test_refusals(tmp_path, target, monkeypatch):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    before = file.read_text()
    with pytest.raises(UsageError, match="holds more than questions"):
        ask(file, target, 5)
    assert file.read_text() == before
    monkeypatch.setattr(asked, "LONGEST", 1)
    with pytest.raises(SplashliteError, match="made up no question in 32 attempts.*--prompts"):
        ask(tmp_path / "new", target, 5)
    assert asked.held(tmp_path / "new") == []
    file.write_text('{"prompt": ""}\n')
    with pytest.raises(UsageError, match="line 1: prompt must be a string that is not empty"):
        ask(file, target, 5)
    file.write_text("[" * 100_000)
    with pytest.raises(UsageError, match="line 1 is not JSON"):
        ask(file, target, 5)
    with pytest.raises(OSError):  # before anything is drawn
        ask(file / "new", target, 5, progress=lambda done, total: done and pytest.fail("drawn"))
    monkeypatch.setattr(Characters, "template", "{2}{question}")
    with pytest.raises(UsageError, match="no end of a user's turn"):
        ask(tmp_path / "new", target, 5)
    monkeypatch.setattr(Characters, "has_chat_template", False)
    with pytest.raises(UsageError, match="has no chat template.*--prompts"):
        ask(tmp_path / "new", target, 5)


def test_what_a_file_held_stays_as_it_was(tmp_path, target):
    file, link = tmp_path / "mine.jsonl", tmp_path / "link"
    file.write_text('{"prompt": "mine", "class": "own"}')  # no line feed behind it
    link.symlink_to(file)
    held, new = asked.ask(link, target, Characters(), count=5, seed=2)
    assert link.is_symlink() and file.read_text().startswith('{"prompt": "mine", "class": "own"}\n{"prompt"')
    assert questions(file)[0] == "mine" and held == len(questions(file)) == new + 1
    assert asked.ask(link, target, Characters(), count=5, seed=2) == (held, 0)


@pytest.mark.slow
def test_the_demo_target_asks_in_sentences(tmp_path, capsys):
    file = tmp_path / "asked.jsonl"
    assert run(["train", "questions", str(file), "--count", "30"]) == 0
    made = questions(file)
    assert f"{len(made)} questions, of which HuggingFaceTB/SmolLM2-135M-Instruct made up {len(made)} now" in capsys.readouterr().out
    assert len(made) >= 30 and sum("?" in question for question in made) > len(made) / 2
    assert not any("<|im_" in question for question in made)
