"""The command line's entry. Nothing heavy is imported before a command runs: help must be instant."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from cbbench.cli.commands import COMMANDS, program
from cbbench.cli.errors import explain


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code. Errors end as one line on stderr."""
    word = next((one for one in arguments if not one.startswith("-")), None)
    try:
        app = program(word if word in COMMANDS else None)
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
