"""The stages of a rate that changes, each judged as a run is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from reports.gate import Sla
from reports.judge import Judge
from reports.schema import SlaResult
from reports.scope import Scope
from reports.summary_schema import StageGroup, StageVerdict

Believed = Callable[[SlaResult, Judge], SlaResult]  # what may be said of it; the judge is that of the stage


def judged_stages(
    stages: Mapping[str, StageGroup], judge: Judge, slas: Sequence[Sla], believed: Believed
) -> dict[str, StageGroup]:
    """The same stages with their goodput and the verdicts of the SLAs that a stage can meet or miss by itself."""
    return {name: _judged(one, judge.of(Scope("stage", one.key)), slas, believed) for name, one in stages.items()}


def _judged(stage: StageGroup, judge: Judge, slas: Sequence[Sla], believed: Believed) -> StageGroup:
    asked = [sla for sla in slas if _of_a_stage(sla, stage.key)]
    results = [believed(one, judge) for one in judge.results(asked, beside=slas)]
    told = tuple(StageVerdict(one.expr, one.value, one.verdict, one.reason) for one in results)
    return msgspec.structs.replace(stage, goodput=judge.goodput(slas), sla=told)


def _of_a_stage(sla: Sla, key: str) -> bool:
    """Not a least rate, which the stage's own rate may be below; nor ITL, whose gaps are pooled."""
    here = sla.scope is None or sla.scope == Scope("stage", key)
    return here and (sla.metric in ("attainment", "failure_rate") or sla.latency not in (None, "itl_ms"))


def first_beyond(stages: Mapping[str, StageGroup]) -> str | None:
    """The name of the first stage in which a bound is exceeded; None where it is in none."""
    return next((name for name, one in stages.items() if any(sla.verdict == "fail" for sla in one.sla)), None)
