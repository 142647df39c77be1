"""`splashlite train` from a prompt file to a drafter that the other commands take, on the demo target."""

import itertools
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from splashlite.cli import run
from splashlite.train import data, fit
from splashlite.train.batches import batch
from splashlite.train.command import train as group
from splashlite.train.corpus import Corpus
from splashlite.train.questions import questions


def test_every_command_in_the_documentation_is_one():
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    lines = re.findall(r"^    splashlite train (\w+) (.*)", text, re.M)
    assert {command for command, _ in lines} == set(group.commands)
    for command, rest in lines:
        group.commands[command].make_context(command, shlex.split(rest))
    named = set(re.findall(r"--[a-z][a-z-]+", text)) - {"--target"}
    known = {option for command in group.commands.values() for each in command.params for option in each.opts}
    assert named <= known


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "mine.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": question}]} for _, question in itertools.islice(questions(5), 24)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture(scope="module")
def answers(prompts):
    folder = prompts.parent / "answers"
    assert run(["train", "data", str(folder), "--prompts", str(prompts), "--limit", "10", "--sampled", "0.25"]) == 0
    return folder


def train(folder, answers, *more):
    small = ["--texts", "2", "--anchors", "3", "--columns", "512", "--held-out", "4"]
    small += [] if "--from" in more else ["--layers", "1"]
    return run(
        ["train", "drafter", str(folder), "--data", str(answers), *small, "--check", "1", "--examined", "2", *more]
    )


@pytest.mark.slow
def test_from_prompts_to_a_drafter_that_generate_takes(tmp_path, answers, capsys):
    drafter = tmp_path / "drafter"
    assert train(drafter, answers, "--steps", "2", "--plot", str(tmp_path / "run.png")) == 0
    assert "tokens per cycle on held-out answers" in capsys.readouterr().out
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert run(["show", str(drafter), "--json"]) == 0
    assert "SmolLM2" in capsys.readouterr().out  # the card names its target
    asked = [
        "generate",
        "--prompt",
        "Name three rivers.",
        "--max-tokens",
        "12",
        "--temperature",
        "0",
        "--json",
        "--no-calibrate",
    ]
    assert run([*asked, str(drafter)]) == 0
    fast = json.loads(capsys.readouterr().out)
    assert run(asked) == 0
    assert fast["tokens"] == json.loads(capsys.readouterr().out)["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], r"the best linear drafter \(\d+% of the final rows' variance\)"),
        (["--random"], "random layers"),
        (["--copy", "14"], "the target's layers 14"),
    ],
)
def test_what_a_drafter_begins_from_is_said(tmp_path, answers, capsys, options, says):
    folder = tmp_path / "drafter"
    assert train(folder, answers, "--steps", "1", *options) == 0
    assert re.search(f"begun from {says};", re.sub(r"\s+", " ", capsys.readouterr().out))
    assert re.search(f"- Begun from {says}\\.", (folder / "README.md").read_text())
    assert run(["show", str(folder), "--json"]) == 0


@pytest.mark.slow
def test_the_card_says_how_rows_were_weighed(tmp_path, answers):
    cards = {}
    for options in [("--gamma", "2.5"), ("--dpace",)]:
        folder = tmp_path / options[0][2:]
        assert train(folder, answers, "--steps", "1", "--random", *options) == 0
        cards[options[0]] = (folder / "README.md").read_text()
    assert "weights fall with gamma 2.5;" in cards["--gamma"]
    assert "rows weighed by D-PACE;" in cards["--dpace"] and "gamma" not in cards["--dpace"]


@pytest.mark.slow
def test_a_run_goes_on_only_when_it_is_asked_to_and_the_same(tmp_path, answers, capsys):
    folder = tmp_path / "run"
    assert train(folder, answers, "--steps", "1") == 0
    assert train(folder, answers, "--steps", "1") == 2
    assert "--resume" in capsys.readouterr().err
    assert train(folder, answers, "--steps", "2", "--resume") == 2
    assert "holds a run with steps 1, not 2" in capsys.readouterr().err
    assert train(folder, answers, "--steps", "1", "--resume") == 0
    assert "this run is already finished" in capsys.readouterr().out


@pytest.mark.slow
def test_data_say_what_they_will_be_what_was_kept_and_when_prompts_ran_out(tmp_path, prompts, monkeypatch, capsys):
    generate, calls = data.answers.generate, itertools.count(1)

    def interrupted(*arguments, **options):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return generate(*arguments, **options)

    monkeypatch.setattr(data, "BATCH", 12)
    monkeypatch.setattr(data.answers, "generate", interrupted)
    command = ["train", "data", str(tmp_path / "few"), "--prompts", str(prompts), "--limit", "8", "--tokens"]
    assert run([*command, "160"]) == 130
    out, err = capsys.readouterr()
    kept = Corpus(tmp_path / "few")
    assert len(kept) == 12 and re.search(r"to mine\.jsonl, 160 tokens of them \(about 1 MB; ", out)
    assert f"interrupted; 12 answers, {kept.answer_tokens} tokens are kept" in err and "the same command goes on" in err
    assert run([*command, "160"]) == 0
    few = Corpus(tmp_path / "few")
    assert 160 <= few.answer_tokens < 176
    out = capsys.readouterr().out
    assert f"12 answers, {kept.answer_tokens} tokens are there already" in out
    assert out.endswith(f"{len(few)} answers, {few.answer_tokens} tokens\n")
    assert run([*command, "1000"]) == 0
    out, err = capsys.readouterr()
    assert re.search(r": 24 answers, \d+ tokens: the prompts came to an end before 1,000 tokens\n$", out) and err == ""


@pytest.mark.slow
def test_an_interrupted_run_says_what_is_kept_and_how_to_go_on(tmp_path, answers, monkeypatch, capsys):
    folder, few = tmp_path / "run", ("--steps", "2", "--random", "--rate", "50")

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as first:
        first.setattr(fit, "simulate", stop)
        assert train(folder, answers, *few) == 130
    assert "interrupted at step 0 of 2; there is no checkpoint yet: the same command begins again" in capsys.readouterr().err
    with monkeypatch.context() as second:
        second.setattr(fit, "batch", lambda *arguments: stop() if arguments[-1] == 1 else batch(*arguments))
        assert train(folder, answers, *few) == 130
    said = "interrupted at step 1 of 2; step 1 and the best drafter so far are kept: the same command with --resume goes on"
    assert said in capsys.readouterr().err
    assert train(folder, answers, *few, "--resume") == 0
    out, err = capsys.readouterr()
    assert re.search(r"; 18 answers to train on, 6 held out \(2 greedy ones examined\)\n", out)
    assert "going on from step 1\n" in out and err == ""
    assert "(step 0): no step made it better" in out and "more data, or for more --steps" in out


@pytest.mark.slow
def test_a_drafter_is_trained_further_on_the_layers_it_reads(tmp_path, answers, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(first, answers, "--steps", "1", "--kind", "dflash") == 0
    assert train(second, answers, "--steps", "1", "--from", str(first), "--selector", "1") == 2
    assert "--selector has no effect" in capsys.readouterr().err
    assert train(second, answers, "--steps", "1", "--from", str(first), "--soft", "0") == 0
    assert "Begun from the drafter first." in (second / "README.md").read_text()
    moved = shutil.copytree(answers, tmp_path / "moved")
    about = json.loads((moved / "corpus.json").read_text())
    (moved / "corpus.json").write_text(json.dumps(about | {"target": "./where-it-was"}))
    assert train(tmp_path / "again", moved, "--steps", "1", "--from", str(first)) == 0
    config = json.loads((first / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [0, 7, 14, 20, 27]
    (first / "config.json").write_text(json.dumps(config))
    capsys.readouterr()
    assert train(tmp_path / "third", answers, "--steps", "1", "--from", str(first)) == 2
    says = "first reads layers 0,7,14,20,27, the data hold the features of 1,7,14,20,27: make data with --taps 0,7,14,20,27"
    assert says in capsys.readouterr().err
    (moved / "corpus.json").write_text(json.dumps(about | {"taps": [0, 1]}))
    assert train(tmp_path / "third", answers, "--steps", "1", "--data", str(moved)) == 2
    assert "differ in their taps (1,7,14,20,27 and 0,1): " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plot", "x.png", "nowhere"], "nowhere holds no run"),
        (["drafter", "out", "--data", "nowhere"], "nowhere is no folder of `splashlite train data`"),
        (["drafter", "out", "--data", "nowhere", "--resume"], "out holds no run to go on with: leave --resume out"),
        (["drafter", "out", "--data", ".", "--from", ".", "--layers", "2"], "--layers has no effect with --from"),
        (["drafter", "out", "--data", ".", "--kind", "dflash", "--rank", "8"], "--rank has no effect on --kind dflash"),
        (["drafter", "out", "--data", ".", "--random", "--copy", "1,2,3"], "--copy has no effect with --random"),
        (["drafter", "out", "--data", ".", "--dpace", "--gamma", "3"], "--gamma has no effect with --dpace"),
        (["data", "out", "--taps", "1,99"], "ascending layers from 0 to 29, not 1,99\n"),
        (["data", "out", "--prompts", "nowhere.jsonl"], "nowhere.jsonl cannot be read: No such file or directory\n"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    assert run(["train", *arguments]) != 0
    out, err = capsys.readouterr()
    assert says in err and out == "" and "━" not in err
