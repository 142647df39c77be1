"""Parts of the chat on their own."""

import json
import random
import threading
import time

import pytest

from chat.fake import Engine, Piece, Stats, Tokenizer
from splashlite.chat import numbers
from splashlite.chat.conversation import Conversation
from splashlite.chat.drafts import Drafts
from splashlite.chat.keyboard import unquoted
from splashlite.chat.settings import SETTINGS, setting, written
from splashlite.chat.thinking import Thinking
from splashlite.chat.visible import visible
from splashlite.chat.worker import Worker
from splashlite.errors import SplashliteError, UsageError

VALUES = {
    "max_tokens": ("4,096", 4096), "temperature": ("0.7", 0.7), "top_k": ("20", 20), "top_p": ("0.95", 0.95),
    "min_p": ("0", 0.0), "presence_penalty": ("-1.5", -1.5), "frequency_penalty": ("2", 2.0),
    "repetition_penalty": ("1.1", 1.1), "logit_bias": ("42=-5, 7=2.5", {42: -5.0, 7: 2.5}), "seed": ("0", 0),
    "stop": ("'END OF' \\n C:\\\\ \"it's\"", ["END OF", "\n", "C:\\", "it's"]),
    "width": ("8", 8), "speculative": ("off", False),
}  # fmt: skip
WRONG = {
    "max_tokens": "-1", "temperature": "warm", "top_k": "1.5", "top_p": "0", "min_p": "1.1", "presence_penalty": "3",
    "frequency_penalty": "nan", "repetition_penalty": "0", "logit_bias": "x=1", "seed": "-3", "stop": "''",
    "width": "0", "speculative": "perhaps",
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_read_refused_and_written_back(name):
    text, value = VALUES[name]
    assert setting(name.upper().replace("_", "-")).parse(text) == value
    assert setting(name).parse(written(value)) == value
    for wrong in (WRONG[name], ""):
        with pytest.raises(UsageError, match=f"^{name} must be "):
            setting(name).parse(wrong)


def test_every_setting_is_an_argument_of_the_engine():
    import inspect

    import splashlite

    assert set(SETTINGS) <= set(inspect.signature(splashlite.Engine.stream).parameters)


def test_control_characters_become_visible():
    hidden = "".join(map(chr, [*range(32), *range(0x7F, 0xA0), 0x202E, 0x2066, 0x2028, 0xD800]))
    seen = visible(hidden)
    assert all(character.isprintable() or character in "\n\t" for character in seen)
    assert (
        visible("\x1b[31m") == "␛[31m" and visible("naïve 漢字 👩‍👩‍👧 العربية\tx\n") == "naïve 漢字 👩‍👩‍👧 العربية\tx\n"
    )


def split(text, prompt="", seed=None):
    """(thought, answer) of a text that arrives in pieces."""
    thinking, parts, chance = Thinking(prompt), [], random.Random(seed)
    while text:
        count = len(text) if seed is None else chance.randint(1, 4)
        parts += thinking.feed(text[:count])
        text = text[count:]
    parts += thinking.finish()
    return "".join(t for is_thought, t in parts if is_thought), "".join(t for is_thought, t in parts if not is_thought)


@pytest.mark.parametrize("seed", [None, *range(10)])
def test_thinking_is_told_from_the_answer(seed):
    assert split("<think>\na < b\n</think>\n\nSo **yes**.", seed=seed) == ("a < b\n", "So **yes**.")
    assert split("a < b\n</think>\n\nSo.", prompt="<assistant>\n<think>\n", seed=seed) == ("a < b\n", "So.")
    assert split("no tags, a < b", seed=seed) == ("", "no tags, a < b")
    assert split("say <think> aloud </think>", seed=seed) == ("", "say <think> aloud </think>")
    assert split("x</think>y<think>z", prompt="<assistant>\n<think>\n", seed=seed) == ("x", "y<think>z")
    assert split("unfinished <thi", prompt="<assistant>\n<think>\n", seed=seed) == ("unfinished <thi", "")
    assert split("a</think>", prompt="<think>\n\n</think>\n\n", seed=seed) == ("", "a</think>")
    assert split("\n\nanswer\n", seed=seed) == ("", "answer\n")
    assert split("<|channel>thought\nhm<channel|>Yes.", seed=seed) == ("hm", "Yes.")
    harmony = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    assert split(harmony, seed=seed) == ("hm", "Yes.")
    assert split("<|channel|>final<|message|>Yes.", seed=seed) == ("", "Yes.")


def test_drafted_characters_are_those_of_drafted_tokens():
    drafts = Drafts(Tokenizer())
    text = "He said 漢字"
    pieces = [
        Piece("He s", [*map(ord, "He sai")], [True] * 5 + [False]),
        Piece("aid 漢字", [*map(ord, "d 漢字")], [True] * 4, "stop"),
    ]
    parts = [part for piece in pieces for part in drafts.parts(piece)]
    assert "".join(part for part, _ in parts) == text
    assert [part for part, drafted in parts if not drafted] == ["i"]


def test_conversation_keeps_alternating():
    talk = Conversation("be brief", document="the document")
    talk.ask("first")
    talk.answer("")
    assert talk.turns == []
    talk.ask("second")
    talk.answer("reply")
    talk.ask("third")
    roles = [message["role"] for message in talk.messages]
    assert roles == ["system", "user", "assistant", "user"]
    assert talk.messages[1]["content"] == "the document\n\nsecond" and talk.turns[0]["content"] == "second"
    assert talk.undo() == "third" and talk.undo() == "second" and talk.undo() is None


def test_saved_conversations_come_back(tmp_path):
    talk = Conversation("sys", [{"role": "user", "content": "hé"}, {"role": "assistant", "content": "🙂\n"}], "doc")
    settings = {name: value for name, (_, value) in VALUES.items()}
    talk.save(tmp_path / "talk.json", settings)
    assert Conversation.load(tmp_path / "talk.json") == (talk, settings)


@pytest.mark.parametrize("change", [
    {"format": "other"}, {"turns": [{"role": "user", "content": "x"}]},
    {"turns": [{"role": "assistant", "content": "x"}] * 2}, {"turns": "x"}, {"system": 3},
    {"settings": {"colour": "red"}}, {"settings": {"top_p": "7"}},
])  # fmt: skip
def test_other_files_are_refused(tmp_path, change):
    path = tmp_path / "talk.json"
    Conversation().save(path, {})
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(SplashliteError, match="is not a conversation"):
        Conversation.load(path)


def test_lines_around_a_reply():
    assert (
        numbers.size(999) == "999 bytes" and numbers.size(98_300_000) == "98 MB" and numbers.size(1.52e10) == "15.2 GB"
    )
    stats = Stats(completion_tokens=1, speculation="off: width=1", decode_tps=0.0)
    assert numbers.last_line(stats, "stop", 2048) == "1 token · 4 of 12 cached · speculation off: width=1"
    assert numbers.last_line(stats, "length", 2048).endswith("cut at max_tokens")
    assert numbers.last_line(stats, "length", 13).endswith("cut: the context of 13 tokens is full")


def test_the_first_line_needs_nothing():
    engine = Engine()
    engine.describe = dict
    assert numbers.first_line(engine) == "unknown target · no drafter"


def test_quotes_around_a_message_are_taken_off():
    assert (
        unquoted('"""\na\nb\n"""') == "a\nb" and unquoted('say """x"""') == 'say """x"""' and unquoted(" a ") == " a "
    )


def test_everything_runs_on_the_engines_own_thread():
    threads = []

    class Watched(Engine):
        def _pieces(self, text, reason):
            threads.append(threading.current_thread())
            yield from super()._pieces(text, reason)

    def load():
        threads.append(threading.current_thread())
        return Watched()

    worker = Worker(load)
    worker.engine.result()
    assert "".join(piece.text for piece in worker.stream("a")) == "You said: a"
    assert "".join(piece.text for piece in worker.stream("b")) == "You said: b"
    worker.close()
    assert len(set(threads)) == 1 and threads[0] is not threading.main_thread() and not threads[0].is_alive()


def test_a_stopped_stream_ends_at_once_and_closes_the_engines():
    worker = Worker(lambda: Engine(delay=0.05))
    engine = worker.engine.result()
    stream = worker.stream("long", max_tokens=2000)
    got = [piece for piece, _ in zip(stream, range(3), strict=False)]
    stream.stop()
    began = time.monotonic()
    assert len(list(stream)) <= 2 and time.monotonic() - began < 1
    assert "".join(piece.text for piece in worker.stream("next")) == "You said: next"
    assert engine.closed == 2 and len(got) == 3
    worker.close()


def test_a_stop_that_comes_too_early_for_the_engine_still_ends_the_stream():
    """An engine forgets a stop that comes before its reply begins."""
    worker = Worker(lambda: Engine(delay=0.02))
    engine = worker.engine.result()
    engine.stop = lambda: None
    worker.stream("long", max_tokens=2000).stop()
    stream = worker.stream("long", max_tokens=2000)
    next(iter(stream))
    stream.stop()
    began = time.monotonic()
    assert "".join(piece.text for piece in worker.stream("next")) == "You said: next"
    assert time.monotonic() - began < 1
    worker.close()


def test_an_error_reaches_the_one_who_asked_and_the_thread_goes_on():
    worker = Worker(Engine)
    worker.engine.result()
    with pytest.raises(SplashliteError, match="longer than the context"):
        list(worker.stream("fail"))
    assert "".join(piece.text for piece in worker.stream("ok")) == "You said: ok"
    worker.close()
