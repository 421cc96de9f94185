"""Order: which waiting request is admitted first, and whether others may be admitted before a head that lacks KV.

Within a queue a rank never changes with time, so waiting is a heap and is never sorted again; linear ageing is such a
rank, since  length - rate * (now - arrival)  orders like  length + rate * arrival.  Between queues (one per tenant) the
one with the smallest turn goes first; only the fair order gives turns that move.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping

from engines.scheduling.request import Request

NS = 1_000_000_000


class Order:
    """First come, first served; and the hooks other orders use."""

    moves = False  # True if turns change while requests are served
    urgency = False  # True if a more urgent request goes before less urgent ones in a step's tokens too

    def rank(self, request: Request) -> float:
        """Smaller goes first; equal ranks go by submission. Called once, at submit."""
        return 0.0

    def turn(self, tenant: str) -> float:
        """Smaller goes first, before ranks are compared."""
        return 0.0

    def queued(self, request: Request) -> None:
        """A new request joins the queue."""

    def admitted(self, request: Request) -> None: ...

    def served(self, requests: Iterable[Request]) -> None:
        """Each of these got one output token."""

    def ended(self, request: Request) -> None:
        """It has ended, wherever it was; one that was rejected at submit was never queued."""


class ShortestPrompt(Order):
    def rank(self, request: Request) -> float:
        return float(request.prompt_tokens)


class ShortestKnown(Order):
    """By the true total work: an oracle, as output lengths are known only in a benchmark."""

    def rank(self, request: Request) -> float:
        return float(request.prompt_tokens + request.max_output_tokens)


class ShortestPredicted(Order):
    """By prompt plus the median of the last outputs of the same tenant and prompt size (in powers of two).

    Until something is known of such requests, the tenant's median is used; until then, the request's own limit.
    """

    WINDOW = 128

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], _Median] = {}

    def rank(self, request: Request) -> float:
        return request.prompt_tokens + self.predict(request)

    def predict(self, request: Request) -> float:
        """Output tokens the request will probably make."""
        for key in self._keys(request):
            if (median := self._seen.get(key)) is not None:
                return min(median.value, float(request.max_output_tokens))
        return float(request.max_output_tokens)

    def ended(self, request: Request) -> None:
        if request.finish_reason in ("length", "stop"):
            for key in self._keys(request):
                self._seen.setdefault(key, _Median(self.WINDOW)).add(request.output_tokens)

    @staticmethod
    def _keys(request: Request) -> tuple[tuple[str, int], ...]:
        return (request.tenant, request.prompt_tokens.bit_length()), (request.tenant, 0)


class _Median:
    """Median of the last `window` values."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._recent: deque[int] = deque()
        self._ordered: list[int] = []

    def add(self, value: int) -> None:
        if len(self._recent) == self._window:
            self._ordered.remove(self._recent.popleft())
        self._recent.append(value)
        insort(self._ordered, value)

    @property
    def value(self) -> float:
        middle = len(self._ordered) // 2
        return float(self._ordered[middle])


class ByPriority(Order):
    """Priority 0 first."""

    urgency = True

    def rank(self, request: Request) -> float:
        return float(request.priority)


class Fair(Order):
    """Virtual token counter per tenant (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

    A tenant pays w_p = 1 per prompt token at admission and w_q = 2 per output token, over its weight; the one that has
    paid least goes next. A tenant that returns after a pause is lifted to the least counter of those with waiting or
    running requests, or to that of the last one served, so that idleness earns no credit.
    """

    moves = True
    PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        self.paid: dict[str, float] = {}
        self._last_served = ""
        self._live: dict[str, set[int]] = {}  # indices of waiting and running requests, of tenants that have any

    def turn(self, tenant: str) -> float:
        return self.paid.get(tenant, 0.0)

    def queued(self, request: Request) -> None:
        tenant = request.tenant
        if tenant not in self._live:
            floor = min((self.turn(one) for one in self._live), default=self.turn(self._last_served))
            self.paid[tenant] = max(self.turn(tenant), floor)
        self._live.setdefault(tenant, set()).add(request.index)

    def admitted(self, request: Request) -> None:
        if request.fresh:  # a prompt is paid for once
            self._pay(request.tenant, self.PROMPT_WEIGHT * request.prompt_tokens)
        self._last_served = request.tenant

    def served(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._pay(request.tenant, self.OUTPUT_WEIGHT)

    def ended(self, request: Request) -> None:
        live = self._live.get(request.tenant, set())
        if request.index in live:
            live.remove(request.index)
            self._last_served = request.tenant
            if not live:
                del self._live[request.tenant]

    def _pay(self, tenant: str, amount: float) -> None:
        self.paid[tenant] = self.paid.get(tenant, 0.0) + amount / self._weights.get(tenant, 1.0)


class Ageing(Order):
    """Wraps an order: every second waited is worth `rate` of its rank's units (tokens, or levels of priority).

    So a request of rank a is overtaken only by requests that arrive within (a - b) / rate seconds after it, where b is
    the smallest rank there is: its wait is bounded by that plus the time to serve those ahead of it.
    """

    def __init__(self, inner: Order, rate_per_s: float) -> None:
        self._inner = inner
        self._rate_per_s = rate_per_s
        self.moves = inner.moves
        self.urgency = inner.urgency

    def rank(self, request: Request) -> float:
        return self._inner.rank(request) + self._rate_per_s * (request.submitted_ns / NS)

    def turn(self, tenant: str) -> float:
        return self._inner.turn(tenant)

    def queued(self, request: Request) -> None:
        self._inner.queued(request)

    def admitted(self, request: Request) -> None:
        self._inner.admitted(request)

    def served(self, requests: Iterable[Request]) -> None:
        self._inner.served(requests)

    def ended(self, request: Request) -> None:
        self._inner.ended(request)


class SkipAhead:
    """Up to `limit` requests may be admitted before a head of a queue that lacks KV; then no others are.

    0 is strict.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit

    def may_skip(self, head: Request) -> bool:
        return head.times_skipped < self.limit
