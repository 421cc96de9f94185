"""How two records of the same plan differ: the first difference of each kind, and the requests that changed most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engines.base import RunRecord
from engines.request_table import RequestRow

# The size of the KV pool less the blocks that hold something: nothing happens otherwise because of it.
OF_THE_POOL = ("kv_free_blocks",)


def differences(before: RunRecord, after: RunRecord) -> tuple[str, ...]:
    """Texts, one for each kind of difference; empty when the records are equal to the bit."""
    found = [*_row_differences(before, after), *_step_differences(before, after)]
    if not found and not np.array_equal(before.event_values, after.event_values):
        found.append("token events differ")
    return tuple(found)


def _row_differences(before: RunRecord, after: RunRecord) -> list[str]:
    ours, theirs = ({row.i: row for row in record.rows} for record in (before, after))
    if ours.keys() != theirs.keys():
        return [f"{len(ours.keys() ^ theirs.keys())} requests ended in one run alone"]
    changed = [i for i in sorted(ours) if ours[i] != theirs[i]]
    if not changed:
        return []
    first = changed[0]
    return [
        f"{len(changed)} of {len(ours)} requests differ, first request {first}: {_changes(ours[first], theirs[first])}"
    ]


def _changes(before: RequestRow, after: RequestRow) -> str:
    # events_at depends on which requests ended before, so it is left out where another column differs.
    names = [name for name in RequestRow.__struct_fields__ if getattr(before, name) != getattr(after, name)]
    told = [name for name in names if name != "events_at"] or names
    return ", ".join(f"{name} {getattr(before, name)} → {getattr(after, name)}" for name in told[:3])


def _step_differences(before: RunRecord, after: RunRecord) -> list[str]:
    ours, theirs = before.steps, after.steps
    found = []
    if ours.size != theirs.size:
        found.append(f"{ours.size:,} → {theirs.size:,} steps")
    preempted = [int(steps["preempted"].sum()) for steps in (ours, theirs)]
    if preempted[0] != preempted[1]:
        found.append(f"{preempted[0]:,} → {preempted[1]:,} preemptions")
    shorter = min(ours.size, theirs.size)
    compared = [name for name in ours.dtype.names or () if name not in OF_THE_POOL]
    parted = np.flatnonzero(ours[compared][:shorter] != theirs[compared][:shorter])
    if parted.size:
        at = int(parted[0])
        names = [name for name in compared if ours[name][at] != theirs[name][at]]
        told = ", ".join(f"{name} {ours[name][at]} → {theirs[name][at]}" for name in names[:3])
        found.append(f"from step {at + 1} on: {told}")
    return found


@dataclass(frozen=True)
class Changed:
    """One request in both runs."""

    before: RequestRow
    after: RequestRow

    @property
    def log_ratio(self) -> float:
        """log(after / before) of the time from its schedule to its end; infinite where one side alone completed it."""
        if self.before.status != "completed" or self.after.status != "completed":
            return 0.0 if self.before.status == self.after.status else math.inf
        ours, theirs = took_ns(self.before), took_ns(self.after)
        return math.log(theirs / ours) if ours > 0 and theirs > 0 else 0.0


def took_ns(row: RequestRow) -> int:
    return row.end - row.scheduled


def most_changed(before: RunRecord, after: RunRecord, count: int = 10) -> list[Changed]:
    """The requests with the largest changes, in either direction, largest first. Requests are matched by index."""
    theirs = {row.i: row for row in after.rows}
    pairs = [Changed(row, theirs[row.i]) for row in before.rows if row.i in theirs]
    changed = [one for one in pairs if one.log_ratio != 0]
    return sorted(changed, key=lambda one: (-abs(one.log_ratio), one.before.i))[:count]
