"""Settings of the requests and when they are sent, how the result is judged, and where it goes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct, field

from cbbench.settings.facts import OURS, SEED, SET, SHOWN, setting

if TYPE_CHECKING:
    from reports.sla import Sla
    from workloads.log_names import Part
    from workloads.rates import RateSchedule
else:
    Part = str
    Sla = RateSchedule = object  # their modules load NumPy

# The upper ends are far beyond any measurement; they keep a mistyped number from filling the memory.
MOST_REQUESTS = 10_000_000

_of_workload = partial(setting, panel="Workload")
_of_log = partial(_of_workload, plan=True, hashed="if-set")  # newer than some runs
_of_judgement = partial(setting, panel="Judgement", hashed="never", unswept=SHOWN)
_of_output = partial(setting, panel="Output", hashed="never", unswept=SHOWN)


class WorkloadSettings(Struct, frozen=True, kw_only=True):
    """The requests: how many, how long, and how their outputs are sampled."""

    spec: Annotated[
        str,
        Meta(
            description="What to ask: a preset (cbbench workload list), lengths by 'prompt=DIST;output=DIST', or a "
            "file of lengths or of prompts. Default: azure-conv.",
            extra=_of_workload("SPEC", plan=True, other_work=True),
        ),
    ] = field(default="azure-conv", name="workload")
    tenants: Annotated[
        str | None,
        Meta(
            description="A mix instead of one workload, as in 'a:weight=3;b:weight=1,priority=1'; see "
            "docs/workloads.md. Default: none.",
            extra=_of_workload("SPEC", plan=True, other_work=True),
        ),
    ] = None
    num_requests: Annotated[
        int,
        Meta(
            ge=1,
            le=MOST_REQUESTS,
            description="Requests in the plan. Default: 64; what `duration` holds under `rate`; the rows of a file.",
            extra=_of_workload("N", plan=True, other_work=True),
        ),
    ] = 64
    seed: Annotated[
        int,
        Meta(
            ge=0,
            description="Seed of lengths and arrivals: the same seed gives the same plan anywhere. Default: 0.",
            extra=_of_workload("N", plan=True, unswept=SEED),
        ),
    ] = 0
    prompt_seed: Annotated[
        int,
        Meta(
            ge=0,
            description="Seed of the prompts' content, which changes no length; those of a file have none. Default: 0.",
            extra=_of_workload("N", unswept=SEED),
        ),
    ] = 0
    misfit: Annotated[
        Literal["error", "reject"],
        Meta(
            description="When prompt + output exceeds the context in a file or trace: error stops before the run, "
            "reject runs and counts it as failed. Default: error.",
            extra=_of_workload("WORD", plan=True),
        ),
    ] = "error"
    column: Annotated[
        tuple[tuple[Part, str], ...],
        Meta(
            description="Of a file: the column of a part of its requests, as in prompt=NAME; parts are prompt, output, "
            "arrival, tenant, priority; in JSON also usage.NAME. Repeat for more. Default: the names of common logs.",
            extra=_of_log(
                "PART=NAME",
                unswept="says what a file is, which is the same at every point",
                given=list[str],
                parse="workloads.log_names:parse_columns",
            ),
        ),
    ] = ()
    time_unit: Annotated[
        Literal["s", "ms", "us", "ns"] | None,
        Meta(
            description="Unit of a file's time stamps that are numbers. Default: that of the column's name, else "
            "inferred, and a note says so.",
            extra=_of_log("UNIT", unswept="says what a file is, which is the same at every point"),
        ),
    ] = None
    window: Annotated[
        str | None,
        Meta(
            description="Of a file: the rows of this time, as in 10:00-10:30 (UTC), or 5m-20m since its first row. "
            "Default: all.",
            extra=_of_log("T-T", other_work=True),
        ),
    ] = None
    sample: Annotated[
        int | None,
        Meta(
            ge=1,
            le=MOST_REQUESTS,
            description="Of a file: N rows in a row, from one that the seed draws. Default: all.",
            extra=_of_log("N", other_work=True),
        ),
    ] = None
    thin: Annotated[
        int | None,
        Meta(
            ge=1,
            le=MOST_REQUESTS,
            description="Of a file: N of all rows, drawn by the seed, at their own times: the same traffic at a lower "
            "rate. Default: all.",
            extra=_of_log("N", other_work=True),
        ),
    ] = None
    ignore_eos: Annotated[
        bool,
        Meta(
            description="Force the planned output length even past an end-of-text token. Default: on.",
            extra=_of_workload(),
        ),
    ] = True
    temperature: Annotated[
        float,
        Meta(ge=0, le=1000, description="Sampling temperature. Default: 0, greedy.", extra=_of_workload("T")),
    ] = 0.0
    top_k: Annotated[
        int,
        Meta(ge=0, description="Sample among the K likeliest tokens. Default: 0, all.", extra=_of_workload("K")),
    ] = 0
    top_p: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Sample among the likeliest tokens that hold this share of probability. Default: 1, all.",
            extra=_of_workload("P"),
        ),
    ] = 1.0


class LoadSettings(Struct, frozen=True, kw_only=True):
    """When requests are sent. Without a rate and a concurrency all are due at t = 0."""

    rate: Annotated[
        float | RateSchedule | None,
        Meta(
            ge=1e-6,
            le=1e6,
            description="Open loop: requests per second, whether or not the engine keeps up. Or stages of them: '2 for "
            "60s, 8 for 60s, 2', '2..20 for 2m', '2~20 every 24h for 48h'. Default: none, all at t = 0.",
            extra=_of_workload("R", given=float | str, parse="workloads.rates:read_rate"),
        ),
    ] = None
    arrival: Annotated[
        str | None,
        Meta(
            description="Shape of the arrivals under `rate`: constant, poisson, gamma:CV (burstier above CV 1), "
            "mmpp:FACTOR:SHARE:GAPS or onoff:SHARE:GAPS (bursts), or trace, which without `rate` keeps its own pace. "
            "Default: poisson.",
            extra=_of_workload("DIST", plan=True),
        ),
    ] = None
    think_ms: Annotated[
        str | None,
        Meta(
            description="With `rate`, and sessions in the workload: a turn waits for the answer before it and then for "
            "so many ms, as in 'exponential(mean=5000)'. Default: a turn is sent as it arrives, answered or not.",
            extra=_of_workload("DIST", plan=True, needs={"rate": SET}, hashed="if-set"),
        ),
    ] = None
    span: Annotated[
        Literal["drawn", "fixed"] | None,
        Meta(
            description="With `rate`: fixed scales the drawn arrivals so that their own rate is the one asked for, as "
            "`vllm bench serve` does; a short run is then no busier than asked. Default: drawn.",
            extra=_of_workload("WORD", plan=True, needs={"rate": SET}, hashed="if-set"),
        ),
    ] = None
    speed: Annotated[
        float | None,
        Meta(
            ge=1e-3,
            le=1e4,
            description="With `arrival` trace: the trace's own pace times this. Default: 1.",
            extra=_of_workload("X", needs={"arrival": "trace"}, hashed="if-set"),
        ),
    ] = None
    concurrency: Annotated[
        int | None,
        Meta(
            ge=1,
            le=100_000_000,
            description="Closed loop: keep N requests in flight; with `rate`, the most in flight. Default: no limit.",
            extra=_of_workload("N"),
        ),
    ] = None
    duration: Annotated[
        float | None,
        Meta(
            gt=0,
            le=1e7,
            description="Stop sending after this many seconds; with `rate`, the plan is as long. Default: send the "
            "whole plan.",
            extra=_of_workload("S"),
        ),
    ] = None
    drain: Annotated[
        float,
        Meta(
            ge=0,
            le=1e7,
            description="With `duration`: grace period in seconds before requests in flight are aborted. Default: 30.",
            extra=_of_workload("S"),
        ),
    ] = 30.0


class SloSettings(Struct, frozen=True, kw_only=True):
    """What the result is judged by."""

    sla: Annotated[
        tuple[Sla, ...],
        Meta(
            description="A bound to judge by, as in 'p99_ttft_ms<=500', or on a part of the load, as in "
            "'p99_ttft_ms\\[tenant=quiet]<=500' or \\[stage=3]; repeat for more. Exit code 3 if one fails, 5 if it is "
            "inconclusive (too few requests, or not measured). Default: none.",
            extra=_of_judgement("EXPR", compared=False, given=list[str], parse="reports.sla:parse_all"),
        ),
    ] = ()
    confidence: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="Confidence for SLA verdicts and intervals. Default: 0.95.",
            extra=_of_judgement("P"),
        ),
    ] = 0.95
    max_failure_rate: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of failed requests above which the load is invalid, exit code 7. Default: 0.01.",
            extra=_of_judgement("R"),
        ),
    ] = 0.01


class OutputSettings(Struct, frozen=True, kw_only=True):
    """Where the result goes, and what is shown of it."""

    folder: Annotated[
        str | None,
        Meta(
            description="New or empty folder for the results. Default: runs/TIME-MODE-WORKLOAD.",
            extra=_of_output("DIR", short="-o", compared=False),
        ),
    ] = field(default=None, name="output")
    json: Annotated[
        bool,
        Meta(
            description="Print the result as JSON and nothing else on stdout. Default: off.",
            extra=_of_output(switch=True, compared=False),
        ),
    ] = False
    gpu_telemetry: Annotated[
        bool | None,
        Meta(
            description="Read the first GPU of this machine four times a second into signals.jsonl: use, memory, "
            "clocks, power. Default: on where cbbench's own engine runs on it; off beside `url`.",
            extra=_of_output(),
        ),
    ] = None
    timeline: Annotated[
        bool | None,
        Meta(
            description="Show which request had which slot at which step. Default: on up to 4 slots.",
            extra=_of_output(engines=OURS, compared=False),
        ),
    ] = None
