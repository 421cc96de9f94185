"""Small RunRecords with known answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from engines.base import RunRecord
from engines.ledger import LEDGER, StepArray
from engines.request_table import RequestRow, RequestTable, StintRow
from reports.counted_values import CountedValues, FloatArray
from reports.schema import Criteria, EngineInfo, PacingInfo, RunFile, WorkloadInfo
from tests.ledger_identities import check_identities

MS = 1_000_000


def header(
    *,
    sla: Sequence[str] = (),
    rate_per_s: float | None = None,
    rate_schedule: str | None = None,
    mode: str = "continuous",
    static: str = "padded",
    sha256: str = "ab" * 32,
    num_requests: int = 3,
    event_unit: str = "us",
    confidence: float = 0.95,
    config: Mapping[str, object] | None = None,
) -> RunFile:
    settings = {"static": static} | dict(config or {})
    return RunFile(
        engine=EngineInfo(kind="reference", mode=mode, model="tiny", device="cpu", config=settings),
        workload=WorkloadInfo(
            spec="fixed",
            seed=0,
            sha256=sha256,
            num_requests=num_requests,
            pacing=PacingInfo(rate_per_s=rate_per_s, rate_schedule=rate_schedule),
        ),
        event_unit=event_unit,  # type: ignore[arg-type]
        criteria=Criteria(sla=tuple(sla), confidence=confidence),
    )


def row(
    i: int,
    events_ms: Sequence[float] = (),
    *,
    scheduled_ms: float = 0.0,
    sent_ms: float | None = None,
    end_ms: float | None = None,
    status: str = "completed",
    finish_reason: str | None = "length",
    prompt_tokens: int = 10,
    output_tokens: int | None = None,
    error: str | None = None,
    stints: Sequence[StintRow] = (),
    tenant: str = "default",
    priority: int = 0,
    preemptions: int = 0,
) -> tuple[RequestRow, np.ndarray]:
    """A request whose token events came at these times, and its gaps in µs."""
    sent = scheduled_ms if sent_ms is None else sent_ms
    last = events_ms[-1] if events_ms else None
    end = end_ms if end_ms is not None else (sent if last is None else last)
    made = RequestRow(
        i=i,
        scheduled=round(scheduled_ms * MS),
        submitted=round(sent * MS),
        sent=round(sent * MS),
        first_byte=None,
        first=round(events_ms[0] * MS) if events_ms else None,
        last=None if last is None else round(last * MS),
        end=round(end * MS),
        prompt_tokens=prompt_tokens,
        output_tokens=len(events_ms) if output_tokens is None else output_tokens,
        status=status,  # type: ignore[arg-type]
        finish_reason=finish_reason,
        error=error,
        token_source="engine",
        tenant=tenant,
        priority=priority,
        preemptions=preemptions,
        events_at=0,
        events=len(events_ms),
        stints=tuple(stints),
    )
    return made, np.round(np.diff(events_ms, prepend=events_ms[:1]) * 1000).astype(np.uint32)


def record(made: Sequence[tuple[RequestRow, np.ndarray]], *, planned: int | None = None, **fields: object) -> RunRecord:
    """The record of these rows, in the order given."""
    rows, at = [], 0
    for one, events in made:
        rows.append(msgspec.structs.replace(one, events_at=at))
        at += len(events)
    values = np.concatenate([events for _, events in made]) if made else np.empty(0, np.uint32)
    settings = {"event_unit": "us"} | fields
    return RunRecord(
        planned=len(rows) if planned is None else planned,
        rows=RequestTable.of(rows),
        event_values=values.astype(np.uint32),
        **settings,  # type: ignore[arg-type]
    )


def ttft_record(ttfts_ms: Sequence[float], *, failed: int = 0, interval_ms: float = 10.0) -> RunRecord:
    """Requests sent every `interval_ms`, with these TTFTs and one more token 20 ms later; then `failed` that fail."""
    made = [
        row(i, [i * interval_ms + ttft, i * interval_ms + ttft + 20], scheduled_ms=i * interval_ms)
        for i, ttft in enumerate(ttfts_ms)
    ]
    n = len(made)
    made += [
        row(i, scheduled_ms=i * interval_ms, status="failed", finish_reason="error", error="boom")
        for i in range(n, n + failed)
    ]
    return record(made)


def ledger(active: Sequence[int], dead: Sequence[int], slots: int, step_ms: float = 10.0) -> StepArray:
    """One decode token per active slot and one dead token per dead slot in every step; steps without a pause."""
    steps = np.zeros(len(active), LEDGER)
    steps["step"] = np.arange(1, len(active) + 1)
    steps["start_ns"] = np.arange(len(active)) * round(step_ms * MS)
    steps["now_ns"] = steps["start_ns"]
    steps["end_ns"] = steps["start_ns"] + round(step_ms * MS)
    steps["busy_ns"] = round(step_ms * MS / 2)
    steps["useful_tokens"] = steps["sampled_tokens"] = steps["decode_rows"] = steps["active_slots"] = active
    steps["running"] = active
    steps["dead_row_tokens"] = steps["dead_slots"] = dead
    steps["launched_tokens"] = steps["useful_tokens"] + steps["dead_row_tokens"]
    steps["idle_slots"] = slots - steps["active_slots"] - steps["dead_slots"]
    steps["kv_used_blocks"] = steps["active_slots"]
    steps["kv_free_blocks"] = 2 * slots - steps["kv_used_blocks"]
    check_identities(steps, slots, 2 * slots)
    return steps


def row_in_slot(
    i: int,
    slot: int,
    admitted: int,
    ended: int,
    *,
    step_ms: float = 10.0,
    prompt_tokens: int = 1,
    tenant: str = "default",
    preemptions: int = 0,
) -> tuple[RequestRow, np.ndarray]:
    """A request with a prompt of one token that ran in `slot`, with a token in every step; its events are steps."""
    events_ms = [step * step_ms for step in range(admitted, ended + 1)]
    made, _ = row(
        i,
        events_ms,
        prompt_tokens=prompt_tokens,
        stints=[StintRow(slot, admitted, admitted, ended)],
        tenant=tenant,
        preemptions=preemptions,
    )
    return made, np.arange(admitted, ended + 1, dtype=np.uint32)


def bus_stop(lengths: Sequence[int] = (10, 50, 200), *, mode: str = "padded") -> RunRecord:
    """The classic batch: one-token prompts, one slot each, all admitted in step 1 and none waiting."""
    longest, slots = max(lengths), len(lengths)
    active = [sum(length >= step for length in lengths) for step in range(1, longest + 1)]
    dead = [slots - count if mode == "padded" else 0 for count in active]
    made = sorted((row_in_slot(i, i, 1, length) for i, length in enumerate(lengths)), key=lambda one: one[0].end)
    return record(made, event_unit="step", steps=ledger(active, dead, slots))


def all_values(counted: CountedValues) -> FloatArray:
    """Each value as often as it occurs, ascending."""
    return np.repeat(counted.values, counted.counts)
