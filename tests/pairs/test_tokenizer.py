import json
from pathlib import Path

import pytest

from pairs import toys
from splashlite.errors import SplashliteError, UsageError
from splashlite.pairs.gguf import read_gguf
from splashlite.pairs.tokenizer import load_tokenizer

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def folder(tmp_path):
    """A model folder with a byte-level tokenizer, as transformers writes it."""
    toy = toys.byte_level(special=["<|end|>", "<|eot|>"], eos_token="<|end|>")
    toy.hugging_face.chat_template = TEMPLATE
    toy.hugging_face.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content))


def test_text_goes_there_and_back(folder):
    tokenizer = load_tokenizer(folder, {})
    for text in ("plain", "日本語 👩\u200d👧", "  spaces\n", "<|end|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|end|>") == [256]
    assert len(tokenizer) == 258


def test_the_template_of_the_folder_is_applied(folder):
    tokenizer = load_tokenizer(folder, {})
    assert tokenizer.has_chat_template and tokenizer.chat_template == TEMPLATE
    assert tokenizer.hugging_face.chat_template == TEMPLATE
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids) == "[user]hi<|end|>[assistant]"
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=False)
    assert ids[-1] == 256


def test_a_template_that_refuses_is_the_users_error(folder):
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no user message') }}")
    with pytest.raises(UsageError, match="no user message"):
        load_tokenizer(folder, {}).apply_chat_template([{"role": "tool", "content": "x"}])


def test_an_empty_conversation_is_the_users_error(folder):
    with pytest.raises(UsageError, match="empty conversation"):
        load_tokenizer(folder, {}).apply_chat_template([])


def test_no_template_is_said(folder):
    (folder / "chat_template.jinja").unlink()
    tokenizer = load_tokenizer(folder, {})
    assert not tokenizer.has_chat_template
    with pytest.raises(UsageError, match="no chat template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("config", "generation", "given", "expected"),
    [
        (None, None, {}, {256}),
        ({"eos_token_id": 7}, None, {}, {256, 7}),
        ({"eos_token_id": None}, {"eos_token_id": [257, 8]}, {}, {256, 257, 8}),
        ({"text_config": {"eos_token_id": 9}}, {"eos_token_id": 8}, {}, {256, 8, 9}),
        ({"eos_token_id": [7]}, None, {"eos_token_id": 11, "text_config": {"eos_token_id": [12]}}, {256, 7, 11, 12}),
        ({}, {"eos_token_id": None}, {"eos_token_id": []}, {256}),
    ],
)
def test_the_end_ids_are_the_union_of_all_that_is_stated(folder, config, generation, given, expected):
    if config is not None:
        write(folder, "config.json", config)
    if generation is not None:
        write(folder, "generation_config.json", generation)
    assert load_tokenizer(folder, given).eos_ids == expected


@pytest.mark.parametrize("wrong", ["2", [2, "3"], -1, True, 2.5])
def test_end_ids_that_are_none_are_refused(folder, wrong):
    write(folder, "generation_config.json", {"eos_token_id": wrong})
    with pytest.raises(SplashliteError, match="eos_token_id"):
        load_tokenizer(folder, {})


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    assert load_tokenizer(tmp_path, {}) is None


def test_half_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(SplashliteError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path, {})


def test_a_damaged_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(SplashliteError, match="cannot be loaded"):
        load_tokenizer(folder, {})


@pytest.mark.parametrize(
    "fields",
    [
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "additional_special_tokens": ["<|eot|>"],
            "clean_up_tokenization_spaces": True,
        },
        {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<|eot|>"], "is_local": True},
        {"tokenizer_class": "Qwen2Tokenizer", "extra_special_tokens": {"eot_token": "<|eot|>"}},
    ],
    ids=["transformers 4", "transformers 5", "a model's own class"],
)
def test_older_and_newer_tokenizer_configs_encode_alike(folder, fields):
    expected = load_tokenizer(folder, {}).encode("it 's <|eot|> .")
    write(folder, "tokenizer_config.json", {"eos_token": "<|end|>", **fields})
    tokenizer = load_tokenizer(folder, {})
    assert tokenizer.encode("it 's <|eot|> .") == expected
    assert tokenizer.decode(expected) == "it 's <|eot|> ."
    assert tokenizer.eos_ids == {256}


def test_code_in_the_folder_never_runs(folder, tmp_path):
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil:\n    pass\n")
    content = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder, "tokenizer_config.json", {**content, "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}})
    write(folder, "config.json", {"auto_map": {"AutoConfig": "evil.Evil"}, "model_file": "evil.py"})
    assert load_tokenizer(folder, {}).encode("a") == [97]
    assert not marker.exists()


def test_loading_uses_no_network_and_says_nothing(folder, monkeypatch, capfd, caplog):
    def refuse(*args):
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", refuse)
    content = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder, "tokenizer_config.json", {**content, "tokenizer_class": "Qwen2Tokenizer"})
    write(folder, "config.json", {"model_type": "qwen3"})
    load_tokenizer(folder, {}).apply_chat_template([{"role": "user", "content": "hi"}])
    assert capfd.readouterr().err == ""
    assert not caplog.records


def test_truncation_and_padding_that_a_tokenizer_file_asks_for_are_off(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert len(load_tokenizer(folder, {}).encode("longer text")) == 11


def test_a_lone_surrogate_is_the_users_error(folder):
    with pytest.raises(UsageError, match="surrogate"):
        load_tokenizer(folder, {}).encode("\ud800")


# prompts as they were tokenized, with the published tokenizer and template, for training the demo drafter
REAL = json.loads((Path(__file__).parent / "real_prompts.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def real(smollm2_gguf):
    return load_tokenizer(smollm2_gguf, {})


def test_the_gguf_has_its_own_tokenizer(real):
    assert (len(real), real.bos_id, real.eos_ids) == (49152, 1, {2})
    assert real.decode(real.encode("na\u00efve \u65e5\u672c 12345 x1y2")) == "na\u00efve \u65e5\u672c 12345 x1y2"


@pytest.mark.parametrize("known", REAL, ids=range(len(REAL)))
def test_the_ggufs_tokenizer_is_the_published_one(real, known):
    assert real.apply_chat_template([{"role": "user", "content": known["text"]}]) == known["prompt"]
    assert real.encode(real.decode(known["prompt"])) == known["prompt"]


def test_the_gguf_has_its_own_template(real):
    text = real.render([{"role": "user", "content": "Hi"}])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_demo_targets_config_and_quantization(smollm2_gguf):
    config, _, quantization = read_gguf(smollm2_gguf)
    assert len(quantization) == 211
    assert quantization.pop("model.embed_tokens") == {"group_size": 32, "bits": 8}
    assert all(each == {"group_size": 32, "bits": 4} for each in quantization.values())
    assert config["eos_token_id"] == 2
    assert load_tokenizer(smollm2_gguf, config).eos_ids == {2}
