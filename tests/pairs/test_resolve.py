import json
import re
import tomllib

import pytest

from pairs.stand_in_hub import Hub as StandIn
from pairs.test_fetch import set_endpoint
from splashlite.data import data_folder
from splashlite.errors import SplashliteError, UsageError
from splashlite.pairs import hub as real_hub
from splashlite.pairs.fetch import Hub, Local
from splashlite.pairs.resolve import known_names, read_sampling, resolve

DRAFTER = {"architectures": ["DFlash2DraftModel"]}


@pytest.fixture(autouse=True)
def network(monkeypatch):
    """Nothing here may ask the hub, unless a test brings a stand-in."""

    def refuse(*args):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(real_hub, "_answers", refuse)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setattr(real_hub, "_answers", lambda: True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    stand_in = StandIn()
    set_endpoint(monkeypatch, stand_in.start())
    yield stand_in
    stand_in.stop()


def drafter_folder(tmp_path, config=DRAFTER, card=None):
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if card is not None:
        (folder / "README.md").write_text(card)
    return folder


def repo(source):
    return source.places[0].repo


# pair.toml files


@pytest.mark.parametrize("name", known_names())
def test_every_known_pair_is_whole(name):
    content = tomllib.loads((data_folder("models") / name / "pair.toml").read_text())
    assert content.keys() <= {"licence", "notes", "target", "drafter", "sampling"}
    assert content["target"].keys() <= {"id", "model_type", "default", "by_quantization", "files"}
    assert content["drafter"].keys() <= {"ids", "also", "folder"}
    assert content.get("sampling", {}).keys() <= {"temperature", "top_k", "top_p", "min_p"}
    pair = resolve(name)
    assert pair.name == name
    assert pair.model_type == content["target"]["model_type"]
    assert pair.licence
    assert pair.sampling == content.get("sampling", {})
    repositories = [
        place.repo for source in (pair.target, pair.drafter) for place in source.places if isinstance(place, Hub)
    ]
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", each) for each in repositories)
    if "NC" in pair.licence:
        assert any("commercial" in note for note in pair.notes)


def test_the_pairs_that_must_be_known():
    names = {
        "smollm2-135m", "qwen3.8-27b", "qwen3.6-35b-a3b", "qwen3.6-27b", "muse-glimmer-30b", "glm-5.3-flash",
        "qwen3-4b", "qwen3-8b", "qwen3-coder-30b-a3b", "qwen3-coder-next",
        "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b", "qwen3.5-35b-a3b", "qwen3.5-122b-a10b",
    }  # fmt: skip
    assert names <= set(known_names())


def test_no_id_belongs_to_two_pairs():
    seen = {}
    for name in known_names():
        content = tomllib.loads((data_folder("models") / name / "pair.toml").read_text())
        drafters = [*content["drafter"].get("ids", ()), *content["drafter"].get("also", ())]
        for each in {content["target"]["id"], *content["target"].get("by_quantization", {}).values(), *drafters}:
            assert seen.setdefault(each.lower(), name) == name


# names


def test_nothing_is_the_demo_pair():
    pair = resolve()
    assert pair.name == "smollm2-135m"
    assert pair.sampling == {"temperature": 0.2, "top_p": 0.9}
    assert (pair.drafter.places[0].path / "model.safetensors").is_file()
    assert len({place.sha256 for place in pair.target.places}) == 1
    assert [type(place).__name__ for place in pair.target.places] == ["Hub", "Wheel"]


@pytest.mark.parametrize("name", ["qwen3.8-27b", "Qwen3.8-27B"])
def test_a_name_of_a_known_pair(name):
    pair = resolve(name)
    assert repo(pair.target) == "mlx-community/Qwen3.8-27B-4bit"
    assert [place.repo for place in pair.drafter.places] == ["incoai/Qwen3.8-27B-DFlash2", "z-lab/Qwen3.8-27B-DFlash2"]
    assert pair.sampling == {"temperature": 1.0, "top_k": 20, "top_p": 0.95, "min_p": 0.0}


@pytest.mark.parametrize(
    "drafter", ["incoai/Qwen3.8-27B-DFlash2", "z-lab/Qwen3.8-27B-DFlash2", "Z-Lab/qwen3.8-27b-dflash2@abc"]
)
def test_a_known_drafter_finds_its_target(drafter):
    pair = resolve(drafter)
    assert pair.name == "qwen3.8-27b"
    assert repo(pair.target) == "mlx-community/Qwen3.8-27B-4bit"
    asked, _, revision = drafter.partition("@")
    assert pair.drafter.places == (Hub(asked, revision or None),)


def test_a_drafter_that_is_not_the_first_choice_can_be_asked_for():
    assert repo(resolve("meta-models/Muse-Glimmer-30B-assistant").drafter) == "meta-models/Muse-Glimmer-30B-assistant"


def test_each_half_can_be_replaced(tmp_path):
    pair = resolve("qwen3.8-27b", target="mlx-community/Qwen3.8-27B-8bit")
    assert (repo(pair.target), repo(pair.drafter)) == ("mlx-community/Qwen3.8-27B-8bit", "incoai/Qwen3.8-27B-DFlash2")
    assert pair.sampling["top_k"] == 20
    pair = resolve("qwen3.8-27b", target="someone/fine-tune", drafter="someone/drafter@v2")
    assert (pair.target.places, pair.drafter.places) == ((Hub("someone/fine-tune"),), (Hub("someone/drafter", "v2"),))
    assert pair.sampling == {}
    assert "someone/fine-tune" in pair.why
    assert "someone/drafter" in pair.why


def test_a_target_alone_gets_its_known_drafter_or_none():
    pair = resolve(target="Qwen/Qwen3.8-27B")
    assert (repo(pair.target), repo(pair.drafter)) == ("Qwen/Qwen3.8-27B", "incoai/Qwen3.8-27B-DFlash2")
    pair = resolve(target="someone/model")
    assert pair.drafter is None
    assert "no drafter is known" in pair.why


def test_two_folders_are_enough(tmp_path):
    folder = drafter_folder(tmp_path)
    pair = resolve(target=str(tmp_path), drafter=str(folder))
    assert (pair.target.places, pair.drafter.places) == ((Local(tmp_path),), (Local(folder),))


def test_a_gguf_file_can_be_the_target(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert resolve("smollm2-135m", target=str(tmp_path / "x.gguf")).target.places == (Local(tmp_path / "x.gguf"),)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("qwen3.8",), "did you mean qwen3.8-27b"),
        (("smolm2-135m",), "did you mean smollm2-135m"),
        (("nothing like it",), "known pairs are"),
        (("",), "no known pair"),
        (("a/b/c",), "no known pair"),
        (("a/../b",), "no known pair"),
        (("Qwen/Qwen3.8-27B",), "is a target"),
        (("mlx-community/Qwen3.8-27B-4bit",), "is a target"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_what_to_do(arguments, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        resolve(*arguments)


@pytest.mark.parametrize("target", ["nothing", "a/b/c", "./nowhere", "nowhere.gguf", "~/no/such/folder", "a/..b@x"])
def test_a_target_that_means_nothing_is_refused(target):
    with pytest.raises(UsageError):
        resolve("qwen3.8-27b", target=target)


# drafters that are not known


CARDS = {
    "one": "---\nlicense: mit\nbase_model: someone/target-7B\n---\n# card\n",
    "list of one": "---\nbase_model:\n- someone/target-7B\n---\n",
    "windows": "---\r\nbase_model: someone/target-7B\r\n---\r\n",
}


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_a_local_drafters_card_names_its_target(tmp_path, card):
    folder = drafter_folder(tmp_path, card=card)
    pair = resolve(str(folder))
    assert pair.target.places == (Hub("someone/target-7B"),)
    assert pair.drafter.places == (Local(folder),)
    assert pair.sampling == {}
    assert "someone/target-7B" in pair.why


def test_a_local_drafters_config_names_its_target(tmp_path):
    folder = drafter_folder(tmp_path, {**DRAFTER, "base_model_name_or_path": "someone/target-7B"})
    assert resolve(str(folder)).target.places == (Hub("someone/target-7B"),)


def test_a_known_base_model_brings_its_quantized_target_and_sampling(tmp_path):
    folder = drafter_folder(tmp_path, card="---\nbase_model: Qwen/Qwen3.8-27B\n---\n")
    pair = resolve(str(folder))
    assert repo(pair.target) == "mlx-community/Qwen3.8-27B-4bit"
    assert (pair.name, pair.licence, pair.sampling["top_k"]) == (None, None, 20)


@pytest.mark.parametrize(
    "card",
    [
        None,
        "no head",
        "---\nlicense: mit\n---\n",
        "---\n: [\n---\n",
        "---\nbase_model: [a/b, c/d]\n---\n",
        "---\nbase_model: 3\n---\n",
    ],
)
def test_a_drafter_that_names_no_single_target_needs_one(tmp_path, card):
    folder = drafter_folder(tmp_path, card=card)
    with pytest.raises(SplashliteError, match="target="):
        resolve(str(folder))
    assert resolve(str(folder), target="a/b").target.places == (Hub("a/b"),)


def test_a_target_folder_given_as_drafter_is_refused(tmp_path):
    folder = drafter_folder(tmp_path, {"architectures": ["Qwen3ForCausalLM"]})
    with pytest.raises(UsageError, match="target="):
        resolve(str(folder))


def test_a_repository_that_is_not_known_is_asked_for_its_card(hub):
    hub.repositories["someone/drafter"] = {
        "config.json": json.dumps(DRAFTER).encode(),
        "README.md": CARDS["one"].encode(),
    }
    pair = resolve("someone/drafter")
    assert (pair.target.places, pair.drafter.places) == ((Hub("someone/target-7B"),), (Hub("someone/drafter"),))
    hub.repositories["someone/bare"] = {"config.json": json.dumps(DRAFTER).encode()}
    with pytest.raises(SplashliteError, match="name its target with --target"):
        resolve("someone/bare")
    hub.repositories["someone/model"] = {"config.json": b'{"architectures": ["LlamaForCausalLM"]}'}
    with pytest.raises(UsageError, match="not a DFlash drafter"):
        resolve("someone/model")


def test_with_both_halves_given_nothing_is_asked():
    assert resolve("someone/drafter", target="someone/model").drafter.places == (Hub("someone/drafter"),)


# sampling defaults of a target folder


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        (None, {}),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": 1},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        ),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"temperature": None, "min_p": 0.05}, {"min_p": 0.05}),
    ],
)
def test_the_target_folder_states_its_sampling(tmp_path, published, expected):
    if published is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(published))
    assert read_sampling(tmp_path) == expected


def test_sampling_that_is_no_number_is_refused(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"top_p": "0.9"}')
    with pytest.raises(SplashliteError, match="top_p"):
        read_sampling(tmp_path)
