"""SLAs: what a run must meet, whether it does, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.schema import ValidityVerdict, Verdict


@dataclass(frozen=True)
class Sla:
    """A parsed expression such as "p99_ttft_ms<=500"."""

    expr: str
    metric: str  # p99_ttft_ms, mean_e2el_ms, output_token_per_s, attainment, failure_rate, ...
    upper: bool  # True: the value must not be above the bound; False: not below
    bound: float


def parse(expr: str) -> Sla:
    """Read one expression. ValueError says what is wrong with it and what would be right."""
    raise NotImplementedError


def parse_all(exprs: Sequence[str]) -> tuple[Sla, ...]:
    """Read all of a run's expressions. ValueError also when `attainment` has no latency SLA to attain."""
    raise NotImplementedError


def exit_code(
    *,
    interrupted: bool = False,
    usage_error: bool = False,
    unexpected_error: bool = False,
    server_died: bool = False,
    validity: ValidityVerdict = "ok",
    sla: Sequence[Verdict] = (),
    regression: bool = False,
) -> int:
    """What the process ends with: the first that applies of 130, 2, 1, 6, 7, 5, 3, 4, 0."""
    raise NotImplementedError
