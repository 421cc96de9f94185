"""Who sat in which seat, step by step."""

from __future__ import annotations

import altair as alt

from reports.document import Seats
from reports.render.charts.parts import axis_of, colour_of, data_of


def seat_layers(plot: Seats) -> list[alt.Chart]:
    data = data_of([{"slot": slot, "is": state, "a": begin, "b": end} for slot, state, begin, end in plot.spans])
    every = 1 if plot.slots <= 16 else 4 if plot.slots <= 32 else 8
    zoom = alt.selection_interval(
        name="zoom", bind="scales", encodings=["x"], zoom="wheel![event.shiftKey]",
        translate="[pointerdown, window:pointerup] > window:pointermove!",
    )  # fmt: skip
    tooltip = [
        alt.Tooltip("slot:O", title="slot"), alt.Tooltip("is:N", title="state"),
        alt.Tooltip("a:Q", title="from", format=",.5~g"), alt.Tooltip("b:Q", title="to", format=",.5~g"),
    ]  # fmt: skip
    slots = alt.Y(
        "slot:O",
        title="slot",
        scale=alt.Scale(domain=list(range(plot.slots)), paddingInner=0.18),
        axis=alt.Axis(values=list(range(0, plot.slots, every)), grid=False, ticks=False),
    )
    low, high = plot.x.domain or (0.0, plot.end)
    empty = [{"slot": slot, "a": low, "b": min(high, plot.end)} for slot in range(plot.slots)]
    ground = (
        data_of(empty).mark_bar(color="var(--idle)", clip=True).encode(y=slots, x=axis_of(plot.x, "a", alt.X), x2="b:Q")
    )
    bars = data.mark_bar(clip=True).encode(
        x=axis_of(plot.x, "a", alt.X), x2="b:Q", y=slots, color=colour_of("is", dict(plot.colours)), tooltip=tooltip
    )
    return [ground, bars.add_params(zoom)]
