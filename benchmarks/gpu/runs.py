"""Stage: `cbbench run` and `cbbench sweep` themselves, as a user would call them, with a model of random weights."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.driving import release
from benchmarks.gpu.setting import Row, Task
from cbbench.cli.app import invoke
from reports.folder import read_record

RUN_S = 15.0  # what one takes at most, about; it is not begun with less left


def run(task: Task) -> Iterator[Row]:
    setting = task.setting
    requests, slots = (4, 4) if setting.quick else (192, 96)
    with tempfile.TemporaryDirectory(prefix="cbbench-gpu-") as temporary:
        for mode in ("continuous", "static"):
            if task.left_s() < RUN_S and not setting.quick:
                yield f"run {mode}", {"skipped": "no time left for it"}
                continue
            folder = Path(temporary) / mode
            common = _common(task, setting.large, requests, folder)
            code, error = _quietly(task, ["run", "--mode", mode, "--max-num-seqs", str(slots), *common])
            if code != 0:
                yield f"run {mode}", {"ok": False, "error": error, "exit_code": code}
                continue
            result = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            yield f"run {mode}", _numbers(result) | gaps(read_record(folder).steps) | {"ok": True}
        if task.left_s() < 2 * RUN_S and not setting.quick:
            yield "sweep max-num-seqs", {"skipped": "no time left for it"}
            return
        values = "1,4" if setting.quick else "16,64,256"
        folder = Path(temporary) / "sweep"
        common = _common(task, setting.small, requests // 2, folder)
        code, error = _quietly(task, ["sweep", "max-num-seqs", "--values", values, *common])
        points = {path.parent.name: path for path in sorted(folder.glob("*/run.json"))}
        for name, path in points.items():
            yield f"sweep {name}", _numbers(json.loads(path.read_text(encoding="utf-8")))
        yield "sweep max-num-seqs", {"points": len(points), "ok": code == 0} | ({"error": error} if code else {})


def _common(task: Task, model: str, requests: int, folder: Path) -> list[str]:
    context = ["--max-model-len", "256"] if task.setting.quick else []
    return [
        *("--model", model, "--weights", "random", "--device", task.setting.device, "--workload", "azure-conv"),
        *("--num-requests", str(requests), "--output", str(folder), "--json", *context),
    ]


def _quietly(task: Task, arguments: list[str]) -> tuple[int, str]:
    """(exit code, the line of the error): what it prints is not ours to show."""
    release(torch.device(task.setting.device))  # the run before was a process of its own, as far as this one can tell
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = invoke(arguments)
    lines = [line for line in err.getvalue().splitlines() if line.startswith("error: ")]
    return code, lines[-1].removeprefix("error: ") if lines else ""


def _numbers(result: dict[str, Any]) -> dict[str, Any]:
    summary, config = result["summary"], result["engine"]["config"]
    return {
        "output_token_per_s": summary["throughput"]["output_token_per_s"],
        "completed": summary["requests"]["completed"],
        "seconds": summary["throughput"]["window_s"],
        "p99_ttft_ms": summary["latency"]["ttft_ms"]["p99"],
        "p50_tpot_ms": summary["latency"]["tpot_ms"]["p50"],
        "device_busy": summary["signals"]["device_busy"],
        "kv_blocks": config["kv_blocks"],
        "attention": config["attention"],
    }


def gaps(steps: np.ndarray) -> dict[str, float | None]:
    """How long the device stood still between steps that followed each other, and which share of the time that was
    before steps with prompts and before the others. steps: the ledger."""
    if len(steps) < 2:
        return dict.fromkeys(("gap_us", "gap_p99_us", "idle_before_prompts", "idle_before_decodes", "prompt_steps"))
    took_ns = np.diff(steps["end_ns"])
    idle_ns = np.maximum(took_ns - steps["busy_ns"][1:], 0)
    prompts = steps["prefill_rows"][1:] > 0
    return {
        "gap_us": float(np.median(idle_ns)) / 1e3,
        "gap_p99_us": float(np.quantile(idle_ns, 0.99)) / 1e3,
        "idle_before_prompts": float(idle_ns[prompts].sum() / took_ns.sum()),
        "idle_before_decodes": float(idle_ns[~prompts].sum() / took_ns.sum()),
        "prompt_steps": float(took_ns[prompts].sum() / took_ns.sum()),
    }
