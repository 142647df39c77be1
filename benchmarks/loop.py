"""The decode loop's own time per cycle, beside that of mlx-vlm's DFlash 2 loop.

    python benchmarks/loop.py [--rows 8] [--cycles 40] [--processes 3] [--fused] [--profile] [--json]

Both run the same random weights, in alternating processes. The pair has the real layer counts (64 target
layers, 48 of them recurrent; 5 drafter layers, block of 8) at toy widths, so that next to nothing is
computed. Own time is the CPU time of the thread that runs the loop: building graphs, handing them to MLX,
reading the verdict, committing. Waiting for the device costs none of it, whatever else the machine is doing.
Of it, "device idle" lies between reading a verdict and handing over the next work. `launches` counts the
operations that a cycle hands to MLX (views are free and not among them).

On a CPU both programs spell out in many operations what is one kernel on a GPU: norms, rotations, attention,
the recurrence, and splashlite's own kernels. --fused puts one operation in the place of each, in both (the
text then means nothing): the loop as it looks from a GPU.

mlx-vlm 0.7.10 comes from PyPI into an environment of its own, kept in the cache folder; --peer PYTHON takes
another. Nothing else is needed.
"""

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from time import thread_time

import standins
from meter import WARM_UP, Meter, measured
from toypair import TARGET, write_pair

PEER = "mlx-vlm==0.7.10"
PROMPT = 32  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8, help="rows verified in every cycle")
    parser.add_argument("--cycles", type=int, default=40, help="cycles per process")
    parser.add_argument("--processes", type=int, default=3, help="processes of each program")
    parser.add_argument("--fused", action="store_true", help="one operation per Metal kernel")
    parser.add_argument("--peer", type=Path, help="a Python that has mlx-vlm; made when left out")
    parser.add_argument("--profile", action="store_true", help="profile splashlite's loop instead")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--half", choices=HALVES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.profiler = nullcontext()
    if options.half:
        print(json.dumps(HALVES[options.half](options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        write_pair(options.folder)
        if options.profile:
            profile(options)
            return
        compare(options)


def compare(options) -> None:
    """Run the programs in turn, each in a process of its own, and print their medians."""
    pythons = defaultdict(lambda: options.peer or peer_python(), splashlite=sys.executable)
    found = {half: [] for half in HALVES}
    for _ in range(options.processes):
        for half in HALVES:
            found[half].append(run(pythons[half], half, options))
    for fact in ("mlx", "dtype"):
        if len({each[fact] for runs in found.values() for each in runs}) > 1:
            raise SystemExit(f"the programs differ in {fact}: give both the same")
    rows = {half: medians(runs) for half, runs in found.items()}
    facts = {
        "mlx": found["splashlite"][0]["mlx"],
        "rows": options.rows,
        "cycles": options.cycles,
        "fused": options.fused,
    }
    result = {**facts, "programs": rows, "load": os.getloadavg()[0]}
    print(json.dumps(result, indent=1) if options.json else table(result))


def profile(options) -> None:
    """Where the thread's CPU time goes in splashlite's half, function by function; the profiler itself slows
    Python down."""
    options.profiler = cProfile.Profile(thread_time)
    splashlite_half(options)
    stats = pstats.Stats(options.profiler).strip_dirs()
    stats.sort_stats("tottime").print_stats(30)
    stats.sort_stats("cumulative").print_stats(
        "loop|dflash|target|recurrent|state|accept|sampling|context|kv|sessions"
    )


def run(python, half: str, options) -> dict:
    command = [
        python,
        __file__,
        "--half",
        half,
        "--folder",
        options.folder,
        "--rows",
        options.rows,
        "--cycles",
        options.cycles,
    ]
    command += ["--fused"] if options.fused else []
    environment = os.environ | {"SPLASHLITE_BLAS": "reference", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{half} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def peer_python() -> Path:
    """The Python of an environment with mlx-vlm and the MLX that runs here, made on first use."""
    import mlx.core as mx

    from splashlite.cache import cache_folder

    folder = cache_folder() / "benchmarks" / f"{PEER.replace('==', '-')}-mlx-{mx.__version__}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        print(f"installing {PEER} into {folder}", file=sys.stderr)
        extra = "" if sys.platform == "darwin" else "[cpu]"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", PEER, f"mlx{extra}=={mx.__version__}"], check=True
        )
        ready.touch()
    return python


def medians(runs: list[dict]) -> dict:
    numbers = [name for name, value in runs[0].items() if isinstance(value, (int, float))]
    phases = {
        name: round(median(each["phases_ms"][name] for each in runs), 3) for name in runs[0]["phases_ms"]
    }
    return {name: round(median(each[name] for each in runs), 3) for name in numbers} | {
        "version": runs[0]["version"],
        "phases_ms": phases,
        "tokens": runs[0]["tokens"],
    }


def table(result: dict) -> str:
    ours = result["programs"]["splashlite"]
    fused = ", one operation per Metal kernel" if result["fused"] else ""
    lines = [f"own milliseconds per cycle of {result['rows']} rows (mlx {result['mlx']}{fused})"]
    for half, row in result["programs"].items():
        phases = ", ".join(f"{name} {ms:.2f}" for name, ms in row["phases_ms"].items())
        same = all(a == b for a, b in zip(row["tokens"], ours["tokens"]))
        text = "" if result["fused"] else "the same text" if same else "another text"
        parts = [
            f"{half:<22} {row['version']:<7} {row['own_ms']:7.2f} ms",
            f"{row['own_ms'] / ours['own_ms']:.2f} times ours",
            f"device idle {row['idle_ms']:5.2f} ms",
            f"{row['launches']:.0f} launches",
            f"{row['tokens_per_cycle']:.2f} tokens/cycle",
            text,
        ]
        lines += ["  ".join(filter(None, parts)), f"{'':24}{phases}"]
    return "\n".join([*lines, f"machine load {result['load']:.1f}"])


def splashlite_half(options) -> dict:
    import splashlite  # first: it chooses the BLAS

    import mlx.core as mx

    from splashlite.decode import loop
    from splashlite.drafter.dflash2 import DFlash2
    from splashlite.target import Target
    from splashlite.target.state import TargetState

    if options.fused:
        standins.splashlite(mx)
    engine = splashlite.load(target=str(options.folder / "target"), drafter=str(options.folder / "drafter"))
    meter = Meter()
    meter.watch(DFlash2, "propose", "draft graph")
    meter.watch(Target, "verify", "verify graph")
    meter.watch(loop, "accept", "accept graph")
    meter.watch(loop.Loop, "_read", "reading")
    meter.watch(TargetState, "commit", "commit")
    meter.hand_over(mx)
    stats = []

    def pieces():
        budget = options.rows * (options.cycles + WARM_UP + 2)
        for piece in engine.stream(prompt(), max_tokens=budget, temperature=0, width=options.rows):
            stats[:] = [piece.stats]
            yield piece.tokens

    found = measured(pieces(), lambda: stats[0].cycles if stats else 0, meter, options)
    return found | {
        "version": splashlite.__version__,
        "mlx": mx.__version__,
        "dtype": engine.describe()["dtype"],
    }


def peer_half(options, selector: bool) -> dict:
    """mlx-vlm's loop. As it ships, greedy drafting takes every row's own argmax; `selector` has it walk
    DFlash 2's selector, as its sampled drafting does."""
    import mlx.core as mx
    import mlx_vlm
    from mlx_vlm.generate.ar import generate_step
    from mlx_vlm.models.qwen3_5 import Model, ModelConfig
    from mlx_vlm.models.qwen3_5.language import LanguageModel
    from mlx_vlm.speculative import dflash
    from mlx_vlm.speculative.drafters import load_drafter
    from mlx_vlm.speculative.drafters.dflash2 import DFlash2DraftModel

    if options.fused:
        standins.mlx_vlm(mx)
    vision = {
        "model_type": "qwen3_5",
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 1,
        "out_hidden_size": 64,
    }
    model = Model(
        ModelConfig.from_dict({"model_type": "qwen3_5", "text_config": TARGET, "vision_config": vision})
    )
    weights = mx.load(str(options.folder / "target" / "model.safetensors"))
    model.language_model.load_weights(
        [(name.removeprefix("language_model."), array) for name, array in weights.items()]
    )
    model.eval()
    drafter, _ = load_drafter(str(options.folder / "drafter"))
    drafter.prefer_requested_block_size = True  # its own switch for a width that does not adapt
    mx.eval(model.parameters(), drafter.parameters())
    meter = Meter()
    meter.watch(DFlash2DraftModel, "draft_block", "draft graph")
    meter.watch(DFlash2DraftModel, "draft_block_greedy", "draft graph")
    if selector:
        DFlash2DraftModel.draft_block_greedy = DFlash2DraftModel.draft_block
    meter.watch(dflash, "_dflash_verify_greedy", "verify graph")
    meter.watch(LanguageModel, "__call__", "verify graph")
    meter.watch(dflash, "_speculative_walk", "reading")
    meter.watch(dflash, "commit_speculative_round", "commit")
    meter.hand_over(mx)

    def tokens():
        budget = options.rows * (options.cycles + WARM_UP + 2)
        how = {
            "draft_model": drafter,
            "draft_kind": "dflash",
            "draft_block_size": options.rows,
            "temperature": 0.0,
        }
        for token, _ in generate_step(mx.array([prompt()]), model, None, None, max_tokens=budget, **how):
            yield [int(token)]

    found = measured(tokens(), lambda: len(drafter.accept_lens), meter, options)
    dtype = str(model.language_model.model.norm.weight.dtype).removeprefix("mlx.core.")
    return found | {"version": mlx_vlm.__version__, "mlx": mx.__version__, "dtype": dtype}


HALVES = {
    "splashlite": splashlite_half,
    "mlx-vlm": lambda options: peer_half(options, selector=False),
    "mlx-vlm with selector": lambda options: peer_half(options, selector=True),
}


def prompt() -> list[int]:
    return [(7 * i * i + 3 * i + 1) % 500 for i in range(PROMPT)]


if __name__ == "__main__":
    main()
