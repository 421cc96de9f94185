"""The slot timeline: the state of every slot in every step.

0  ▒█████×××××××××    ▒ prefill  █ decode  × dead row  - held  · idle
1  ▒██████████×××××
2  ▒███████████████

The states are classified in reports/slots.py.
"""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from engines.base import RunRecord
from reports.schema import RunFile
from reports.slots import IntGrid, SlotState, num_slots, slot_counts, slot_spans

LOOK = {
    SlotState.PREFILL: ("▒", "yellow", "prefill"),
    SlotState.DECODE: ("█", "green", "decode"),
    SlotState.TRANSFER: ("t", "yellow", "KV transfer"),
    SlotState.PADDING: ("p", "red", "padding"),
    SlotState.DEAD: ("×", "red", "dead row"),
    SlotState.HELD: ("-", "magenta", "held"),
    SlotState.PREEMPTED: ("!", "magenta", "preempted"),
    SlotState.SWAPPED: ("s", "magenta", "swapped out"),
    SlotState.IDLE: ("·", "dim", "idle"),
}


def timeline(
    record: RunRecord, run: RunFile, *, width: int = 100, until_step: int | None = None, max_slots: int = 16
) -> RenderableType:
    """A Gantt chart of slots over steps, with a legend and a sentence that sums it up.

    width: characters. A column stands for one step, or for several and then shows their most frequent state.
    until_step: the last step shown; None: the last of the run. max_slots: of more slots only these are shown.
    """
    spans = slot_spans(record, run)
    steps = until_step or max([len(record.steps), *(one.end for one in spans)], default=0)
    slots = num_slots(record)
    if steps == 0 or slots == 0:
        return Text("no slot timeline: no step was recorded", style="dim")
    label = len(str(slots - 1)) + 2
    columns = min(steps, max(8, width - label))
    edges = np.round(np.linspace(0, steps, columns + 1)).astype(np.int64)
    counts = slot_counts(spans, slots, edges)
    lines = [_line(slot, counts[slot], label) for slot in range(min(slots, max_slots))]
    if slots > max_slots:
        lines.append(Text(f"{'':{label}}… {slots - max_slots} more slots", style="dim"))
    return Group(*lines, _axis(steps, columns, label), _legend(counts, steps, columns), _sentence(record, run, counts))


def _line(slot: int, counts: IntGrid, label: int) -> Text:
    text = Text(f"{slot:>{label - 2}}  ", style="dim", no_wrap=True)
    # Of two equally frequent states the busier one: a request of one step must stay visible.
    for state in (len(SlotState) - 1 - counts[:, ::-1].argmax(axis=1)).tolist():
        glyph, style, _ = LOOK[SlotState(state)]
        text.append(glyph, style=style)
    return text


def _axis(steps: int, columns: int, label: int) -> Text:
    last = str(steps)
    return Text(f"{'':{label}}1{last:>{columns - 1}}" if columns > len(last) + 1 else "", style="dim", no_wrap=True)


def _legend(counts: IntGrid, steps: int, columns: int) -> Text:
    text = Text()
    for state, (glyph, style, name) in LOOK.items():
        if counts[:, :, state].any():
            text.append(glyph, style=style)
            text.append(f" {name}  ")
    text.append("one column is one step" if columns == steps else f"one column is {steps / columns:.3g} steps")
    return text


def _sentence(record: RunRecord, run: RunFile, counts: IntGrid) -> Text:
    """The wasted slot-steps, from the ledger as in the summary; without a ledger from the chart."""
    total = int(counts.sum())
    if len(record.steps):
        shown = record.steps[: total // counts.shape[0]]
        dead, idle = int(shown["dead_slots"].sum()), int(shown["idle_slots"].sum())
    else:
        dead = int(counts[:, :, SlotState.DEAD].sum())
        idle = int(counts[:, :, [SlotState.HELD, SlotState.PREEMPTED, SlotState.SWAPPED, SlotState.IDLE]].sum())
    parts = [f"{count:,} {words}" for count, words in ((dead, "dead (finished requests)"), (idle, "idle")) if count]
    name = run.engine.mode or run.engine.kind
    detail = f": {', '.join(parts)}" if parts else ""
    return Text(f"{name} wasted {dead + idle:,} of {total:,} slot-steps{detail}.", style="bold")
