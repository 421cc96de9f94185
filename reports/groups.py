"""The numbers of a run for parts of its requests: by tenant, priority, prompt bucket, URL and stage of the rate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import msgspec
import numpy as np

from engines.base import RunRecord
from engines.request_table import MISSING
from reports.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT, service_gap_tokens, waits_ns
from reports.metrics import PER_REQUEST, WITH_QUEUE, BoolArray, RequestTimes
from reports.quantiles import FloatArray, distribution
from reports.stages import Span, Stages
from reports.summary_schema import Distribution, Group, GroupLatency, StageGroup
from workloads.columns import IntColumn
from workloads.rates import NS


class Groups:
    """Splits one run. A split with one part is empty, as that is the run itself.

    Columns are in order of sending, as in `times`, unless stated otherwise.
    """

    def __init__(self, record: RunRecord, times: RequestTimes, window_s: float, *, no_intervals: bool = False) -> None:
        """no_intervals: rare bursts decide the latencies with the queue."""
        self._no_intervals = no_intervals
        self._record = record
        self._times = times
        self._window_s = window_s
        self._names, self._name = record.labels("tenant")
        self._tenants = sorted(map(str, self._names))

    def by_tenant(self) -> dict[str, Group]:
        return self._split(self._tenant_of_row[self._times.row], self._tenants)

    def by_priority(self) -> dict[str, Group]:
        """The most urgent first."""
        priorities, which = np.unique(self._record.column("priority")[self._times.row], return_inverse=True)
        return self._split(which.reshape(-1), [str(one) for one in priorities.tolist()])

    def by_prompt_bucket(self, edges: Sequence[int]) -> dict[str, Group]:
        """edges: the longest prompt of each bucket except the last, tokens, ascending. Empty buckets are left out."""
        if not edges:
            return {}
        between = [f"{shorter + 1} to {edge}" for shorter, edge in pairwise(edges)]
        names = [f"up to {edges[0]}", *between, f"over {edges[-1]}"]
        return self._split(np.searchsorted(edges, self._times.prompt_tokens), names)

    def by_url(self, urls: Sequence[str]) -> dict[str, Group]:
        """urls: of a load that was split over several servers: request i went to number i % len(urls)."""
        return self._split(self._record.column("i")[self._times.row] % len(urls), urls) if urls else {}

    def by_stage(self, stages: Stages | None) -> dict[str, StageGroup]:
        """By the stage in which a request was scheduled, a ramp by its parts. Rates are those of requests that ended
        within the time of the stage, over that time, as the next stage serves the queue that a stage leaves. Without
        verdicts."""
        if stages is None or not len(self._times):
            return {}
        until_s = int(self._times.scheduled_ns.min()) / NS + self._window_s
        due = {span: span.holds(self._times.scheduled_ns) for span in stages.rows}
        found = {span.name: self._stage(span, members, until_s) for span, members in due.items() if members.any()}
        return found if len(found) > 1 else {}

    def _stage(self, span: Span, members: BoolArray, until_s: float) -> StageGroup:
        lasted_s = span.lasted_s(until_s)
        one = self._group(members, span.holds(self._times.end_ns), lasted_s)
        return StageGroup(
            **msgspec.structs.asdict(one),
            key=span.key,
            from_per_s=span.stage.from_per_s,
            to_per_s=span.stage.to_per_s,
            asked_request_per_s=_asked_per_s(span, self._times.scheduled_ns),
        )

    def service_gap_tokens(self) -> float | None:
        if len(self._tenants) < 2:
            return None
        return service_gap_tokens(self._record, self._tenant_of_row, len(self._tenants))

    def _split(self, which: IntColumn, names: Sequence[str]) -> dict[str, Group]:
        """which: the part of each request, as an index into names."""
        counts = np.bincount(which, minlength=len(names))
        if np.count_nonzero(counts) < 2:
            return {}
        return {
            name: self._group(which == index, which == index, self._window_s)
            for index, name in enumerate(names)
            if counts[index]
        }

    def _group(self, members: BoolArray, served: BoolArray, window_s: float) -> Group:
        """The numbers of `members`. served: requests that count in the rates; window_s: the time of the rates."""
        times = self._times
        served = times.completed & served
        waited = self._waited_ms[members]
        return Group(
            requests=int(members.sum()),
            completed=int((times.completed & members).sum()),
            failed=int((times.failed & members).sum()),
            request_per_s=int(served.sum()) / window_s if window_s > 0 else None,
            output_token_per_s=int(times.output_tokens[served].sum()) / window_s if window_s > 0 else None,
            latency=GroupLatency(**{name: self._distribution(name, members) for name in PER_REQUEST}),
            max_wait_ms=None if np.isnan(waited).all() else float(np.nanmax(waited)),
            preemptions=int(self._preemptions[members].sum()),
            service_tokens=int(self._service_tokens[members].sum()),
        )

    def _distribution(self, latency: str, members: BoolArray) -> Distribution:
        found = distribution(self._times.latency(latency)[members])
        hidden = self._no_intervals and latency in WITH_QUEUE  # an interval would not cover
        return msgspec.structs.replace(found, p99_ci=None) if hidden else found

    @cached_property
    def _tenant_of_row(self) -> IntColumn:
        """In order of the record."""
        return np.array([self._tenants.index(str(name)) for name in self._names], dtype=np.int64)[self._name]

    @cached_property
    def _waited_ms(self) -> FloatArray:
        begin, end = waits_ns(self._record)
        return np.where(begin == MISSING, np.nan, (end - begin) / 1e6)[self._times.row]

    @cached_property
    def _preemptions(self) -> IntColumn:
        return self._record.column("preemptions")[self._times.row]

    @cached_property
    def _service_tokens(self) -> IntColumn:
        times = self._times
        served = PROMPT_WEIGHT * times.prompt_tokens + OUTPUT_WEIGHT * times.output_tokens
        return np.where(times.first_ns == MISSING, 0, served)


def _asked_per_s(span: Span, due_ns: IntColumn) -> float | None:
    """Requests per second due in the span. Where the last request of the run is due in it, up to that one, as the time
    of the next is unknown."""
    requests, last_s = int(span.holds(due_ns).sum()), int(due_ns.max()) / NS
    if last_s >= span.end_s:
        return requests / (span.end_s - span.start_s)
    return (requests - 1) / (last_s - span.start_s) if requests > 1 and last_s > span.start_s else None
