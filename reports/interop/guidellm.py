"""Reports of guidellm (JSON or YAML): a list of benchmarks, one per load, each a result of its own.

Its inter_token_latency is per request, which other tools call TPOT, though its summary weighs each request by its
tokens; its TPOT is E2EL over all tokens, which no other tool has. The file has no gaps between single tokens. Source:
guidellm 0.8.1, report version 2.
"""

from __future__ import annotations

from typing import Any

from reports.interop.documents import Document
from reports.interop.results import NOTHING, Result, ToolRequest, summary_of
from reports.schema import PacingInfo
from reports.summary_schema import Distribution, Summary
from workloads.errors import CbbenchError

RENAMED = "its ITL is a mean per request, taken as TPOT; its TPOT (E2EL over all tokens) is not used; no ITL"
STATUSES = {"successful": "completed", "errored": "failed", "incomplete": "cancelled"}


def from_report(report: Document) -> list[Result]:
    """CbbenchError without a benchmark."""
    version = (report.get("metadata") or {}).get("guidellm_version", "of an unknown version")
    benchmarks = report["benchmarks"]
    if not benchmarks:
        raise CbbenchError(None, f"guidellm {version}: no benchmark in it")
    return [
        _result(one, f"guidellm {version}", at if len(benchmarks) > 1 else None) for at, one in enumerate(benchmarks)
    ]


def _result(benchmark: Document, tool: str, at: int | None) -> Result:
    totals = benchmark["metrics"]["request_totals"]
    requests = {name: benchmark["requests"].get(name) or [] for name in STATUSES}
    measured = {name: [one for one in some if _within(one, benchmark)] for name, some in requests.items()}
    if any(len(requests[name]) != totals[name] for name in STATUSES):
        requests = measured
    whole = all(len(requests[name]) == totals[name] for name in STATUSES)
    notes = [RENAMED]
    if not whole:
        notes.append(
            "the file has a sample of the requests, so its percentiles are used; those of TPOT weigh by tokens"
        )
    pacing, label = _pacing(benchmark["config"]["strategy"])
    backend = benchmark["config"].get("backend") or {}
    return Result(
        tool=tool,
        label="" if at is None else f"{at + 1}: {label}",
        model=backend.get("model"),
        workload="not said",
        pacing=pacing,
        requests=_requests(requests) if whole else None,
        summary=None if whole else _summary(benchmark, totals),
        notes=tuple(notes),
    )


def _within(one: Document, benchmark: Document) -> bool:
    """Whether a request was under way in the measured window: some versions list those of warm-up and cool-down too."""
    timings = one["info"]["timings"]
    start = timings["request_start"] or timings["resolve_start"] or timings["targeted_start"]
    end = timings["request_end"] or timings["resolve_end"] or start
    window = benchmark.get("start_time"), benchmark.get("end_time")
    return None in window or bool(end >= window[0] and start <= window[1])


def _pacing(strategy: dict[str, Any]) -> tuple[PacingInfo, str]:
    kind = strategy["type_"]
    if (rate := strategy.get("rate")) is not None:
        return PacingInfo(rate_per_s=float(rate), arrival=kind), f"{kind} {rate:g} per s"
    if kind == "synchronous":
        return PacingInfo(concurrency=1), kind
    if (streams := strategy.get("streams")) is not None:
        return PacingInfo(concurrency=int(streams)), f"{streams} at once"
    return PacingInfo(), kind


def _requests(by_status: dict[str, list[Document]]) -> list[ToolRequest]:
    """In order of sending; the file has them by status, in order of ending."""
    made = [_asked(one, STATUSES[name]) for name, some in by_status.items() for one in some]
    return sorted(made, key=lambda one: (one.sent_ns, one.end_ns))


def _asked(one: Document, status: str) -> ToolRequest:
    timings = one["info"]["timings"]
    sent = _ns(timings["request_start"] or timings["resolve_start"] or timings["targeted_start"])
    scheduled = timings.get("targeted_start")
    end = _ns(timings["request_end"] or timings["resolve_end"])
    assert sent is not None  # every request in the file was started
    answer = timings.get("first_output_token_iteration")
    completed = status == "completed" and timings["first_token_iteration"] is not None
    return ToolRequest(
        scheduled_ns=min(sent, _ns(scheduled) or sent),
        sent_ns=sent,
        first_ns=_ns(timings["first_token_iteration"]),
        last_ns=_ns(timings["last_token_iteration"]),
        end_ns=end if end is not None else sent,
        prompt_tokens=one.get("prompt_tokens") or 0,
        output_tokens=one.get("output_tokens") or 0,
        status="completed" if completed else "failed" if status == "completed" else status,  # type: ignore[arg-type]
        error=_error(one, status, completed=completed),
        first_answer_ns=None if answer == timings["first_token_iteration"] else _ns(answer),
    )


def _error(one: Document, status: str, *, completed: bool) -> str | None:
    if completed or status == "cancelled":
        return None
    return str(one["info"].get("error") or "no token")[:200]


def _ns(at_s: float | None) -> int | None:
    return None if at_s is None else round(1e9 * at_s)


def _summary(benchmark: Document, totals: dict[str, int]) -> Summary:
    metrics = benchmark["metrics"]
    return summary_of(
        completed=totals["successful"],
        failed=totals["errored"],
        cancelled=totals["incomplete"],
        window_s=float(benchmark["duration"]),
        request_per_s=metrics["requests_per_second"]["successful"]["mean"],
        output_token_per_s=metrics["output_tokens_per_second"]["successful"]["mean"],
        total_token_per_s=metrics["tokens_per_second"]["successful"]["mean"],
        ttft_ms=_distribution(metrics["time_to_first_token_ms"]),
        tpot_ms=_distribution(metrics["inter_token_latency_ms"]),
        e2el_ms=_distribution(metrics["request_latency"], 1000),
    )


def _distribution(metric: Document | None, scale: float = 1.0) -> Distribution:
    one = (metric or {}).get("successful") or {}
    if not one.get("count"):
        return NOTHING
    share = one["percentiles"]
    return Distribution(
        count=int(one["count"]), mean=scale * one["mean"], std=scale * one["std_dev"], p50=scale * one["median"],
        p90=scale * share["p90"], p95=scale * share["p95"], p99=scale * share["p99"], p999=scale * share["p999"],
        max=scale * one["max"],
    )  # fmt: skip
