"""The commands, and the Typer program that they make."""

from __future__ import annotations

from functools import cache
from typing import Annotated

import typer

from cbbench import __version__
from cbbench.cli import calibrate, compare, doctor, gate, report, run, serve, sweep, tune, workload
from cbbench.cli.options import Command, complete, flags_of, outline

COMMANDS: dict[str, Command] = {
    "run": run.command,
    "sweep": sweep.command,
    "tune": tune.command,
    "gate": gate.command,
    "compare": compare.command,
    "report": report.command,
    "calibrate": calibrate.command,
    "serve": serve.command,
    "doctor": doctor.command,
}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cbbench {__version__}")
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@cache
def program(called: str | None) -> typer.Typer:
    """called: the command that gets its options; the others are only listed, which takes no time."""
    app = typer.Typer(
        help="Benchmark LLM serving: what batching, slots and memory cost in throughput and in P99 TTFT/TPOT.",
        no_args_is_help=True,
        add_completion=False,
    )
    for name, command in COMMANDS.items():
        app.command(name)(complete(command) if name == called else outline(command))
    app.add_typer(workload.app, name="workload")
    app.callback()(_top)
    return app


@cache
def all_flags() -> dict[str, str]:
    """The flag of every setting, and of every other option of a command, by field name."""
    return {name: flag for command in COMMANDS.values() for name, flag in flags_of(command).items()}
