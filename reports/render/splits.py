"""A run split into parts: by stage of its rate, by tenant, priority and prompt length, by instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from reports.render.formatting import STYLES, number, share
from reports.render.table import Table
from reports.summary_schema import Group, StageGroup, StageVerdict, Summary, Transfers, first_failed_stage

SERVICE = "service is prompt + 2 × output tokens, the measure of the fair order"


def group_views(summary: Summary, open_loop: bool) -> list[RenderableType]:
    """A table for each split of the run and a text on its columns; [] without a split.

    open_loop: latencies are from the scheduled time, as SLAs are judged.
    """
    views: list[RenderableType] = [group_table(name, groups, open_loop) for name, groups in summary.splits.items()]
    if not views:
        return []
    start = ", TTFT from the scheduled time" if open_loop else ""
    words = f"Times in ms{start}; wait is the longest wait for a first slot; {SERVICE}."
    gap = summary.service_gap_tokens
    if gap is not None:
        words += (
            f"\nservice gap between tenants: {number(gap)} tokens, the largest lead of one over another while both had "
            "requests waiting"
        )
    return [*views, Text(words)]


def group_table(name: str, groups: Mapping[str, Group], open_loop: bool) -> Table:
    table = Table(spare=[-1, -2, -4, 2], box=None, header_style="bold", pad_edge=False)
    table.add_column(name)
    for column in ("done", "TTFT p50", "TTFT p99", "TPOT p99", "wait", "tok/s", "preempted", "service"):
        table.add_column(column, justify="right")
    for label, one in groups.items():
        latency = one.latency
        first = latency.ttft_sched_ms if open_loop else latency.ttft_ms
        times = (first.p50, first.p99, latency.tpot_ms.p99, one.max_wait_ms, one.output_token_per_s)
        done = f"{one.completed:,}" if one.completed == one.requests else f"{one.completed:,}/{one.requests:,}"
        table.add_row(Text(label), done, *map(number, times), f"{one.preemptions:,}", f"{one.service_tokens:,}")
    return table


STAGE_COLUMNS = ("requests", "offered/s", "done/s", "tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99")
JUDGED_COLUMNS = ("good/s", "within SLA", "SLA")
FIRST_BEYOND = "◄"
WORST_FIRST = ("fail", "inconclusive", "pass")


def stage_columns(stages: Mapping[str, StageGroup]) -> tuple[str, ...]:
    """The names of the columns; those of SLAs only where a stage has one."""
    return ("stage", *STAGE_COLUMNS, *(JUDGED_COLUMNS if any(one.sla for one in stages.values()) else ()))


def stage_rows(stages: Mapping[str, StageGroup], open_loop: bool) -> list[tuple[str, ...]]:
    """A row for each stage, with a cell for each of stage_columns()."""
    first, judged = first_failed_stage(stages), any(one.sla for one in stages.values())
    return [
        (name, *_stage_cells(one, open_loop), *(_sla_cells(one, name == first) if judged else ()))
        for name, one in stages.items()
    ]


def _stage_cells(one: StageGroup, open_loop: bool) -> tuple[str, ...]:
    ttft = one.latency.ttft_sched_ms if open_loop else one.latency.ttft_ms
    rates = (one.asked_request_per_s, one.request_per_s, one.output_token_per_s)
    times = (ttft.p50, ttft.p99, one.latency.tpot_ms.p50, one.latency.tpot_ms.p99)
    count = f"{one.completed:,}" if one.completed == one.requests else f"{one.completed:,}/{one.requests:,}"
    return (count, *(number(value, 3) for value in (*rates, *times)))


def _sla_cells(one: StageGroup, first: bool) -> tuple[str, ...]:
    verdicts = {sla.verdict for sla in one.sla}
    word = next((word for word in WORST_FIRST if word in verdicts), "–")
    return (
        number(one.goodput.request_per_s, 3),
        share(one.goodput.attainment),
        f"{word} {FIRST_BEYOND}" if first else word,
    )


def stage_legend(stages: Mapping[str, StageGroup], open_loop: bool) -> str:
    start = ", TTFT from the scheduled time" if open_loop else ""
    words = (
        "A stage has the requests that were due in it. done/s and tok/s count what ended while it lasted, so the queue "
        f"of a stage shows in the next one. Times in ms{start}."
    )
    if any(one.sla for one in stages.values()):
        words += " good/s counts its requests that met every latency SLA; "
        words += f"{FIRST_BEYOND} marks the first stage beyond a bound."
    return words


def stage_views(stages: Mapping[str, StageGroup], open_loop: bool) -> list[RenderableType]:
    """The table of stages and a text on its columns; [] where the rate has no stages."""
    if not stages:
        return []
    columns = stage_columns(stages)
    spare = [columns.index(name) for name in ("TPOT p50", "requests", "good/s", "TTFT p50", "tok/s") if name in columns]
    table = Table(spare=spare, box=None, header_style="bold", pad_edge=False)
    table.add_column("stage", no_wrap=True)  # "2: 8 for 60s" is hard to read in two lines
    for column in columns[1:]:
        table.add_column(column, justify="left" if column == "SLA" else "right")
    for cells in stage_rows(stages, open_loop):
        *others, last = map(Text, cells)
        last.stylize(STYLES.get(last.plain.split()[0], ""))
        table.add_row(*others, last)
    return [table, Text(stage_legend(stages, open_loop))]


def stage_sentences(stages: Mapping[str, StageGroup]) -> list[str]:
    """A sentence for each SLA on the whole load: the last stage through which it holds."""
    exprs = dict.fromkeys(sla.expr for one in stages.values() for sla in one.sla)
    judged = {expr: [(one, sla) for one in stages.values() for sla in one.sla if sla.expr == expr] for expr in exprs}
    return [_stage_sentence(expr, found) for expr, found in judged.items() if len(found) == len(stages)]


def _stage_sentence(expr: str, judged: Sequence[tuple[StageGroup, StageVerdict]]) -> str:
    failed = next((at for at, (_, sla) in enumerate(judged) if sla.verdict == "fail"), len(judged))
    beyond = ""
    if failed < len(judged):
        stage, sla = judged[failed]
        beyond = f"{stage.words} exceeds it first, with {'infinite' if sla.value is None else number(sla.value)}"
    if failed == 0:
        return f"{expr}: {beyond}"
    within = judged[:failed]
    unproved = [(stage.key, sla.reason) for stage, sla in within if sla.verdict != "pass"]
    extent = "in any stage" if unproved else "in every stage"
    if beyond:
        extent = f"through {within[-1][0].words}; {beyond}"
    sentence = f"{expr} {'is not exceeded' if unproved else 'holds'} {extent}"
    if unproved:
        keys, (last, reason) = ", ".join(key for key, _ in unproved), unproved[-1]
        of_last = "" if len(unproved) == 1 else f" in stage {last}"
        sentence += f". Unproven in {'stage' if len(unproved) == 1 else 'stages'} {keys}:{of_last} {reason}"
    return sentence


INSTANCE_COLUMNS = (
    "device\nbusy",
    "KV\nin use",
    "peak",
    "running",
    "waiting",
    "steps",
    "ms per\nstep",
    "idle\nslots",
    "preempted",
)


def instance_rows(summary: Summary) -> list[tuple[str, ...]]:
    """A name and a cell for each of INSTANCE_COLUMNS, a row for each instance."""
    return [
        (
            name,
            *(
                share(value)
                for value in (one.signals.device_busy, one.signals.kv_usage_mean, one.signals.kv_usage_peak)
            ),
            *(number(value) for value in (one.signals.running_mean, one.signals.waiting_mean, one.signals.steps)),
            number(one.signals.step_ms_mean),
            share(one.waste.idle_slot_steps / one.waste.slot_steps),
            number(one.signals.preemptions),
        )
        for name, one in summary.instances.items()
    ]


def instance_table(summary: Summary) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("instance")
    for name in INSTANCE_COLUMNS:
        table.add_column(name, justify="right")
    for row in instance_rows(summary):
        table.add_row(*row)
    return table


def transfer_text(found: Transfers) -> Text:
    return Text(transfer_sentence(found), "dim")


def transfer_sentence(found: Transfers) -> str:
    waits, moves = found.wait_ms, found.transfer_ms
    return (
        f"{found.requests:,} KV transfers, {found.blocks:,} blocks. After the first token a request waits "
        f"{number(waits.mean)} ms on average (P99 {number(waits.p99)}) for room in the decode instance; its transfer "
        f"takes {number(moves.mean)} ms (P99 {number(moves.p99)}). The prefill instance kept up to "
        f"{found.kept_blocks_peak:,} blocks until they were sent."
    )
