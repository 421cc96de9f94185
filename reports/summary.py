"""From a RunRecord to the numbers of run.json."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

import msgspec
import numpy as np

from engines.base import ClientReport, RunRecord, Signal
from engines.ledger import KV_KINDS, WASTE, Blocked, StepArray, computing_ns, kv_levels, kv_usage, launch_bound
from engines.request_table import MISSING
from reports.breakdown import breakdown
from reports.bursts import rare_bursts
from reports.groups import Groups
from reports.in_flight import InFlight
from reports.instances import steps_by_instance, transfers
from reports.judge import Judge
from reports.metrics import PER_REQUEST, WITH_QUEUE, RequestTimes, definitions, request_times
from reports.quantiles import counted_distribution, distribution
from reports.schema import PacingInfo, RunFile, SlaResult
from reports.sla import Sla, parse_all
from reports.sla_scope import Scope
from reports.stages import Stages
from reports.steady import steady
from reports.summary_schema import (
    Distribution,
    Instance,
    Latency,
    Requests,
    Signals,
    StageGroup,
    StageVerdict,
    Summary,
    Throughput,
    Waste,
)
from reports.validity import supported, validity, validity_of_part
from reports.warmup import warmup

MOST_ERRORS = 20  # kinds of error listed; a message that contains a number makes many kinds
MOST_MESSAGES = 10
MESSAGE_CHARS = 300
VARIES = re.compile(r"(?=[\w-]*\d)[\w-]{8,}|\d{4,}|\d+\.\d+")  # ids, times: in messages that are the same but for them


def summarize(record: RunRecord, header: RunFile) -> Summary:
    """The summary of DESIGN §8. CbbenchError for a bad SLA expression in header.criteria."""
    return _summarize(record, header, request_times(record), parse_all(header.criteria.sla))[0]


def completed_run(record: RunRecord, header: RunFile, notes: Sequence[str] = ()) -> RunFile:
    """The header with summary, SLA verdicts, validity and definitions filled in. CbbenchError as in summarize()."""
    times, slas = request_times(record), parse_all(header.criteria.sla)
    summary, judge = _summarize(record, header, times, slas)
    found = validity(
        times,
        max_failure_rate=header.criteria.max_failure_rate,
        open_loop=header.workload.pacing.open_loop,
        interrupted=record.interrupted,
        client=header.client,
        capped=header.workload.pacing.concurrency is not None,
        # Where the rate changes, so do latencies, and a warm-up cannot be distinguished.
        warmup=None if header.workload.pacing.rate_schedule else summary.throughput.warmup,
    )

    def supported_of(one: SlaResult, part: Judge) -> SlaResult:
        return supported(one, found if part.scope is None else validity_of_part(found, part.times), header.client)

    judged = [supported_of(one, judge.of(sla.scope)) for sla, one in zip(slas, judge.results(slas), strict=True)]
    by_stage = judged_stages(summary.by_stage, judge, slas, supported_of)
    return msgspec.structs.replace(
        header,
        definitions=definitions(),
        interrupted=record.interrupted,
        # The header has notes on the plan, or of an earlier rebuild.
        notes=tuple(dict.fromkeys((*header.notes, *notes, *_ran_out(record, summary, header.workload.pacing)))),
        summary=msgspec.structs.replace(summary, by_stage=by_stage),
        sla=tuple(judged),
        validity=found,
    )


def _ran_out(record: RunRecord, summary: Summary, pacing: PacingInfo) -> list[str]:
    """A note where a closed loop sent its whole plan before its duration was over. For an open loop the plan shows that
    before the run."""
    counts, duration_s = summary.requests, pacing.duration_s
    closed = pacing.concurrency is not None and not pacing.open_loop
    if duration_s is None or not closed or record.interrupted or counts.sent < counts.planned:
        return []
    last_s = int(record.column_ns("sent").max(initial=0)) / 1e9
    enough = math.ceil(counts.planned * duration_s / (last_s or summary.throughput.window_s or duration_s))
    return [
        f"all {counts.planned:,} requests of the plan were sent by {last_s:.3g} s, before the duration of "
        f"{duration_s:g} s was over; raise num_requests to about {enough}"
    ]


def _first_answers(record: RunRecord, times: RequestTimes) -> Distribution | None:
    """None where no answer came after reasoning, as it would equal TTFT."""
    if (record.column_ns("first_answer") == MISSING).all():
        return None
    return distribution(times.ttfot_ms)


def _summarize(record: RunRecord, header: RunFile, times: RequestTimes, slas: Sequence[Sla]) -> tuple[Summary, Judge]:
    pacing = header.workload.pacing
    throughput, stages = _throughput(record, times, pacing), Stages.of(pacing.rate_schedule)
    judge = Judge(record, times, throughput, header.criteria, pacing.open_loop, record.interrupted, stages=stages)
    latencies = {name: distribution(times.latency(name), times.tail_n(name)) for name in PER_REQUEST}
    latencies["itl_ms"] = counted_distribution(times.gaps_ms, times.tail_n("itl_ms"))
    bursty = pacing.open_loop and rare_bursts(record, times)
    if bursty:  # an interval would not cover
        for name in WITH_QUEUE:
            latencies[name] = msgspec.structs.replace(latencies[name], p99_ci=None)
    groups = Groups(record, times, throughput.window_s, no_intervals=bursty)
    in_flight = InFlight.of(record)
    summary = Summary(
        requests=_requests(record, times),
        throughput=throughput,
        latency=Latency(**latencies, ttfot_ms=_first_answers(record, times)),
        goodput=judge.goodput(slas),
        signals=with_gpu(_signals(record, throughput.window_s, in_flight, header.client), record.signals),
        waste=_waste(record.steps) if record.steps.size else None,
        breakdown=breakdown(record).summary(),
        by_tenant=groups.by_tenant(),
        by_priority=groups.by_priority(),
        by_url=groups.by_url(header.engine.config.get("urls") or ()),
        by_prompt_bucket=groups.by_prompt_bucket(header.engine.config.get("prompt_buckets") or ()),
        by_stage=groups.by_stage(stages),
        service_gap_tokens=groups.service_gap_tokens(),
        instances=_instances(record.steps, throughput.window_s, in_flight),
        transfers=transfers(record),
    )
    return summary, judge


def _requests(record: RunRecord, times: RequestTimes) -> Requests:
    failed = np.flatnonzero(record.where("status", "failed"))
    reasons, reason = record.labels("finish_reason")
    messages, message = record.labels("error")
    errors = Counter(
        word if (word := reasons[reason[at]]) not in (None, "error") else messages[message[at]] or "error"
        for at in failed.tolist()
    )
    return Requests(
        planned=record.planned,
        sent=int(times.was_sent.sum()),
        completed=int(times.completed.sum()),
        failed=int(times.failed.sum()),
        cancelled=int(times.cancelled.sum()),
        errors=dict(errors.most_common(MOST_ERRORS)),
        messages=_messages(Counter(messages[message[at]] or "" for at in failed.tolist())),
    )


def _messages(counts: Mapping[str, int]) -> dict[str, int]:
    """Distinct messages, the most frequent first. Those that differ in ids or times alone count as the first of
    them."""
    shown: dict[str, str] = {}
    merged: Counter[str] = Counter()
    for message, count in counts.items():
        line = " ".join(message.split())[:MESSAGE_CHARS]
        if line:
            merged[shown.setdefault(VARIES.sub("#", line), line)] += count
    return dict(merged.most_common(MOST_MESSAGES))


def _throughput(record: RunRecord, times: RequestTimes, pacing: PacingInfo) -> Throughput:
    window_s = (int(times.end_ns.max()) - int(times.scheduled_ns.min())) / 1e9 if len(times) else 0.0
    if window_s <= 0:
        return Throughput(0.0, None, None, None)
    output = int(times.output_tokens[times.completed].sum())
    prompts = int(times.prompt_tokens[times.completed].sum())
    return Throughput(
        window_s=window_s,
        request_per_s=int(times.completed.sum()) / window_s,
        output_token_per_s=output / window_s,
        total_token_per_s=(prompts + output) / window_s,
        steady=steady(record, times),
        warmup=warmup(times) if pacing.open_loop or pacing.concurrency is not None else None,
        arrivals_per_s=_arrivals_per_s(times) if pacing.open_loop else None,
    )


def _arrivals_per_s(times: RequestTimes) -> float | None:
    """Scheduled requests per second, from the first to the last of those that ended: a finite plan realises its rate
    with the noise of its gaps."""
    span_s = (int(times.scheduled_ns.max()) - int(times.scheduled_ns.min())) / 1e9
    return (len(times) - 1) / span_s if span_s > 0 else None


def _signals(record: RunRecord, window_s: float, in_flight: InFlight, client: ClientReport | None) -> Signals:
    """From the ledger, which has every step; from the samples where there is no ledger."""
    if not record.steps.size:
        return _sampled_signals(record, window_s, in_flight, client)
    parts = list(steps_by_instance(record.steps).values())
    whole = _signals_of(record.steps, window_s, in_flight, None)
    if len(parts) == 1:
        return whole
    each = [_kv_usage_mean(steps, window_s) or 0.0 for steps in parts]
    blocks = [sum(int(steps[0][f"kv_{kind}_blocks"]) for kind in KV_KINDS) for steps in parts]
    return msgspec.structs.replace(
        whole,
        device_busy=None if whole.device_busy is None else whole.device_busy / len(parts),
        launch_bound=None if whole.launch_bound is None else whole.launch_bound / len(parts),
        kv_usage_mean=float(np.average(each, weights=blocks)),
    )


def _launch_bound(steps: StepArray, window_s: float) -> float | None:
    """Share of the window; None where the host computes the steps itself."""
    if window_s <= 0 or not steps["host_ahead_ns"].any():
        return None
    return float(steps["busy_ns"][launch_bound(steps)].sum() / 1e9 / window_s)


def _instances(steps: StepArray, window_s: float, in_flight: InFlight) -> dict[str, Instance]:
    parts = steps_by_instance(steps) if steps.size else {}
    if len(parts) < 2:
        return {}
    return {
        name: Instance(_signals_of(own, window_s, in_flight, at), _waste(own))
        for at, (name, own) in enumerate(parts.items())
    }


def _signals_of(steps: StepArray, window_s: float, in_flight: InFlight, instance: int | None) -> Signals:
    lasted_ns = np.maximum(steps["end_ns"] - steps["start_ns"], 1)
    reasons, counts = np.unique(steps["blocked"], return_counts=True)
    return Signals(
        device_busy=float(computing_ns(steps).sum() / 1e9 / window_s) if window_s > 0 else None,
        launch_bound=_launch_bound(steps, window_s),
        kv_usage_mean=_kv_usage_mean(steps, window_s),
        kv_usage_peak=float(kv_usage(steps).max()),
        running_mean=in_flight.running.mean(window_s, instance),
        waiting_mean=in_flight.waiting.mean(window_s, instance),
        preemptions=int(steps["preempted"].sum()),
        prefix_hit_tokens=int(steps["prefix_hit_tokens"].sum()),
        resume_hit_tokens=int(steps["resume_hit_tokens"].sum()),
        rejected=int(steps["rejected"].sum()),
        steps=int(steps.size),
        step_ms_mean=float(lasted_ns.mean() / 1e6),
        blocked={
            Blocked(reason).name.lower(): int(count) / steps.size
            for reason, count in zip(reasons.tolist(), counts, strict=True)
            if reason != Blocked.NO
        },
    )


def _kv_usage_mean(steps: StepArray, window_s: float) -> float | None:
    at_ns, level = kv_levels(steps)
    return float((level[:-1] * np.diff(at_ns)).sum() / 1e9 / window_s) if window_s > 0 else None


def _sampled_signals(record: RunRecord, window_s: float, in_flight: InFlight, client: ClientReport | None) -> Signals:
    """Running and waiting as the server counted them where its metrics have them; else by the client's own record."""
    samples = record.signals
    cached = record.column("cached_tokens")
    hits = int(cached[cached != MISSING].sum()) if (cached != MISSING).any() else None
    counted = {"running": in_flight.running.mean(window_s), "waiting": in_flight.waiting.mean(window_s)}
    sources = client.scrape.sources if client is not None and client.scrape is not None else {}
    counted |= {name: _mean_over_time(samples, name) for name in counted if sources.get(name, "client") != "client"}
    usage = [one.kv_usage for one in samples if one.kv_usage is not None]
    return Signals(
        device_busy=_mean_over_time(samples, "device_busy"),
        kv_usage_mean=_mean_over_time(samples, "kv_usage"),
        kv_usage_peak=max(usage, default=None),
        running_mean=counted["running"],
        waiting_mean=counted["waiting"],
        preemptions=samples[-1].preemptions if samples else None,
        prefix_hit_tokens=hits,
    )


def _mean_over_time(samples: Sequence[Signal], name: str) -> float | None:
    """Of the samples that have it; each counts for the time since the one before."""
    known = [(one.t, value) for one in samples if (value := getattr(one, name)) is not None]
    if not known:
        return None
    at_ns, values = np.array([at for at, _ in known]), np.array([value for _, value in known], dtype=np.float64)
    lasted_ns = np.maximum(np.diff(at_ns, prepend=0), 1)
    return float(np.average(values, weights=lasted_ns))


def _waste(steps: StepArray) -> Waste:
    columns = ("launched_tokens", "useful_tokens", *WASTE, "budget_unused_tokens")
    slots = ("active_slots", "dead_slots", "idle_slots")
    return Waste(
        **{name: int(steps[name].sum()) for name in columns},
        **{name.replace("_slots", "_slot_steps"): int(steps[name].sum(dtype=np.int64)) for name in slots},
    )


def with_gpu(signals: Signals, samples: Sequence[Signal]) -> Signals:
    """`signals` with the GPU's part filled in; None stays what no sample had."""

    def said(name: str) -> list[float]:
        return [value for one in samples if one.gpu is not None and (value := getattr(one.gpu, name)) is not None]

    used, memory, power, clock = map(said, ("utilization", "memory_used_bytes", "power_w", "sm_clock_mhz"))
    slowed = [float(bool(one.gpu.slowed_by)) for one in samples if one.gpu and one.gpu.slowed_by is not None]
    return msgspec.structs.replace(
        signals,
        gpu_utilization_mean=mean(used) if used else None,
        gpu_memory_peak_bytes=int(max(memory)) if memory else None,
        gpu_power_mean_w=mean(power) if power else None,
        gpu_sm_clock_mean_mhz=mean(clock) if clock else None,
        gpu_slowed_share=mean(slowed) if slowed else None,
    )


Supported = Callable[[SlaResult, Judge], SlaResult]  # what may be said of it; the judge is that of the stage


def judged_stages(
    stages: Mapping[str, StageGroup], judge: Judge, slas: Sequence[Sla], supported: Supported
) -> dict[str, StageGroup]:
    """The same stages with their goodput and the verdicts of the SLAs that a stage can meet or miss by itself."""
    return {name: _judged(one, judge.of(Scope("stage", one.key)), slas, supported) for name, one in stages.items()}


def _judged(stage: StageGroup, judge: Judge, slas: Sequence[Sla], supported: Supported) -> StageGroup:
    asked = [sla for sla in slas if _of_a_stage(sla, stage.key)]
    results = [supported(one, judge) for one in judge.results(asked, beside=slas)]
    told = tuple(StageVerdict(one.expr, one.value, one.verdict, one.reason) for one in results)
    return msgspec.structs.replace(stage, goodput=judge.goodput(slas), sla=told)


def _of_a_stage(sla: Sla, key: str) -> bool:
    """Not a least rate, which the stage's own rate may be below; nor ITL, whose gaps are pooled."""
    here = sla.scope is None or sla.scope == Scope("stage", key)
    return here and (sla.metric in ("attainment", "failure_rate") or sla.latency not in (None, "itl_ms"))
