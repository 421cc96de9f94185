"""Every failure ends here: one line on stderr and an exit code. A traceback only with --debug."""

from __future__ import annotations

import errno
import re

import typer

from workloads.errors import CbbenchError

USAGE = 2
UNEXPECTED = 1
INTERRUPTED = 130
OURS = ("cbbench", "engines", "reports", "workloads")  # that one of these is missing is nobody's mistake but ours

FIELD = re.compile(r"`([a-z][a-z0-9_]*)`")  # how a lower room names a setting inside a message

# Typer carries its own copy of Click; this is the public road to its usage errors.
TyperUsageError = typer.BadParameter.__mro__[1]


def explain(error: BaseException) -> tuple[str, int]:
    """(one line, exit code)"""
    if isinstance(error, TyperUsageError):
        return error.format_message(), USAGE  # type: ignore[attr-defined]
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    if isinstance(error, OSError) and error.errno is not None:
        return _explain_os_error(error)
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] not in OURS:
        return f"needs the Python package {error.name.partition('.')[0]}, which is not installed here", USAGE

    if isinstance(error, CbbenchError):
        message = FIELD.sub(lambda found: flag(found[1]), error.message)
        return message if error.field is None else f"{flag(error.field)}: {message}", error.exit_code
    return f"unexpected {type(error).__name__}: {error} (--debug shows the traceback)", UNEXPECTED


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def _explain_os_error(error: OSError) -> tuple[str, int]:
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}the disk is full; what was written before is kept", UNEXPECTED
    users_mistake = isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError | IsADirectoryError)
    users_mistake |= error.errno == errno.ENAMETOOLONG
    return f"{where}{error.strerror}", USAGE if users_mistake else UNEXPECTED
