"""The one error of the house, and what the process ends with. This file loads nothing, so that any room can raise it.

A room below the command line knows fields, not flags: it names the setting that is wrong by its field, and other
settings inside the message in backticks: CbbenchError("kv_blocks", "8 blocks hold no request; raise `kv_blocks`").
The command line alone turns field names into flags.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process ends with. Where several apply, `reports.sla.exit_code` says which one wins."""

    OK = 0
    ERROR = 1  # unexpected; also a full disk
    USAGE = 2
    SLA_FAILED = 3
    REGRESSION = 4
    INCONCLUSIVE = 5
    SERVER = 6  # the server was not ready in time, or died
    LOAD_INVALID = 7
    INTERRUPTED = 130


class CbbenchError(Exception):
    """Something the user can put right, in one line.

    field: the setting at fault, by the name it has in the settings (`max_num_seqs`); None where it is no setting.
    message: what is wrong, and what would be right. Other settings stand in it as `field`, in backticks.
    """

    def __init__(self, field: str | None, message: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(field, message, exit_code)
        self.field = field
        self.message = message
        self.exit_code = exit_code

    def __str__(self) -> str:
        return self.message if self.field is None else f"{self.field}: {self.message}"
