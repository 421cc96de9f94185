"""A run in the terminal: the verdict first, then throughput, latencies, and where the launched work went."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from engines.base import ClientReport
from reports.metrics import LATENCIES
from reports.percentiles import Percentiles, percentiles
from reports.render.breakdown import slot_table, token_table
from reports.render.compare import side_by_side
from reports.render.formatting import counts_text, number, rates_text, share, verdict
from reports.render.splits import group_views, instance_table, stage_sentences, stage_views, transfer_text
from reports.render.table import Table
from reports.schema import RunFile
from reports.sla import exit_code, failed_and_open
from reports.summary_schema import Distribution, Signals, Summary

__all__ = ["run_view", "side_by_side"]

SHOWN_MESSAGES = 5  # of failed requests
ALIKE = 0.005  # latencies nearer than this are shown once


def run_view(run: RunFile, chosen: Percentiles | None = None) -> RenderableType:
    """A run that has ended. chosen: percentiles in place of the usual ones."""
    if run.summary is None:
        return Text("no summary: the run has not ended, or it crashed (cbbench report rebuilds it)", style="yellow")
    parts: list[RenderableType] = [headline(run)]
    parts += [Text(f"note: {note}", style="yellow") for note in run.notes]
    if run.sla:
        parts += [Text(), sla_table(run), *map(Text, stage_sentences(run.summary.by_stage))]
    parts += [Text(), throughput_text(run), Text(), latency_table(run.summary, run.workload.pacing.open_loop, chosen)]
    if run.summary.instances:
        parts += [Text(), instance_table(run.summary)]
    if run.summary.transfers is not None:
        parts += [Text(), transfer_text(run.summary.transfers)]
    open_loop = run.workload.pacing.open_loop
    for view in (*stage_views(run.summary.by_stage, open_loop), *group_views(run.summary, open_loop)):
        parts += [Text(), view]
    if run.summary.waste is not None:
        parts += [Text(), token_table(run.summary.waste), Text(), slot_table(run.summary.waste)]
    return Group(*parts)


def headline(run: RunFile) -> Text:
    """The verdict, its reasons, and what was run."""
    judged = [one.verdict for one in run.sla]
    validity = run.validity.verdict if run.validity else "ok"
    code = exit_code(interrupted=run.interrupted, validity=validity, sla=judged)
    if run.interrupted:
        head = Text("INTERRUPTED", style="bold yellow")
    elif code == 0 and not judged:
        head = verdict(validity)
    else:
        head = verdict({0: "pass", 3: "fail", 5: "inconclusive", 7: "invalid"}[code])
    what = [run.engine.name, run.engine.batching, run.engine.model, run.engine.hardware, run.workload.spec]
    head.append("  " + " · ".join(word for word in what if word), style="default")
    if (mixed := failed_and_open((one.expr, one.verdict) for one in run.sla)) is not None:
        head.append(f"\n{mixed}", style="bold")
    if pool := kv_pool(run):
        head.append(f"\n{pool}", style="dim")
    if run.engine.prediction:
        head.append(f"\n{run.engine.prediction}", style="yellow")
    if run.validity is not None:
        if validity not in ("ok", "invalid") and code != 0:
            head.append(f"\n{validity.replace('_', ' ')}", style="bold yellow")
        for reason in run.validity.reasons:
            head.append(f"\n{reason}", style="yellow")
    return head


def kv_pool(run: RunFile) -> str | None:
    """The size of the KV pool; None for a server, which does not tell it."""
    blocks, tokens = run.engine.config.get("kv_blocks"), run.engine.config.get("block_size")
    if blocks is None or tokens is None:
        return None
    also = f"; {prefill:,} in the prefill instance" if (prefill := run.engine.config.get("prefill_kv_blocks")) else ""
    return f"KV pool {blocks:,} blocks of {tokens} tokens{also}"


def sla_table(run: RunFile) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False, collapse_padding=True, padding=(0, 2))
    for wraps in (False, False, False, True):  # only the reason wraps
        table.add_column(no_wrap=not wraps)
    for one in run.sla:
        value = number(one.value) if one.value is not None or one.n == 0 else "infinite"
        table.add_row(verdict(one.verdict), Text(one.expr), value, Text(one.reason, style="dim"))
    return table


def throughput_text(run: RunFile) -> Text:
    assert run.summary is not None
    counts, speed = run.summary.requests, run.summary.throughput
    text = Text.assemble(
        (f"{number(speed.output_token_per_s)} output tok/s", "bold"),
        f" · {number(speed.total_token_per_s)} total tok/s · {rates_text(run)}",
        f" over {speed.window_s:.4g} s",
    )
    if speed.steady is not None:
        steady = speed.steady
        text.append(
            f"\n{number(steady.output_token_per_s)} output tok/s while steady "
            f"(from {steady.start_s:.3g} to {steady.end_s:.3g} s, without ramp-up and drain)"
        )
    text.append(f"\n{counts_text(counts)}")
    for word, count in (("failed", counts.failed), ("cancelled", counts.cancelled)):
        text.append(f", {count} {word}", style="red" if count else "default")
    if counts.errors:
        listed = ", ".join(f"{reason}: {count}" for reason, count in list(counts.errors.items())[:5])
        text.append(f" ({listed})", style="red")
    for message, count in list(counts.messages.items())[:SHOWN_MESSAGES]:
        if message not in counts.errors:
            text.append(f"\n  {count:,} x {message}", style="red")
    if run.summary.goodput.request_per_s is not None:
        goodput = run.summary.goodput
        text.append(f"\n{number(goodput.request_per_s)} requests/s within the SLA ({share(goodput.attainment)}")
        if goodput.attainment_ci is not None:
            text.append(f", 95 %: {share(goodput.attainment_ci[0])} to {share(goodput.attainment_ci[1])}")
        text.append(")")
    for line in (signals_line(run.summary.signals), gpu_line(run.summary.signals), connections_line(run.client)):
        if line:
            text.append("\n" + line)
    return text


def connections_line(client: ClientReport | None) -> str:
    """The connections of a run over HTTP, and the handshakes, which are in no latency from sending."""
    if client is None or client.handshake_p50_ms is None or not client.connections:
        return ""
    p50, p99 = number(client.handshake_p50_ms), number(client.handshake_p99_ms)
    return (
        f"connections {client.connections:,} opened, at most {client.connections_peak or 0:,} at once · "
        f"handshake P50 {p50} ms, P99 {p99} ms"
    )


def signals_line(signals: Signals) -> str:
    """The signals that a person tunes by, in one line."""
    named = (
        ("device busy", signals.device_busy, share),
        ("launch-bound", signals.launch_bound, share),
        ("KV in use", signals.kv_usage_mean, share),
        ("peak", signals.kv_usage_peak, share),
        ("running", signals.running_mean, number),
        ("waiting", signals.waiting_mean, number),
        ("preemptions", signals.preemptions, number),
        ("prefix hits, tokens", signals.prefix_hit_tokens or None, number),
        ("resume hits, tokens", signals.resume_hit_tokens or None, number),
    )
    return " · ".join(f"{name} {form(value)}" for name, value, form in named if value is not None)


def gpu_line(signals: Signals) -> str:
    """The GPU's own counters, where a run recorded them."""
    peak = signals.gpu_memory_peak_bytes
    named = (
        (signals.gpu_utilization_mean, "GPU in use {:.0%}"),
        (None if peak is None else peak / 2**30, "memory peak {:.1f} GiB"),
        (signals.gpu_power_mean_w, "{:.0f} W"),
        (signals.gpu_sm_clock_mean_mhz, "{:.0f} MHz"),
        (signals.gpu_slowed_share or None, "clocks throttled in {:.0%} of samples"),
    )
    return " · ".join(form.format(value) for value, form in named if value is not None)


def latency_table(summary: Summary, open_loop: bool, chosen: Percentiles | None = None) -> Table:
    """Latencies in ms. In open loop those from the scheduled time too, where they differ from those from sending."""
    chosen = chosen or percentiles(summary)
    with_p99 = 99 in chosen.asked  # the interval is of the P99
    between = ["p99 95 % interval"] if with_p99 else []
    spare = [-3, -1, -2] if with_p99 else [-1, -2]
    table = _table("latency, ms", "mean", *chosen.names, *between, "max", "count", spare=spare)
    for name in LATENCIES:
        one: Distribution = getattr(summary.latency, name)
        if name.endswith("_sched_ms") and (
            not open_loop or _alike(one, getattr(summary.latency, name.replace("_sched", "")))
        ):
            continue
        interval = "too few" if one.p99_ci is None else f"{number(one.p99_ci[0])} – {number(one.p99_ci[1])}"
        label = name.removesuffix("_ms").removesuffix("_sched").upper()
        label += ", from schedule" if name.endswith("_sched_ms") else ""
        numbers = map(number, (one.mean, *chosen.values[name]))
        table.add_row(label, *numbers, *([interval] if with_p99 else []), number(one.max), f"{one.count:,}")
    return table


def _alike(one: Distribution, other: Distribution) -> bool:
    """Whether all statistics agree within ALIKE."""
    pairs = [(getattr(one, stat), getattr(other, stat)) for stat in ("mean", "p50", "p90", "p99", "max")]
    return all(a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=ALIKE)) for a, b in pairs)


def _table(*columns: str, spare: Sequence[int] = ()) -> Table:
    table = Table(spare=spare, box=None, header_style="bold", pad_edge=False)
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at == 0 else "right")
    return table
