import json

import mlx.core as mx
import pytest

from pairs import checkpoints
from splashlite.errors import SplashliteError
from splashlite.pairs.weights import read_config, read_weights, weight_files

TENSORS = {"a": ("F32", [2, 3]), "b": ("BF16", [4])}


@pytest.fixture
def folder(tmp_path):
    return checkpoints.write(tmp_path / "model", {"model_type": "llama"}, TENSORS)


def index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_tensors_come_with_their_names_shapes_and_types(folder):
    weights = read_weights(folder)
    assert {name: (array.shape, array.dtype) for name, array in weights.items()} == {
        "a": ((2, 3), mx.float32),
        "b": ((4,), mx.bfloat16),
    }
    assert mx.all(weights["a"] == 0)


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..\\x.safetensors", "", "..", "x.bin"]
)
def test_an_index_that_names_a_file_elsewhere_or_no_safetensors_is_refused(folder, name):
    index(folder, {"a": name})
    with pytest.raises(SplashliteError, match="only .safetensors files of that folder"):
        weight_files(folder)


def test_an_index_that_names_a_missing_file_is_refused(folder):
    index(folder, {"a": "model.safetensors", "b": "other.safetensors"})
    with pytest.raises(SplashliteError, match=r"other\.safetensors is missing"):
        weight_files(folder)


@pytest.mark.parametrize("content", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}])
def test_an_index_without_a_map_is_refused(folder, content):
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    with pytest.raises(SplashliteError, match="weight_map"):
        weight_files(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "weights.pickle", "model.ckpt"])
def test_files_that_can_run_code_are_refused_by_name(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(SplashliteError, match=name):
        read_weights(folder)


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(SplashliteError, match="no .safetensors weights"):
        read_weights(folder)


def test_a_tensor_in_two_files_is_refused(folder):
    checkpoints.write(folder, {}, {"b": ("BF16", [4])}, "more.safetensors")
    with pytest.raises(SplashliteError, match="tensor b stands in two files"):
        read_weights(folder)


def test_a_file_cut_short_or_changed_in_its_header_is_refused(folder):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for damaged in (b"", content[:4], content[:40], content[:-1], content + b"x", content.replace(b"F32", b"F99")):
        file.write_bytes(damaged)
        with pytest.raises(SplashliteError, match="damaged"):
            read_weights(folder)


def test_code_that_a_config_names_is_refused(folder):
    (folder / "evil.py").write_text("raise SystemExit('code was run')")
    (folder / "config.json").write_text(json.dumps({"model_file": "evil.py"}))
    with pytest.raises(SplashliteError, match="model_file"):
        read_config(folder)


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, "1" * 10_000, "[]", "1", "null", '{"a": 1, "a": 2}'])
def test_a_config_that_is_no_object_is_refused(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(SplashliteError, match=r"config\.json"):
        read_config(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SplashliteError, match="nowhere does not exist: give a model folder"):
        read_config(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(SplashliteError, match="file is not a folder: give a model folder"):
        read_config(tmp_path / "file")
