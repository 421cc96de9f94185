"""Waiting: requests without a slot, one heap per queue, so that a queue held back does not hold back the others.

A queue is a tenant (and a prompt bucket, where prompts are bucketed). Entries are ordered by

    (0 if swapped out, so that it only needs its blocks back, else 1;  rank;  order of submission)
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence

from engines.scheduling.policies.order import Order
from engines.scheduling.request import Request, State

_Entry = tuple[int, float, int, Request]


class Waiting:
    def __init__(self, order: Order, buckets: Sequence[int] = ()) -> None:
        """buckets: limits of the prompt lengths that are batched apart."""
        self._order = order
        self._buckets = buckets
        self._added = 0
        self._queues: dict[str, list[_Entry]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def buckets(self) -> list[int]:
        """Buckets of the waiting requests, in the order of their heads."""
        heads = [(queue[0][:3], queue[0][3].bucket) for name in self._queues if (queue := self._clean(name))]
        return list(dict.fromkeys(bucket for _, bucket in sorted(heads)))

    def queues_outside(self, bucket: int | None) -> set[str]:
        """Queues of the other buckets; none when bucket is None."""
        if bucket is None:
            return set()
        return {name for name in self._queues if (queue := self._clean(name)) and queue[0][3].bucket != bucket}

    def of_bucket(self, bucket: int) -> list[Request]:
        """Waiting requests of this bucket, in no particular order."""
        return [request for request in self if request.bucket == bucket]

    def add(self, request: Request) -> None:
        """A new request: it gets its rank, its bucket and its place in the queue."""
        request.rank = self._order.rank(request)
        request.sequence = self._added
        self._added += 1
        request.bucket = bisect_left(self._buckets, request.prompt_tokens)
        self._order.queued(request)
        self.push(request)

    def push(self, request: Request) -> None:
        """Back to its place in its queue."""
        request.state = State.WAITING
        entry = (0 if request.resumes_first else 1, request.rank, request.sequence, request)
        heapq.heappush(self._queues.setdefault(request.queue, []), entry)
        self._count += 1

    def head(self, skip: Collection[str] = ()) -> Request | None:
        """The request that is next, leaving out the queues in `skip`."""
        best: tuple[int, float, float, int] | None = None
        chosen: Request | None = None
        for name in list(self._queues):
            if name in skip:
                continue
            if not (queue := self._clean(name)):
                del self._queues[name]  # tenants may be any number, over time
                continue
            resumed, rank, sequence, request = queue[0]
            key = (resumed, self._order.turn(request.tenant), rank, sequence)
            if best is None or key < best:
                best, chosen = key, request
        return chosen

    def pop(self, request: Request) -> None:
        """Take out the head of a queue."""
        popped = heapq.heappop(self._queues[request.queue])[3]
        assert popped is request
        self._count -= 1

    def take_out(self, request: Request) -> None:
        """Remove the request, wherever in its queue, before it waits in another queue."""
        queue = self._queues[request.queue]
        queue[:] = [entry for entry in queue if entry[3] is not request]
        heapq.heapify(queue)
        self._count -= 1

    def forget(self) -> None:
        """A waiting request has ended; its entry is dropped when it comes to the top."""
        self._count -= 1

    def _clean(self, name: str) -> list[_Entry]:
        """The queue, with ended requests gone from its top."""
        queue = self._queues[name]
        while queue and queue[0][3].state is not State.WAITING:
            heapq.heappop(queue)
        return queue

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in no particular order."""
        return (entry[3] for queue in self._queues.values() for entry in queue if entry[3].state is State.WAITING)
