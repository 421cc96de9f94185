"""Where the latency of requests went, and the slowest requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.breakdown import breakdown
from reports.document import Axis, Bars, Block, Chart, Section, Table
from reports.render.breakdown import PART_MEANINGS
from reports.render.formatting import number
from reports.reported_run import ReportedRun
from reports.slowest import SlowRequest, slowest_requests
from reports.summary_schema import Breakdown, Part

COLOURS = {
    "client": "held", "intake": "other", "queue": "padding", "prefill": "prefill", "preempted": "preempted",
    "server": "series-2", "handover": "swapped", "transfer": "series-3", "decode": "decode",
}  # fmt: skip
MOST = 20  # requests listed


def breakdown_section(runs: Sequence[ReportedRun]) -> Section:
    """Parts of TTFT and of E2EL, on average and in the tail; then the slowest 1 % of requests by TTFT."""
    blocks: list[Block] = []
    found = [(one, breakdown(one.record)) for one in runs]
    summaries = [(one.label, parts.summary()) for one, parts in found]
    for metric in ("ttft", "e2el"):
        chart = _chart(metric, summaries)
        blocks += [chart] if chart else []
    if not blocks:
        return Section("Where the time went", [])
    names = [name for name in PART_MEANINGS if any(name in parts.e2el_ns() for _, parts in found)]
    blocks.append(Table(("part", "meaning"), [(name, PART_MEANINGS[name]) for name in names], texts=frozenset({1})))
    for one, parts in found:
        listed = slowest_requests(one.record, parts)
        if listed:
            blocks.append(_worst_table(one.label, listed))
    return Section("Where the time went", blocks)


def _chart(metric: str, summaries: Sequence[tuple[str, Breakdown | None]]) -> Chart | None:
    parts: list[tuple[str, str, float]] = []
    for label, summary in summaries:
        if summary is None:
            continue
        found: Mapping[str, Part] = getattr(summary, metric)
        for bar, field in (("mean", "mean_ms"), ("from P99 on", "tail_mean_ms")):
            name = f"{label}, {bar}" if label else bar
            parts += [(name, part, value) for part in found if (value := getattr(found[part], field)) is not None]
    if not parts:
        return None
    seen = {name: colour for name, colour in COLOURS.items() if any(part == name for _, part, _ in parts)}
    word = metric.upper()
    title = f"Parts of {word}"
    caption = f"Of all completed requests, and of those whose {word} from the scheduled time is at or above its P99."
    return Chart(f"{metric}-parts", title, Bars(Axis("ms"), parts, seen), caption)


def _worst_table(label: str, requests: Sequence[SlowRequest]) -> Table:
    names = [name for name in PART_MEANINGS if any(one.parts_ns.get(name) for one in requests)]
    seen = any(one.neighbours for one in requests)
    more = ("longest step, ms", "others in it", "prefill tokens") if seen else ()
    rows = []
    for one in requests[:MOST]:
        cells = [f"{one.row.i}", f"{one.row.prompt_tokens:,}", f"{one.row.output_tokens:,}", number(one.total_ns / 1e6)]
        cells += [number(one.parts_ns.get(name, 0) / 1e6) for name in names]
        near = one.neighbours
        if seen:
            cells += ["", "", ""] if near is None else [
                number(near.step_ms), f"{len(near.prompts)}", f"{near.prefill_tokens:,}"
            ]  # fmt: skip
        rows.append(cells)
    columns = ("request", "prompt tokens", "output tokens", "TTFT, ms", *names, *more)
    cut = f", the first {MOST}" if len(requests) > MOST else ""
    whose = f" of {label}" if label else ""
    caption = f"The slowest 1 % of requests{whose} by TTFT from the scheduled time{cut}; parts in ms"
    steps = ". Then the longest step of the wait, the other requests in it, and the most prompt tokens of a step"
    return Table(columns, rows, caption=f"{caption}{steps if seen else ''}.")
