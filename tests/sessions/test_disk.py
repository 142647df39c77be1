"""Prefixes on disk: they survive a restart, and whatever is not exactly what was written is not used."""

import json
import os
import random
import stat
import struct

import mlx.core as mx
import numpy as np
import pytest
from sessions.whole import KINDS, PROMPT, make_pair, reading, same_as_cold
from tiny import make_target, random_prompt

from splashlite.errors import UsageError
from splashlite.sessions import Disk, Session, Store, disk, fingerprint

ASIDE = random_prompt(41, seed=4)
ROOM = 1 << 30


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    return make_pair(request.param, tmp_path_factory.mktemp("drafter"))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return make_pair("hybrid/24", tmp_path_factory.mktemp("drafter"))


def start(pair, folder, *, memory=ROOM, limit=ROOM, name="a" * 64):
    return Session(*pair, Store(memory, Disk(name, limit, folder)))


def files(folder):
    return sorted(folder.glob("*/*"))


@pytest.mark.exact
def test_a_restart_costs_nothing(pair, tmp_path, monkeypatch):
    with reading(16, monkeypatch):
        session = start(pair, tmp_path)
        session.begin(PROMPT)
        session.begin(ASIDE)
        session.begin(PROMPT[:32] + ASIDE[:9])
        session.save()
        again = start(pair, tmp_path)
        for text in (PROMPT, ASIDE, PROMPT[:32] + ASIDE[:9], PROMPT + [5, 6]):
            assert again.begin(text) >= min(len(text), len(PROMPT)) - 1
            same_as_cold(again, *pair)
        cold = Session(*pair)
        cold.begin(PROMPT[:20] + ASIDE[:9])
        assert again.begin(PROMPT[:20] + ASIDE[:9]) == (
            20 if again.store.anywhere else 16 if cold.leaf.path()[0].end == 16 else 0
        )
        same_as_cold(again, *pair)


@pytest.mark.exact
def test_what_memory_has_no_room_for_is_found_on_disk(pair, tmp_path):
    session = start(pair, tmp_path, memory=60_000)
    texts = [random_prompt(40, seed=seed) for seed in range(6)]
    for text in texts:
        session.begin(text)
        assert session.store.nbytes <= 60_000
    for text in texts:
        assert session.begin(text) == 39
        same_as_cold(session, *pair)


@pytest.mark.exact
@pytest.mark.parametrize("memory", [35_000, 90_000])
def test_small_memory_and_a_small_disk_in_any_order(pair, tmp_path, memory, monkeypatch):
    dice, cached = random.Random(5), 0
    with reading(16, monkeypatch):
        session, texts = start(pair, tmp_path, memory=memory, limit=150_000), [random_prompt(40, seed=1)]
        for step in range(30):
            text = dice.choice(texts)
            text = text[: dice.randint(2, len(text))] + random_prompt(dice.randint(1, 30), seed=step)
            cached += session.begin(text)
            assert session.store.nbytes <= memory
            assert sum(file.stat().st_size for file in files(tmp_path)) <= 150_000
            same_as_cold(session, *pair)
            texts.append(text)
            if step % 10 == 9:
                session.save()
                session = start(pair, tmp_path, memory=memory, limit=150_000)
    assert cached


def test_nothing_is_written_twice_and_nothing_without_being_asked(hybrid, tmp_path):
    session = start(hybrid, tmp_path)
    session.begin(PROMPT)
    session.begin(ASIDE)
    assert not files(tmp_path)
    session.save()
    written = session.store.disk.written_bytes
    assert written == sum(file.stat().st_size for file in files(tmp_path)) - overhead(tmp_path)
    session.begin(PROMPT)
    session.save()
    assert session.store.disk.written_bytes == written


def overhead(folder):
    """The files' headers."""
    return sum(8 + struct.unpack("<Q", file.read_bytes()[:8])[0] for file in files(folder))


def test_files_are_for_the_user_alone(hybrid, tmp_path):
    os.umask(0o022)
    session = start(hybrid, tmp_path / "prefixes")
    session.begin(PROMPT)
    session.save()
    for folder in (tmp_path / "prefixes", session.store.disk.folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert files(tmp_path / "prefixes")
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files(tmp_path / "prefixes"))


@pytest.mark.exact
@pytest.mark.parametrize(
    "where", ["header length", "header", "text", "rows", "last byte", "cut", "longer", "empty"]
)
def test_a_file_that_is_not_what_was_written_is_dropped_with_one_line(hybrid, tmp_path, caplog, where):
    session = start(hybrid, tmp_path)
    session.begin(PROMPT)
    session.save()
    (file,) = files(tmp_path)
    content = bytearray(file.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    tensors = json.loads(content[8 : 8 + length])
    if where == "header length":
        content[6] = 0xFF
    elif where == "header":
        content = content.replace(b'"begin":"0"', b'"begin":"1"')
    elif where in ("text", "rows"):
        content[8 + length + tensors["text" if where == "text" else "rows.1"]["data_offsets"][0] + 4] ^= 1
    elif where == "last byte":
        content[-1] ^= 0x80
    else:
        content = {"cut": content[:-100], "longer": content + b"\0", "empty": b""}[where]
    file.write_bytes(content)
    again = start(hybrid, tmp_path)
    assert again.begin(PROMPT) == 0
    same_as_cold(again, *hybrid)
    assert not file.exists() or where == "text"
    again.begin(ASIDE)
    (line,) = caplog.messages if where != "text" else ["a saved prefix was dropped"]
    assert "a saved prefix was dropped" in line and "\n" not in line


@pytest.mark.parametrize("change", ["format", "pair"])
def test_another_version_or_another_model_is_not_used(hybrid, tmp_path, caplog, monkeypatch, change):
    session = start(hybrid, tmp_path)
    session.begin(PROMPT)
    session.save()
    name = "a" * 64
    if change == "format":
        monkeypatch.setattr(disk, "FORMAT", "splashlite prefix 0")
    else:
        name = "a" * 63 + "b"  # the same folder
    assert start(hybrid, tmp_path, name=name).begin(PROMPT) == 0
    assert len(caplog.messages) == 1 and ("format" in caplog.text or "another model" in caplog.text)


def test_a_text_that_rests_on_a_lost_one_is_not_used(hybrid, tmp_path, caplog):
    session = start(hybrid, tmp_path)
    session.begin(PROMPT)
    session.begin(PROMPT + [5] * 20)
    session.save()
    first = next(file for file in files(tmp_path) if b'"begin":"0"' in file.read_bytes())
    first.unlink()
    again = start(hybrid, tmp_path)
    assert again.begin(PROMPT + [5] * 20) == 0 and "the text before it is not there" in caplog.text


@pytest.mark.parametrize("what", ["the file", "the text before it"])
def test_a_file_that_vanishes_while_we_run_is_only_missed(hybrid, tmp_path, what):
    session = start(hybrid, tmp_path)
    session.begin(PROMPT)
    session.begin(PROMPT + [5] * 20)
    session.save()
    again = start(hybrid, tmp_path)
    for file in files(tmp_path):
        if (b'"begin":"0"' in file.read_bytes()) == (what == "the text before it"):
            file.unlink()
    assert again.begin(PROMPT + [5] * 20) == (0 if what == "the text before it" else len(PROMPT) - 1)


def test_foreign_and_broken_off_files_do_no_harm(hybrid, tmp_path, caplog):
    folder = start(hybrid, tmp_path).store.disk.folder
    (folder / "x.safetensors").write_text("hello")
    (folder / "y.1.part.safetensors").write_text("half")
    os.utime(folder / "y.1.part.safetensors", (0, 0))
    mx.save_safetensors(str(folder / "z.safetensors"), {"text": mx.zeros((2, 2))}, {"format": "pt"})
    assert start(hybrid, tmp_path).begin(PROMPT) == 0
    assert len(caplog.messages) == 2 and not files(tmp_path)


def test_the_disk_keeps_its_limit_and_drops_the_least_recently_used(hybrid, tmp_path):
    session = start(hybrid, tmp_path)
    texts = [random_prompt(40, seed=seed) for seed in range(6)]
    session.begin(texts[0])
    session.save()
    limit = 3 * sum(file.stat().st_size for file in files(tmp_path)) + 1000
    session = start(hybrid, tmp_path, memory=60_000, limit=limit)
    for text in texts[1:3] + texts[:1] + texts[3:]:
        session.begin(text)
        assert sum(file.stat().st_size for file in files(tmp_path)) <= limit
    session.save()
    again = start(hybrid, tmp_path, limit=limit)
    kept = [again.store.find(np.array(text[:-1], np.uint32))[1] > 0 for text in texts]
    assert kept == [False, False, False, True, True, True]


def test_what_was_used_again_stays_on_disk(hybrid, tmp_path):
    session = start(hybrid, tmp_path)
    texts = [random_prompt(40, seed=seed) for seed in range(4)]
    for text in texts[:3]:
        session.begin(text)
    session.save()
    limit = sum(file.stat().st_size for file in files(tmp_path))
    session = start(hybrid, tmp_path, limit=limit)
    session.begin(texts[0])
    session.begin(texts[3])
    session.save()
    again = start(hybrid, tmp_path, limit=limit)
    assert [again.store.find(np.array(text[:-1], np.uint32))[1] > 0 for text in texts] == [
        True,
        False,
        True,
        True,
    ]


def test_a_full_disk_is_said_once_and_harms_nothing(hybrid, tmp_path, caplog, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mx, "save_safetensors", full)
    session = start(hybrid, tmp_path, memory=40_000)
    for seed in range(6):
        session.begin(random_prompt(40, seed=seed))
    session.save()
    assert len(caplog.messages) == 1 and "No space left" in caplog.text and not files(tmp_path)
    assert session.store.nbytes <= 40_000


def test_the_fingerprint_is_that_of_model_drafter_and_config(tmp_path):
    target, drafter = make_pair("hybrid/24", tmp_path / "one")
    first = fingerprint(target, drafter)
    assert first == fingerprint(*make_pair("hybrid/24", tmp_path / "two"))
    assert first != fingerprint(make_target("hybrid", seed=5), drafter)
    assert (
        first != fingerprint(target, None) != fingerprint(make_pair("dense/0", tmp_path / "three")[0], None)
    )
    drafter.norm.weight[3] += 1e-3
    assert first != fingerprint(target, drafter)
    target.config = target.config | {"rope_theta": 5}
    assert fingerprint(target, None) != fingerprint(make_target("hybrid"), None)


@pytest.mark.parametrize("limit", [0, -1, 2.5, None])
def test_a_wrong_limit_is_refused(tmp_path, limit):
    with pytest.raises(UsageError, match="positive whole number of bytes"):
        Disk("a", limit, tmp_path)
