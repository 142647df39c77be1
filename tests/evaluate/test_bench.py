"""The benchmark on toy engines: what is run, in which order, and what comes out on screen, as JSON and as a
picture."""

import io
import json
import sys

import benchtoys as toys
import mlx.core as mx
import pytest
import tiny
from rich.console import Console
from rich.progress import Progress

from splashlite.errors import SplashliteError, UsageError
from splashlite.evaluate import plot, run, table
from splashlite.evaluate.machine import Load
from splashlite.evaluate.measure import Bench, arms_of
from splashlite.evaluate.numbers import positions
from splashlite.evaluate.prompts import Prompt
from splashlite.target import Seen, Target

PROMPTS = [("code", [1, 2, 3]), ("code", [4, 5]), ("prose", [7, 8, 9, 1])]


class Careless(Target):
    """Computes another answer when it sees several rows: the fault that a benchmark has to find."""

    def verify(self, state, ids):
        seen = super().verify(state, ids)
        return Seen(mx.roll(seen.logits, 1, axis=1), seen.features) if ids.shape[1] > 1 else seen


def test_arms_are_plain_adaptive_and_the_full_block_or_every_width():
    assert list(arms_of(4, widths=False)) == ["plain", "adaptive", "width 4"]
    assert list(arms_of(4, widths=True)) == ["plain", "adaptive", "width 2", "width 3", "width 4"]


def test_every_prompt_is_run_in_every_mode_and_arm_in_turn():
    heard = []
    bench = Bench(toys.chain(sampling=toys.SAMPLING), tokens=24, heard=heard.append)
    first, measured = bench.run(PROMPTS)
    assert len(heard) == bench.replies(len(PROMPTS))
    assert [each.kind for each in first] == ["code", "code", "prose"] and list(measured) == [
        "greedy",
        "default sampling",
    ]
    for found in measured.values():
        assert all(len(reply.tokens) == 24 for each in found for reply in each.replies.values())
    begun = [words.removeprefix("code, greedy, ") for words in heard if words.startswith("code, greedy")]
    assert begun == ["plain", "adaptive", "width 5", "timed", "adaptive", "width 5", "plain", "timed"]


def test_greedy_texts_are_compared_and_agree():
    _, measured = Bench(toys.chain(), tokens=24, widths=True).run(PROMPTS)
    assert list(measured) == ["greedy"]
    for each in measured["greedy"]:
        assert set(each.partings) == {"adaptive", "width 2", "width 3", "width 4", "width 5"}
        assert not any(each.partings.values())


def test_cycles_add_up_to_the_reply():
    _, measured = Bench(toys.chain(), tokens=24).run(PROMPTS[:1])
    replies = measured["greedy"][0].replies
    assert replies["plain"].cycles == [(1, 0)] * 24
    for reply in replies.values():
        assert sum(accepted + 1 for _, accepted in reply.cycles) == 24
        assert sum(rows for rows, _ in reply.cycles) == reply.stats.rows
    timed = measured["greedy"][0].timed.stats
    assert len(timed.verify_ms) >= timed.cycles > 0 and len(timed.draft_ms) > 0


def test_positions_are_those_that_the_drafter_got_right(tmp_path):
    engine = toys.words(tmp_path)
    ids = tiny.random_prompt(9)
    text = engine.generate(ids, max_tokens=24, temperature=0, speculative=False).tokens
    engine.drafter = tiny.Scripted(engine.drafter, ids + text, right=3)
    _, measured = Bench(engine, tokens=24).run([("code", ids)])
    replies = measured["greedy"][0].replies
    assert positions([replies["width 8"]], 8)[:5] == [1, 1, 1, 0, 0]


def test_the_first_token_is_cold_once_and_warm_once():
    engine = toys.chain()
    engine.generate(PROMPTS[2][1], max_tokens=4)
    bench, cached = Bench(engine, tokens=4), []
    reply = bench._reply
    bench._reply = lambda *arguments, **options: cached.append(reply(*arguments, **options)) or cached[-1]
    bench._first_token("prose", PROMPTS[2][1])
    assert [each.stats.cached_tokens for each in cached] == [0, 3]


def test_what_adaptive_replies_learned_is_not_touched_by_the_others():
    engine = toys.chain()
    bench = Bench(engine, tokens=24)
    bench._reply([1, 2], 24, {"temperature": 0})
    learned = engine.survival
    for options in ({"speculative": False}, {"width": 3}):
        bench._reply([1, 2], 24, options | {"temperature": 0})
        assert engine.survival is learned
    bench._reply([1, 2], 24, {"temperature": 0}, timing=True)
    assert engine.survival is learned and engine.timing is False


def test_a_pair_without_a_drafter_is_refused():
    with pytest.raises(UsageError, match="no drafter"):
        Bench(tiny.make_engine(tiny.make_target("dense")), tokens=8)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return toys.words(tmp_path_factory.mktemp("drafter"), context=256)


@pytest.fixture(scope="module")
def result(engine):
    prompts = [
        Prompt("letters", "Write to my aunt."),
        Prompt("letters", "Write to the bank."),
        Prompt("tales", "x" * 300),
    ]
    with Progress(disable=True) as progress:
        return run.measure(engine, prompts, Load(), progress, 16, {"quick": False, "widths": True}, "a test")


def bench(engine, capsys, folder, **options):
    """The exit code and what was printed."""
    (folder / "letters.txt").write_text("Write to my aunt.\n")
    known = {"source": folder / "letters.txt", "most": None, "tokens": 16, "as_json": False, "plot": None}
    code = run.bench(
        lambda progress: engine, **(known | {"flags": {"quick": False, "widths": False}} | options)
    )
    return code, capsys.readouterr().out


def test_a_result_holds_every_number(result):
    assert result["options"] == {
        "tokens": 16,
        "prompts": 2,
        "source": "a test",
        "quick": False,
        "widths": True,
    }
    assert (
        result["facts"]["mlx"] == mx.__version__ and result["facts"]["blas"] and result["load"]["cores"] >= 1
    )
    assert [mode["name"] for mode in result["modes"]] == ["greedy", "default sampling"]
    assert len(result["notes"]) == 1 and "tales: prompts are left out" in result["notes"][0]
    (found,) = result["modes"][0]["classes"]
    assert found["class"] == "letters" and found["prompts"] == 2 and found["prompt_tokens"] == [17, 18]
    assert len(found["arms"]) == 9 and len(found["acceptance_per_position"]) == 7
    assert found["texts"]["differ"] == 0 and found["texts"]["compared"] == 16


@pytest.mark.parametrize("columns", [60, 100])
def test_tables_say_what_was_measured(result, columns):
    shown = io.StringIO()
    table.show(result, Console(file=shown, width=columns))
    flat = " ".join(shown.getvalue().split())
    for said in (
        "letters",
        "Speed, greedy",
        "temperature 0.8",
        "First token",
        "Speed-up by width",
        "MLX",
        "machine",
        "tales",
    ):
        assert said in flat
    assert max(map(len, shown.getvalue().splitlines())) <= columns


def test_json_is_the_whole_result(engine, capsys, tmp_path):
    code, out = bench(engine, capsys, tmp_path, as_json=True)
    found = json.loads(out)
    assert code == 0 and found.keys() == {"facts", "options", "load", "notes", "costs", "modes"}
    assert found["options"]["source"].endswith("letters.txt") and len(found["costs"]["cycle_ms"]) == 8


def test_without_a_terminal_lines_say_what_is_measured_and_how_far_it_is(engine, capsys, tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 25))
    monkeypatch.setattr(run, "monotonic", lambda: next(clock))
    (tmp_path / "one.txt").write_text("Write to my aunt.\n")
    flags = {"quick": False, "widths": False}
    code = run.bench(
        lambda progress: engine, source=tmp_path / "one.txt", most=None, tokens=16, as_json=True, plot=None, flags=flags
    )
    out, err = capsys.readouterr()
    assert code == 0 and json.loads(out)
    first, *later = err.split("\n")[:6]
    assert first == "1 prompt, 16 replies of at most 16 tokens"
    assert later[0] == "3 of 16 replies: warming up" and err.count(" of 16 replies: ") == 5  # once in sixty seconds
    assert all(line.startswith(f"{3 * at} of 16 replies: ") for at, line in enumerate(later, start=1))


def test_a_fault_is_shown_instead_of_a_speedup_and_ends_with_1(capsys, tmp_path):
    engine = toys.words(tmp_path, context=256)
    engine.target.__class__ = Careless
    code, out = bench(engine, capsys, tmp_path)
    greedy = out[out.index("Speed, greedy") : out.index("Speed, default")]
    assert code == 1 and "refused" in greedy and "DIFFER" in greedy and "×" not in greedy
    assert "this is a bug" in " ".join(out.split())


def test_a_picture_is_drawn(result, tmp_path):
    pytest.importorskip("matplotlib")
    plot.check(tmp_path / "speed.png")
    plot.draw(result, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_loaded(tmp_path):
    pytest.importorskip("matplotlib")
    for place, said in (
        (tmp_path / "speed.txt", "is no picture"),
        (tmp_path / "no" / "speed.png", "there is no folder"),
    ):
        with pytest.raises(UsageError, match=said):
            run.bench(None, source=None, most=None, tokens=16, flags={}, as_json=False, plot=place)


def test_without_matplotlib_a_picture_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SplashliteError, match="needs matplotlib"):
        run.bench(
            None, source=None, most=None, tokens=16, flags={}, as_json=False, plot=tmp_path / "speed.png"
        )
