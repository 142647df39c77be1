"""What is asked: the shipped prompts, a user's file in either form, and what does not fit."""

import json
from types import SimpleNamespace

import pytest
from benchtoys import byte_tokenizer

from splashlite.errors import UsageError
from splashlite.evaluate.prompts import Prompt, encoded, from_file, shipped


def test_every_class_ships_ten_prompts_and_the_long_document_three():
    kinds = [prompt.kind for prompt in shipped()]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "code": 10, "mathematics": 10, "chat": 10, "prose": 10, "german": 10, "document": 3,
    }  # fmt: skip
    assert len({prompt.content for prompt in shipped()}) == 53


def test_the_document_stands_in_front_of_its_questions():
    questions = [prompt.content for prompt in shipped() if prompt.kind == "document"]
    begins = {question.rpartition("\n\n")[0] for question in questions}
    assert len(begins) == 1 and 14000 < len(begins.pop()) < 20000
    assert all(question.rpartition("\n\n")[2].endswith((".", "?")) for question in questions)


def test_few_prompts_keep_every_class():
    few = [prompt.kind for prompt in shipped(2)]
    assert {kind: few.count(kind) for kind in few} == {
        "code": 2, "mathematics": 2, "chat": 2, "prose": 2, "german": 2, "document": 1,
    }  # fmt: skip


def test_a_line_is_a_prompt(tmp_path):
    file = tmp_path / "letters.txt"
    file.write_text("Write to my aunt.\n\n  Write to the bank. \n", encoding="utf-8")
    assert from_file(file) == [
        Prompt("letters", "Write to my aunt."),
        Prompt("letters", "Write to the bank."),
    ]


def test_only_a_line_feed_ends_a_line(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "One\u2028and\x85two"}\r\n{"prompt": "Three"}\n', encoding="utf-8")
    assert from_file(file) == [Prompt("mine", "One\u2028and\x85two"), Prompt("mine", "Three")]


def test_a_json_line_may_name_its_class_or_hold_a_conversation(tmp_path):
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, [{"class": "mail", "prompt": "Hi"}, {"messages": talk}])))
    assert from_file(file) == [Prompt("mail", "Hi"), Prompt("mine", talk)]


@pytest.mark.parametrize("line, said", [
    ("{", "is not JSON"),
    ("[1]", "must be an object"),
    ('{"prompt": ""}', "must give a text"),
    ('{"prompt": 7}', "must give a text"),
    ('{"messages": []}', "must give a list of messages"),
    ('{"messages": [{"content": "x"}]}', "must give a list of messages"),
    ('{"class": "mail"}', 'either "prompt" or "messages"'),
    ('{"prompt": "x", "messages": [{"role": "user", "content": "x"}]}', 'either "prompt" or "messages"'),
    ('{"prompt": "x", "class": 3}', '"class" must be a word'),
    ('{"prompt": "x", "klass": "mail"}', 'has "klass"'),
])  # fmt: skip
def test_a_wrong_line_is_named(tmp_path, line, said):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "fine"}\n\n' + line)
    with pytest.raises(UsageError, match="line 3") as error:
        from_file(file)
    assert said in str(error.value)


def test_a_file_that_is_empty_missing_or_no_text_is_refused(tmp_path):
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    for name, said in (
        ("empty", "has no prompts"),
        ("missing", "cannot be read"),
        ("noise", "cannot be read"),
    ):
        with pytest.raises(UsageError, match=said):
            from_file(tmp_path / name)


def test_what_does_not_fit_is_left_out_by_name():
    engine = SimpleNamespace(tokenizer=byte_tokenizer(), context=100)
    asked, notes = encoded(engine, [Prompt("short", "hello"), Prompt("long", "x" * 80)], room=30)
    assert [(kind, len(ids)) for kind, ids in asked] == [("short", 5)]
    (note,) = notes
    assert note.startswith(
        "long: prompts are left out, the longest has 80 tokens and the context of 100 also"
    )
    with pytest.raises(UsageError, match="no prompt fits"):
        encoded(engine, [Prompt("long", "x" * 80)], room=30)


def test_a_target_without_a_tokenizer_cannot_be_asked():
    with pytest.raises(UsageError, match="no tokenizer"):
        encoded(SimpleNamespace(tokenizer=None, context=100), [Prompt("a", "b")], room=1)
