"""The model-assisted verdict on a stored run: its engine and load made again from run.json, its step times calibrated
on its ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import msgspec

from cbbench.settings.workload import WorkloadSettings
from cbbench.settings.workload_cache import opened_workload
from engines.base import RunRecord
from engines.request_table import MISSING
from engines.scheduling.config import SchedulerConfig
from engines.simulated.calibrate import calibrate, measured_steps
from engines.simulated.replay import Replay
from engines.simulated.step_time import Origin
from reports.assist import assisted, is_assisted, model_error, simulate
from reports.schema import RunFile
from reports.stored_runs import StoredRun
from workloads.errors import CbbenchError
from workloads.pacing import Pacing
from workloads.plan import RequestPlan


def assist(one: StoredRun) -> StoredRun:
    """The run with the model-assisted results in place of its own, for the SLAs that have one. CbbenchError for a run
    whose load or steps cannot be simulated from its files. A run that is not valid keeps its results."""
    run = one.run
    if not any(map(is_assisted, run.sla)):
        raise CbbenchError("assist", "corrects percentiles of TTFT, TPOT and E2EL of all requests: no such SLA")
    _refuse(one.name, run)
    if run.interrupted or run.validity is None or run.validity.verdict != "ok":
        return one
    assert one.record is not None
    if not one.record.where("status", "completed").all():
        raise _refusal(one.name, "requests failed, and the simulation has no failures")
    steps = one.record.steps
    if (steps["start_ns"][1:] < steps["end_ns"][:-1]).any():
        raise _refusal(one.name, "steps that are submitted while others run are not simulated")
    plan = _plan(one.name, run, run.workload.num_requests, run.workload.seed)
    if plan.sha256 != run.workload.sha256:
        raise _refusal(one.name, "its plan cannot be built again from run.json (a mix of tenants, or a changed file)")
    measured = measured_steps(steps)
    model = calibrate(measured, Origin(source=one.name))
    replay = Replay(_config(run), _front_end_ns(one.record), lambda plan: _pacing(run, plan))
    if (reason := replay.why_not(model, plan)) is not None:
        raise _refusal(one.name, f"the compiled core does not simulate it: {reason}")
    found = simulate(
        replay, model, measured, plan, lambda count, seed: _plan(one.name, run, count, seed), model_error(model)
    )
    results = tuple(assisted(result, found) if is_assisted(result) else result for result in run.sla)
    return replace(one, run=msgspec.structs.replace(run, sla=results))


def _refusal(name: str, reason: str) -> CbbenchError:
    return CbbenchError("assist", f"{name}: {reason}")


def _refuse(name: str, run: RunFile) -> None:
    pacing, config = run.workload.pacing, run.engine.config
    if run.engine.kind not in ("simulated", "reference"):
        raise _refusal(name, "a server shows no steps to calibrate on; it takes a run of cbbench's own engine")
    reasons = {
        "with `disaggregate` two schedulers work on a request, and the simulation has one": bool(
            config.get("disaggregate")
        ),
        "without `rate` or `concurrency` more requests are another load": not pacing.open_loop
        and pacing.concurrency is None,
        "a `rate` that changes has no long run": pacing.rate_schedule is not None,
        "the arrivals of a trace have no other seed": pacing.arrival == "trace",
        "turns wait for answers": pacing.think_ms is not None,
        "a run with `duration` ends before its plan does": pacing.duration_s is not None,
    }
    for reason, applies in reasons.items():
        if applies:
            raise _refusal(name, reason)


def _config(run: RunFile) -> SchedulerConfig:
    known: dict[str, Any] = {one.name: run.engine.config[one.name] for one in fields(SchedulerConfig)
                             if one.name in run.engine.config}  # fmt: skip
    return SchedulerConfig(**{**known, "prompt_buckets": tuple(known.get("prompt_buckets", ()))})


def _pacing(run: RunFile, plan: RequestPlan) -> Pacing:
    pacing = run.workload.pacing
    return Pacing(plan.arrivals_ugap, rate_per_s=pacing.rate_per_s, concurrency=pacing.concurrency)


def _plan(name: str, run: RunFile, count: int, seed: int) -> RequestPlan:
    """A plan of the run's workload. CbbenchError where it cannot be opened."""
    try:
        return opened_workload(WorkloadSettings(spec=run.workload.spec)).plan(
            num_requests=count,
            seed=seed,
            arrival=run.workload.pacing.arrival or "poisson",
            max_model_len=run.engine.config.get("max_model_len"),
        )
    except CbbenchError as error:
        raise _refusal(name, f"its plan cannot be built again from run.json: {error.message}") from None


def _front_end_ns(record: RunRecord) -> int:
    """From sending to the scheduler, of the request that got there fastest: what all of them took at least."""
    sent, submitted = record.column_ns("sent"), record.column_ns("submitted")
    took = (submitted - sent)[(sent != MISSING) & (submitted != MISSING)]
    return max(0, int(took.min())) if took.size else 0


def assist_all(runs: Iterable[StoredRun]) -> list[StoredRun]:
    return [assist(one) for one in runs]
