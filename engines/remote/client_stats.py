"""What the load client measures about itself, so that its own delays are not reported as the server's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from engines.base import ClientReport
from engines.remote.usage import OutputCount

_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # ns on a core, ns runnable but without one, time slices


def core_wait_ns() -> int | None:
    """Time the calling thread was runnable without a core, since it began; None where the kernel does not report it.

    Other work on the machine causes it, and it looks like a stall of the server.
    """
    try:
        return int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None


MOST_REASONS = 32  # finish reasons that are told apart

_PER_OCTAVE = 16  # buckets, so a value is known to 4.4 %
_OCTAVES = 45  # up to 9 hours in ns


class Histogram(msgspec.Struct):
    """Durations in ns, in logarithmic buckets: its memory is bounded, and two can be added."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (_PER_OCTAVE * _OCTAVES))
    largest_ns: int = 0

    def add(self, ns: int) -> None:
        self.counts[int(math.log2(ns) * _PER_OCTAVE) if ns > 1 else 0] += 1
        if ns > self.largest_ns:
            self.largest_ns = ns

    def merge(self, other: Histogram) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.largest_ns = max(self.largest_ns, other.largest_ns)

    def quantile_ms(self, q: float) -> float | None:
        """The upper edge of the bucket that holds the quantile; None without values."""
        rank = q * sum(self.counts)
        seen = 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                return min(2 ** ((bucket + 1) / _PER_OCTAVE), self.largest_ns) / 1e6
        return None


class ClientStats(msgspec.Struct):
    """Counts of one process; those of several add up. Times are ns since the run began."""

    turn_ns: Histogram = msgspec.field(
        default_factory=Histogram
    )  # turns of the event loop: the most that a ready socket waited
    read_lag_ns: Histogram = msgspec.field(default_factory=Histogram)  # from the kernel's stamp to the read
    send_lag_ns: Histogram = msgspec.field(
        default_factory=Histogram
    )  # from when a request could be sent to when it was
    handshake_ns: Histogram = msgspec.field(default_factory=Histogram)  # of a connection: TCP and TLS
    connection_wait_ns: Histogram = msgspec.field(default_factory=Histogram)  # of the requests that waited for one
    record_lag_ns: Histogram = msgspec.field(default_factory=Histogram)  # from the last byte of an answer to its record
    record_backlog_peak: int = 0  # requests that had ended and were not recorded; summed over the workers
    cpu_ns: int = 0
    core_wait_ns: int | None = 0  # runnable, but without a core; None: the kernel does not report it
    wall_ns: int = 0
    reads: int = 0
    kernel_stamped: int = 0  # reads
    token_events: int = 0
    coalesced: int = 0  # token events that share the read, and so the time, of the one before
    sent: int = 0
    scheduled_ns: tuple[int, int] | None = None  # of the first and the last request sent
    sent_ns: tuple[int, int] | None = None
    resends: int = 0
    connections: int = 0  # opened
    connections_used: int = 0  # by at least one request
    connections_peak: int = 0  # open at once, summed over the workers
    requests_by_address: dict[str, int] = {}
    dead_addresses: dict[str, str] = {}  # left out: why, by address
    prompts_counted: int = 0  # requests whose prompt tokens the server counted
    prompts_mismatched: int = 0  # of those: with another number of tokens than planned
    prompt_tokens_over: int = 0  # sum over these of served - planned
    prompts_guessed: int = 0  # of completed requests whose prompt tokens neither the plan nor the server counted
    answers: int = 0  # completed requests
    short_answers: int = 0  # with fewer output tokens than planned
    long_answers: int = 0  # with more
    usage_below_events: int = 0  # completed; this and the next three: by engines/remote/usage.py
    usage_implausible: int = 0
    usage_unseen: int = 0
    usage_tokens: int = 0  # output tokens by usage, and the token events of the same answers
    usage_events: int = 0
    cached_known: int = 0  # completed, with a count of cached prompt tokens in their usage
    cached_tokens: int = 0  # of these
    cached_of_tokens: int = 0  # their prompt tokens
    retry_afters: int = 0  # refusals with a Retry-After
    retry_after_s: tuple[float, float] | None = None  # the shortest and the longest of them
    retries: int = 0  # sent again after a 429
    retried_requests: int = 0  # of these, different ones
    retry_wait_ns: int = 0  # between refusal and retry, summed over the retries
    finish_reasons: dict[str, int] = {}  # as the server sent them, of completed and failed requests

    def count_reason(self, reason: str, count: int = 1) -> None:
        """A reason beyond the first MOST_REASONS counts as "other": a server may send a text of its own each time."""
        known = reason in self.finish_reasons or len(self.finish_reasons) < MOST_REASONS
        name = reason if known else "other"
        self.finish_reasons[name] = self.finish_reasons.get(name, 0) + count

    def count_addresses(self, requests: dict[str, int], dead: dict[str, str]) -> None:
        known = self.requests_by_address
        self.requests_by_address = known | {name: known.get(name, 0) + count for name, count in requests.items()}
        self.dead_addresses = self.dead_addresses | dead

    def count_sent(self, scheduled_ns: int, ready_ns: int, sent_ns: int) -> None:
        self.sent += 1
        self.send_lag_ns.add(sent_ns - ready_ns)
        self.scheduled_ns = _span(self.scheduled_ns, (scheduled_ns, scheduled_ns))
        self.sent_ns = _span(self.sent_ns, (sent_ns, sent_ns))

    def count_tokens(self, count: OutputCount, events: int, *, implausible_prompt: bool) -> None:
        """The tokens of an answer that completed, by its usage or its events."""
        self.usage_below_events += count.problem == "below_events"
        self.usage_implausible += count.problem == "implausible" or implausible_prompt
        self.usage_unseen += count.source == "usage_unseen"
        if count.source not in ("counted", "whole"):
            self.usage_tokens += count.tokens
            self.usage_events += events

    def count_retry_after(self, seconds: float) -> None:
        self.retry_afters += 1
        self.retry_after_s = _span(self.retry_after_s, (seconds, seconds))

    def count_retry(self, wait_ns: int, *, first: bool) -> None:
        """A request will be sent again after this wait. first: for the first time."""
        self.retries += 1
        self.retried_requests += first
        self.retry_wait_ns += wait_ns

    def merge(self, other: ClientStats) -> None:
        """Add those of another process of the same run."""
        for name in ("turn_ns", "read_lag_ns", "send_lag_ns", "handshake_ns", "connection_wait_ns", "record_lag_ns"):
            getattr(self, name).merge(getattr(other, name))
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.count_addresses(other.requests_by_address, other.dead_addresses)
        for reason, count in other.finish_reasons.items():
            self.count_reason(reason, count)
        unknown = self.core_wait_ns is None or other.core_wait_ns is None
        self.core_wait_ns = None if unknown else (self.core_wait_ns or 0) + (other.core_wait_ns or 0)
        self.wall_ns = max(self.wall_ns, other.wall_ns)
        self.scheduled_ns = _span(self.scheduled_ns, other.scheduled_ns)
        self.sent_ns = _span(self.sent_ns, other.sent_ns)
        self.retry_after_s = _span(self.retry_after_s, other.retry_after_s)

    def report(self, *, open_loop: bool, workers: int) -> ClientReport:
        rate = _achieved_over_offered(self.scheduled_ns, self.sent_ns) if open_loop else None
        return ClientReport(
            stamps=_stamps(self.kernel_stamped, self.reads),
            loop_lag_p99_ms=self.turn_ns.quantile_ms(0.99),
            read_lag_p99_ms=self.read_lag_ns.quantile_ms(0.99),
            send_lag_p99_ms=self.send_lag_ns.quantile_ms(0.99),
            cpu_share=_share(self.cpu_ns, self.wall_ns * workers),
            achieved_over_asked_rate=rate,
            coalesced_event_share=_share(self.coalesced, self.token_events),
            token_events=self.token_events,
            cpu_s=self.cpu_ns / 1e9,
            core_wait_s=None if self.core_wait_ns is None else self.core_wait_ns / 1e9,
            resends=self.resends,
            connections=self.connections,
            prompt_mismatch_share=_share(self.prompts_mismatched, self.prompts_counted),
            prompt_tokens_over_mean=_share(self.prompt_tokens_over, self.prompts_counted),
            prompt_guessed_share=_share(self.prompts_guessed, self.answers) if self.prompts_guessed else None,
            short_answer_share=_share(self.short_answers, self.answers),
            long_answer_share=_share(self.long_answers, self.answers),
            workers=workers,
            connections_used=self.connections_used,
            connections_peak=self.connections_peak,
            handshake_p50_ms=self.handshake_ns.quantile_ms(0.5),
            handshake_p99_ms=self.handshake_ns.quantile_ms(0.99),
            connection_waits=sum(self.connection_wait_ns.counts),
            connection_wait_p99_ms=self.connection_wait_ns.quantile_ms(0.99),
            requests_by_address=self.requests_by_address,
            dead_addresses=self.dead_addresses,
            record_lag_p99_ms=self.record_lag_ns.quantile_ms(0.99),
            record_backlog_peak=self.record_backlog_peak,
            retry_afters=self.retry_afters,
            retry_after_s=self.retry_after_s,
            retries=self.retries,
            retried_requests=self.retried_requests,
            retry_wait_mean_s=_share(self.retry_wait_ns / 1e9, self.retries),
            usage_below_events_share=_share(self.usage_below_events, self.answers),
            usage_implausible_share=_share(self.usage_implausible, self.answers),
            unseen_answer_share=_share(self.usage_unseen, self.answers),
            unseen_token_share=_share(self.usage_tokens - self.usage_events, self.usage_tokens),
            cached_tokens=self.cached_tokens if self.cached_known else None,
            cached_token_share=_share(self.cached_tokens, self.cached_of_tokens),
            finish_reasons=dict(sorted(self.finish_reasons.items(), key=lambda item: -item[1])),
        )


_SUMS = (
    "cpu_ns",
    "reads",
    "kernel_stamped",
    "token_events",
    "coalesced",
    "sent",
    "resends",
    "connections",
    "connections_used",
    "connections_peak",
    "record_backlog_peak",
    "prompts_counted",
    "prompts_mismatched",
    "prompt_tokens_over",
    "prompts_guessed",
    "answers",
    "short_answers",
    "long_answers",
    "usage_below_events",
    "usage_implausible",
    "usage_unseen",
    "usage_tokens",
    "usage_events",
    "cached_known",
    "cached_tokens",
    "cached_of_tokens",
    "retry_afters",
    "retries",
    "retried_requests",
    "retry_wait_ns",
)


Number = TypeVar("Number", int, float)


def _span(a: tuple[Number, Number] | None, b: tuple[Number, Number] | None) -> tuple[Number, Number] | None:
    if a is None or b is None:
        return a or b
    return min(a[0], b[0]), max(a[1], b[1])


def _achieved_over_offered(scheduled_ns: tuple[int, int] | None, sent_ns: tuple[int, int] | None) -> float | None:
    """Achieved over offered rate: the scheduled time between the first and last request sent, over the actual one."""
    if scheduled_ns is None or sent_ns is None or sent_ns[1] == sent_ns[0]:
        return None
    return (scheduled_ns[1] - scheduled_ns[0]) / (sent_ns[1] - sent_ns[0])


def _stamps(kernel: int, reads: int) -> Literal["kernel", "read", "mixed"]:
    if kernel == 0:
        return "read"
    # The first packets may arrive before the kernel has enabled its stamps.
    return "kernel" if kernel >= 0.99 * reads else "mixed"


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
