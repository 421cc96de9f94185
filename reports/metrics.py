"""Latencies of single requests, from the raw times of a RunRecord.

    scheduled   sent        first                     last        end
        |--------|------------|----|----|----|----|-----|-----------|
                 |<-- TTFT -->|<------- (N-1) TPOT ---->|
                 |<---------------- E2EL -------------->|            each gap between token events is one ITL
        |<---- TTFT, E2EL from the scheduled time ...

NaN: the request has no such latency. It does not leave these arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from engines.base import RunRecord
from engines.request_table import MISSING
from reports.counted_values import CountedValues
from reports.events import Events
from reports.quantiles import TAU_SAMPLE, FloatArray, tail_effective_n
from workloads.columns import IntColumn

BoolArray = NDArray[np.bool_]

PER_REQUEST = ("ttft_ms", "tpot_ms", "e2el_ms", "ttft_sched_ms", "e2el_sched_ms")
WITH_QUEUE = ("ttft_ms", "e2el_ms", "ttft_sched_ms", "e2el_sched_ms")  # latencies that contain the queue
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "ttft_sched_ms", "e2el_sched_ms")
IN_OPEN_LOOP = {"ttft_ms": "ttft_sched_ms", "e2el_ms": "e2el_sched_ms"}  # judged there instead


@dataclass(frozen=True, eq=False)
class RequestTimes:
    """Columns over the requests that ended, in order of sending. Only completed ones have latencies."""

    row: IntColumn  # row of the record
    completed: BoolArray
    failed: BoolArray  # rejected ones too
    rejected: BoolArray
    cancelled: BoolArray
    was_sent: BoolArray
    single_token: BoolArray  # completed with one token as requested, so without a TPOT
    prompt_tokens: IntColumn
    output_tokens: IntColumn
    scheduled_ns: IntColumn
    first_ns: IntColumn  # MISSING without a token
    last_ns: IntColumn
    end_ns: IntColumn
    ttft_ms: FloatArray
    tpot_ms: FloatArray
    e2el_ms: FloatArray
    ttft_sched_ms: FloatArray
    e2el_sched_ms: FloatArray
    ttfot_ms: FloatArray  # to the first token after reasoning; equals TTFT without reasoning
    gaps_ms: CountedValues  # ITL: all gaps between token events of completed requests
    gaps_in_time_ms: FloatArray  # gaps from the middle of the run, in order of time

    def __len__(self) -> int:
        return int(self.completed.shape[0])

    def latency(self, metric: str) -> FloatArray:
        """The column of one of PER_REQUEST."""
        column: FloatArray = getattr(self, metric)
        return column

    def part(self, members: BoolArray) -> RequestTimes:
        """These requests alone, but the pooled gaps of all requests."""
        columns = [one.name for one in fields(self) if not one.name.startswith("gaps_")]
        return replace(self, **{name: getattr(self, name)[members] for name in columns})

    def tail_n(self, metric: str) -> float:
        """Effective sample size of the tail of one of LATENCIES, for the interval of its P99. Gaps are taken in order
        of time, as the gaps of one engine step are equal."""
        queued = metric in WITH_QUEUE
        values = self.gaps_in_time_ms if metric == "itl_ms" else self.latency(metric)
        values = values[~np.isnan(values)]
        if not values.shape[0]:
            return 0.0
        scale = len(self.gaps_ms) / values.shape[0] if metric == "itl_ms" else 1.0
        return scale * tail_effective_n(values, math.inf, queued=queued)


def request_times(record: RunRecord) -> RequestTimes:
    """Latencies of every request that ended: TTFT f-s, TPOT (l-f)/(N-1), E2EL l-s, ITL between token events."""
    sent = record.column_ns("sent")
    scheduled = record.column_ns("scheduled")
    order = np.lexsort((record.column("i"), np.where(sent == MISSING, scheduled, sent)))
    sent, scheduled = sent[order], scheduled[order]
    first, last = record.column_ns("first")[order], record.column_ns("last")[order]
    tokens = record.column("output_tokens")[order]
    ended_well = record.where("status", "completed")
    completed = ended_well[order]
    failed = record.where("status", "failed")[order]
    rejected = record.where("finish_reason", "rejected")[order]
    at_length = record.where("finish_reason", "length")[order]
    answer = record.column_ns("first_answer")[order]
    unseen = record.where("token_source", "usage_unseen")[order]
    events = Events(record)
    return RequestTimes(
        row=order,
        completed=completed,
        failed=failed,
        rejected=failed & rejected,
        cancelled=~(completed | failed),
        was_sent=sent != MISSING,
        single_token=completed & (tokens == 1) & at_length,
        prompt_tokens=record.column("prompt_tokens")[order],
        output_tokens=tokens,
        scheduled_ns=scheduled,
        first_ns=first,
        last_ns=last,
        end_ns=record.column_ns("end")[order],
        ttft_ms=_between_ms(sent, first, completed),
        # A single event does not show the time between tokens, however many it has; nor do events without most tokens.
        tpot_ms=_between_ms(first, last, completed & (tokens >= 2) & (last > first) & ~unseen)
        / np.maximum(tokens - 1, 1),
        e2el_ms=_between_ms(sent, last, completed),
        ttft_sched_ms=_between_ms(scheduled, first, completed),
        e2el_sched_ms=_between_ms(scheduled, last, completed),
        ttfot_ms=_between_ms(sent, np.where(answer == MISSING, first, answer), completed),
        gaps_ms=events.gaps_ms(ended_well),
        gaps_in_time_ms=events.gaps_in_time_ms(ended_well, TAU_SAMPLE),
    )


def _between_ms(begin_ns: IntColumn, end_ns: IntColumn, wanted: BoolArray) -> FloatArray:
    known = wanted & (begin_ns != MISSING) & (end_ns != MISSING)
    return np.where(known, (end_ns - begin_ns) / 1e6, np.nan)


def definitions() -> dict[str, str]:
    """One sentence per key of the summary; written into every run.json."""
    return dict(_DEFINITIONS)


_DEFINITIONS = {
    "requests": (
        "planned: in the workload; sent: handed to the engine; errors: failed requests by finish reason; messages: by "
        "what their error said, where those that differ only in ids or times count as one."
    ),
    "throughput.window_s": "From the first scheduled time to the last end of a request.",
    "throughput.request_per_s": "Completed requests per second of the window.",
    "throughput.output_token_per_s": "Output tokens of completed requests per second of the window.",
    "throughput.total_token_per_s": "Prompt and output tokens of completed requests per second of the window.",
    "throughput.arrivals_per_s": (
        "Requests per second that the plan really scheduled, from the first to the last; a plan of 120 requests may be "
        "a fifth off the rate that was asked for. Null without a rate."
    ),
    "throughput.steady": (
        "Token events of all requests, and completions, per second between start_s and end_s: from when the number of "
        "streaming requests reaches 90 % of its median to when the last request gets its first token."
    ),
    "throughput.warmup": (
        "The requests that MSER-5 would cut from the start, by E2EL from the scheduled time in order of arrival; "
        "settled is false where that is a third or more of them. A check: no number leaves them out. Null under 500 "
        "completed requests, and where all arrive at once."
    ),
    "latency": (
        "Milliseconds over completed requests; percentiles interpolate linearly, std is the population's; p99_ci is a "
        "two-sided 95 % interval by order statistics on the effective sample (requests over the autocorrelation time "
        "of being in the top 2 %, in order of sending; for TTFT and E2EL the larger of that and of the values), null "
        "below 368, and for TTFT and E2EL where rare bursts of the queue decide them."
    ),
    "ttft_ms": "Time to first token: from sending to the first token event.",
    "tpot_ms": "Time per output token: (last - first token event) / (output tokens - 1); null under two tokens, "
    "and where most tokens came in no event (token_source usage_unseen).",
    "itl_ms": "Inter-token latency: gaps between consecutive token events, pooled over completed requests.",
    "e2el_ms": "End-to-end latency: from sending to the last token event.",
    "ttft_sched_ms": "TTFT from the scheduled time, so a late send counts; SLAs in open loop use it.",
    "e2el_sched_ms": "E2EL from the scheduled time, so a late send counts; SLAs in open loop use it.",
    "ttfot_ms": "Time to first token after reasoning; null without reasoning.",
    "goodput.request_per_s": (
        "Requests that completed and met the loosest bound of every latency SLA, per second. An SLA on a part, such as "
        "p99_ttft_ms[tenant=quiet], applies to the requests of that part; one without an SLA only has to complete."
    ),
    "goodput.attainment": (
        "Share of ended requests that met them; failed and cancelled ones miss them, except those that an interrupt "
        "cancelled. attainment_ci is Wilson's 95 % interval on the effective sample."
    ),
    "signals.device_busy": "Share of the window in which the device worked, in steps that are not launch-bound.",
    "signals.launch_bound": (
        "Share of the window in steps whose work on the device ended within 0.1 ms of their last launch: the device "
        "waited for the host, for an unknown part of them. null where the host computes the steps."
    ),
    "signals.kv_usage_mean": (
        "Share of usable KV blocks that are used or reserved, averaged over wall time; 0 after the last step, also "
        "where a prefill instance still keeps blocks until they are sent."
    ),
    "signals.kv_usage_peak": "The largest such share in any step.",
    "signals.running_mean": (
        "Unfinished requests in a slot, averaged over the wall time of the window. Over HTTP by the server's metrics; "
        "where it has none, requests that got their first token and have not ended."
    ),
    "signals.waiting_mean": (
        "Requests sent and not in a slot, averaged over the wall time of the window; those that arrived during a step "
        "count. Over HTTP by the server's metrics, or those without a first token."
    ),
    "signals.preemptions": "How often a running request was preempted.",
    "signals.prefix_hit_tokens": "Prompt tokens not computed, as cached blocks of another request had them.",
    "signals.resume_hit_tokens": "Tokens not recomputed after a preemption, as the cache still had them.",
    "signals.rejected": "Requests rejected because they can never fit, or because of KV pressure.",
    "signals.blocked": "Share of steps in which the head of the queue was not admitted, by reason.",
    "signals.gpu_utilization_mean": (
        "Share of the driver's sampling intervals in which any kernel ran, over the samples; it does not show how much "
        "of the GPU was used, and device_busy is more accurate."
    ),
    "signals.gpu_memory_peak_bytes": "The most memory of the GPU in use in any sample, by all processes.",
    "signals.gpu_power_mean_w": "Power drawn by the GPU, over the samples.",
    "signals.gpu_sm_clock_mean_mhz": "Clock of its multiprocessors, over the samples.",
    "signals.gpu_slowed_share": "Share of the samples in which a power cap or the temperature held its clocks down.",
    "instances": (
        "The same signals and waste for the prefill and the decode instance, by their own steps, slots and KV pools; "
        "the signals of the whole are the mean of the devices and of their KV, and the sum of running and waiting "
        "requests. Empty without disaggregation."
    ),
    "transfers": (
        "KV transfers from the prefill to the decode instance. wait_ms: from the first token until the decode instance "
        "had a slot and blocks for the request; transfer_ms: from then until all its KV had arrived, behind other "
        "transfers; kept_blocks_peak: the most blocks that the prefill instance kept for them, when it planned a step."
    ),
    "waste.launched_tokens": "Tokens that the device computed: useful plus all kinds of waste below.",
    "waste.useful_tokens": "Prompt and output tokens, each computed for the first time, of requests that used them.",
    "waste.prompt_padding_tokens": "Padding before shorter prompts of a padded static batch.",
    "waste.bucket_padding_tokens": "Padding to the next larger launched shape.",
    "waste.dead_row_tokens": "Rows of finished requests that are launched until their static batch ends.",
    "waste.recomputed_tokens": "Tokens computed again after a preemption.",
    "waste.discarded_tokens": "Tokens computed for a request that had already ended.",
    "waste.idle_slot_steps": "Slots times steps in which the slot was empty, or held by a finished request.",
    "waste.dead_slot_steps": "Slots times steps in which a finished request was still launched.",
    "breakdown": (
        "Means over completed requests, and over those at or above P99, of the parts that add up to ttft_sched_ms and "
        "e2el_sched_ms; shares are of the latency."
    ),
    "breakdown.client": "Scheduled but not yet sent: the concurrency cap held it, or the load client was late.",
    "breakdown.intake": "Sent, until the running step ended and the scheduler took the request.",
    "breakdown.queue": "From then to the planning of the step that first admitted it.",
    "breakdown.prefill": "Running, before the first token; recomputation of a prompt after a preemption too.",
    "breakdown.preempted": "Waiting again after a preemption; in ttft before the first token, in e2el all.",
    "breakdown.handover": "After the first token, until the decode instance planned a step with a slot and blocks for "
    "the request, including the wait for its running step.",
    "breakdown.transfer": "From then until all its KV had arrived.",
    "breakdown.server": "Over HTTP, where steps are not known: sent, until the first token.",
    "breakdown.decode": "Running, after the first token (over HTTP: all time after it); recomputation too.",
    "breakdown.blocked": (
        "The part of the queue spent behind a head that was not admitted, by reason: from each planning of a step to "
        "the next, for the reason in the ledger of that step."
    ),
    "by_tenant": (
        "The same numbers for each tenant (by_priority, by_prompt_bucket, by_url, by_stage: likewise), empty unless "
        "there are two or more; rates are over the window of the whole run (of a stage: of what ended within its time, "
        "over that time), preemptions are those of its requests."
    ),
    "by_stage": (
        "By the stage of a rate that changes, of a ramp by its parts, in which a request was due. asked_request_per_s: "
        "due in it, per second of it; goodput: as for the run, of the requests due in it, per second of its time; sla: "
        "each SLA on a latency, attainment or the failure rate, judged on them alone as an SLA on [stage=KEY] is."
    ),
    "by_tenant.max_wait_ms": (
        "Longest wait for the first admission, from submission; over HTTP, from sending to the first token. A request "
        "that got neither waited until it ended."
    ),
    "by_tenant.service_tokens": "Prompt tokens plus twice the output tokens of requests that got a first token.",
    "service_gap_tokens": (
        "The largest lead in service (as above, counted at each token) of one tenant over another within a time in "
        "which both had a request waiting; null if no two tenants waited at the same time."
    ),
    "sla": (
        "A percentile SLA passes when the binomial early-stopping test accepts it at the confidence on the effective "
        "sample, failures counted as violations; it fails when the mirrored test does; else it is inconclusive, as are "
        "a pass on TTFT or E2EL that rare bursts of the queue may contradict, and all of a client-limited run. "
        "An overloaded run passes no SLA on a latency. One on a part ([tenant=quiet], [priority=1], [prompt<=512], "
        "[stage=3]) is judged on the requests of that part alone: their effective sample, their failures, whether "
        "their own queue only grew; rates are over the window of the whole run (of a stage: as in by_stage), and "
        "`needed` counts the requests of the run."
    ),
}
