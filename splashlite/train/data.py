"""`splashlite train data`: a corpus of the target's own answers, made batch by batch."""

import hashlib
import itertools
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np

from splashlite.errors import SplashliteError, UsageError
from splashlite.target import Target
from splashlite.train import answers, prompts
from splashlite.train.corpus import About, Corpus, Shard, begin, has_part, write_part
from splashlite.train.prompts import Prompt

SHARD = 256  # prompts that are taken together, at most, and sorted by length
BATCH = 128  # that are answered together; parts of a shard are numbered by it, so it must stay what it is


def make(
    folder: Path,
    target: Target,
    tokenizer,
    about: About,
    files: list[Path],
    *,
    tokens: int | None,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> Corpus:
    """Answer prompts until the corpus holds `tokens` answer tokens, or until the files' prompts are at an end.

    progress(done, total) hears of answer tokens. Every batch that an earlier call answered is kept, what is missing is made,
    and the result is the same as without the interruption: what is done next depends on nothing but what is there. Raises
    UsageError for files without prompts, SplashliteError for a full disk.
    """
    source = prompts.from_files(files, tokenizer) if files else prompts.built_in(tokenizer, about.seed)
    first = next(source, None)
    if first is None:
        raise UsageError(f"{', '.join(map(str, files))}: there is no prompt in it")
    corpus = begin(folder, about)
    done, answered, taken = corpus.answer_tokens, len(corpus), 0
    numbered = enumerate(itertools.chain([first], source))
    progress(done, tokens)
    for number in itertools.count():
        if tokens is not None and done >= tokens:
            break
        wanted = SHARD if tokens is None else math.ceil((tokens - done) / (done / answered if answered else about.limit))
        size = _size(corpus.shards, number, taken, wanted)
        chunk = list(itertools.islice(numbered, size))
        if size and not chunk:
            break
        for part, batch in enumerate(_batches(chunk)):
            if has_part(folder, number, part) or (tokens is not None and done >= tokens):
                continue
            _need_room(folder, about, batch)
            sequences = _answer(target, batch, about, tokenizer.eos_ids)
            write_part(folder, number, Shard(taken, len(chunk)), part, sequences)
            done, answered = done + sum(len(each.top_ids) for each in sequences), answered + len(sequences)
            progress(done, tokens)
        taken += len(chunk)
    progress(done, done)
    return Corpus(folder)


def fingerprint(path: Path) -> str:
    """Of a target's files: their names, sizes and contents' ends, so that it is quick on a large model."""
    digest = hashlib.sha256()
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        size = file.stat().st_size
        with file.open("rb") as content:
            digest.update(f"{file.name} {size}".encode() + content.read(1 << 16))
            content.seek(max(0, size - (1 << 20)))
            digest.update(content.read())
    return digest.hexdigest()[:16]


def contents(files: list[Path]) -> str:
    """Of prompt files; empty for none. Raises UsageError for one that cannot be read."""
    digest = hashlib.sha256()
    for file in files:
        try:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        except OSError as problem:
            raise UsageError(f"{file} cannot be read: {problem.strerror}") from None
    return digest.hexdigest()[:16] if files else ""


def even_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """At most `count` layers spread from the second to the third last, as in the published drafters."""
    first = min(1, num_layers - 1)
    return tuple(dict.fromkeys(int(layer) for layer in np.linspace(first, max(first, num_layers - 3), count)))


def bytes_per_token(about: About) -> int:
    """What a token of an answer takes on disk."""
    return about.top * 6 + 4 + (2 * (len(about.taps) + 1) * about.hidden_size if about.features else 0)


def _size(shards: dict[int, Shard], number: int, taken: int, wanted: int) -> int:
    """How many prompts a shard takes: as many as it did before, as are left before a later one, or as are `wanted`."""
    if number in shards:
        return shards[number].prompts
    later = [shard.first for place, shard in shards.items() if place > number]
    return min(SHARD, min(later) - taken if later else wanted)


def _batches(chunk: list[tuple[int, Prompt]]) -> Iterator[list[tuple[int, Prompt]]]:
    """Prompts that bring their answer, then the others by length, so that a batch starts as late as it can."""
    given = [each for each in chunk if each[1].answer is not None]
    asked = sorted((each for each in chunk if each[1].answer is None), key=lambda each: (len(each[1].ids), each[0]))
    for group in (given, asked):
        yield from (group[begin : begin + BATCH] for begin in range(0, len(group), BATCH))


def _answer(target: Target, batch, about: About, ends):
    if batch[0][1].answer is not None:
        return [answers.read(target, prompt, top=about.top, features=about.features) for _, prompt in batch]
    numbers = [number for number, _ in batch]
    result = answers.generate(
        target,
        [prompt for _, prompt in batch],
        [about.temperature if _is_sampled(about, number) else 0.0 for number in numbers],
        numbers,
        seed=about.seed,
        limit=about.limit,
        ends=ends,
        top=about.top,
        features=about.features,
    )
    mx.clear_cache()
    return result


def _is_sampled(about: About, number: int) -> bool:
    return np.random.default_rng([about.seed, number]).random() < about.sampled


def _need_room(folder: Path, about: About, batch: list) -> None:
    needed = bytes_per_token(about) * sum(len(prompt.ids) + len(prompt.answer or ()) + about.limit for _, prompt in batch)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SplashliteError(
            f"{folder} has room for {free / 1e9:.1f} GB, and the next part may take {needed / 1e9:.1f} GB: free some disk "
            "(what is done is kept), or use --features recompute"
        )
