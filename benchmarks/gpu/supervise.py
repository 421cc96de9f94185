"""Runs the stages in another process, one after the other, within a time budget, and writes their results to disk.

A process, because a kernel that hangs can then be ended, and an invalid read makes CUDA unusable in its whole process:
the next stage gets a new one. While nothing fails, one process (one start of torch and CUDA) runs all stages.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import platform
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.gpu.setting import Results, Setting, Skip, Stage, Task

SCHEMA = "cbbench.gpu_check/1"
GRACE_S = 5.0  # for a stage to notice that its time is over
LEAST_S = GRACE_S + 3.0  # a stage is not begun with less time than this
ENDS = ("ok", "skipped", "failed", "stopped")  # how a stage can end by its own account
START_S = 120.0  # a worker that has not loaded torch by then never will
OURS = ("benchmarks", "cbbench", "engines", "reports", "workloads")  # to lack one of these is no reason to skip
PACKAGES = ("torch", "triton", "numpy", "transformers", "flashinfer-python", "nvidia-ml-py")


class NoDevice(Exception):
    """There is no GPU here, or it does not respond."""


def supervise(
    stages: Sequence[Stage], setting: Setting, *, budget_s: float, out: Path, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Returns the contents of `out`. tell: gets a line when a stage begins and ends. NoDevice without a GPU."""
    began = time.monotonic()

    def left_s() -> float:
        return budget_s - (time.monotonic() - began)

    report: dict[str, Any] = {
        "schema": SCHEMA,
        "budget_s": budget_s,
        "device": setting.device,
        "quick": setting.quick,
        "machine": {},
        "stages": {one.name: {"title": one.title, "status": "not begun", "rows": {}} for one in stages},
    }
    worker: _Worker | None = None
    try:
        for stage in stages:
            entry = report["stages"][stage.name]
            if left_s() < LEAST_S:
                entry.update(status="skipped", reason=f"the budget of {budget_s:g} s was spent")
            else:
                worker = worker or _Worker(setting)
                report["machine"] = worker.machine
                if "gpu_error" in worker.machine and stage is stages[0]:
                    raise NoDevice(worker.machine["gpu_error"])
                tell(f"{stage.name}: {stage.title}")
                rows_of = {name: one["rows"] for name, one in report["stages"].items()}
                limit_s = min(stage.limit_s, left_s() - GRACE_S)
                if not worker.run(stage, rows_of, limit_s, entry, lambda: write(out, report)):
                    worker.end()
                    worker = None
            report["spent_s"] = round(time.monotonic() - began, 1)
            write(out, report)
            tell(f"  {entry['status']}" + (f": {entry['reason']}" if "reason" in entry else ""))
    finally:
        if worker is not None:
            worker.end()
    return report


def write(out: Path, report: dict[str, Any]) -> None:
    """Replaces the file at once."""
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f"{out.name}.tmp")
    temporary.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, out)


class _Worker:
    def __init__(self, setting: Setting) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, setting), daemon=True)
        self._process.start()
        theirs.close()
        self._idle = True
        try:
            self.machine = self._ours.recv() if self._ours.poll(START_S) else {"gpu_error": "torch does not load"}
        except EOFError:
            self.machine = {"gpu_error": "the process that loads torch died"}

    def run(
        self, stage: Stage, results: Results, limit_s: float, entry: dict[str, Any], save: Callable[[], None]
    ) -> bool:
        """Fill in the stage's entry. False where this process must not run another stage."""
        began = time.monotonic()
        self._idle = False
        self._ours.send((stage, results, limit_s))
        while (heard := self._hear(began + limit_s + GRACE_S))[0] == "row":
            name, numbers = heard[1]
            entry["rows"][name] = numbers
            save()
        status, reason = heard
        self._idle = status in ENDS
        if status == "silent":
            status, reason = _out_of_time(stage, limit_s)
        elif status == "died":
            status = "failed"
        entry.update(status=status, seconds=round(time.monotonic() - began, 1))
        if reason is not None:
            entry["reason"] = reason
        return self._idle and status != "failed"

    def _hear(self, until: float) -> tuple[str, Any]:
        """The next message of the process: a row, the stage's end, or None when it has ended."""
        try:
            if not self._ours.poll(max(until - time.monotonic(), 0)):
                return "silent", None
            kind, content = self._ours.recv()
            return kind, content
        except (EOFError, OSError):
            self._process.join(5)
            return "died", f"its process died (exit code {self._process.exitcode})"

    def end(self) -> None:
        self._ours.close()  # an idle process ends by itself then
        self._process.join(5 if self._idle else 0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _out_of_time(stage: Stage, limit_s: float) -> tuple[str, str]:
    """Out of time: a stage that had its full limit hangs, which is a failure; one that began late is not a failure."""
    if limit_s < stage.limit_s:
        return "stopped", f"the budget ended after {limit_s + GRACE_S:.0f} s of it"
    return "failed", f"did not end within {limit_s + GRACE_S:.0f} s"


def _serve(parent: Connection, setting: Setting) -> None:
    if setting.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # it counts when triton is loaded, and whichever stage does so first
    parent.send(_machine(setting))
    while True:
        try:
            stage, results, limit_s = parent.recv()
        except EOFError:
            return
        parent.send(_ended(stage, _task(setting, results, limit_s), lambda row: parent.send(("row", row))))


def _task(setting: Setting, results: Results, limit_s: float) -> Task:
    until = time.monotonic() + limit_s
    return Task(setting, results, lambda: until - time.monotonic())


def _ended(stage: Stage, task: Task, tell: Callable[[Any], None]) -> tuple[str, str | None]:
    module, function = stage.run.split(":")
    try:
        run = getattr(importlib.import_module(module), function)
        for number, row in enumerate(run(task), start=1):
            tell(row)
            if task.left_s() <= 0:
                return "stopped", f"its time was over after {number} rows"
        return "ok", None
    except Skip as reason:
        return "skipped", str(reason)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] not in OURS:
            return "skipped", f"needs the Python package {error.name}"
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:500]
        return "failed", f"{type(error).__name__}: {text} ({Path(where.filename).name}:{where.lineno})"
    finally:
        _release(task.setting)


def _release(setting: Setting) -> None:
    """Free the stage's memory on the device for the next stage."""
    gc.collect()
    if setting.device == "cuda":
        try:
            import torch

            torch.cuda.empty_cache()
        except Exception:  # the stage's error, once more: told already
            return


def _machine(setting: Setting) -> dict[str, Any]:
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    machine: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform(), **packages}
    if setting.device == "cuda":
        try:
            import torch

            machine["gpu"] = torch.cuda.get_device_name(0)
            machine["cuda"] = torch.version.cuda
            machine["memory_bytes"] = torch.cuda.mem_get_info(0)[1]
        except Exception as error:
            machine["gpu_error"] = str(error)
    return machine
