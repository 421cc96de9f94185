"""What became of each request: the ones that two runs of the same work treated most differently."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engines.base import RequestRow, RunRecord


@dataclass(frozen=True)
class Changed:
    """One request on both sides."""

    before: RequestRow
    after: RequestRow

    @property
    def log_ratio(self) -> float:
        """Of the time it took from its schedule; infinite where only one side completed it."""
        if self.before.status != "completed" or self.after.status != "completed":
            return 0.0 if self.before.status == self.after.status else math.inf
        ours, theirs = took_ns(self.before), took_ns(self.after)
        return math.log(theirs / ours) if ours > 0 and theirs > 0 else 0.0


def took_ns(row: RequestRow) -> int:
    return row.end - row.scheduled


def most_changed(before: RunRecord, after: RunRecord, count: int = 10) -> list[Changed]:
    """Paired by index, the largest change first, in either direction; unchanged ones are left out."""
    theirs = {row.i: row for row in after.rows}
    pairs = [Changed(row, theirs[row.i]) for row in before.rows if row.i in theirs]
    changed = [one for one in pairs if one.log_ratio != 0]
    return sorted(changed, key=lambda one: (-abs(one.log_ratio), one.before.i))[:count]
