"""Answers of one target on disk: tokens, the target's own distribution over them, and its features.

A folder with corpus.json and shards in safetensors: the answers to some prompts that were taken together, in one part for
each batch of them, which is written whole and then renamed. bfloat16 features are kept as their 16 bits, since NumPy has no
such type.
"""

import json
import os
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from splashlite.errors import SplashliteError, UsageError
from splashlite.pairs.weights import read_json

ONE_FILE = 256  # prompts of a shard in one part, as earlier versions made them, which did not state its place


@dataclass(frozen=True)
class About:
    """What a corpus was made from; two commands that differ here cannot share a folder."""

    target: str
    fingerprint: str  # of the target's files
    num_layers: int
    hidden_size: int
    vocab_rows: int
    taps: tuple[int, ...]
    top: int  # entries of the target's distribution that are kept
    features: bool  # whether they are kept, or computed when they are needed
    prompts: str
    seed: int
    limit: int  # longest answer, in tokens
    sampled: float  # share of answers that are drawn and not greedy
    temperature: float
    contents: str = ""  # digest of the files that the prompts came from


@dataclass(frozen=True)
class Shard:
    """Which prompts its answers are to."""

    first: int  # prompts before it
    prompts: int


@dataclass(frozen=True)
class Sequence:
    """One prompt with its answer, of L tokens together; A is how many of them are the answer's."""

    tokens: np.ndarray  # [L] uint32
    prompt_length: int
    temperature: float  # 0 greedy; not a number for an answer that was given with its prompt
    top_ids: np.ndarray = field(repr=False)  # [A, top] uint32: row i judges token prompt_length + i
    top_logits: np.ndarray = field(repr=False)  # [A, top] float16, under the best one's
    features: np.ndarray | None = field(repr=False)  # [L - 1, taps x H] bfloat16 bits
    rows: np.ndarray | None = field(repr=False)  # [A, H] bfloat16 bits: the final rows behind top_logits

    def __len__(self) -> int:
        return len(self.tokens)


class Corpus:
    """The sequences of a folder, read one at a time; `shards` by their numbers are those of which there is a part.

    Raises UsageError for a folder that is none, SplashliteError for a damaged one.
    """

    def __init__(self, folder: Path):
        self.folder, self.shards = Path(folder), {}
        if not (self.folder / "corpus.json").is_file():
            raise UsageError(f"{self.folder} is no folder of `splashlite train data`: name one that it made")
        try:
            stated = read_json(self.folder / "corpus.json")
            self.about = About(**stated | {"taps": tuple(stated["taps"])})
        except (TypeError, KeyError) as problem:
            raise SplashliteError(
                f"{self.folder}/corpus.json is of another version ({problem}): make the data again"
            ) from None
        self._files, self._tables, self._starts = [], [], [0]
        for file in sorted(self.folder.glob("shard-*.safetensors")):
            opened = _open(file)
            if self.about.features and "rows" not in opened.keys():  # noqa: SIM118, this is no mapping
                raise SplashliteError(f"{file} is of another version (no final rows): make the data again")
            table = {name: opened.get_tensor(name) for name in ("lengths", "prompt_lengths", "temperatures")}
            number = int(file.stem.split("-")[1])
            stated = opened.metadata() or {"first": number * ONE_FILE, "prompts": len(table["lengths"])}
            self.shards[number] = Shard(int(stated["first"]), int(stated["prompts"]))
            self._files.append(opened)
            self._tables.append(table | {name: _offsets(table, name) for name in ("tokens", "answers", "rows")})
            self._starts.append(self._starts[-1] + len(table["lengths"]))

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def given(self) -> int:
        """Answers that came with their prompts."""
        return sum(int(np.isnan(table["temperatures"]).sum()) for table in self._tables)

    @property
    def answer_tokens(self) -> int:
        return sum(int(table["answers"][-1]) for table in self._tables)

    def prompt_lengths(self) -> list[int]:
        """Tokens of each sequence before its answer."""
        return [int(length) for table in self._tables for length in table["prompt_lengths"]]

    def temperatures(self) -> list[float]:
        """Of each sequence."""
        return [float(warmth) for table in self._tables for warmth in table["temperatures"]]

    def __getitem__(self, index: int) -> Sequence:
        file, table, row = self._place(index)

        def part(name, offsets):
            return file.get_slice(name)[int(offsets[row]) : int(offsets[row + 1])]

        return Sequence(
            part("tokens", table["tokens"]),
            int(table["prompt_lengths"][row]),
            float(table["temperatures"][row]),
            part("top_ids", table["answers"]),
            part("top_logits", table["answers"]),
            part("features", table["rows"]) if self.about.features else None,
            part("rows", table["answers"]) if self.about.features else None,
        )

    def answer(self, index: int) -> np.ndarray:
        """The answer's tokens alone, [A] uint32."""
        file, table, row = self._place(index)
        begin, end = (int(table["tokens"][row + ahead]) for ahead in (0, 1))
        return file.get_slice("tokens")[begin + int(table["prompt_lengths"][row]) : end]

    def _place(self, index: int) -> tuple:
        """The file that a sequence is in, its tables, and the sequence's row in these."""
        shard = bisect_right(self._starts, index) - 1
        return self._files[shard], self._tables[shard], index - self._starts[shard]


def begin(folder: Path, about: About) -> Corpus:
    """The corpus in a folder that may be new. Raises UsageError when it holds one that was made otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "corpus.json"
    if not path.exists():
        _replace(path, json.dumps(asdict(about), indent=1).encode())
    corpus = Corpus(folder)
    for key, wanted in _in_words(about).items():
        found = _in_words(corpus.about)[key]
        if found != wanted and key == "contents":
            raise UsageError(f"{folder} holds answers to what {about.prompts} held before it was changed: name another folder")
        if found != wanted:
            raise UsageError(
                f"{folder} holds data with {key} {found}, not {wanted}: name another folder, or ask for the same"
            )
    return corpus


def listed(layers: Iterable[int]) -> str:
    """Layer numbers as they are given on a command line."""
    return ",".join(map(str, layers))


def write_part(folder: Path, number: int, shard: Shard, part: int, sequences: list[Sequence]) -> None:
    arrays = {
        "tokens": np.concatenate([each.tokens for each in sequences]),
        "lengths": np.array([len(each) for each in sequences], np.int32),
        "prompt_lengths": np.array([each.prompt_length for each in sequences], np.int32),
        "temperatures": np.array([each.temperature for each in sequences], np.float32),
        "top_ids": np.concatenate([each.top_ids for each in sequences]),
        "top_logits": np.concatenate([each.top_logits for each in sequences]),
    }
    if sequences[0].features is not None:
        arrays["features"] = np.concatenate([each.features for each in sequences])
        arrays["rows"] = np.concatenate([each.rows for each in sequences])
    path = _part(folder, number, part)
    save_file(arrays, path.with_suffix(".part"), {key: str(value) for key, value in asdict(shard).items()})
    os.replace(path.with_suffix(".part"), path)


def has_part(folder: Path, number: int, part: int) -> bool:
    return _part(folder, number, part).exists() or (folder / f"shard-{number:05d}.safetensors").exists()


def bits(features: mx.array) -> mx.array:
    """The bfloat16 bits of an array of any floating type, as uint16."""
    return features.astype(mx.bfloat16).view(mx.uint16)


def values(features: np.ndarray) -> mx.array:
    """The bfloat16 array that `bits` made."""
    return mx.array(features).view(mx.bfloat16)


def _part(folder: Path, number: int, part: int) -> Path:
    return folder / f"shard-{number:05d}-{part}.safetensors"


def _in_words(about: About) -> dict:
    """As the command's options say it."""
    return asdict(about) | {"taps": listed(about.taps), "features": "keep" if about.features else "recompute"}


def _offsets(table: dict, name: str) -> np.ndarray:
    counts = {
        "tokens": table["lengths"],
        "answers": table["lengths"] - table["prompt_lengths"],
        "rows": table["lengths"] - 1,
    }[name]
    return np.concatenate([[0], np.cumsum(counts)])


def _open(file: Path):
    try:
        return safe_open(str(file), framework="numpy")
    except (SafetensorError, OSError) as problem:
        raise SplashliteError(f"{file} is damaged ({problem}): delete it, and make the data again") from None


def _replace(path: Path, content: bytes) -> None:
    path.with_suffix(".part").write_bytes(content)
    os.replace(path.with_suffix(".part"), path)
