"""A Summary from numbers that another tool computed."""

from __future__ import annotations

from reports.summary_schema import Distribution, Goodput, Latency, Requests, Signals, Summary, Throughput

NOTHING = Distribution(count=0)


def summary_of(
    *,
    completed: int,
    failed: int = 0,
    cancelled: int = 0,
    window_s: float,
    request_per_s: float | None,
    output_token_per_s: float | None,
    total_token_per_s: float | None,
    ttft_ms: Distribution = NOTHING,
    tpot_ms: Distribution = NOTHING,
    itl_ms: Distribution = NOTHING,
    e2el_ms: Distribution = NOTHING,
) -> Summary:
    """What a file cannot tell stays missing."""
    planned = completed + failed + cancelled
    return Summary(
        requests=Requests(planned=planned, sent=planned, completed=completed, failed=failed, cancelled=cancelled),
        throughput=Throughput(window_s, request_per_s, output_token_per_s, total_token_per_s),
        latency=Latency(
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            itl_ms=itl_ms,
            e2el_ms=e2el_ms,
            ttft_sched_ms=NOTHING,
            e2el_sched_ms=NOTHING,
        ),
        goodput=Goodput(),
        signals=Signals(),
        waste=None,
    )
