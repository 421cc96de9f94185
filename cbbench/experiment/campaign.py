"""A sweep under way: what is measured already, what comes next, and sweep.json after every run.

It resumes: finished runs are known by their setting, their repeat and their configuration.
"""

from __future__ import annotations

import fcntl
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cbbench.experiment.bench import Bench, criteria_of
from cbbench.experiment.benches import Benches, OneBench, work_of_run
from cbbench.experiment.run import measure
from cbbench.experiment.sweep_params import work_params
from cbbench.experiment.sweep_runs import Setting, Sweep, Target
from cbbench.settings.run import RunSettings
from reports.curves import SWEEP, point_of, read_sweep, short_label, write_sweep
from reports.folder import RUN, discard, rebuild
from reports.limits import annotated
from reports.recommend import recommend
from reports.schema import RunFile
from reports.sweep_schema import Point, SweepFile
from workloads.errors import CbbenchError
from workloads.length_pairs import max_over_mean
from workloads.rates import RateSchedule


class Campaign:
    def __init__(self, sweep: Sweep, base: RunSettings, benches: Benches, folder: Path, *, every_rate: bool) -> None:
        """base: the configuration of any setting that can run. CbbenchError where the folder holds something else."""
        self._sweep = sweep
        self.benches = benches
        self.folder = folder
        self._every_rate = every_rate
        self._time_left = TimeLeft()
        benches.plan_sha256(base)  # an SLA on a tenant that is not there is said before any run is judged by it
        earlier = sweep_before(folder, sweep.params)
        # Points without numbers are tried again, and those whose run is not there any more.
        points = earlier.points if earlier else ()
        finished = [one for one in points if one.error is None and (folder / one.folder / RUN).exists()]
        self._done = {(point.values, point.repeat): self._judged_anew(point) for point in finished}
        repeats = max([sweep.repeats, *(repeat + 1 for _, repeat in self._done)])
        in_flight = most_in_flight(sweep.params, base, benches)
        self.state = SweepFile(
            params=sweep.params,
            settings=(),
            repeats=repeats,
            sla=tuple(one.expr for one in base.slo.sla),
            most_in_flight=in_flight,
        )

    @property
    def settings_done(self) -> list[Setting]:
        return list(dict.fromkeys(setting for setting, _ in self._done))

    @contextmanager
    def begun(self, settings: Sequence[Setting], *, adaptive: bool = False) -> Iterator[None]:
        """Make the folder, keep other sweeps out of it, and write which settings are wanted; finished ones that are not
        among them come last."""
        asked = tuple(dict.fromkeys((*settings, *self.settings_done)))
        self._shared_sha256(asked)  # a workload that cannot be is said before there is a folder
        self.folder.mkdir(parents=True, exist_ok=True)
        with claimed(self.folder):
            self._save(settings=asked, adaptive=adaptive)
            yield

    def measure(self, settings: Sequence[Setting]) -> bool:
        """Every repeat of these settings that is not there yet. False when Ctrl-C ended it."""
        if added := [one for one in settings if one not in self.state.settings]:
            self._save(settings=(*self.state.settings, *added))
        targets = list(self._sweep.interleaved(settings))
        for number, target in enumerate(targets, start=1):
            key = (target.setting, target.repeat)
            title = f"{number}/{len(targets)} {target.label}"
            title += f", repeat {target.repeat + 1} of {self._sweep.repeats}" if self._sweep.repeats > 1 else ""
            if key in self._done:
                print(f"{title}: already there", file=sys.stderr)
            elif self._skips(target.setting):
                print(f"{title}: skipped, a lower rate is saturated", file=sys.stderr)
            else:
                print(title + self._left_in_words(targets[number - 1 :]), file=sys.stderr)
                point = self._measured(target, title)
                if point is None:
                    return False
                self._done[key] = point
                self._save()
        return True

    def finish(self, ended: str | None) -> None:
        """Why the sweep is at its end, in words."""
        self._save(ended=ended)

    def _measured(self, target: Target, title: str) -> Point | None:
        """The point, or None if Ctrl-C broke it off: then it is measured again when the sweep resumes."""
        place, config = self.folder / target.folder, target.config
        if place.exists():
            discard(place)  # left by a sweep that was broken off
        if config is None:
            assert target.error is not None
            return self._failed(target, target.error, title)
        log = self.folder / f"{target.folder}.server.log"
        self._time_left.begin()
        try:
            with self.benches.at(config, target.fill, log) as (bench, served):
                result = measure(bench, served, place, title)
                if result.interrupted:
                    return None
                point = self._point(target, result, gain(bench, served, result))
        except CbbenchError as error:  # this setting cannot run; others may
            return self._failed(target, error, title)
        self._time_left.end(config)
        return point

    def _point(self, target: Target, result: RunFile, max_over_mean: float | None) -> Point:
        return point_of(
            target.setting,
            target.folder,
            result,
            target.config_sha256,
            repeat=target.repeat,
            max_over_mean=max_over_mean,
        )

    def _failed(self, target: Target, error: CbbenchError, title: str) -> Point:
        print(f"{title}: {error}", file=sys.stderr)
        return Point(
            values=target.setting,
            repeat=target.repeat,
            folder=target.folder,
            config_sha256=target.config_sha256,
            error=str(error),
            exit_code=error.exit_code,
        )

    def _judged_anew(self, point: Point) -> Point:
        """A finished point under the SLAs of this call. CbbenchError if it was measured with other settings."""
        target = self._sweep.target(point.values, point.repeat)
        if target.config is not None and point.config_sha256 == target.config_sha256:
            result = rebuild(self.folder / point.folder, criteria_of(target.config))
            if self.benches.same_work(target.config, work_of_run(result)):
                return self._point(target, result, point.max_over_mean)
        raise CbbenchError(
            "output",
            f"{self.folder} has a point {short_label(point.values)} that was measured with other settings; "
            "choose another folder, or repeat the settings to resume",
        )

    def _skips(self, setting: Setting) -> bool:
        """Rates above one at which arrivals outran completions, and of which there is no run yet."""
        if self._every_rate or "rate" not in self._sweep.params or setting in self.settings_done:
            return False
        at = self._sweep.params.index("rate")
        return any(
            point.saturated is not None
            and _without(values, at) == _without(setting, at)
            and float(values[at]) < float(setting[at])
            for (values, _), point in self._done.items()
        )

    def _left_in_words(self, targets: Sequence[Target]) -> str:
        coming = [
            one for one in targets if (one.setting, one.repeat) not in self._done and not self._skips(one.setting)
        ]
        left_s = self._time_left.left_s([one.config for one in coming if one.config is not None])
        return "" if left_s is None else f" · about {in_words(left_s)} left"

    def _save(self, **changes: object) -> None:
        state = msgspec.structs.replace(self.state, **changes)
        keys = sorted(self._done, key=lambda key: (state.settings.index(key[0]), key[1]))
        points = annotated([self._done[key] for key in keys])
        measured = {one.values for one in points}
        self.state = msgspec.structs.replace(
            state,
            points=tuple(points),
            skipped=tuple(one for one in state.settings if one not in measured and self._skips(one)),
            recommendation=recommend(state.params, points, state.sla, work_params=work_params()) if points else None,
            workload_sha256=self._shared_sha256(state.settings),
        )
        write_sweep(self.folder, self.state)

    def _shared_sha256(self, settings: Sequence[Setting]) -> str | None:
        configs = [target.config for one in settings if (target := self._sweep.target(one)).config is not None]
        by_settings = {config.plan_identity(): config for config in configs if config is not None}
        found = {self.benches.plan_sha256(config) for config in by_settings.values()}
        return found.pop() if len(found) == 1 else None


def most_in_flight(params: Sequence[str], base: RunSettings, benches: Benches) -> int | None:
    """Requests that can be in flight at once; None if it differs between settings, or each has its own server."""
    if not isinstance(benches, OneBench) or set(params) & {*work_params(), "concurrency", "duration"}:
        return None
    requests = len(benches.bench.plan(base))
    return requests if base.load.concurrency is None else min(requests, base.load.concurrency)


def gain(bench: Bench, config: RunSettings, result: RunFile) -> float | None:
    """What continuous batching gains over static batching with this max_num_seqs; engines of ours alone."""
    return (
        max_over_mean(bench.plan(config).output_tokens, config.scheduler.max_num_seqs) if result.engine.mode else None
    )


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Locked while it lasts, however this process ends. CbbenchError if another sweep has it: two would write into
    each other's runs."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CbbenchError("output", f"another sweep runs in {folder}; choose another folder") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def sweep_before(folder: Path, params: Sequence[str]) -> SweepFile | None:
    """What an earlier call left in this folder."""
    if not folder.exists() or not any(folder.iterdir()):
        return None
    if not (folder / SWEEP).exists():
        raise CbbenchError("output", f"{folder} is not empty and holds no sweep")
    before = read_sweep(folder)
    if before.params != tuple(params):
        raise CbbenchError("output", f"{folder} holds a sweep of {','.join(before.params)}, not of {','.join(params)}")
    return before


def _without(values: Setting, at: int) -> Setting:
    return values[:at] + values[at + 1 :]


class TimeLeft:
    """A run of an open loop takes as long as its schedule, and about as much more as the others did."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._started_s = 0.0
        self._beyond_schedule_s: list[float] = []

    def begin(self) -> None:
        self._started_s = self._clock_s()

    def end(self, config: RunSettings) -> None:
        self._beyond_schedule_s.append(self._clock_s() - self._started_s - schedule_s(config))

    def left_s(self, configs: Sequence[RunSettings]) -> float | None:
        """For these runs; None before the first has ended."""
        if not self._beyond_schedule_s:
            return None
        beyond_s = max(0.0, statistics.fmean(self._beyond_schedule_s))
        return sum(schedule_s(config) + beyond_s for config in configs)


def schedule_s(config: RunSettings) -> float:
    """How long requests go on arriving; 0 where nothing is scheduled, or only on a virtual clock."""
    if config.load.rate is None or config.engine.kind == "simulated":
        return 0.0
    rate = config.load.rate
    lasts_s = (
        rate.time_s(config.workload.num_requests)
        if isinstance(rate, RateSchedule)
        else config.workload.num_requests / rate
    )
    return min(lasts_s, config.load.duration or float("inf"))


def in_words(seconds: float) -> str:
    """40 s · 3 min · 2.5 h"""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
