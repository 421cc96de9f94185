"""Whether the load client kept up: only then do its numbers describe the server.

Each limit is a named constant: an error of the client below it does not change a latency noticeably.
"""

from __future__ import annotations

import numpy as np

from engines.base import WHOLE_REASONS, ClientReport, ScrapeReport
from reports.metrics import RequestTimes

SEND_LAG_MS = 1.0  # P99; or SEND_LAG_OF_TTFT of the median TTFT, if that is more
SEND_LAG_OF_TTFT = 0.05
CPU_SHARE = 0.9  # of a core: above it events queue before the client reads them
RATE_TOLERANCE = 0.02  # of achieved rate over offered rate
COALESCED_SHARE = 0.05  # of token events read together; some servers batch them, so it counts only with read lag
NOTED_MISMATCH_SHARE = 0.01
NOTED_CORE_WAIT_S = 0.1
NOTED_DISAGREEMENT_SHARE = 0.01  # between the server's counters and what the client received
NOTED_CONNECTION_WAIT_MS = 5.0
UNSEEN_ANSWER_SHARE = 0.001  # of the completed requests: without their TPOT the P99 is that of nearly all
NOTED_RECORD_LAG_MS = 100.0
NOTED_UNSEEN_TOKENS = 0.05  # of the output tokens
NOTED_PREFIX_HITS = 0.05  # hit rate where no two requests share a prefix


def client_limits(client: ClientReport, times: RequestTimes, *, capped: bool) -> tuple[str, ...]:
    """Why the client, and not the server, limited the run; empty when it kept up. capped: with a concurrency cap the
    server determines the achieved rate, so that it is not checked."""
    reasons = []
    allowed_ms = max(SEND_LAG_MS, SEND_LAG_OF_TTFT * _median(times.ttft_ms))
    if client.send_lag_p99_ms is not None and client.send_lag_p99_ms > allowed_ms:
        reasons.append(f"requests were sent late: P99 {client.send_lag_p99_ms:.1f} ms, limit {allowed_ms:.1f} ms")
    lag_ms = client.loop_lag_p99_ms if client.read_lag_p99_ms is None else client.read_lag_p99_ms
    tpot_ms = _median(times.tpot_ms)
    behind = lag_ms is not None and tpot_ms > 0 and lag_ms > tpot_ms
    if behind and client.stamps != "kernel":  # kernel stamps do not depend on when the client reads
        reasons.append(f"answers were read late: P99 {lag_ms:.1f} ms, more than the median TPOT of {tpot_ms:.1f} ms")
    if client.cpu_share is not None and client.cpu_share > CPU_SHARE:
        reasons.append(f"the client used {client.cpu_share:.0%} of its core, limit {CPU_SHARE:.0%}; raise workers")
    rate = client.achieved_over_asked_rate
    if rate is not None and not capped and abs(rate - 1) > RATE_TOLERANCE:
        reasons.append(f"requests were sent at {rate:.3f} of the offered rate, limit 1 +- {RATE_TOLERANCE}")
    coalesced = client.coalesced_event_share
    if behind and coalesced is not None and coalesced > COALESCED_SHARE:
        reasons.append(f"{coalesced:.0%} of the token events were read together, limit {COALESCED_SHARE:.0%}")
    return tuple(reasons)


def client_notes(client: ClientReport) -> tuple[str, ...]:
    """What a reader has to know; the numbers are valid all the same."""
    notes = list(client.notes)
    if not client.streamed:
        notes.append("the answers came whole, not as a stream: TTFT, TPOT and ITL are not measured")
    if client.stamps != "kernel":
        notes.append(f"token times are {client.stamps} stamps, taken by the client, not by the kernel on arrival")
    if client.prompt_mismatch_share is not None and client.prompt_mismatch_share > NOTED_MISMATCH_SHARE:
        notes.append(
            f"{client.prompt_mismatch_share:.1%} of the prompts differed from the planned length, "
            f"{client.prompt_tokens_over_mean or 0:+.1f} tokens on average"
        )
    if client.prompt_guessed_share:
        notes.append(
            f"the server did not count {client.prompt_guessed_share:.0%} of the prompts: their lengths, and total "
            "tokens/s, are estimates of a token for 4 bytes"
        )
    if client.short_answer_share:
        notes.append(
            f"{client.short_answer_share:.1%} of the outputs were shorter than requested: the server stops early"
        )
    if client.long_answer_share:
        notes.append(
            f"{client.long_answer_share:.1%} of the outputs were longer than requested: the server does not keep the "
            "limit, or counts reasoning beyond it"
        )
    notes += usage_notes(client)
    if not client.prefixes_shared and (client.cached_token_share or 0.0) > NOTED_PREFIX_HITS:
        notes.append(
            f"{client.cached_token_share:.0%} of the prompt tokens came from the server's prefix cache, by its usage, "
            "though no two requests share a prefix"
        )
    odd = {reason: count for reason, count in client.finish_reasons.items() if reason.lower() not in WHOLE_REASONS}
    if odd:
        listed = ", ".join(f"{reason}: {count}" for reason, count in odd.items())
        notes.append(f"finish reasons that do not say that an answer is whole: {listed}")
    if client.core_wait_s is not None and client.core_wait_s > max(client.cpu_s, NOTED_CORE_WAIT_S):
        notes.append(
            f"the client used a core for {client.cpu_s:.2f} s and waited {client.core_wait_s:.2f} s for one: "
            "contention for cores, perhaps with the server, is in the latencies"
        )
    if client.connection_waits and (client.connection_wait_p99_ms or 0.0) > NOTED_CONNECTION_WAIT_MS:
        notes.append(
            f"{client.connection_waits} requests waited for a connection, P99 {client.connection_wait_p99_ms:.1f} ms: "
            "it is in their latencies from the schedule, not in those from sending"
        )
    if len(client.requests_by_address) > 1:
        listed = ", ".join(f"{name} {count:,}" for name, count in client.requests_by_address.items())
        notes.append(f"requests by address: {listed}")
    if client.dead_addresses:
        listed = ", ".join(f"{name} ({why})" for name, why in client.dead_addresses.items())
        notes.append(f"addresses that were left out, as they accepted no connection: {listed}")
    if client.connections_used is not None and client.connections > client.connections_used:
        notes.append(f"{client.connections} connections were opened, {client.connections_used} of them used")
    if (client.record_lag_p99_ms or 0.0) > NOTED_RECORD_LAG_MS:
        notes.append(
            f"records were written late, P99 {client.record_lag_p99_ms:.0f} ms after the end of the answer "
            f"(at most {client.record_backlog_peak} waited): a kill would have lost these"
        )
    if client.retry_after_s is not None:
        shortest, longest = client.retry_after_s
        notes.append(
            f"{client.retry_afters} refusals said to try again after {shortest:.0f} to {longest:.0f} s: they were not "
            "tried again (`retry_429` N does)"
        )
    if client.retries:
        notes.append(
            f"{client.retried_requests} requests were refused with 429 and sent again, {client.retries} times in all, "
            f"after {client.retry_wait_mean_s or 0.0:.3g} s on average: latencies from sending are of the last try"
        )
    if client.resends:
        notes.append(f"{client.resends} requests were sent again on a new connection")
    return (*notes, *scrape_notes(client.scrape)) if client.scrape else tuple(notes)


def unseen_times(client: ClientReport, latency: str | None) -> str | None:
    """Why the run does not measure this latency (tpot_ms, itl_ms); None if it does."""
    if not client.streamed and latency not in (None, "e2el_ms"):
        return "not measured: the answers came whole, not as a stream"
    share = client.unseen_answer_share or 0.0
    if latency == "tpot_ms" and share > UNSEEN_ANSWER_SHARE:
        return f"not measured: most tokens of {share:.0%} of the outputs came in no event, as with hidden reasoning"
    coalesced = client.coalesced_event_share
    if latency == "itl_ms" and coalesced is not None and coalesced > COALESCED_SHARE:
        return (
            f"not measured: {coalesced:.0%} of the token events came together with the one before; bound TPOT instead"
        )
    return None


def usage_notes(client: ClientReport) -> list[str]:
    """Where the server's counts of output tokens disagree with the events that it streamed."""
    notes = []
    coalesced = client.coalesced_event_share
    if coalesced is not None and coalesced > COALESCED_SHARE:
        notes.append(f"{coalesced:.0%} of the token events came together with the one before: ITL shows the groups")
    if client.usage_below_events_share:
        notes.append(
            f"{client.usage_below_events_share:.1%} of the outputs have fewer tokens by their usage than they have "
            "events, which is impossible: their events were counted"
        )
    if client.usage_implausible_share:
        notes.append(
            f"{client.usage_implausible_share:.1%} of the answers have an impossibly large count in their usage: it "
            "was not used"
        )
    unseen = client.unseen_token_share or 0.0
    if client.unseen_answer_share:
        notes.append(
            f"{unseen:.0%} of the output tokens came in no event of their own (hidden reasoning, or many tokens in an "
            f"event): {client.unseen_answer_share:.0%} of the outputs have no TPOT"
        )
    elif unseen > NOTED_UNSEEN_TOKENS:
        notes.append(f"{unseen:.0%} of the output tokens share an event with others: TPOT is per token, ITL per event")
    return notes


def scrape_notes(scrape: ScrapeReport) -> tuple[str, ...]:
    """Where the server's counters disagree with the client's."""
    notes = []
    if scrape.restarted:
        notes.append("the server's counters went back to 0 during the run: it restarted")
    counts = [("output tokens", scrape.output_tokens, scrape.output_tokens_received)]
    counts.append(("requests", scrape.requests, scrape.requests_ended))
    for what, server, client in counts:
        if server is not None and abs(server - client) > NOTED_DISAGREEMENT_SHARE * max(server, client):
            notes.append(f"the server counted {server:,} {what} during the run, the client {client:,}")
    rate = scrape.prefix_hit_rate
    if rate is not None and rate > NOTED_PREFIX_HITS and not scrape.prefixes_shared:
        notes.append(
            f"{rate:.0%} of the prompt tokens hit the server's prefix cache, though no two requests share a prefix"
        )
    return tuple(notes)


def _median(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else 0.0
