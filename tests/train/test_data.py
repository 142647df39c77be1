"""The data are the target's own words: what it answers alone, in any batch, and after any interruption."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import tiny
from safetensors.numpy import load_file, save_file

from splashlite.errors import SplashliteError, UsageError
from splashlite.train import answers, data
from splashlite.train.batches import Mixture, blocks, features, final_rows
from splashlite.train.corpus import About, Corpus, values
from splashlite.train.prompts import Prompt

LENGTHS, LIMIT, TOP, ENDS = (5, 9, 9, 23), 24, 8, frozenset({3, 11, 19})


def prompts() -> list[Prompt]:
    return [Prompt(tiny.random_prompt(length, seed)) for seed, length in enumerate(LENGTHS)]


def generate(target, chosen, temperature=0.0, features=True, ends=ENDS):
    return answers.generate(
        target, [prompts()[i] for i in chosen], [temperature] * len(chosen), list(chosen),
        seed=3, limit=LIMIT, ends=ends, top=TOP, features=features,
    )  # fmt: skip


def alone(target, prompt: Prompt, ends=ENDS) -> list[int]:
    engine = tiny.make_engine(target, eos_ids=ends)
    reply = engine.generate(prompt.ids, max_tokens=LIMIT)
    return reply.tokens if reply.finish_reason == "length" else [*reply.tokens, None]


@pytest.mark.exact
@pytest.mark.parametrize("name", ["dense", "hybrid", "windowed", "sinks", "next", "gemma"])
def test_greedy_answers_in_a_batch_are_those_of_plain_decoding(name):
    target = tiny.make_target(name)
    ended = 0
    for prompt, found in zip(prompts(), generate(target, range(4)), strict=True):
        answer, expected = found.tokens[len(prompt.ids) :].tolist(), alone(target, prompt)
        if expected[-1] is None:
            ended += 1
            assert answer[-1] in ENDS and answer[:-1] == expected[:-1]
        else:
            assert answer == expected
        assert found.top_ids.shape == (len(answer), TOP) and found.top_ids[:, 0].tolist() == answer
        assert (np.diff(found.top_logits.astype(np.float32)) <= 0).all() and (found.top_logits[:, 0] == 0).all()
    assert name != "dense" or 0 < ended < 4


@pytest.mark.exact
@pytest.mark.parametrize("name", ["dense", "hybrid", "windowed"])
def test_features_are_those_of_reading_the_whole_text(name):
    target = tiny.make_target(name)
    for found in generate(target, range(4)):
        _, features = target.read(target.new_state(), mx.array(found.tokens[None, :-1]))
        assert found.features.shape == (len(found) - 1, features.shape[-1])
        assert mx.allclose(values(found.features).astype(mx.float32), features[0], rtol=0.01, atol=0.02)


def judged(target, text, rows: mx.array) -> None:
    """Final rows [A, H] are those of reading the whole text, and what the target's head makes of them is stored with them."""
    whole, _ = target.read(target.new_state(), mx.array(text.tokens[None, :-1]))
    assert rows.shape == (len(text.top_ids), target.hidden_size)
    assert mx.allclose(rows.astype(mx.float32), whole[0, text.prompt_length - 1 :], rtol=0.01, atol=0.02)
    logits = target.head(rows[None].astype(mx.float32))[0]
    best = mx.take_along_axis(logits, mx.array(text.top_ids), axis=-1)
    assert mx.allclose(best, mx.sort(logits, axis=-1)[:, : -TOP - 1 : -1], atol=0.1)
    assert np.allclose(best - best[:, :1], text.top_logits, atol=0.1)


@pytest.mark.exact
@pytest.mark.parametrize("name", ["dense", "hybrid", "windowed"])
def test_rows_are_those_behind_the_stored_distributions(name):
    target = tiny.make_target(name)
    for text in generate(target, range(4)):
        judged(target, text, values(text.rows))
        answer = text.tokens[text.prompt_length :].tolist()
        ready = Prompt(text.tokens[: text.prompt_length].tolist(), answer)
        judged(target, text, values(answers.read(target, ready, top=TOP, features=True).rows))
    assert all(text.rows is None and text.features is None for text in generate(target, range(4), features=False))


@pytest.mark.exact
@pytest.mark.parametrize("name", ["dense", "hybrid"])
def test_what_is_kept_and_what_is_computed_again_are_the_same(name):
    """Final rows of a text, and the blocks of texts of different lengths."""
    target = tiny.make_target(name)
    kept = generate(target, range(4))
    again = [replace(text, features=None, rows=None) for text in kept]
    for text, bare in zip(kept, again, strict=True):
        judged(target, text, final_rows(target, text))
        judged(target, text, final_rows(target, bare))
    anchors = np.array([[text.prompt_length - 1, len(text) - 3, len(text) - 2] for text in kept])
    first, second = blocks(target, kept, anchors, 5), blocks(target, again, anchors, 5)
    assert not first.valid.all() and first.valid[..., 0].all()
    before = mx.arange(first.features.shape[1])[None] < mx.array([[len(text) - 1] for text in kept])
    close = mx.isclose(first.features.astype(mx.float32), second.features, rtol=0.01, atol=0.02).all(axis=-1)
    assert mx.where(before, close, True).all()


@pytest.mark.exact
def test_drawn_answers_do_not_depend_on_the_batch_and_follow_the_temperature():
    target = tiny.make_target("dense")
    together = generate(target, range(4), temperature=1.3)
    for number in range(4):
        (single,) = generate(target, [number], temperature=1.3)
        assert single.tokens.tolist() == together[number].tokens.tolist()
    greedy = generate(target, range(4))
    assert any(a.tokens.tolist() != b.tokens.tolist() for a, b in zip(together, greedy))
    cold = generate(target, range(4), temperature=1e-4)
    assert [each.tokens.tolist() for each in cold] == [each.tokens.tolist() for each in greedy]


def test_draws_have_the_distribution_they_claim():
    """The first drawn token of many prompts that are all the same, against softmax among the top tokens."""
    target, count = tiny.make_target("dense"), 1500
    prompt = Prompt(tiny.random_prompt(7))
    drawn = answers.generate(
        target, [prompt] * count, [0.9] * count, list(range(count)), seed=1, limit=1, ends=(), top=TOP, features=False
    )
    ids, logits = drawn[0].top_ids[0], drawn[0].top_logits[0].astype(np.float64)
    expected = np.exp(logits / 0.9) / np.exp(logits / 0.9).sum() * count
    found = np.array([sum(int(each.tokens[-1]) == token for each in drawn) for token in ids])
    assert found.sum() == count
    from scipy.stats import chisquare

    assert chisquare(found, expected).pvalue > 1e-4


class Words:
    """A tokenizer of single characters."""

    eos_ids = frozenset({3})

    def encode(self, text):
        return [ord(c) % 100 + 10 for c in text]

    def apply_chat_template(self, messages, add_generation_prompt=True):
        text = "".join(f"<{each['role']}>{each['content']}" for each in messages)
        return self.encode(text + ("<assistant>" if add_generation_prompt else ""))


def about(target, **changes) -> About:
    stated = About("tiny", "0", target.num_layers, 64, tiny.VOCAB, tiny.TAPS, TOP, True, "built-in", 5, 12, 0.5, 1.0)
    return replace(stated, **changes)


def contents(corpus: Corpus) -> list:
    return [
        (each.tokens.tolist(), each.temperature, each.top_ids.tolist(), each.features.tolist(), each.rows.tolist())
        for each in map(corpus.__getitem__, range(len(corpus)))
    ]


def texts(corpus: Corpus) -> list:
    return [corpus[i].tokens.tolist() for i in range(len(corpus))]


def interrupted(folder, target, after: int, tokens: int) -> int:
    """Make data until more than `after` tokens are done; returns how many were said to be done then."""

    class Stop(Exception):
        pass

    heard = []

    def stop(done, total):
        heard.append(done)
        if done > after:
            raise Stop

    with pytest.raises(Stop):
        data.make(folder, target, Words(), about(target), [], tokens=tokens, progress=stop)
    return heard[-1]


@pytest.mark.exact
@pytest.mark.parametrize("batch", [3, 8])
def test_an_interrupted_corpus_goes_on_to_the_same_end(tmp_path, monkeypatch, batch):
    """With every batch that was answered, though its shard is not whole."""
    target = tiny.make_target("dense")
    monkeypatch.setattr(data, "SHARD", 8)
    monkeypatch.setattr(data, "BATCH", batch)
    whole = data.make(tmp_path / "whole", target, Words(), about(target), [], tokens=200)
    assert len(whole) > 16 and whole.answer_tokens >= 200
    for after in (1, 60, 100, 180):
        done = interrupted(tmp_path / "cut", target, after, 200)
        assert Corpus(tmp_path / "cut").answer_tokens == done <= whole.answer_tokens
    assert contents(data.make(tmp_path / "cut", target, Words(), about(target), [], tokens=200)) == contents(whole)
    temperatures = [whole[i].temperature for i in range(len(whole))]
    assert set(temperatures) == {0.0, 1.0}


def test_a_corpus_ends_about_where_it_was_asked_to(tmp_path):
    target = tiny.make_target("dense")
    limit = about(target).limit
    for tokens in (1, 40, 300, 1000):
        heard = []
        stated = {"tokens": tokens, "progress": lambda done, total: heard.append((done, total))}
        corpus = data.make(tmp_path / str(tokens), target, Words(), about(target), [], **stated)
        assert tokens <= corpus.answer_tokens < tokens + 3 * limit + tokens // 20
        assert all(total == tokens for _, total in heard[:-1]) and heard[-1] == (corpus.answer_tokens,) * 2


@pytest.mark.exact
def test_more_is_added_to_a_corpus_of_shards_that_were_one_file_each(tmp_path):
    """As earlier versions made them: 256 prompts in a file, without a word about which."""
    target = tiny.make_target("dense")
    stated = (target, Words(), about(target, features=False, limit=2), [])

    def made() -> list:
        return texts(data.make(tmp_path, *stated, tokens=600))

    whole = made()
    read, one = [load_file(part) for part in sorted(tmp_path.glob("shard-00000-*"))], tmp_path / "shard-00000.safetensors"
    save_file({name: np.concatenate([each[name] for each in read]) for name in read[0]}, one)
    for part in tmp_path.glob("shard-*-*"):
        part.unlink()
    assert len(read) == 2 and texts(Corpus(tmp_path)) == whole[:256] and len(whole) > 256
    assert made() == whole
    one.unlink()
    assert made() == whole


def test_other_data_do_not_get_into_a_folder(tmp_path):
    target = tiny.make_target("dense")
    data.make(tmp_path, target, Words(), about(target), [], tokens=1)
    for changes, says in [({"seed": 6}, "seed 5, not 6:"), ({"taps": (0, 1)}, "taps 0,2,3, not 0,1:"),
                          ({"features": False}, "features keep, not recompute:")]:  # fmt: skip
        with pytest.raises(UsageError, match=says):
            data.make(tmp_path, target, Words(), about(target, **changes), [], tokens=1)


@pytest.mark.exact
def test_a_shard_that_was_deleted_is_made_again(tmp_path, monkeypatch):
    target = tiny.make_target("dense")
    monkeypatch.setattr(data, "SHARD", 8)
    whole = contents(data.make(tmp_path, target, Words(), about(target), [], tokens=200))
    (tmp_path / "shard-00001-0.safetensors").unlink()
    assert len(Corpus(tmp_path)) == len(whole) - 8
    assert contents(data.make(tmp_path, target, Words(), about(target), [], tokens=200)) == whole


@pytest.mark.exact
def test_what_was_deleted_from_a_corpus_that_grew_is_made_again(tmp_path, monkeypatch):
    """Its first shards are small, as few tokens were asked for."""
    target = tiny.make_target("dense")
    monkeypatch.setattr(data, "SHARD", 16)
    monkeypatch.setattr(data, "BATCH", 8)
    few = texts(data.make(tmp_path, target, Words(), about(target), [], tokens=30))
    whole = texts(data.make(tmp_path, target, Words(), about(target), [], tokens=600))
    assert whole[: len(few)] == few and len(set(map(tuple, whole))) == len(whole) > 48
    for file in ("shard-00000-0", "shard-00001-0", "shard-00003-1"):
        (tmp_path / f"{file}.safetensors").unlink()
        assert texts(data.make(tmp_path, target, Words(), about(target), [], tokens=600)) == whole


def test_prompts_that_were_changed_are_not_mistaken_for_the_old_ones(tmp_path):
    target, file = tiny.make_target("dense"), tmp_path / "mine.jsonl"
    file.write_text('{"text": "once upon"}\n')
    stated = about(target, prompts=file.name, contents=data.contents([file]))
    data.make(tmp_path / "out", target, Words(), stated, [file], tokens=None)
    file.write_text('{"text": "once upon"}\n{"text": "a time"}\n')
    with pytest.raises(UsageError, match="what mine.jsonl held before it was changed"):
        data.make(tmp_path / "out", target, Words(), replace(stated, contents=data.contents([file])), [file], tokens=None)


def test_only_the_targets_own_greedy_answers_are_examined_evenly(tmp_path):
    target, file = tiny.make_target("dense"), tmp_path / "mine.jsonl"
    line = '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "you too"}]}\n'
    file.write_text("".join(line % f"hi {i}" for i in range(16)))
    given = data.make(tmp_path / "given", target, Words(), about(target), [file], tokens=None)
    own = data.make(tmp_path / "own", target, Words(), about(target), [], tokens=2000)
    mixture = Mixture([given, own], held_out=2, longest=200)
    assert given.given == mixture.given == 16 and own.given == 0
    some, every = mixture.examination(5), mixture.examination(10**6)
    assert every == [(own, i) for i in range(1, len(own), 2) if own[i].temperature == 0]
    assert 3 <= len(some) <= 5 and set(some) <= set(every) and some[-1][1] > len(own) * 0.6
    with pytest.raises(UsageError, match="of prompts that bring no answer"):
        Mixture([given], held_out=2, longest=200).examination(5)


@pytest.mark.parametrize("sampled", [0.0, 0.9])
def test_a_greedy_answer_is_held_out_wherever_there_are_two_answers(tmp_path, sampled):
    target, file, seen = tiny.make_target("dense"), tmp_path / "mine.jsonl", 0
    for count in range(1, 9):
        file.write_text("".join(f'{{"prompt": "{number} of {count}"}}\n' for number in range(count)))
        stated = about(target, sampled=sampled, seed=count)
        corpus = data.make(tmp_path / str(count), target, Words(), stated, [file], tokens=None)
        mixture, every = Mixture([corpus], held_out=4, longest=200), [(corpus, i) for i in range(count)]
        assert sorted(mixture.training + mixture.held_out, key=every.index) == every and mixture.training
        usual = [place for place in every if place[1] % 4 == 3]
        if any(corpus[index].temperature == 0 for _, index in usual):
            assert mixture.held_out == usual
        elif count > 1 and any(corpus[index].temperature == 0 for _, index in every):
            (more,) = [place for place in mixture.held_out if place not in usual]
            assert mixture.examination(24) == [more]
            seen += 1
        else:
            with pytest.raises(UsageError, match="make more data"):
                mixture.examination(24)
    assert seen

def test_a_batch_may_hold_texts_with_kept_features_and_without():
    target = tiny.make_target("dense")
    kept = generate(target, range(3))
    mixed = [kept[0], replace(kept[1], features=None), kept[2]]
    rows = features(target, mixed, max(map(len, kept)) - 1)
    for text, found in zip(kept, rows, strict=True):
        assert mx.allclose(values(text.features).astype(mx.float32), found[: len(text) - 1], rtol=0.01, atol=0.02)


@pytest.mark.parametrize(("layers", "taps"), [(1, (0,)), (2, (1,)), (3, (1,)), (5, (1, 2)), (30, (1, 7, 14, 20, 27))])
def test_taps_ascend_whatever_the_depth(layers, taps):
    assert data.even_taps(layers, 5) == taps


def test_ones_own_prompts_are_answered_and_ready_answers_are_read(tmp_path):
    target = tiny.make_target("dense")
    file = tmp_path / "mine.jsonl"
    file.write_text(
        '{"prompt": "hello", "class": "greetings"}\n\n'
        '{"text": "once upon"}\n'
        '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "you too"}]}\n'
    )
    corpus = data.make(tmp_path / "out", target, Words(), about(target), [file], tokens=None)
    found = {tuple(corpus[i].tokens[: corpus[i].prompt_length].tolist()): corpus[i] for i in range(len(corpus))}
    assert len(found) == 3
    given = found[tuple(Words().apply_chat_template([{"role": "user", "content": "hi"}]))]
    assert given.tokens[given.prompt_length :].tolist() == Words().encode("you too")
    _, features = target.read(target.new_state(), mx.array(given.tokens[None, :-1]))
    assert mx.allclose(values(given.features).astype(mx.float32), features[0], rtol=0.01, atol=0.02)
    assert found[tuple(Words().encode("once upon"))].prompt_length == len("once upon")


class Ending(Words):
    """Its template ends an answer with an end token and writes a line break behind it, as most do."""

    def apply_chat_template(self, messages, add_generation_prompt=True):
        ids = super().apply_chat_template(messages, add_generation_prompt)
        return ids if add_generation_prompt else [*ids, 3, 110]


def test_a_ready_answer_ends_with_its_end_token_and_an_empty_one_is_refused(tmp_path):
    target, file = tiny.make_target("dense"), tmp_path / "mine.jsonl"
    line = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "%s"}]}'
    file.write_text(line % "you too")
    (only,) = map(data.make(tmp_path / "out", target, Ending(), about(target), [file], tokens=None).__getitem__, [0])
    assert only.tokens[only.prompt_length :].tolist() == [*Words().encode("you too"), 3]
    file.write_text(line % "")
    with pytest.raises(UsageError, match="the last answer is empty"):
        data.make(tmp_path / "empty", target, Ending(), about(target), [file], tokens=None)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2 is not JSON"),
        ('{"text": ""}', "not empty"),
        ('{"question": "x"}', 'one of "messages", "prompt" and "text"'),
        ('{"messages": []}', "list of objects"),
        ('{"messages": [{"role": "usr", "content": "x"}]}', "line 2: .* user, assistant, .* not 'usr'"),
        ('{"messages": [{"content": "x"}]}', "line 2: .* user, assistant, .* not None"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "line 2: the model's chat template refuses"),
    ],
)
def test_a_wrong_line_is_named_before_anything_is_made(tmp_path, monkeypatch, line, says):
    class Refusing(Words):
        def apply_chat_template(self, messages, add_generation_prompt=True):
            if messages[0]["role"] == "tool":
                raise UsageError("the model's chat template refuses these messages")
            return super().apply_chat_template(messages, add_generation_prompt)

    monkeypatch.setattr(data, "SHARD", 1)
    target, file = tiny.make_target("dense"), tmp_path / "mine.jsonl"
    file.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(UsageError, match=says):
        data.make(tmp_path / "out", target, Refusing(), about(target), [file], tokens=None)
    assert not (tmp_path / "out").exists() or "refuses" in says


def test_a_damaged_shard_and_a_foreign_folder_are_refused(tmp_path):
    target = tiny.make_target("dense")
    data.make(tmp_path, target, Words(), about(target), [], tokens=1)
    (shard,) = tmp_path.glob("shard-*")
    shard.write_bytes(shard.read_bytes()[:-50])
    with pytest.raises(SplashliteError, match=f"{shard.name} is damaged"):
        Corpus(tmp_path)
    with pytest.raises(UsageError, match="elsewhere is no folder of `splashlite train data`"):
        Corpus(tmp_path / "elsewhere")
