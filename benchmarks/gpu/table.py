"""The report of a check as text: the stages, their cells with numbers, and the targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.diagnosis import operators_headline, operators_table

CORE = ("ceilings", "kernels", "graphs", "decode")  # without any of these the check has measured nothing
DECODE_OVER_FLOOR = {(64, 4096): 1.30, (256, 2048): 1.30, (64, 512): 1.45, (256, 512): 1.45}  # batch, context
BUSY_SHARE = 0.97
OVER_PEER = 1.5
GAP_US = 100.0


def targets(report: dict[str, Any], large: str) -> list[dict[str, Any]]:
    """{target, bound, value, met}: value and met are None where it was not measured, or its device is another."""

    def numbers(stage: str, row: str) -> dict[str, Any]:
        return report["stages"].get(stage, {}).get("rows", {}).get(row, {})

    cells = {row: one for row, one in report["stages"].get("decode", {}).get("rows", {}).items() if "step_ms" in one}
    ours = {row.removeprefix(f"{large} "): one for row, one in cells.items() if row.startswith(f"{large} ")}
    gaps = [one["gap_us"] for one in ours.values()]
    ratio = numbers("peer", "ratio").get("cbbench_over_transformers")
    found = [
        *(
            (f"{large} decode step over floor, {at}", "<=", bound, ours.get(at, {}).get("over_floor"))
            for at, bound in ((f"{batch}x{context}", one) for (batch, context), one in DECODE_OVER_FLOOR.items())
        ),
        ("device busy in a saturated run", ">=", BUSY_SHARE, numbers("runs", "run continuous").get("device_busy")),
        ("output tokens/s over transformers'", ">=", OVER_PEER, ratio),
        ("gap between decode steps, µs", "<=", GAP_US, max(gaps, default=None)),
    ]
    counts = report["device"] == "cuda" and not report["quick"]
    return [
        {
            "target": name,
            "bound": f"{sign} {bound:g}",
            "value": value if counts else None,
            "met": None if value is None or not counts else (value <= bound if sign == "<=" else value >= bound),
        }
        for name, sign, bound, value in found
    ]


def ok(report: dict[str, Any]) -> bool:
    """No stage failed, no kernel, graph or command was wrong, and a core stage ran if one was asked for."""
    stages = report["stages"]
    core = [stages[name]["status"] for name in CORE if name in stages]
    nothing_ran = bool(core) and "ok" not in core
    failed = any(one["status"] == "failed" for one in stages.values())
    return not failed and not nothing_ran and not list(_wrong(report))


def table(report: dict[str, Any]) -> str:
    lines = [f"{'stage':12}{'status':10}{'s':>6}  found"]
    for name, stage in report["stages"].items():
        seconds = f"{stage['seconds']:.0f}" if "seconds" in stage else ""
        lines.append(
            f"{name:12}{stage['status']:10}{seconds:>6}  {stage.get('reason') or _headline(name, stage['rows'])}"
        )
    cells = {row: one for row, one in report["stages"].get("decode", {}).get("rows", {}).items() if "step_ms" in one}
    if cells:
        lines += ["", f"{'decode step':28}{'ms':>9}{'floor ms':>10}{'ratio':>8}{'gap µs':>8}{'busy':>6}"]
        for row, one in cells.items():
            floor, ratio = (
                f"{one[key]:.{places}f}" if key in one else "–" for key, places in (("floor_ms", 3), ("over_floor", 2))
            )
            lines.append(
                f"{row:28}{one['step_ms']:9.3f}{floor:>10}{ratio:>8}{one['gap_us']:8.0f}{one['device_busy']:6.1%}"
            )
    lines += operators_table(report["stages"].get("operators", {}).get("rows", {}))
    lines += [
        "",
        *(
            f"{_verdict(one['met']):14}{one['target']} {one['bound']}: {_value(one['value'])}"
            for one in report["targets"]
        ),
    ]
    lines += [f"WRONG         {stage}, {row}" for stage, row in _wrong(report)]
    skipped = [
        f"{row}: {one['skipped']}"
        for stage in report["stages"].values()
        for row, one in stage["rows"].items()
        if "skipped" in one
    ]
    return "\n".join(lines + [f"skipped       {line}" for line in skipped])


def _wrong(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, stage in report["stages"].items():
        yield from ((name, row) for row, numbers in stage["rows"].items() if numbers.get("ok") is False)


def _headline(stage: str, rows: dict[str, dict[str, Any]]) -> str:
    if stage in ("kernels", "graphs", "flashinfer"):
        return f"{sum(one['ok'] for one in rows.values())} of {len(rows)} right"
    if stage == "ceilings":
        bandwidth, matmul = (rows[name]["per_s"] for name in ("bandwidth", "matmul"))
        return f"{bandwidth / 1e12:.3g} TB/s, {matmul / 1e12:.3g} TFLOP/s"
    if stage == "operators":
        return operators_headline(rows)
    if stage == "runs":
        rates = {row.split()[1]: one.get("output_token_per_s") for row, one in rows.items() if row.startswith("run ")}
        return ", ".join(f"{mode} {rate:,.0f} tok/s" for mode, rate in rates.items() if rate)
    if stage == "peer" and "ratio" in rows:
        return f"{rows['ratio']['cbbench_over_transformers']:.2f} times transformers' continuous batching"
    if stage == "swap":
        sizes = {row.removeprefix("crossover "): one for row, one in rows.items() if row.startswith("crossover")}
        return "moving pays from " + ", ".join(f"{_millions(one['parameters'])} at {row}" for row, one in sizes.items())
    return f"{len(rows)} cells"


def _millions(parameters: float | None) -> str:
    return "no size measured" if parameters is None else f"{parameters / 1e6:,.0f} M parameters"


def _verdict(met: bool | None) -> str:
    return {True: "met", False: "MISSED", None: "not measured"}[met]


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
