"""`cbbench gate`: stored runs in, a verdict out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from cbbench.experiment.assist import assist_all
from reports.budgets import DEFAULTS, Budget, parse_budgets
from reports.checks import Check, CheckSummary, pooled_checks, sla_checks, summarize_checks
from reports.files import disk, json_bytes, write_whole
from reports.interop import read_any
from reports.mlperf import CONFIDENCE, WINDOW_S, expand, is_preset
from reports.regression import exact_checks, regression_checks
from reports.render.checks import checks_markdown, checks_view
from reports.render.ci import benchmark_json, junit, workflow_commands
from reports.scenarios import ComparedRuns, match_baselines, scenarios, setting_differences
from reports.sequential import confidence_of_look
from reports.sla import parse_all
from reports.stages import Stages
from reports.stored_runs import Judgement, StoredRun, read_stored
from workloads.errors import CbbenchError

RATE_NOISE = 0.01  # of the rate asked for: less is not worth a note
MACHINE = ("cpu", "cores", "platform")


@dataclass(frozen=True)
class Question:
    runs: tuple[Path, ...]
    sla: tuple[str, ...] = ()
    confidence: float | None = None
    baseline: tuple[Path, ...] = ()
    budget: tuple[str, ...] = ()
    allow_different: bool = False
    assist: bool = False


@dataclass(frozen=True)
class Outputs:
    junit: Path | None = None
    github: bool = False
    benchmark_json: Path | None = None
    json: bool = False


def judge(question: Question, outputs: Outputs) -> int:
    """The exit code."""
    judgement = judgement_of(question)
    runs = read_any(question.runs, judgement)
    refuse_missing_parts(runs, judgement)
    runs = at_their_looks(runs, judgement)
    if question.assist:  # each run by itself: the correction takes its own bursts out
        runs = assist_all(runs)
        checks = [check for one in runs for check in sla_checks(one.run, one.name)]
    else:
        checks = [check for several in by_setting(runs) for check in checks_of_setting(several)]
    notes = [note for one in runs for note in (*one.notes, *_arrivals(one))]
    if any(map(is_preset, question.sla)):
        notes += [note for one in runs for note in mlperf_notes(one)]
    if question.baseline:
        baselines = read_any(question.baseline)
        refuse_missing_parts_of_budgets([*runs, *baselines], budgets_for(question))
        comparison = compare(runs, baselines, question)
        checks += comparison.checks
        notes += comparison.notes
    elif question.budget or question.allow_different:
        field = "budget" if question.budget else "allow_different"
        raise CbbenchError(field, "belongs to a comparison: give `baseline`")
    if not checks:
        raise CbbenchError(None, "nothing to judge by: give `sla` or `baseline` (the runs have no SLA of their own)")
    result = summarize_checks(checks, notes)
    write(result, runs, outputs)
    return result.exit_code


def _arrivals(one: StoredRun) -> list[str]:
    """The rate that the plan realised, where it is another than asked: it may explain the numbers."""
    asked = one.run.workload.asked_per_s
    arrived = one.run.summary.throughput.arrivals_per_s if one.run.summary is not None else None
    if asked is None or arrived is None or abs(arrived / asked - 1) < RATE_NOISE:
        return []
    return [f"{one.name}: {arrived:.4g} requests/s arrived, as its plan realised the rate of {asked:.4g}"]


def at_their_looks(runs: Sequence[StoredRun], judgement: Judgement) -> list[StoredRun]:
    """Runs that went on until they were decided, judged at the confidence of their last round: tested at less, they
    would pass falsely more often than it says."""
    last = max((one.run.round or 0 for one in runs), default=0)
    if not last:
        return list(runs)
    return [
        one if one.run.round is None
        else read_stored(
            Path(one.name),
            replace(judgement, confidence=confidence_of_look(one.run.criteria.confidence, last)),
        )
        for one in runs
    ]  # fmt: skip


def by_setting(runs: Sequence[StoredRun]) -> list[list[StoredRun]]:
    """The runs of each setting: the same engine, load and criteria; seeds and numbers of requests may differ."""
    groups: dict[bytes, list[StoredRun]] = {}
    for one in runs:
        run = one.run
        setting = (run.engine, run.workload.spec, run.workload.pacing, run.criteria)
        groups.setdefault(json_bytes(setting), []).append(one)
    return list(groups.values())


def checks_of_setting(runs: Sequence[StoredRun]) -> list[Check]:
    """Pooled, or run by run where that is not possible."""
    pooled = pooled_checks([(one.name, one.run) for one in runs])
    return [check for one in runs for check in sla_checks(one.run, one.name)] if pooled is None else pooled


class Comparison(NamedTuple):
    checks: list[Check]
    notes: list[str]


def compare(runs: Sequence[StoredRun], baselines: Sequence[StoredRun], question: Question) -> Comparison:
    """Against the baseline: exactly where both are simulated, else by intervals."""
    runs, baselines, notes = common_rounds(runs, baselines)
    pairs = match_baselines(runs, baselines)
    for pair in pairs:
        if pair.differences and not question.allow_different:
            raise CbbenchError(
                None,
                f"{pair.candidate.name} did not do the work of {pair.baseline.name}: {pair.differences} "
                "(`allow_different` compares them all the same)",
            )
    groups = scenarios(pairs)
    exact = [one for one in groups if one.pairs[0].simulated and not one.differences]
    measured = [one for one in groups if one not in exact]
    criteria = runs[0].run.criteria
    confidence = question.confidence or criteria.confidence
    checks = [
        check
        for one in exact
        for check in exact_checks(one, budgets_for(question, exact=True), strict=not question.budget)
    ]
    checks += regression_checks(measured, budgets_for(question), confidence, criteria.max_failure_rate)
    return Comparison(checks, [*notes, *(note for pair in pairs for note in pair_notes(pair))])


def common_rounds(
    runs: Sequence[StoredRun], baselines: Sequence[StoredRun]
) -> tuple[Sequence[StoredRun], Sequence[StoredRun], list[str]]:
    """Of runs that went on until they were decided, one of them longer: the rounds that both have, the common start of
    what was asked; with a note. Other runs as they are."""
    if any(one.run.round is None for one in (*runs, *baselines)):
        return runs, baselines, []
    asked = [{one.run.workload.sha256 for one in side} for side in (runs, baselines)]
    common = asked[0] & asked[1]
    if not common or len(common) == len(asked[0] | asked[1]):
        return runs, baselines, []
    ours, theirs = ([one for one in side if one.run.workload.sha256 in common] for side in (runs, baselines))
    note = f"compared on the {len(common)} rounds that both have, of {len(asked[0])} and {len(asked[1])}"
    return ours, theirs, [note]


def budgets_for(question: Question, *, exact: bool = False) -> tuple[Budget, ...]:
    """What was asked, else the defaults; nothing at all may get worse where there is no noise."""
    budgets = parse_budgets(question.budget or DEFAULTS)
    return tuple(replace(one, share=0.0) for one in budgets) if exact and not question.budget else budgets


def pair_notes(pair: ComparedRuns) -> list[str]:
    """What else was different. Wall times of two machines are two things; a simulated clock is the same everywhere."""
    before, after = pair.baseline.run, pair.candidate.run
    notes = [f"{pair.candidate.name} did other work than its baseline: {pair.differences}"] if pair.differences else []
    ours, theirs = ({name: run.environment.get(name) for name in MACHINE} for run in (before, after))
    if not pair.simulated and (found := setting_differences(ours, theirs)):
        notes.append(f"{pair.candidate.name} ran on another machine than its baseline: {'; '.join(found)}")
    if found := setting_differences(before.engine.settings, after.engine.settings):
        notes.append(f"{pair.candidate.name} had other settings than its baseline: {'; '.join(found)}")
    return notes


def judgement_of(question: Question) -> Judgement:
    if question.confidence is not None and not 0 < question.confidence < 1:
        raise CbbenchError("confidence", f"must be a number between 0 and 1, got {question.confidence:g}")
    sla = parse_all(expand(question.sla))
    mlperf = CONFIDENCE if any(map(is_preset, question.sla)) else None
    return Judgement(sla or None, question.confidence or mlperf)


def refuse_missing_parts(runs: Sequence[StoredRun], judgement: Judgement) -> None:
    """CbbenchError for an SLA on a part of the load (a tenant, a stage) that a run does not have. Interrupted runs and
    files without single requests are not checked."""
    for one in runs:
        if one.record is None or one.run.interrupted:
            continue
        stages = Stages.of(one.run.workload.pacing.rate_schedule)
        for sla in judgement.sla or ():
            if sla.scope is not None and (missing := sla.scope.missing_in(one.record, stages)) is not None:
                raise CbbenchError("sla", f'"{sla.expr}": {one.name}: {missing}')


def refuse_missing_parts_of_budgets(runs: Sequence[StoredRun], budgets: Sequence[Budget]) -> None:
    """As `refuse_missing_parts`, for budgets."""
    for one in runs:
        if one.record is None or one.run.interrupted:
            continue
        stages = Stages.of(one.run.workload.pacing.rate_schedule)
        for budget in budgets:
            if budget.scope is not None and (missing := budget.scope.missing_in(one.record, stages)) is not None:
                raise CbbenchError("budget", f'"{budget.name}": {one.name}: {missing}')


def mlperf_notes(one: StoredRun) -> list[str]:
    """What a run lacks to be what MLPerf measures; its bounds can be checked all the same."""
    lacks = []
    pacing, summary = one.run.workload.pacing, one.run.summary
    if pacing.arrival != "poisson":
        lacks.append("Poisson arrivals (a rate)")
    if summary is not None and summary.throughput.window_s < WINDOW_S:
        lacks.append(f"{WINDOW_S:.0f} s (it took {summary.throughput.window_s:.0f} s)")
    return [f"{one.name}: MLPerf wants {' and '.join(lacks)}"] if lacks else []


def write(result: CheckSummary, runs: Sequence[StoredRun], outputs: Outputs) -> None:
    """Every form that was asked for. Files come first: stdout may be a closed pipe."""
    if outputs.junit is not None:
        _save(outputs.junit, junit(result))
    if outputs.benchmark_json is not None:
        _save(outputs.benchmark_json, json_bytes(benchmark_json(runs)))
    if outputs.github:
        _tell_github(result)
    if outputs.json:
        sys.stdout.write(json_bytes(result).decode())
    else:
        Console().print(checks_view(result))


def refuse_unwritable(outputs: Outputs) -> None:
    """Before what takes long: a place where `write` could not put its file. CbbenchError."""
    for name, path in (("junit", outputs.junit), ("benchmark_json", outputs.benchmark_json)):
        if path is not None:
            if path.is_dir():
                raise CbbenchError(None, f"{name}: {path} is a folder; name a file")
            with disk(path):
                path.parent.mkdir(parents=True, exist_ok=True)


def _tell_github(result: CheckSummary) -> None:
    """Commands go to stderr, which GitHub reads as well: stdout may carry JSON."""
    for line in workflow_commands(result):
        print(line, file=sys.stderr)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with disk(Path(summary)), open(summary, "a", encoding="utf-8") as file:
            file.write(checks_markdown(result))
    else:
        print("note: no step summary for GitHub, as GITHUB_STEP_SUMMARY is not set", file=sys.stderr)


def _save(path: Path, data: bytes) -> None:
    with disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)
