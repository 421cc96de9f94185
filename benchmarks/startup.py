"""How long `cbbench --help` takes beside an empty Typer program's, interleaved so that both see the same machine.

    python benchmarks/startup.py [--rounds N] [--limit RATIO]

Exit code 1 if the ratio of the medians is above the limit.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

EMPTY = """
import typer
app = typer.Typer()
@app.command()
def one() -> None: "One."
@app.command()
def two() -> None: "Two."
app()
"""
CBBENCH = "import sys; from cbbench.cli.app import main; sys.argv = ['cbbench', '--help']; main()"


def seconds(code: str, *arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=1.3)
    options = parser.parse_args()
    seconds(EMPTY, "--help"), seconds(CBBENCH)  # warm the page cache
    pairs = [(seconds(EMPTY, "--help"), seconds(CBBENCH)) for _ in range(options.rounds)]
    empty_s, cbbench_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = cbbench_s / empty_s
    print(f"empty Typer {empty_s * 1e3:.0f} ms, cbbench --help {cbbench_s * 1e3:.0f} ms, ratio {ratio:.2f}")
    sys.exit(ratio > options.limit)


if __name__ == "__main__":
    main()
