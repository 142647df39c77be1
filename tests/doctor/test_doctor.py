"""The doctor finds what was planted, and calls a healthy pair healthy."""

import json
import shutil
import socket
from collections import namedtuple
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import tiny
from toychain import ChainDrafter, ChainTarget

from splashlite import blas
from splashlite.doctor import canary, machine
from splashlite.doctor.report import doctor
from splashlite.engine import Engine, open_pair
from splashlite.pairs.fetch import Source, Wheel
from splashlite.pairs.resolve import Pair, resolve


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path / "cache"))
    answers = SimpleNamespace(head=lambda *a, **k: None)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: answers)


@pytest.fixture
def pair(tmp_path):
    tiny.write_target(tmp_path / "target", "hybrid")
    tiny.write_drafter(tmp_path / "drafter", tiny.drafter_config())
    return resolve(target=str(tmp_path / "target"), drafter=str(tmp_path / "drafter"))


def examined(capsys, pair, load=None, port=0):
    """(exit code, findings by name) of a round with --json."""
    code = doctor(pair, load or (lambda: open_pair(pair)), as_json=True, port=port)
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == sum(each["level"] == "problem" for each in report["findings"])
    return code, {each["name"]: each for each in report["findings"]}


class Scripted(tiny.Scripted):
    """Also describes itself as the drafter that it overrules."""

    def __getattr__(self, name):
        return getattr(self.drafter, name)


def scripted(pair, right):
    """The tiny pair with a drafter that is right for `right` tokens of every block."""
    engine = open_pair(pair, calibrate="off")
    engine.eos_ids = frozenset()
    prompt = list(range(1, 17))
    text = engine.generate(prompt, max_tokens=canary.TOKENS, temperature=0, speculative=False).tokens
    engine.drafter = Scripted(engine.drafter, prompt + text, right)
    return engine


def test_a_healthy_pair_is_fine(capsys, pair):
    code, found = examined(capsys, pair, lambda: scripted(pair, 3))
    assert code == 0
    assert [name for name, each in found.items() if each["level"] == "problem"] == []
    assert "64 greedy tokens are the same" in found["canary"]["text"]
    assert found["acceptance"]["text"].startswith("3.9") or found["acceptance"]["text"].startswith("4.0")
    assert all(f"{width}: " in found["cost"]["text"] for width in range(1, 9))


def test_every_finding_that_is_not_fine_says_what_to_do(capsys, pair):
    _, found = examined(capsys, pair)
    assert [name for name, each in found.items() if each["level"] == "warning" and not each["todo"]] == []


def test_a_drafter_that_guesses_nothing_is_a_problem(capsys, pair):
    code, found = examined(capsys, pair, lambda: scripted(pair, 0))
    assert code == 1 and found["acceptance"]["level"] == "problem"
    assert found["canary"]["level"] == "fine"


def test_wrong_drafter(capsys, tmp_path, pair):
    config = tiny.drafter_config() | {"num_target_layers": 5}
    tiny.write_drafter(tmp_path / "other", config)
    wrong = resolve(target=str(tmp_path / "target"), drafter=str(tmp_path / "other"))
    code, found = examined(capsys, wrong)
    assert code == 1 and "num_target_layers is 5, but this target has 4" in found["load"]["text"]


@pytest.mark.parametrize("half", ["target", "drafter"])
def test_truncated_weights(capsys, tmp_path, pair, half):
    weights = tmp_path / half / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    code, found = examined(capsys, pair)
    assert code == 1 and found[half]["level"] == "problem" and "is damaged" in found[half]["text"]
    assert "load" not in found


def test_tampered_file(capsys, tmp_path):
    import hashlib

    content = b"published"
    wheel = Wheel("package", "1", "model.gguf", hashlib.sha256(content).hexdigest())
    pair = Pair("toy", Source((wheel,)), None, {}, None, (), "for this test")
    folder = tmp_path / "cache" / "files" / wheel.sha256[:16]
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(b"pub1ished")
    code, found = examined(capsys, pair)
    assert code == 1 and "not what was published" in found["target"]["text"] and "rm" in found["target"]["todo"]


def test_a_pair_that_is_not_here_is_a_warning_that_names_pull(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    code, found = examined(capsys, resolve("qwen3-4b"), load=lambda: pytest.fail("nothing to load"))
    assert code == 0 and found["target"]["level"] == "warning"
    assert found["target"]["todo"] == "splashlite pull qwen3-4b"


def test_full_disk(monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 10**9))
    assert machine.disk(5 * 10**9).level == "problem"
    assert machine.disk(0).level == "warning"


def test_busy_port(capsys, pair):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert machine.free_port(port).level == "warning"
    assert machine.free_port(port).level == "fine"


def test_no_metal_on_a_mac(monkeypatch):
    import mlx.core as mx

    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr("sys.platform", "darwin")
    assert machine.metal().level == "problem"


def test_missing_blas(monkeypatch):
    monkeypatch.delenv("SPLASHLITE_BLAS", raising=False)
    monkeypatch.setattr(blas, "found", lambda: "reference (OpenBLAS is up to 20 times faster)")
    finding = machine.linear_algebra()
    assert finding.level == "warning" and "apt-get install libopenblas0" in finding.todo


def test_no_answer_from_the_hub(monkeypatch):
    def refuse(*arguments, **options):
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "get_session", lambda: SimpleNamespace(head=refuse))
    assert machine.hub().level == "warning"


def test_a_cache_folder_that_cannot_be_written(capsys, monkeypatch, tmp_path, pair):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path / "file"))
    code, found = examined(capsys, pair, lambda: scripted(pair, 3))
    assert code == 1 and found["cache"]["level"] == "problem"


@pytest.mark.parametrize("gap, level", [(1e-6, "fine"), (1.5, "problem")])
def test_a_text_that_the_drafter_changes(gap, level):
    """Token 6 is the target's second choice, `gap` below its first."""
    table = np.random.default_rng(0).normal(size=(20, 20))
    order = np.argsort(table, axis=1)
    rows = np.arange(20)
    table[rows, order[:, -2]] = table[rows, order[:, -1]] - gap
    target = ChainTarget(table)
    target.vocab_rows = 20
    engine = Engine(target, ChainDrafter(table), None)
    honest = engine.generate

    def lying(prompt, *, speculative=True, **options):
        reply = honest(prompt, speculative=False, **{**options, "width": None})
        if speculative:
            reply.tokens[5] = int(order[reply.tokens[4], -2])
        return reply

    engine.generate = lying
    finding = next(canary.canary(engine))
    assert finding.level == level and "at token 6" in finding.text


def test_the_report_for_people(capsys, pair):
    assert doctor(pair, lambda: scripted(pair, 3), as_json=False, port=0) == 0
    text = capsys.readouterr().out
    assert "✓ canary: 64 greedy tokens" in text and "no problems" in text
