"""The command line's entry. Nothing heavy is imported before a command runs: help must be instant."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from cbbench import __version__
from cbbench.cli import calibrate, compare, doctor, gate, report, run, serve, sweep, tune, workload
from cbbench.cli.errors import explain

app = typer.Typer(
    help="Benchmark LLM serving: what batching, seats and memory cost in throughput and in P99 TTFT/TPOT.",
    no_args_is_help=True,
    add_completion=False,
)
app.command("run")(run.command)
app.command("sweep")(sweep.command)
app.command("tune")(tune.command)
app.command("gate")(gate.command)
app.command("compare")(compare.command)
app.command("report")(report.command)
app.command("calibrate")(calibrate.command)
app.command("serve")(serve.command)
app.command("doctor")(doctor.command)
app.add_typer(workload.app, name="workload")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cbbench {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code. Errors end as one line on stderr."""
    try:
        code = app(args=list(arguments), prog_name="cbbench", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in arguments:
            traceback.print_exc()
        line, code = explain(error)
        if line:  # empty where Typer has shown the help instead
            print(f"error: {line}", file=sys.stderr)
    return code if isinstance(code, int) else 0


def main() -> None:
    sys.exit(invoke(sys.argv[1:]))
