"""Every failure ends here: one line on stderr and an exit code. A traceback only with --debug.

Lower rooms name a setting by its field; here alone it becomes a flag.
"""

from __future__ import annotations

import errno
from typing import Protocol, runtime_checkable

import typer

from cbbench.cli.options import FIELD
from workloads.errors import CbbenchError, ExitCode

OURS = ("cbbench", "engines", "reports", "workloads")  # that one of these is missing is a mistake of ours


@runtime_checkable
class UsageProblem(Protocol):
    """What Typer raises for a command line that it cannot read; its classes have no public name."""

    exit_code: int

    def format_message(self) -> str: ...


def explain(error: BaseException) -> tuple[str, int]:
    """(one line, exit code)"""
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        return "interrupted", ExitCode.INTERRUPTED
    if isinstance(error, OSError) and error.errno is not None:
        return _explain_os_error(error)
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] not in OURS:
        return f"needs the Python package {error.name.partition('.')[0]}, which is not installed here", ExitCode.USAGE
    if isinstance(error, CbbenchError):
        return in_flags(error), error.exit_code
    if isinstance(error, UsageProblem):
        return error.format_message(), ExitCode.USAGE
    return f"unexpected {type(error).__name__}: {error} (--debug shows the traceback)", ExitCode.ERROR


def in_flags(error: CbbenchError) -> str:
    """The error's text with flags in place of the names of settings and options; other words in backticks stay."""
    from cbbench.cli.commands import all_flags

    flags = all_flags()
    message = FIELD.sub(lambda found: flags.get(found[1], found[0]), error.message)
    return message if error.field is None else f"{flags.get(error.field, error.field)}: {message}"


def _explain_os_error(error: OSError) -> tuple[str, int]:
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}the disk is full; what was written before is kept", ExitCode.ERROR
    users_mistake = isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError | IsADirectoryError)
    users_mistake |= error.errno == errno.ENAMETOOLONG
    return f"{where}{error.strerror}", ExitCode.USAGE if users_mistake else ExitCode.ERROR
