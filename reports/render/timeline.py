"""The slot timeline: who sat in which seat in which step, and when it was empty.

0  ▒█████×××××××××    ▒ prefill  █ decode  × dead row  - held  · idle
1  ▒██████████×××××
2  ▒███████████████
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from engines.base import RunRecord, Stint
from reports.schema import RunFile

IntGrid = NDArray[np.int64]


class Seat(IntEnum):
    """What happens in a seat in a step."""

    IDLE = 0
    HELD = 1
    DEAD = 2
    PREFILL = 3
    DECODE = 4


LOOK = {
    Seat.PREFILL: ("▒", "yellow", "prefill"),
    Seat.DECODE: ("█", "green", "decode"),
    Seat.DEAD: ("×", "red", "dead row"),
    Seat.HELD: ("-", "magenta", "held"),
    Seat.IDLE: ("·", "dim", "idle"),
}


def timeline(
    record: RunRecord, run: RunFile, *, width: int = 100, until_step: int | None = None, max_slots: int = 16
) -> RenderableType:
    """A Gantt chart of slots over steps, with a legend and the sentence that sums it up.

    A column holds as many steps as it must and shows what happened in most of them. `until_step` ends it early.
    """
    stints = sorted((one for row in record.rows for one in row.stints), key=lambda one: (one.admitted, one.slot))
    steps = until_step or max([len(record.steps), *(one.ended for one in stints)], default=0)
    slots = _num_slots(record, stints)
    if steps == 0 or slots == 0:
        return Text("no slot timeline: no step was recorded", style="dim")
    label = len(str(slots - 1)) + 2
    columns = min(steps, max(8, width - label))
    edges = np.round(np.linspace(0, steps, columns + 1)).astype(np.int64)
    counts = seat_counts(stints, tail_of(run), slots, edges)
    lines = [_line(slot, counts[slot], label) for slot in range(min(slots, max_slots))]
    if slots > max_slots:
        lines.append(Text(f"{'':{label}}… {slots - max_slots} more slots", style="dim"))
    return Group(*lines, _axis(steps, columns, label), _legend(counts, steps, columns), _sentence(record, run, counts))


def tail_of(run: RunFile) -> Seat:
    """What becomes of a seat when its request ends before its static batch: dead row, held, or idle."""
    if run.engine.mode != "static":
        return Seat.IDLE
    shape = str(run.engine.config.get("static", "padded")).replace("-", "_")
    return {"padded": Seat.DEAD, "compact_held": Seat.HELD}.get(shape, Seat.IDLE)


def seat_counts(stints: Sequence[Stint], tail: Seat, slots: int, edges: IntGrid) -> IntGrid:
    """Steps by [slot, column, Seat]; column c holds the steps above edges[c] up to edges[c+1]."""
    counts = np.zeros((slots, edges.shape[0] - 1, len(Seat)), dtype=np.int64)

    def add(slot: int, seat: Seat, begin: int, end: int) -> None:
        if end >= begin:
            overlap = np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin - 1)
            counts[slot, :, seat] += np.maximum(overlap, 0)

    for stint, batch_end in zip(stints, _batch_ends(stints), strict=True):
        sampled = stint.sampled or stint.ended
        add(stint.slot, Seat.PREFILL, stint.admitted, min(sampled, stint.ended))
        add(stint.slot, Seat.DECODE, sampled + 1, stint.ended)
        if tail is not Seat.IDLE:
            add(stint.slot, tail, stint.ended + 1, batch_end)
    counts[:, :, Seat.IDLE] = np.diff(edges) - counts.sum(axis=2)
    return counts


def _batch_ends(stints: Sequence[Stint]) -> list[int]:
    """Last step of the static batch of each stint, in order of admission: static batching admits only into an empty
    batch, so a new one begins with the first stint admitted after all before it have ended."""
    ends: list[int] = []
    start, last = 0, 0
    for at, stint in enumerate(stints):
        if stint.admitted > last:
            ends += [last] * (at - start)
            start = at
        last = max(last, stint.ended)
    return ends + [last] * (len(stints) - start)


def _num_slots(record: RunRecord, stints: Sequence[Stint]) -> int:
    if len(record.steps):
        first = record.steps[0]
        return int(first["active_slots"] + first["dead_slots"] + first["idle_slots"])
    return max((one.slot + 1 for one in stints), default=0)


def _line(slot: int, counts: IntGrid, label: int) -> Text:
    text = Text(f"{slot:>{label - 2}}  ", style="dim", no_wrap=True)
    # Of equals the busier state: a request of one step must not vanish.
    for seat in (len(Seat) - 1 - counts[:, ::-1].argmax(axis=1)).tolist():
        glyph, style, _ = LOOK[Seat(seat)]
        text.append(glyph, style=style)
    return text


def _axis(steps: int, columns: int, label: int) -> Text:
    last = str(steps)
    return Text(f"{'':{label}}1{last:>{columns - 1}}" if columns > len(last) + 1 else "", style="dim", no_wrap=True)


def _legend(counts: IntGrid, steps: int, columns: int) -> Text:
    text = Text()
    for seat, (glyph, style, name) in LOOK.items():
        if counts[:, :, seat].any():
            text.append(glyph, style=style)
            text.append(f" {name}  ")
    text.append("one column is one step" if columns == steps else f"one column is {steps / columns:.3g} steps")
    return text


def _sentence(record: RunRecord, run: RunFile, counts: IntGrid) -> Text:
    """From the ledger, which is what the summary says too; from the chart where there is none."""
    total = int(counts.sum())
    if len(record.steps):
        shown = record.steps[: total // counts.shape[0]]
        dead, idle = int(shown["dead_slots"].sum()), int(shown["idle_slots"].sum())
    else:
        dead = int(counts[:, :, Seat.DEAD].sum())
        idle = int(counts[:, :, [Seat.HELD, Seat.IDLE]].sum())
    parts = [
        f"{count:,} {words}" for count, words in ((dead, "dead rows of finished requests"), (idle, "idle")) if count
    ]
    name = run.engine.mode or run.engine.kind
    detail = f": {', '.join(parts)}" if parts else ""
    return Text(f"{name} wasted {dead + idle:,} of {total:,} slot-steps{detail}.", style="bold")
