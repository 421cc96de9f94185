"""The result of another tool: requests, or a summary where a file has nothing else; and the StoredRun of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from engines.base import RunRecord
from engines.request_table import RequestRow, RequestTable, Status
from reports.interop.judge_summary import UNSEEN, judged_by_summary
from reports.schema import Criteria, EngineInfo, PacingInfo, RunFile, WorkloadInfo
from reports.sla import expressions
from reports.stored_runs import Judgement, StoredRun
from reports.summary import completed_run
from reports.summary_schema import Distribution, Goodput, Latency, Requests, Signals, Summary, Throughput
from workloads.errors import CbbenchError

NO_STEPS = "no engine steps and no signals of the server"
FROM_SENDING = "latencies are from sending, so they exclude a wait before it, and overload is not detected"
NO_HASH = "the file does not identify the requests that it sent, so a gate against another run needs allow_different"

LONGEST_GAP_US = 2**32 - 1
MOST_TOKENS = 2**31 - 1
FARTHEST_NS = 2**62  # 146 years; clocks may count from 1970
ROUNDING_NS = 1_000_000  # tools round the latency of a request and its parts each by itself


@dataclass(frozen=True, kw_only=True)
class ToolRequest:
    """One request as another tool measured it; times in ns of its clock, None for events that did not occur."""

    scheduled_ns: int
    sent_ns: int
    first_ns: int | None
    last_ns: int | None
    end_ns: int
    prompt_tokens: int
    output_tokens: int
    status: Status = "completed"
    error: str | None = None
    gaps_us: Sequence[int] = ()  # between token events, where the file has them
    first_answer_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """One measurement. Exactly one of `requests` and `summary` is set."""

    tool: str
    label: str = ""  # distinguishes it from others in the same file
    model: str | None
    workload: str
    sha256: str = ""
    pacing: PacingInfo
    requests: Sequence[ToolRequest] | None = None
    summary: Summary | None = None
    failures_known: bool = True
    interrupted: bool = False
    notes: tuple[str, ...] = field(default_factory=tuple)


def checked(result: Result) -> Result:
    """The result, if its numbers are possible. CbbenchError names the first that is not."""
    for name, kind in (("model", str | None), ("pacing", PacingInfo), ("summary", Summary | None)):
        try:
            msgspec.convert(msgspec.to_builtins(getattr(result, name)), kind)
        except msgspec.ValidationError as error:
            raise CbbenchError(None, f"{name}: {error}") from None
    for at, one in enumerate(result.requests or ()):
        if wrong := _impossible(one):
            raise CbbenchError(None, f"request {at}: {wrong}")
    if result.summary is not None:
        for name, value in _numbers(msgspec.to_builtins(result.summary)):
            if not 0 <= value < math.inf:
                raise CbbenchError(None, f"{name} is {value}; it must be finite and not negative")
    return result


def _impossible(one: ToolRequest) -> str | None:
    for name, tokens in (("prompt", one.prompt_tokens), ("output", one.output_tokens)):
        if not isinstance(tokens, int) or not 0 <= tokens <= MOST_TOKENS:
            return f"{tokens} {name} tokens"
    times = (one.scheduled_ns, one.sent_ns, one.first_ns, one.last_ns, one.end_ns)
    if any(at is not None and abs(at) > FARTHEST_NS for at in times):
        return "a time is out of range"
    if any(gap < 0 for gap in one.gaps_us):
        return "a gap between its tokens is below 0"
    if one.first_ns is not None and one.first_ns < one.sent_ns:
        return f"its first token came {(one.sent_ns - one.first_ns) / 1e9:g} s before it was sent"
    if one.first_ns is not None and one.last_ns is not None and one.last_ns < one.first_ns - ROUNDING_NS:
        return "its last token came before its first"
    return None


def _numbers(value: object, name: str = "") -> Iterator[tuple[str, float]]:
    """(path of names, number) for every number in it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name}.{key}".lstrip("."))
    elif isinstance(value, int | float):
        yield name, value


def stored(path: Path, result: Result, judgement: Judgement) -> StoredRun:
    """The result judged like a run of cbbench, as far as its data allow."""
    slas = judgement.sla or ()
    criteria = Criteria(expressions(slas), judgement.confidence or Criteria().confidence)
    count = len(result.requests) if result.requests is not None else _planned(result.summary)
    header = RunFile(
        engine=EngineInfo(kind="openai", model=result.model, config={"tool": result.tool}),
        workload=WorkloadInfo(
            spec=result.workload, seed=0, sha256=result.sha256, num_requests=count, pacing=result.pacing
        ),
        event_unit="us",
        criteria=criteria,
        interrupted=result.interrupted,
    )
    name = f"{path} · {result.label}" if result.label else str(path)
    notes = [*result.notes, NO_STEPS]
    notes += [FROM_SENDING] if result.requests is None else []
    notes += [NO_HASH] if not result.sha256 else []
    said = tuple(f"{name}: {result.tool}'s: {note}" for note in notes)
    if result.requests is None:
        assert result.summary is not None  # one of both is set
        run = judged_by_summary(header, result.summary, slas, failures_known=result.failures_known)
        return StoredRun(name, run, None, said, result.failures_known)
    record = record_of(result.requests, interrupted=result.interrupted)
    run = completed_run(record, header)
    if not len(record.event_values):
        run = _without_events(run)
    return StoredRun(name, run, record, said)


def record_of(requests: Sequence[ToolRequest], *, interrupted: bool = False) -> RunRecord:
    """Rows in the order given; times from the first scheduled time."""
    origin = min((one.scheduled_ns for one in requests), default=0)
    rows: list[RequestRow] = []
    events: list[int] = []
    for i, one in enumerate(requests):
        rows.append(_row(i, one, origin, len(events)))
        if one.gaps_us:
            events += [0, *one.gaps_us]
    return RunRecord(
        planned=len(rows),
        rows=RequestTable.of(rows),
        event_values=np.clip(np.array(events, np.int64), 0, LONGEST_GAP_US).astype(np.uint32),
        event_unit="us",
        interrupted=interrupted,
    )


def _row(i: int, one: ToolRequest, origin: int, events_at: int) -> RequestRow:
    def since(at: int | None) -> int | None:
        return None if at is None else at - origin

    finish = {"completed": "length", "failed": "error", "cancelled": "aborted"}[one.status]
    sent = one.sent_ns - origin
    return RequestRow(
        i=i, scheduled=one.scheduled_ns - origin, submitted=sent, sent=sent, first_byte=since(one.first_ns),
        first=since(one.first_ns), last=since(one.last_ns), end=one.end_ns - origin, prompt_tokens=one.prompt_tokens,
        output_tokens=one.output_tokens, status=one.status, finish_reason=finish, error=one.error,
        token_source="counted", tenant="default", priority=0, preemptions=0, events_at=events_at,
        events=len(one.gaps_us) + 1 if one.gaps_us else 0, first_answer=since(one.first_answer_ns),
    )  # fmt: skip


def _without_events(run: RunFile) -> RunFile:
    """Without token events ITL and the steady window are missing, not 0."""
    assert run.summary is not None  # it was just completed
    latency = msgspec.structs.replace(run.summary.latency, itl_ms=Distribution(count=0))
    throughput = msgspec.structs.replace(run.summary.throughput, steady=None)
    summary = msgspec.structs.replace(run.summary, latency=latency, throughput=throughput)
    slas = (
        msgspec.structs.replace(one, value=None, verdict="inconclusive", reason=UNSEEN, needed=None)
        if one.metric.endswith("itl_ms")
        else one
        for one in run.sla
    )
    return msgspec.structs.replace(run, summary=summary, sla=tuple(slas))


def _planned(summary: Summary | None) -> int:
    return summary.requests.planned if summary is not None else 0


NOTHING = Distribution(count=0)


def summary_of(
    *,
    completed: int,
    failed: int = 0,
    cancelled: int = 0,
    window_s: float,
    request_per_s: float | None,
    output_token_per_s: float | None,
    total_token_per_s: float | None,
    ttft_ms: Distribution = NOTHING,
    tpot_ms: Distribution = NOTHING,
    itl_ms: Distribution = NOTHING,
    e2el_ms: Distribution = NOTHING,
) -> Summary:
    """Numbers that a file does not have stay None."""
    planned = completed + failed + cancelled
    return Summary(
        requests=Requests(planned=planned, sent=planned, completed=completed, failed=failed, cancelled=cancelled),
        throughput=Throughput(window_s, request_per_s, output_token_per_s, total_token_per_s),
        latency=Latency(
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            itl_ms=itl_ms,
            e2el_ms=e2el_ms,
            ttft_sched_ms=NOTHING,
            e2el_sched_ms=NOTHING,
        ),
        goodput=Goodput(),
        signals=Signals(),
        waste=None,
    )
