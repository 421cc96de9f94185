"""What a run and the points of a sweep share: the kind of engine, loaded once, and the engines and plans it makes."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace

from cbbench.experiment.engine_factories import factory_for
from cbbench.settings.run import RunSettings
from cbbench.settings.workload_cache import opened_workload
from engines.base import Engine
from reports.schema import Criteria, EngineInfo, PacingInfo, PromptsInfo, WorkloadInfo
from reports.stages import Stages
from workloads.arrivals import at_mean_gap, requests_to_fill
from workloads.errors import CbbenchError
from workloads.length_distributions import parse_distribution
from workloads.plan import UGAP, RequestPlan, realised
from workloads.prompt_texts import PromptTexts, PromptTokens
from workloads.rates import NS, RateSchedule, requests_expected
from workloads.spec import Workload
from workloads.tenant_plan import build_tenant_plan
from workloads.turns import Turns

KEPT_REQUESTS = 1_000_000  # of plans in memory, some 100 bytes each


class Bench:
    """What is loaded once (a model, step times, a server's name) is that of `base`; the rest is each run's."""

    def __init__(self, base: RunSettings, *, many_runs: bool = False) -> None:
        """many_runs: of short runs too, so that what takes time to load is worth it."""
        self.factory = factory_for(base, many_runs=many_runs)
        self._told: set[str] = set()  # notes that stderr has had
        self._plans: dict[object, RequestPlan] = {}
        self._tokens: dict[Workload, PromptTokens | None] = {}  # of the prompts of a file

    def tell(self, notes: Sequence[str]) -> None:
        """On stderr, each note once."""
        for note in notes:
            if note not in self._told:
                print(f"note: {note}", file=sys.stderr)
        self._told.update(notes)

    def plan(self, settings: RunSettings) -> RequestPlan:
        """The requests of a run with these settings. CbbenchError for an SLA on a part of them that is not there."""
        plan = self._plan(settings)
        rate = rate_per_s(settings, plan)
        if settings.load.rate is not None and len(plan) > 1 and not plan.arrivals_ugap[-1]:
            raise CbbenchError(
                "rate", f"all {len(plan):,} rows arrive at the same time, so no rate spreads them; omit it"
            )
        stages = Stages(rate) if isinstance(rate, RateSchedule) else None
        for sla in settings.slo.sla:
            if sla.scope is not None and (missing := sla.scope.missing_in_plan(plan, stages)) is not None:
                raise CbbenchError("sla", f'"{sla.expr}": {missing}')
        return plan

    def _plan(self, settings: RunSettings) -> RequestPlan:
        """Built once for all runs with the same requests; of many large plans the last ones are kept."""
        context_tokens = self.factory.context_tokens(settings)
        workload = opened_workload(settings.workload) if settings.workload.tenants is None else None
        key = (str(settings.plan_identity()), context_tokens, workload)
        plan = self._plans.pop(key, None)
        if plan is None:
            plan = self._build(settings, workload, context_tokens)
            if settings.load.span == "fixed":
                plan = replace(plan, arrivals_ugap=at_mean_gap(plan.arrivals_ugap))
            if settings.load.think_ms is not None:
                plan = replace(plan, turns=_turns(plan, settings.load.think_ms, settings.workload.seed))
        self._plans[key] = plan
        while len(self._plans) > 1 and sum(map(len, self._plans.values())) > KEPT_REQUESTS:
            self._plans.pop(next(iter(self._plans)))
        return plan

    def _build(self, settings: RunSettings, workload: Workload | None, context_tokens: int) -> RequestPlan:
        chosen, arrival = settings.workload, settings.load.arrival or "poisson"
        if workload is None:
            assert chosen.tenants is not None
            return build_tenant_plan(
                chosen.tenants,
                workload=chosen.spec,
                num_requests=chosen.num_requests,
                seed=chosen.seed,
                arrival=arrival,
                max_model_len=context_tokens,
                misfit=chosen.misfit,
            )
        if workload.prompts is not None and workload not in self._tokens:
            self._tokens[workload] = workload.tokenised(self.factory.encode())
        return workload.plan(
            num_requests=chosen.num_requests,
            seed=chosen.seed,
            arrival=arrival,
            max_model_len=context_tokens,
            misfit=chosen.misfit,
            tokens=self._tokens.get(workload),
        )

    def engine(self, settings: RunSettings, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        """An engine with these settings, and its entry in run.json."""
        for field in ("quota", "tenant_weight"):
            if strangers := {one.tenant for one in settings.get(field)} - set(plan.tenants):
                known = ", ".join(plan.tenants)
                raise CbbenchError(field, f"{min(strangers)}: no such tenant; the workload has {known}")
        return self.factory.engine(settings, plan)


def _turns(plan: RequestPlan, think_ms: str, seed: int) -> Turns:
    """Raises CbbenchError."""
    if not (plan.session >= 0).any():
        raise CbbenchError(
            "think_ms", "the workload has no sessions: give a tenant some (sessions=N), or a log of some"
        )
    try:
        return Turns.of(plan.session, parse_distribution(think_ms), seed)
    except CbbenchError as error:
        raise CbbenchError("think_ms", error.message) from None


def notes_of(settings: RunSettings, plan: RequestPlan) -> tuple[str, ...]:
    """What a reader of the result must know of the plan: rows used again, arrival times not used, and so on."""
    told = [str(note) for note in plan.notes]
    if (rate := rate_per_s(settings, plan)) is not None:
        if isinstance(rate, RateSchedule):
            told += _stages_not_reached(rate, plan, settings.load.duration)
        if settings.load.duration is not None:
            told += _over_before(settings.load.duration, rate, plan, settings.load.arrival or "poisson")
    if plan.texts is not None and settings.server.url is not None and settings.server.launch is None:
        told.append(
            f"{plan.texts.file.path} has the same text in every run: what the server's prefix cache kept of one, it "
            "need not compute in the next"
        )
    if plan.texts is not None and settings.server.url is None and settings.server.launch is None:
        told += _unused_fields(plan.texts)
    return tuple(told)


def _unused_fields(texts: PromptTexts) -> list[str]:
    if not (counts := texts.file.field_counts()):
        return []
    names = ", ".join(f"{name} ({count:,})" for name, count in counts.items())
    return [f"{texts.file.path}: fields that this engine does not use, with the number of their lines: {names}"]


def _stages_not_reached(rate: RateSchedule, plan: RequestPlan, duration_s: float | None) -> list[str]:
    """A note where requests or duration end before the stages that were written do."""
    last_s = int(rate.due_ns(plan.arrivals_ugap[-1:])[0]) / NS
    begins_s = float(rate.starts_s[len(rate.given) - 1])
    if min(last_s, duration_s or last_s) >= begins_s:
        return []
    needed = rate.requests or math.ceil(rate.expected(begins_s)) + 1
    enough = f"it takes about {needed:.0f} requests" if last_s < begins_s else "a longer duration reaches it"
    return [f"the last stage of the rate, {rate.given[-1]}, begins at {begins_s:g} s, after the last request: {enough}"]


def _over_before(duration_s: float, rate: float | RateSchedule, plan: RequestPlan, arrival: str) -> list[str]:
    """A note where the plan runs out by more than a mean gap before the duration does."""
    gaps = requests_expected(rate, duration_s)
    last = int(plan.arrivals_ugap[-1]) / UGAP
    if last + 1 >= gaps - 1e-6:
        return []
    last_s = rate.time_s(last) if isinstance(rate, RateSchedule) else last / rate
    return [
        f"the last of the {len(plan):,} requests is due at {last_s:.3g} s, before the duration of {duration_s:g} s "
        f"is over: it takes about {requests_to_fill(gaps, arrival)} requests"
    ]


def rate_per_s(settings: RunSettings, plan: RequestPlan) -> float | RateSchedule | None:
    """The rate asked for, or a trace's own; None where requests follow no schedule."""
    if settings.load.rate is None and settings.load.arrival == "trace":
        own = plan.trace_rate_per_s
        return None if own is None else own * (settings.load.speed or 1)
    return settings.load.rate


def describe_workload(settings: RunSettings, plan: RequestPlan) -> WorkloadInfo:
    rate, stages = rate_per_s(settings, plan), None
    if isinstance(rate, RateSchedule):
        rate, stages = rate.mean_per_s(len(plan)), str(rate)
    return WorkloadInfo(
        spec=plan.spec,
        seed=plan.seed,
        sha256=plan.sha256,
        num_requests=len(plan),
        prompt_seed=settings.workload.prompt_seed,
        realised=realised(plan),
        prompts=_prompts(plan),
        pacing=PacingInfo(
            rate_per_s=rate,
            rate_schedule=stages,
            concurrency=settings.load.concurrency,
            duration_s=settings.load.duration,
            drain_s=settings.load.drain,
            arrival=settings.load.arrival or (None if settings.load.rate is None else "poisson"),
            think_ms=settings.load.think_ms,
        ),
    )


def _prompts(plan: RequestPlan) -> PromptsInfo | None:
    texts = plan.texts
    if texts is None:
        return None
    return PromptsInfo(texts.file.path, texts.sha256, texts.num_prompts, texts.counted_by)


def criteria_of(settings: RunSettings) -> Criteria:
    return Criteria(tuple(one.expr for one in settings.slo.sla), settings.slo.confidence, settings.slo.max_failure_rate)
