"""`cbbench run` until every SLA is decided: rounds with other seeds, pooled, by a sequential test."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from cbbench.experiment.bench import Bench
from cbbench.experiment.benches import server_for
from cbbench.experiment.run import default_folder, measure
from cbbench.settings.run import RunSettings
from reports.checks import Check, CheckSummary, pooled_checks, sla_checks, summarize_checks
from reports.files import json_bytes, write_whole
from reports.render.checks import checks_view
from reports.schema import RunFile
from reports.sequential import confidence_of_look
from reports.stored_runs import Judgement, StoredRun, read_stored
from workloads.errors import CbbenchError, ExitCode

VERDICT = "until_decided.json"
FIRST_ROUND = 1000  # requests; every later round is as long as all before it
LEAST_ROUND = 100  # shorter ones, at a limit, would say little
MOST_REQUESTS = 20_000


@dataclass(frozen=True)
class Limits:
    max_requests: int = MOST_REQUESTS
    max_duration_s: float | None = None  # of all rounds, by their own clock


@dataclass
class Rounds:
    """The rounds so far, and what they decided."""

    settings: RunSettings
    limits: Limits
    folder: Path
    folders: list[Path] = field(default_factory=list)
    last: RunFile | None = None
    requests: int = 0
    lasted_s: float = 0.0
    decided: dict[str, Check] = field(default_factory=dict)  # by SLA: a verdict that was found stays
    open: dict[str, Check] = field(default_factory=dict)
    why_stopped: str = ""

    @property
    def number(self) -> int:
        return len(self.folders)

    def next_size(self) -> int | None:
        """Requests of the next round; None where there is none, and why."""
        if self.last is not None and (ended := self._ended()) is not None:
            self.why_stopped = ended
            return None
        size = min(max(FIRST_ROUND, self.requests), self.limits.max_requests - self.requests)
        if self.limits.max_duration_s is not None:
            size = min(size, self._in_time(self.limits.max_duration_s - self.lasted_s))
        if size < LEAST_ROUND and self.requests:
            self.why_stopped = "a limit was reached"
            return None
        return max(1, size)

    def _ended(self) -> str | None:
        assert self.last is not None
        if self.last.interrupted:
            return "interrupted"
        if self.last.validity is None or self.last.validity.verdict != "ok":
            return "a round was not valid, and more of them change nothing"
        return None if self.open else "every SLA is decided"

    def _in_time(self, left_s: float) -> int:
        """Requests that fit into the time, at the rate asked for or at the one of the rounds so far."""
        rate = self.settings.load.rate
        per_s = float(rate) if isinstance(rate, int | float) else None
        if per_s is None and self.lasted_s:
            per_s = self.requests / self.lasted_s
        return FIRST_ROUND if per_s is None else int(max(0.0, left_s) * per_s)

    def take(self, result: RunFile, folder: Path) -> None:
        self.folders.append(folder)
        self.last = result
        self.requests += result.workload.num_requests
        self.lasted_s += result.summary.throughput.window_s if result.summary is not None else 0.0
        confidence = confidence_of_look(self.settings.slo.confidence, self.number)
        judged = checks_of([read_stored(one, Judgement(None, confidence)) for one in self.folders])
        new = {f"{one.metric} {one.limit}": one for one in judged}
        self.decided |= {name: one for name, one in new.items()
                         if one.verdict in ("pass", "fail") and name not in self.decided}  # fmt: skip
        self.open = {name: one for name, one in new.items() if name not in self.decided}

    def summary(self) -> CheckSummary:
        confidence = self.settings.slo.confidence
        rounds = "1 round" if self.number == 1 else f"{self.number} rounds"
        notes = [
            f"{rounds}, {self.requests:,} requests: {self.why_stopped}",
            f"each round tests at more than {confidence:.0%}, the last one at "
            f"{confidence_of_look(confidence, self.number):.2%}, so that all of them together hold {confidence:.0%}",
        ]
        return summarize_checks([*self.decided.values(), *self.open.values()], notes)


def checks_of(runs: Sequence[StoredRun]) -> list[Check]:
    """Pooled. Of the last round alone where they cannot be: it is the one that is not valid."""
    pooled = pooled_checks([(one.name, one.run) for one in runs])
    return sla_checks(runs[-1].run, runs[-1].name) if pooled is None else pooled


def run_until_decided(settings: RunSettings, limits: Limits) -> int:
    """The exit code, which is that of a gate. FOLDER/1, FOLDER/2, … are the rounds, each a run."""
    refuse(settings)
    name = f"{settings.scheduler.mode}-{settings.workload.spec}"
    folder = Path(settings.output.folder) if settings.output.folder else default_folder(name)
    if folder.exists() and any(folder.iterdir()):
        raise CbbenchError("output", f"{folder} is not empty; choose a new folder")
    rounds = Rounds(settings, limits, folder)
    with server_for(settings, {}, folder.with_name(f"{folder.name}.server.log")) as served:
        bench = Bench(served)
        while (size := rounds.next_size()) is not None:
            one = served.replaced(num_requests=size, seed=settings.workload.seed + rounds.number)
            place = folder / str(rounds.number + 1)
            title = f"round {rounds.number + 1} · {settings.workload.spec}"
            rounds.take(measure(bench, one, place, title, rounds.number + 1), place)
            decided, all_slas = len(rounds.decided), len(rounds.decided) + len(rounds.open)
            print(f"round {rounds.number}: {size:,} requests, {decided} of {all_slas} decided", file=sys.stderr)
    summary = rounds.summary()
    write_whole(folder / VERDICT, json_bytes(summary))
    if settings.output.json:
        sys.stdout.write(json_bytes(summary).decode())
    else:
        Console().print(checks_view(summary))
    print(f"results in {folder}", file=sys.stderr)
    interrupted = rounds.last is not None and rounds.last.interrupted
    return ExitCode.INTERRUPTED if interrupted else summary.exit_code


def refuse(settings: RunSettings) -> None:
    if not settings.slo.sla:
        raise CbbenchError("until_decided", "needs `sla`: without a bound there is nothing to decide")
    if settings.load.duration is not None:
        raise CbbenchError("until_decided", "goes on until it is decided, so `duration` cannot end it: `max_duration`")
    if settings.load.arrival == "trace":
        raise CbbenchError("until_decided", "a trace has the same arrivals in every round: give `rate`")
