"""The types of sweep.json: the numbers of points that a curve needs, and the recommendation. See schema.py."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from reports.schema import SlaResult, Validity
from reports.summary_schema import Signals

SWEEP_SCHEMA: Final = "cbbench.sweep/2"

Value = bool | int | float | str  # of a swept setting
Interval = tuple[float, float]


class TenantPoint(msgspec.Struct, frozen=True):
    """The numbers of one tenant. In open loop TTFT is from the scheduled time."""

    p99_ttft_ms: float | None = None
    p99_tpot_ms: float | None = None


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep. `error` says why a point has no numbers.

    In open loop TTFT and E2EL are from the scheduled time. The intervals are two-sided 95 % ones of this run.
    """

    values: tuple[Value, ...]  # one per parameter of the sweep, in its order
    repeat: int = 0  # from 0 to the sweep's repeats - 1
    folder: str  # of the run, relative to the sweep's
    config_sha256: str = ""  # by which a resumed sweep recognises a finished point
    mode: str | None = None  # continuous | static; None: that of a server
    rate_per_s: float | None = None  # offered in open loop
    arrivals_per_s: float | None = None  # as the plan realised that rate
    concurrency: int | None = None  # the cap on requests in flight; None: there is none, or an older file
    output_token_per_s: float | None = None
    request_per_s: float | None = None  # completed
    goodput_per_s: float | None = None  # requests within every SLA on a latency; None without one
    tokens_per_s_per_user: float | None = None  # of one request: 1000 / p50_tpot_ms
    p50_ttft_ms: float | None = None
    p99_ttft_ms: float | None = None
    p99_ttft_ci_ms: Interval | None = None
    p50_tpot_ms: float | None = None
    p99_tpot_ms: float | None = None
    p99_tpot_ci_ms: Interval | None = None
    p99_e2el_ms: float | None = None
    p99_e2el_ci_ms: Interval | None = None
    attainment: float | None = None
    by_tenant: dict[str, TenantPoint] = {}  # empty unless there are two or more
    slow_ttft: dict[str, float] = {}  # TTFT at or above P99: share by part (queue, prefill, ...)
    slow_e2el: dict[str, float] = {}  # E2EL at or above P99: share by part (decode, queue, ...)
    max_over_mean: float | None = None  # of the plan's outputs in batches of max_num_seqs; None: with a server
    signals: Signals = Signals()
    instances: dict[str, Signals] = {}  # of each, where prefill and decode have one of their own
    sla: tuple[SlaResult, ...] = ()
    validity: Validity | None = None
    saturated: str | None = None  # why arrivals outrun completions here; None: they do not, or there is no rate
    limit: str | None = None  # what limits this point, a name of limits.py
    why: str | None = None  # the same as a sentence with its numbers
    prediction: str | None = None  # EngineInfo.prediction of the run
    error: str | None = None
    exit_code: int | None = None  # of the error


class Recommendation(msgspec.Struct, frozen=True):
    values: tuple[Value, ...] | None  # None: no setting qualifies
    reason: str
    limit: str  # what limits the next setting, a name of limits.py; or sla | unknown
    proven: bool  # every SLA of that setting passed its test, rather than only its point estimate
    evidence: dict[str, float | int | str | None] = {}


class SweepFile(msgspec.Struct, frozen=True, kw_only=True):
    """sweep.json. A setting is one value per parameter; it has a point per repeat."""

    schema: Literal["cbbench.sweep/2"] = SWEEP_SCHEMA
    params: tuple[str, ...]
    settings: tuple[tuple[Value, ...], ...]  # in the order given; an adaptive sweep adds them as it runs
    repeats: int = 1
    adaptive: bool = False
    points: tuple[Point, ...] = ()
    most_in_flight: int | None = None  # the most requests in flight; None: unknown, or not equal for all settings
    skipped: tuple[tuple[Value, ...], ...] = ()  # settings not measured: a lower rate was saturated
    ended: str | None = None  # why an adaptive sweep ended, or why settings were skipped
    recommendation: Recommendation | None = None
    sla: tuple[str, ...] = ()
    workload_sha256: str | None = None  # of the plan that all first repeats share; None: unknown, or they differ
