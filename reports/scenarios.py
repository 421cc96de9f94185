"""Which runs are compared with which: a baseline and a candidate of one workload, grouped into scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from reports.schema import RunFile, WorkloadInfo
from reports.stored_runs import StoredRun
from workloads.errors import CbbenchError

UNSAID = "another tool's file does not identify the requests that it sent"


@dataclass(frozen=True, eq=False)
class ComparedRuns:
    baseline: StoredRun
    candidate: StoredRun

    @cached_property
    def differences(self) -> str:
        """How the workloads differ; empty when both had the same requests at the same times."""
        return "; ".join(work_differences(self.baseline.run, self.candidate.run))

    @property
    def unsaid(self) -> bool:
        """No difference is known, but a file of another tool does not identify its workload."""
        return self.differences == UNSAID

    @property
    def simulated(self) -> bool:
        return {self.baseline.run.engine.kind, self.candidate.run.engine.kind} == {"simulated"}


@dataclass(frozen=True, eq=False)
class Scenario:
    """One workload under one setting, measured in one pair of runs or more."""

    name: str
    pairs: tuple[ComparedRuns, ...]

    @property
    def open_loop(self) -> bool:
        """Whether latencies count from the scheduled time: in open loop, unless a file has no single requests."""
        runs = [run for one in self.pairs for run in (one.baseline, one.candidate)]
        return any(one.run.workload.pacing.open_loop for one in runs) and all(one.record is not None for one in runs)

    @property
    def differences(self) -> str:
        return next((one.differences for one in self.pairs if one.differences), "")


def match_baselines(runs: Sequence[StoredRun], baselines: Sequence[StoredRun]) -> list[ComparedRuns]:
    """A baseline for each run, in order, or one for all. CbbenchError on `baseline` for other numbers."""
    if len(baselines) == 1:
        return [ComparedRuns(baselines[0], one) for one in runs]
    if len(runs) != len(baselines):
        raise CbbenchError(
            "baseline", f"{len(runs)} runs and {len(baselines)} baselines: give a baseline for each run, or one for all"
        )
    return [ComparedRuns(*both) for both in zip(baselines, runs, strict=True)]


def scenarios(pairs: Sequence[ComparedRuns]) -> list[Scenario]:
    """Pairs that differ in their seeds alone are repetitions of one scenario. Where they share a baseline, or are
    simulated and so without noise, each is a scenario of its own."""
    shared = len({one.baseline.name for one in pairs}) < len(pairs)
    groups: dict[bytes, list[ComparedRuns]] = {}
    alone: list[Scenario] = []
    for one in pairs:
        if shared or one.simulated:
            alone.append(Scenario(one.candidate.name, (one,)))
        else:
            groups.setdefault(_key(one), []).append(one)
    return alone + [Scenario(_name(group[0].candidate.run), tuple(group)) for group in groups.values()]


def work_differences(before: RunFile, after: RunFile) -> list[str]:
    """Differences of the plans, by hash, and of the pacings."""
    ours, theirs = before.workload, after.workload
    found = []
    if not ours.sha256 or not theirs.sha256:
        found.append(UNSAID)
    elif ours.sha256 != theirs.sha256:
        found.append(f"workload {_work(ours)} → {_work(theirs)}")
    pacings = msgspec.structs.asdict(ours.pacing), msgspec.structs.asdict(theirs.pacing)
    return found + setting_differences(*pacings)


def _work(workload: WorkloadInfo) -> str:
    requests = f"{workload.num_requests:,} requests"
    return f"{workload.spec}, {requests}, seed {workload.seed} ({workload.sha256[:8]})"


def setting_differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """NAME OLD → NEW for every setting that is not the same on both sides."""
    names = [*before, *(name for name in after if name not in before)]
    both = [(one, before.get(one), after.get(one)) for one in names]
    return [f"{name} {' → '.join(_shown(ours, theirs))}" for name, ours, theirs in both if ours != theirs]


def _shown(*values: Any) -> list[str]:
    """Each value as text: none, and four digits of a fraction, or all digits where four are equal."""
    plain = ["none" if one is None else str(one) for one in values]
    short = [f"{one:.4g}" if isinstance(one, float) else text for one, text in zip(values, plain, strict=True)]
    return short if len(set(short)) == len(short) else plain


def _key(pair: ComparedRuns) -> bytes:
    """Equal for repetitions: everything but the seeds."""
    run = pair.baseline.run
    engines = [
        (one.run.engine.kind, one.run.engine.mode, one.run.engine.settings) for one in (pair.baseline, pair.candidate)
    ]
    return msgspec.json.encode([run.workload.spec, run.workload.num_requests, run.workload.pacing, engines])


def _name(run: RunFile) -> str:
    pacing = run.workload.pacing
    words = [run.engine.name, run.engine.mode, run.workload.spec]
    words.append(f"{pacing.rate_per_s:g}/s" if pacing.rate_per_s is not None else None)
    words.append(f"{pacing.concurrency} at once" if pacing.concurrency is not None else None)
    return " · ".join(word for word in words if word)
