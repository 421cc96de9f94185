"""The stages of a rate that changes, a row for each: what was asked, what was done, and through which the SLA holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from reports.render.fitting import Table
from reports.render.words import STYLES, number, share
from reports.staged import first_beyond
from reports.summary_schema import StageGroup, StageVerdict

COLUMNS = ("requests", "asked/s", "done/s", "tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99")
JUDGED = ("good/s", "within SLA", "SLA")
FIRST = "◄"
WORST = ("fail", "inconclusive", "pass")


def stage_columns(stages: Mapping[str, StageGroup]) -> tuple[str, ...]:
    """Without those of SLAs where none was given."""
    return ("stage", *COLUMNS, *(JUDGED if any(one.sla for one in stages.values()) else ()))


def stage_rows(stages: Mapping[str, StageGroup], open_loop: bool) -> list[tuple[str, ...]]:
    """A cell for each of stage_columns()."""
    first, judged = first_beyond(stages), any(one.sla for one in stages.values())
    return [
        (name, *_cells(one, open_loop), *(_sla(one, name == first) if judged else ())) for name, one in stages.items()
    ]


def _cells(one: StageGroup, open_loop: bool) -> tuple[str, ...]:
    ttft = one.latency.ttft_sched_ms if open_loop else one.latency.ttft_ms
    rates = (one.asked_request_per_s, one.request_per_s, one.output_token_per_s)
    times = (ttft.p50, ttft.p99, one.latency.tpot_ms.p50, one.latency.tpot_ms.p99)
    count = f"{one.completed:,}" if one.completed == one.requests else f"{one.completed:,}/{one.requests:,}"
    return (count, *(number(value, 3) for value in (*rates, *times)))


def _sla(one: StageGroup, first: bool) -> tuple[str, ...]:
    verdicts = {sla.verdict for sla in one.sla}
    word = next((word for word in WORST if word in verdicts), "–")
    return (number(one.goodput.request_per_s, 3), share(one.goodput.attainment), f"{word} {FIRST}" if first else word)


def stage_legend(stages: Mapping[str, StageGroup], open_loop: bool) -> str:
    start = ", TTFT from the scheduled time" if open_loop else ""
    words = (
        "A stage has the requests that were due in it; done/s and tok/s are of what ended in its time, so a queue that "
        f"it leaves behind shows in the next. Times in ms{start}."
    )
    if any(one.sla for one in stages.values()):
        words += f" good/s is of its requests that met every latency SLA; {FIRST} is where a bound is first exceeded."
    return words


def stage_views(stages: Mapping[str, StageGroup], open_loop: bool) -> list[RenderableType]:
    """Nothing where the rate has no stages."""
    if not stages:
        return []
    columns = stage_columns(stages)
    spare = [columns.index(name) for name in ("TPOT p50", "requests", "good/s", "TTFT p50", "tok/s") if name in columns]
    table = Table(spare=spare, box=None, header_style="bold", pad_edge=False)
    table.add_column("stage", no_wrap=True)  # of which every other is "2: 8 for 60s", and broken hard to read
    for column in columns[1:]:
        table.add_column(column, justify="left" if column == "SLA" else "right")
    for cells in stage_rows(stages, open_loop):
        *others, last = map(Text, cells)
        last.stylize(STYLES.get(last.plain.split()[0], ""))
        table.add_row(*others, last)
    return [table, Text(stage_legend(stages, open_loop))]


def sentences(stages: Mapping[str, StageGroup]) -> list[str]:
    """Of each SLA on the whole load: through which stage it holds."""
    exprs = dict.fromkeys(sla.expr for one in stages.values() for sla in one.sla)
    judged = {expr: [(one, sla) for one in stages.values() for sla in one.sla if sla.expr == expr] for expr in exprs}
    return [_sentence(expr, found) for expr, found in judged.items() if len(found) == len(stages)]


def _sentence(expr: str, judged: Sequence[tuple[StageGroup, StageVerdict]]) -> str:
    failed = next((at for at, (_, sla) in enumerate(judged) if sla.verdict == "fail"), len(judged))
    beyond = ""
    if failed < len(judged):
        stage, sla = judged[failed]
        beyond = f"{stage.words} is the first beyond it, at {'infinite' if sla.value is None else number(sla.value)}"
    if failed == 0:
        return f"{expr}: {beyond}"
    within = judged[:failed]
    unproved = [(stage.key, sla.reason) for stage, sla in within if sla.verdict != "pass"]
    said = f"{expr} {'is not exceeded' if unproved else 'holds'} "
    said += f"through {within[-1][0].words}; {beyond}" if beyond else "in any stage" if unproved else "in every stage"
    if unproved:
        keys, (last, reason) = ", ".join(key for key, _ in unproved), unproved[-1]
        said += f". Not proved in {'stage' if len(unproved) == 1 else 'stages'} {keys} ({last}: {reason})"
    return said
