"""tune.json: what was tried, why, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from reports.files import read_json, write_atomic
from reports.sweep_schema import Value
from reports.tuning.search import Decision
from reports.tuning.server_flags import sglang_flags, toml_of, vllm_flags
from reports.tuning.trials import Trial, misses, over

TUNE_SCHEMA: Final = "cbbench.tune/1"
TUNE = "tune.json"
Purpose = Literal["explore", "prove", "prove-again", "confirm"]
NOT_OF_A_RUN = ("output", "json", "timeline")  # where and how it is shown


class Headroom(msgspec.Struct, frozen=True):
    """Settings alike at the load that was asked for, at `factor` times it; the chosen one is the last that was run."""

    factor: float
    trials: tuple[Trial, ...]

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(_held_or_not(self.factor, one) for one in self.trials)


def _held_or_not(factor: float, trial: Trial) -> str:
    load = f"At {factor:g} times the rate, {trial.setting.label()}"
    if trial.point.error is not None:
        return f"{load} did not run: {trial.point.error}."
    if trial.meets:
        return f"{load} meets the SLA too."
    if not trial.valid:
        return f"{load} is overloaded."
    return f"{load} misses it: {', '.join(map(over, misses(trial)))}."


class Stage(msgspec.Struct, frozen=True):
    """A part of the search: runs of one engine with one plan. `ended` says why there was no next run."""

    purpose: Purpose
    num_requests: int
    engine: str  # reference | simulated
    prediction: str | None  # where simulated step times come from; None where they were measured
    trials: tuple[Trial, ...]
    decisions: tuple[Decision, ...]
    best: Trial
    advice: tuple[str, ...]
    ended: str
    headroom: Headroom | None = None  # None: not looked for


class TuneFile(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal["cbbench.tune/1"] = TUNE_SCHEMA
    workload: str
    workload_sha256: str
    sla: tuple[str, ...]
    stages: tuple[Stage, ...]
    note: str | None = None  # what the load does not show
    settings: dict[str, Value]  # the outcome, by field name
    toml: str
    vllm: str
    vllm_lacks: tuple[str, ...]
    sglang: str
    sglang_lacks: tuple[str, ...]

    @property
    def best(self) -> Trial:
        return self.stages[-1].best

    @property
    def confirmed(self) -> bool:
        """Whether the outcome was measured and not predicted."""
        return self.stages[-1].prediction is None


def outcome(stages: tuple[Stage, ...], *, given: Mapping[str, Any], sha256: str, note: str | None) -> TuneFile:
    """given: every setting that was set, by field name; with the outcome they describe a whole run."""
    best = stages[-1].best
    chosen: dict[str, Value | None] = {
        "max_num_seqs": best.setting.max_num_seqs,
        "max_num_batched_tokens": best.setting.max_num_batched_tokens,
        "admission": best.setting.admission,
        "prompt_buckets": best.setting.prompt_buckets,
        "max_prompt_chunk": best.setting.max_prompt_chunk,
        "order": best.setting.order,
        "ageing": best.setting.ageing,
    }
    settings = {name: value for name, value in chosen.items() if value is not None}
    sla = tuple(given["sla"])
    how = stages[-1].prediction or f"measured on the {stages[-1].engine} engine"
    verdict = {
        "proven": "meets",
        "unproven": "meets, with too few requests to prove it,",
        "missed": "misses",
        "untold": "is inconclusive about",
    }[best.verdict]
    within = " within it" if best.unmeasured is None else ""
    comment = f"cbbench tune: {verdict} {', '.join(sla)}; {best.goodput_per_s:,.4g} requests/s{within}\n{how}"
    whole = {name: value for name, value in given.items() if name not in NOT_OF_A_RUN} | settings
    (vllm, vllm_lacks), (sglang, sglang_lacks) = vllm_flags(settings), sglang_flags(settings)
    return TuneFile(
        workload=str(given.get("workload") or given.get("tenants") or ""),
        workload_sha256=sha256,
        sla=sla,
        stages=stages,
        note=note,
        settings=settings,
        toml=toml_of(whole, comment),
        vllm=vllm,
        vllm_lacks=tuple(vllm_lacks),
        sglang=sglang,
        sglang_lacks=tuple(sglang_lacks),
    )


def write_tune(folder: Path, result: TuneFile) -> None:
    write_atomic(folder / TUNE, result)


def read_tune(folder: Path) -> TuneFile:
    """tune.json, typed. CbbenchError if it is missing, broken or of another schema."""
    return read_json(folder / TUNE, TuneFile, TUNE_SCHEMA)
