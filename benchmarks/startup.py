"""How long does `splashlite --help` take? A ratio to `python -c "import click"`, which is the least it could take.

    python benchmarks/startup.py [--rounds 10]

Both run interleaved; the figure is the median over rounds of the ratio within a round.
"""

import argparse
import subprocess
import sys
from statistics import median
from time import perf_counter

HELP = [sys.executable, "-c", "from splashlite.cli import run; run(['--help'])"]
CLICK = [sys.executable, "-c", "import click"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = [(seconds(HELP), seconds(CLICK)) for _ in range(parser.parse_args().rounds)]
    ratio = median(shown / least for shown, least in rounds)
    print(f"splashlite --help: {median(shown for shown, _ in rounds) * 1000:.0f} ms, {ratio:.2f} times import click")


def seconds(command: list[str]) -> float:
    began = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - began


if __name__ == "__main__":
    main()
