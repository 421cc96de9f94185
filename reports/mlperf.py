"""Latency bounds of MLPerf Inference as SLA presets, such as "mlperf:llama2-70b-interactive".

From inference_rules.adoc@ac93e89 and loadgen/mlperf.conf@b66003e1. Both bounds are on the P99, each by itself, counted
from the scheduled time, at 99 % confidence.
"""

from __future__ import annotations

from difflib import get_close_matches

from workloads.errors import CbbenchError

PREFIX = "mlperf:"
CONFIDENCE = 0.99
WINDOW_S = 600.0  # the shortest run that MLPerf accepts

# name -> P99 of TTFT and of TPOT, ms
TOKEN_BOUNDS_MS = {
    "llama2-70b-server": (2000, 200),
    "llama2-70b-interactive": (450, 40),
    "mixtral-8x7b-server": (2000, 200),
    "llama3.1-405b-server": (6000, 175),
    "llama3.1-405b-interactive": (4500, 80),
    "llama3.1-8b-server": (2000, 100),
    "llama3.1-8b-interactive": (500, 30),
    "deepseek-r1-server": (2000, 80),
    "deepseek-r1-interactive": (1500, 15),
    "gpt-oss-120b-server": (3000, 80),
    "gpt-oss-120b-interactive": (2000, 15),  # mlperf.conf; the rules say 20, and 15 meets both
}
# name -> P99 of E2EL, ms
ANSWER_BOUNDS_MS = {"qwen3-vl-235b-server": 12000, "gptj-server": 20000}


def expand(exprs: tuple[str, ...]) -> tuple[str, ...]:
    """Replace presets by their expressions. CbbenchError on `sla` for an unknown preset."""
    return tuple(plain for expr in exprs for plain in (_preset(expr) if is_preset(expr) else (expr,)))


def is_preset(expr: str) -> bool:
    return expr.startswith(PREFIX)


def _preset(expr: str) -> tuple[str, ...]:
    name = expr.removeprefix(PREFIX)
    if name in TOKEN_BOUNDS_MS:
        ttft_ms, tpot_ms = TOKEN_BOUNDS_MS[name]
        return f"p99_ttft_sched_ms<={ttft_ms}", f"p99_tpot_ms<={tpot_ms}"
    if name in ANSWER_BOUNDS_MS:
        return (f"p99_e2el_sched_ms<={ANSWER_BOUNDS_MS[name]}",)
    known = [*TOKEN_BOUNDS_MS, *ANSWER_BOUNDS_MS]
    close = get_close_matches(name, known, n=1)
    hint = f'did you mean "{PREFIX}{close[0]}"?' if close else f"known: {', '.join(known)}"
    raise CbbenchError("sla", f'"{expr}": no such MLPerf preset; {hint}')
