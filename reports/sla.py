"""SLAs: the parser of their expressions, and which exit code wins. judge.py says whether a run meets them."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.metrics import LATENCIES
from reports.schema import ValidityVerdict, Verdict
from reports.sla_scope import FORMS, Scope, parse_scope
from workloads.errors import CbbenchError, ExitCode

LATENCY = re.compile(rf"(?P<stat>p\d{{2,4}}|mean|max)_(?P<latency>{'|'.join(LATENCIES)})")
RATES = ("output_token_per_s", "total_token_per_s", "request_per_s", "goodput_request_per_s")
SHARES = {"attainment": False, "failure_rate": True}  # name -> must it stay below its bound
KNOWN = (*(f"{stat}_{name}" for stat in ("p99", "p50", "p90", "p95", "p999", "mean", "max") for name in LATENCIES),
         *RATES, *SHARES)  # fmt: skip
IN_OTHER_UNIT = re.compile(r"_(s|sec|secs|seconds?|us|ns)$")
EXAMPLE = 'write e.g. "p99_ttft_ms<=500", "mean_e2el_ms<=2000", "output_token_per_s>=100" or "failure_rate<=0.01"'
EXPRESSION = re.compile(r"\s*(?P<metric>[\w.]+)\s*(?:\[(?P<scope>[^\]]*)\]\s*)?(?P<sign>[<>]=?)\s*(?P<bound>\S+)\s*")


@dataclass(frozen=True)
class Sla:
    """A parsed expression such as "p99_ttft_ms<=500". `<` and `<=` mean the same, as do `>` and `>=`.

    "p99_ttft_ms[tenant=quiet]<=500" applies to a part of the requests.
    """

    expr: str  # as it was written
    metric: str  # p99_ttft_ms, mean_e2el_ms, output_token_per_s, attainment, failure_rate, ...
    upper: bool  # True: the value must not be above the bound; False: not below
    bound: float  # in the metric's unit
    scope: Scope | None = None  # None: all requests

    @property
    def latency(self) -> str | None:
        """The latency that it bounds ("ttft_ms"), None if it bounds something else."""
        return latency_of(self.metric)

    @property
    def stat(self) -> str | None:
        """p99, mean or max of that latency."""
        return stat_of(self.metric)

    @property
    def quantile(self) -> float | None:
        """0.99 for p99, 0.999 for p999; None if it bounds no percentile."""
        stat = self.stat
        return float(f"0.{stat[1:]}") if stat and stat[0] == "p" else None


def latency_of(metric: str) -> str | None:
    """ttft_ms of p99_ttft_ms; None for a metric that is not a latency."""
    match = LATENCY.fullmatch(metric)
    return match["latency"] if match else None


def stat_of(metric: str) -> str | None:
    """p99 of p99_ttft_ms; None for a metric that is not a latency."""
    match = LATENCY.fullmatch(metric)
    return match["stat"] if match else None


def parse_sla(expr: str) -> Sla:
    """Read one expression. CbbenchError on `sla` says what is wrong and what would be right."""
    match = EXPRESSION.fullmatch(expr)
    if expr.startswith("mlperf:"):
        raise _wrong(expr, "presets judge a stored run: use them with `cbbench gate RUN`")
    if match is None:
        raise _wrong(expr, f"{_form(expr)}; {EXAMPLE}")
    metric, upper = match["metric"], match["sign"][0] == "<"
    wants_upper = _wants_upper(expr, metric)
    if upper != wants_upper:
        raise _wrong(expr, f"{metric} takes {'<=' if wants_upper else '>='}")
    try:
        bound = float(match["bound"])
    except ValueError:
        raise _wrong(expr, f'"{match["bound"]}" is not a number (the unit is in the name); {EXAMPLE}') from None
    if not math.isfinite(bound) or bound < 0:
        raise _wrong(expr, "the bound must be a finite number, 0 or more")
    if metric in SHARES and bound > 1:
        raise _wrong(expr, f"{metric} is a share between 0 and 1, e.g. {bound / 100:g} for {bound:g} %")
    return Sla(expr, metric, upper, bound, _scope(expr, metric, match["scope"]))


def _wrong(expr: str, problem: str) -> CbbenchError:
    return CbbenchError("sla", f'"{expr}": {problem}')


def _form(expr: str) -> str:
    if "[" in expr or "]" in expr:
        return f"not of the form METRIC[PART]<=NUMBER, where [PART] is {FORMS}"
    return "not of the form METRIC<=NUMBER or METRIC>=NUMBER"


def _scope(expr: str, metric: str, text: str | None) -> Scope | None:
    if text is None:
        return None
    if latency_of(metric) == "itl_ms":  # gaps are pooled over requests
        raise _wrong(expr, "itl_ms is pooled over all requests and has no parts; bound tpot_ms instead")
    try:
        return parse_scope(text)
    except ValueError as error:
        raise _wrong(expr, str(error)) from None


def _wants_upper(expr: str, metric: str) -> bool:
    match = LATENCY.fullmatch(metric)
    if match is not None:
        digits = match["stat"][1:] if match["stat"][0] == "p" else "50"
        if not digits.strip("0") or (len(digits) > 2 and not digits.startswith("99")):  # p100 would be read as 10.0
            raise _wrong(expr, f"{match['stat']} is not a percentile; use p50, p90, p95, p99 or p999")
        return True
    if metric in SHARES:
        return SHARES[metric]
    if metric in RATES:
        return False
    close = _closest(metric)
    hint = f'did you mean "{close}"?' if close else EXAMPLE
    raise _wrong(expr, f'unknown metric "{metric}"; {hint}')


def _closest(metric: str) -> str | None:
    """goodput_request_per_s for goodput, p999_ttft_ms for p99.9_ttft, p99_ttft_ms for p99_ttft_s or p99_tfft_ms; None
    for others."""
    plain = metric.lower().replace(".", "")
    in_ms = IN_OTHER_UNIT.sub("_ms", plain)
    if latency_of(in_ms):
        return in_ms
    within = [name for name in KNOWN if plain in name]
    return next(iter(within or difflib.get_close_matches(plain, KNOWN, n=1)), None)


def parse_all(exprs: Sequence[str]) -> tuple[Sla, ...]:
    """Read all of a run's expressions. CbbenchError also where `attainment` or goodput has no latency SLA to go by."""
    slas = tuple(parse_sla(expr) for expr in exprs)
    on_latency = [sla for sla in slas if sla.latency not in (None, "itl_ms")]
    for sla in slas:
        if sla.metric not in ("attainment", "goodput_request_per_s"):
            continue
        if not any(sla.scope is None or one.scope in (None, sla.scope) for one in on_latency):
            part = "" if sla.scope is None else f"[{sla.scope}]"
            raise _wrong(sla.expr, f'{sla.metric} needs a latency SLA as well, e.g. "p99_ttft_ms{part}<=500"')
    return slas


def expressions(slas: Iterable[Sla]) -> tuple[str, ...]:
    """As they were written, and as files have them."""
    return tuple(sla.expr for sla in slas)


def failed_and_open(judged: Iterable[tuple[str, str]]) -> str | None:
    """Of (bound, verdict): which failed and which are inconclusive; None unless there are both.

    The exit code is then that of the failed ones, so it does not say that others were not decided.
    """
    named: dict[str, list[str]] = {"fail": [], "inconclusive": []}
    for name, verdict in judged:
        named.get(verdict, []).append(name)
    if not all(named.values()):
        return None
    return f"Failed: {', '.join(named['fail'])}. Inconclusive: {', '.join(named['inconclusive'])}."


def exit_code(
    *,
    interrupted: bool = False,
    usage_error: bool = False,
    unexpected_error: bool = False,
    server_died: bool = False,
    validity: ValidityVerdict = "ok",
    sla: Sequence[Verdict] = (),
    regression: bool = False,
) -> ExitCode:
    """What the process ends with where several codes apply: the first of 130, 2, 1, 6, 7, 3, 4, 5, 0 (DESIGN §8).

    What failed has failed, whatever else is open. A client that was too slow makes a run inconclusive where an SLA is
    judged: it cannot fail one, as its slowness is not the server's.
    """
    codes = (
        (ExitCode.INTERRUPTED, interrupted),
        (ExitCode.USAGE, usage_error),
        (ExitCode.ERROR, unexpected_error),
        (ExitCode.SERVER, server_died),
        (ExitCode.LOAD_INVALID, validity == "invalid"),
        (ExitCode.SLA_FAILED, "fail" in sla and validity != "client_limited"),
        (ExitCode.REGRESSION, regression),
        (ExitCode.INCONCLUSIVE, "inconclusive" in sla or (validity == "client_limited" and bool(sla))),
    )
    return next((code for code, applies in codes if applies), ExitCode.OK)
