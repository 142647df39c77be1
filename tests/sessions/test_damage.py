"""Whatever becomes of the folder of prefixes, and whenever: a start works, and a reply is that of a fresh engine."""

import logging
import os
import random
import shutil
import struct
import time
from collections import Counter

import mlx.core as mx
import pytest
from sessions.whole import PROMPT, make_pair, reading, same_as_cold
from tiny import make_engine, random_prompt

from splashlite.sessions import Disk, Session, Store

ROOM = 1 << 30
NAME = "a" * 64
ASIDE = random_prompt(41, seed=4)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return make_pair("hybrid/24", tmp_path_factory.mktemp("drafter"))


def start(pair, folder, *, memory=ROOM, limit=ROOM):
    return Session(*pair, Store(memory, Disk(NAME, limit, folder)))


def files(folder):
    return sorted(folder.glob("*/*.safetensors"))


def saved(pair, folder, *texts):
    """The only file of one text, or the files of several."""
    session = start(pair, folder)
    for text in texts:
        session.begin(text)
    session.save()
    return files(folder)


def grown(pair, folder, memory):
    """A conversation of five turns whose earlier points memory had no room for, and where each turn ended."""
    session, text, ends = start(pair, folder, memory=memory), random_prompt(40), []
    for turn in range(5):
        session.begin(text)
        ends.append(len(text) - 1)
        text = text + [50 + turn] * 10
    return session, text, ends


def gone(file):
    file.unlink()


def flipped(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def a_header_flipped(file):
    content = bytearray(file.read_bytes())
    content[8 + content[8:].index(b",")] = ord("1")
    file.write_bytes(content)


def cut(file):
    file.write_bytes(file.read_bytes()[:-40])


def a_folder(file):
    file.unlink()
    (file.with_name("x.safetensors") / "inside").mkdir(parents=True, exist_ok=True)


def a_link_to_itself(file):
    """Nobody, not even root, can open or ask about it."""
    file.unlink()
    file.symlink_to(file.name)


def a_pipe(file):
    """Opening it would wait for ever."""
    file.unlink()
    os.mkfifo(file)


HARM = [gone, flipped, a_header_flipped, cut, a_folder, a_link_to_itself, a_pipe]


@pytest.mark.exact
@pytest.mark.parametrize("memory", [30_000, 45_000, 60_000])
@pytest.mark.parametrize("turn", range(5))
def test_a_running_conversation_outlives_its_files(hybrid, tmp_path, memory, turn):
    session, text, ends = grown(hybrid, tmp_path, memory)
    shutil.rmtree(session.store.disk.folder)
    session.begin(text[: ends[turn]] + [99, 98])
    same_as_cold(session, *hybrid)


@pytest.mark.exact
def test_only_what_the_lost_file_gave_is_forgotten(hybrid, tmp_path):
    session, text, ends = grown(hybrid, tmp_path, 45_000)
    lost = next(each.source.file for each in session.leaf.path() if each.end == ends[2])
    lost.unlink()
    assert session.begin(text[: ends[2]] + [99, 98]) == ends[1]
    same_as_cold(session, *hybrid)


@pytest.mark.exact
@pytest.mark.slow
@pytest.mark.parametrize("memory, limit", [(30_000, ROOM), (60_000, ROOM), (60_000, 150_000), (ROOM, ROOM)])
def test_files_lost_or_spoiled_between_turns_in_any_order(hybrid, tmp_path, memory, limit):
    """Conversations that grow for some turns, then lose most of their files, and go back or on."""
    dice, cached, cold = random.Random(memory + limit), 0, make_engine(*hybrid)
    engine, text = make_engine(*hybrid), random_prompt(40, seed=1)
    engine.session = start(hybrid, tmp_path, memory=memory, limit=limit)
    for step in range(30):
        prompt = text + random_prompt(dice.randint(1, 20), seed=step)
        if step % 6 == 5:
            for file in files(tmp_path):
                if dice.random() < 0.7 and file.is_file():
                    dice.choice(HARM)(file)
            prompt = text[: dice.randint(20, len(text))] + [99, 98]
        if step == 11:
            Disk("b" * 64, 40_000, tmp_path).trim()  # another process makes room for its own
        if step == 17:
            shutil.rmtree(tmp_path)
        reply = engine.generate(prompt, max_tokens=4)
        cold.session = Session(*hybrid)
        assert reply.tokens == cold.generate(prompt, max_tokens=4).tokens
        same_as_cold(engine.session, *hybrid)
        assert engine.session.store.nbytes <= memory
        cached += reply.stats.cached_tokens
        text = prompt + reply.tokens if len(prompt) < 200 else random_prompt(40, seed=step)
        if step % 10 == 9:
            engine.session.save()
            engine.session = start(hybrid, tmp_path, memory=memory, limit=limit)
    assert cached


def test_no_changed_byte_of_a_header_is_more_than_a_dropped_file(hybrid, tmp_path, caplog):
    (file,) = saved(hybrid, tmp_path, PROMPT)
    good = file.read_bytes()
    disk, dice = Disk(NAME, ROOM, tmp_path), random.Random(1)
    ((text, source),) = disk.scan()
    rows, _ = disk.read(source)
    (length,) = struct.unpack("<Q", good[:8])
    outcomes = Counter()
    for at in range(8 + length):
        for byte in (ord("1"), dice.randrange(256)):
            file.write_bytes(good[:at] + bytes([byte]) + good[at + 1 :])
            caplog.clear()
            content = [disk.read(source) for _, source in disk.scan()]
            spoiled = content in ([], [None])
            assert spoiled == (len(caplog.messages) == 1) == (not file.exists())
            if not spoiled:
                ((same, _),) = content
                assert all(mx.array_equal(a, b) for a, b in zip(rows, same, strict=True))
            outcomes[spoiled] += 1
    assert outcomes[True] > 10 * outcomes[False]


@pytest.mark.parametrize("harm", HARM, ids=lambda harm: harm.__name__)
def test_a_start_works_whatever_is_in_the_folder(hybrid, tmp_path, caplog, harm):
    (file,) = saved(hybrid, tmp_path, PROMPT)
    harm(file)
    session = start(hybrid, tmp_path)
    assert session.begin(PROMPT) == 0
    session.save()
    lines = [line for line in caplog.messages if "a saved prefix was" in line and "\n" not in line]
    assert len(lines) == len(caplog.messages) == (0 if harm is gone else 1)
    assert start(hybrid, tmp_path).begin(PROMPT) == len(PROMPT) - 1


@pytest.mark.parametrize("harm", HARM, ids=lambda harm: harm.__name__)
def test_a_file_that_is_spoiled_while_we_run_is_only_missed(hybrid, tmp_path, harm):
    (file,) = saved(hybrid, tmp_path, PROMPT)
    session = start(hybrid, tmp_path)
    harm(file)
    assert session.begin(PROMPT) == 0
    session.begin(ASIDE)
    session.save()
    session.store.disk.touch([file])
    session.store.disk.limit_bytes = 1
    session.store.disk.trim()
    assert not any(left.is_file() for left in files(tmp_path))


@pytest.mark.parametrize("where", ["prefixes", "prefixes/" + NAME[:32]])
def test_a_folder_that_cannot_be_used_is_said_once(hybrid, tmp_path, caplog, where):
    place = tmp_path / where
    place.parent.mkdir(exist_ok=True)
    place.write_text("no folder")
    session = start(hybrid, tmp_path / "prefixes", memory=40_000)
    for seed in range(4):
        session.begin(random_prompt(40, seed=seed))
    session.save()
    (line,) = caplog.messages
    assert "prefixes are not kept on disk" in line and str(place) in line and place.read_text() == "no folder"


def test_what_is_deeper_than_a_parser_goes_is_not_a_prefix(hybrid, tmp_path, caplog):
    folder = start(hybrid, tmp_path).store.disk.folder
    deep = b"[" * 200_000
    (folder / "x.safetensors").write_bytes(struct.pack("<Q", len(deep)) + deep)
    assert start(hybrid, tmp_path).begin(PROMPT) == 0
    assert len(caplog.messages) == 1 and not files(tmp_path)


def test_a_start_leaves_what_another_process_is_writing(hybrid, tmp_path, monkeypatch, caplog):
    write = mx.save_safetensors

    def meanwhile(*arguments):
        write(*arguments)
        start(hybrid, tmp_path, limit=1).store.disk.trim()

    with monkeypatch.context() as patch:
        patch.setattr(mx, "save_safetensors", meanwhile)
        assert len(saved(hybrid, tmp_path, PROMPT)) == 1
    assert not caplog.messages
    assert start(hybrid, tmp_path).begin(PROMPT) == len(PROMPT) - 1


def test_what_a_dead_process_left_half_written_goes(hybrid, tmp_path, caplog):
    folder = start(hybrid, tmp_path).store.disk.folder
    old, new = (folder / f"{name}.part.safetensors" for name in ("old", "new"))
    for part in (old, new):
        part.write_text("half")
    os.utime(old, (time.time() - 86_400,) * 2)
    start(hybrid, tmp_path)
    assert files(tmp_path) == [new] and not caplog.messages


@pytest.mark.parametrize("memory", [40_000, ROOM], ids=["evicted", "saved"])
def test_a_limit_that_one_prefix_does_not_fit_is_said_once(hybrid, tmp_path, caplog, memory):
    session = start(hybrid, tmp_path, limit=2_000, memory=memory)
    for seed in range(4):
        session.begin(random_prompt(60, seed=seed))
    session.save()
    session.save()
    (line,) = caplog.messages
    assert "--cache-disk" in line and caplog.records[0].levelno == logging.WARNING and not files(tmp_path)


def test_a_prefix_that_does_not_fit_does_not_keep_others_away(hybrid, tmp_path):
    (file,) = saved(hybrid, tmp_path / "apart", PROMPT)
    session = start(hybrid, tmp_path / "here", limit=2 * file.stat().st_size)
    session.begin(PROMPT)
    session.begin(random_prompt(600, seed=2))
    session.save()
    assert len(files(tmp_path / "here")) == 1
    assert start(hybrid, tmp_path / "here").begin(PROMPT) == len(PROMPT) - 1


@pytest.mark.exact
@pytest.mark.parametrize("memory", [70_000, ROOM], ids=["evicted", "saved"])
def test_a_point_that_came_after_its_rows_is_written_too(hybrid, tmp_path, memory, monkeypatch):
    """The third of three prompts that share a beginning makes the checkpoint where they part."""
    system = random_prompt(60, seed=9)
    with reading(64, monkeypatch):
        session = start(hybrid, tmp_path, memory=memory)
        session.begin(system + random_prompt(20, seed=1))
        session.save()
        assert session.begin(system + random_prompt(20, seed=2)) == 0
        assert session.begin(system + random_prompt(20, seed=3)) == 60
        session.begin(ASIDE)
        session.save()
        again = start(hybrid, tmp_path)
        assert again.begin(system + random_prompt(20, seed=5)) == 60
        same_as_cold(again, *hybrid)
        written = session.store.disk.written_bytes
        session.save()
        assert session.store.disk.written_bytes == written


def test_what_was_lost_on_disk_is_written_again(hybrid, tmp_path):
    session = start(hybrid, tmp_path)
    session.begin(PROMPT)
    session.save()
    shutil.rmtree(tmp_path)
    session.begin(PROMPT + [5] * 20)
    session.save()
    assert start(hybrid, tmp_path).begin(PROMPT + [5] * 20) == len(PROMPT) + 19


def test_the_end_of_a_text_goes_before_its_beginning(hybrid, tmp_path):
    for trial in range(6):
        folder = tmp_path / str(trial)
        session = start(hybrid, folder)
        for turn in range(4):
            session.begin(PROMPT + [5 + trial] * 20 * turn)
        session.save()
        disk = session.store.disk
        begins = {source.file: source.begin for _, source in disk.scan()}
        disk.limit_bytes, order = sum(file.stat().st_size for file in files(folder)), []
        while disk.limit_bytes > 0 and len(order) < 4:
            disk.limit_bytes -= 1
            order += [begins[file] for file in disk.trim()]
            disk.limit_bytes = sum(file.stat().st_size for file in files(folder))
        assert order == sorted(begins.values(), reverse=True)
