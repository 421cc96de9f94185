"""Checks: one verdict per metric and scenario, from an SLA or from a comparison, and what they sum up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from reports.pooled import pooled_result
from reports.schema import RunFile, SlaResult
from reports.sla import RATES, exit_code, failed_and_open, latency_of
from workloads.errors import ExitCode

CHECKS_SCHEMA: Final = "cbbench.gate/1"

CheckKind = Literal["validity", "sla", "regression", "machine"]
CheckVerdict = Literal["pass", "warn", "fail", "inconclusive"]


class Check(msgspec.Struct, frozen=True):
    scenario: str  # the run, or the workload of a comparison
    metric: str
    kind: CheckKind
    verdict: CheckVerdict
    limit: str  # as people read it: "<= 500", "at most +3 %"
    reason: str
    value: float | None = None  # in the metric's own unit
    baseline: float | None = None
    change: float | None = None  # 0.03: 3 % above the baseline
    interval: tuple[float, float] | None = None  # of the change
    context: tuple[str, ...] = ()  # facts behind the reason, which checks may share
    method: Literal["model-assisted"] | None = None  # None: from the run's own data alone; else part of `metric` too

    @property
    def told(self) -> str:
        """The reason with its context, for a check that is shown alone."""
        return f"{self.reason} ({'; '.join(self.context)})" if self.context else self.reason


class CheckSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All checks with their verdict and exit code: the JSON that `cbbench gate` prints."""

    schema: Literal["cbbench.gate/1"] = CHECKS_SCHEMA
    verdict: CheckVerdict
    exit_code: int
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()


def failed_and_open_checks(result: CheckSummary) -> str | None:
    """Which checks failed and which are inconclusive, where there are both; with scenarios where there are several."""
    several = len({one.scenario for one in result.checks}) > 1
    judged = [(one, f"{one.metric} {one.limit}") for one in result.checks]
    return failed_and_open((f"{name} ({one.scenario})" if several else name, one.verdict) for one, name in judged)


def summarize_checks(checks: Iterable[Check], notes: Iterable[str] = ()) -> CheckSummary:
    """The verdict and the exit code of all checks. Without any check it is inconclusive: missing is not passing."""
    checks = tuple(checks)
    code = code_of(checks)
    words: dict[ExitCode, CheckVerdict] = {ExitCode.OK: "pass", ExitCode.INCONCLUSIVE: "inconclusive"}
    verdict = words.get(code, "fail")
    if verdict == "pass" and any(one.verdict == "warn" for one in checks):
        verdict = "warn"
    return CheckSummary(verdict=verdict, exit_code=code, checks=checks, notes=tuple(dict.fromkeys(notes)))


def code_of(checks: tuple[Check, ...]) -> ExitCode:
    """DESIGN §8: 7 invalid load, 3 SLA failed, 4 regression, 5 inconclusive, 0."""
    failed = {one.kind for one in checks if one.verdict == "fail"}
    inconclusive = not checks or any(one.verdict == "inconclusive" for one in checks)
    return exit_code(
        validity="invalid" if "validity" in failed else "ok",
        sla=[*(["inconclusive"] if inconclusive else []), *(["fail"] if "sla" in failed else [])],  # type: ignore[list-item]
        regression="regression" in failed,
    )


def sla_checks(run: RunFile, scenario: str) -> list[Check]:
    """The SLA verdicts of a finished run, as far as its validity supports them."""
    if run.validity is not None and run.validity.verdict == "invalid":
        reason = "; ".join(run.validity.reasons)
        return [Check(scenario, "validity", "validity", "fail", "a load that succeeds", reason)]
    return [_sla_check(run, scenario, one) for one in run.sla]


def pooled_checks(runs: Sequence[tuple[str, RunFile]]) -> list[Check] | None:
    """The SLA verdicts of several runs of one setting, by name, each judged on the requests of all. None where they
    cannot be pooled: another plan is not behind each, or one is not valid or complete."""
    files = [run for _, run in runs]
    plans = {run.workload.sha256 for run in files}
    valid = all(run.validity is not None and run.validity.verdict == "ok" and not run.interrupted for run in files)
    if len(files) < 2 or len(plans) < len(files) or not valid:
        return None
    pooled = [pooled_result(results) for results in zip(*(run.sla for run in files), strict=True)]
    known = [one for one in pooled if one is not None]
    if len(known) < len(pooled):
        return None
    name = f"{runs[0][0]} and {len(runs) - 1} more of its setting"
    return [_sla_check(files[0], name, one) for one in known]


def _sla_check(run: RunFile, scenario: str, one: SlaResult) -> Check:
    verdict, reason, value = one.verdict, one.reason, one.value
    context: tuple[str, ...] = ()
    if (doubt := _doubt(run, one)) is not None:
        verdict = "inconclusive"
        reason = doubt if one.verdict == verdict else f"{doubt} (without that: {one.verdict}, {one.reason})"
        context = (one.reason,) if one.verdict == verdict else ()
    if _overloaded(run) and latency_of(one.metric) and one.scope is None:  # a part is judged by its own queue
        value = None  # it depends on the length of the run
        context = (f"overloaded: {_reasons(run)}",)
    sign = ">=" if one.metric in (*RATES, "attainment") else "<="
    name = one.name if one.method is None else f"{one.name} ({one.method})"  # so that no output can leave it out
    limit = f"{sign} {one.bound:g}"
    return Check(scenario, name, "sla", verdict, limit, reason, value, method=one.method, context=context)


def _doubt(run: RunFile, one: SlaResult) -> str | None:
    """Why this verdict is not valid. A failed SLA stays failed, unless the client was too slow."""
    if run.validity is not None and run.validity.verdict == "client_limited":
        return f"client limited: {_reasons(run)}"
    if one.verdict != "pass":
        return None
    if run.interrupted:
        return "the run was interrupted"
    return None


def _overloaded(run: RunFile) -> bool:
    return run.validity is not None and run.validity.verdict == "overloaded"


def _reasons(run: RunFile) -> str:
    return "; ".join(run.validity.reasons) if run.validity else ""
