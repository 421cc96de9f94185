"""Static and continuous batching side by side, with the ratio that the lengths of the outputs alone predict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from reports.curves import CurvePoint, merge, short_label
from reports.render.fitting import Table
from reports.render.words import number, stacked
from reports.sweep_schema import SweepFile, Value

MODES = ("static", "continuous")
METRICS = (("tok/s", "output_token_per_s"), ("P99 TTFT", "p99_ttft_ms"), ("P99 TPOT", "p99_tpot_ms"))


def pairs_of_modes(sweep: SweepFile) -> list[tuple[tuple[Value, ...], CurvePoint, CurvePoint]]:
    """(values of the other parameters, static, continuous), where a sweep over the mode has measured both."""
    if "mode" not in sweep.params:
        return []
    at = sweep.params.index("mode")
    found: dict[tuple[Value, ...], dict[Value, CurvePoint]] = {}
    for one in merge(sweep.points):
        if one.runs:
            found.setdefault(one.values[:at] + one.values[at + 1 :], {})[one.values[at]] = one
    return [(rest, both["static"], both["continuous"]) for rest, both in found.items() if set(MODES) <= both.keys()]


def modes_view(sweep: SweepFile) -> Group | None:
    """A row for each pair, None without one."""
    pairs = pairs_of_modes(sweep)
    if not pairs:
        return None
    others = [param for param in sweep.params if param != "mode"]
    table = Table(box=None, header_style="bold", pad_edge=False, title="continuous over static", title_justify="left")
    for name in (
        *map(stacked, others),
        *(f"{one}\n{name}" for name, _ in METRICS[:1] for one in MODES),
        "ratio",
        "predicted",
    ):
        table.add_column(name, justify="right")
    for name, _ in METRICS[1:]:
        table.add_column(f"{name}\nratio", justify="right")
    for rest, static, continuous in pairs:
        speeds = [number(one.point.output_token_per_s) for one in (static, continuous)]
        ratios = [_ratio(static, continuous, key) for _, key in METRICS]
        predicted = f"{gain:.2f}x" if (gain := static.point.max_over_mean) else "–"
        table.add_row(*_words(rest), *speeds, ratios[0], predicted, *ratios[1:])
    note = "predicted: E[max of B outputs] / mean output, B = max-num-seqs: for a queue that never empties, and steps "
    return Group(table, Text(note + "that all take equally long", style="dim"))


def _words(rest: Sequence[Value]) -> list[str]:
    return [short_label([one]) for one in rest]


def _ratio(static: CurvePoint, continuous: CurvePoint, key: str) -> str:
    before, after = getattr(static.point, key), getattr(continuous.point, key)
    return f"{after / before:.2f}x" if before and after is not None else "–"
