"""/metrics: the engine's state under vLLM's names, so that dashboards for vLLM work.

Only this module imports prometheus_client. All of it runs on the event loop's thread.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engines.serve.engine import StepUpdate, TokenStream

# vLLM's own buckets, in seconds.
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
E2E_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)

QUEUE_S = E2E_S

REASONS = {"stop": "stop", "length": "length", "aborted": "abort"}  # ours: vLLM's


class Metrics:
    def __init__(self, model: str, *, prefix_caching: bool = False) -> None:
        """Without prefix caching the counters of the prefix cache stay at 0."""
        self._prefix_caching = prefix_caching
        self._registry = CollectorRegistry()
        labels = {"model_name": model, "engine": "0"}

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, list(labels), registry=self._registry).labels(**labels)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"vllm:{name}", text, list(labels), registry=self._registry).labels(**labels)

        def histogram(name: str, text: str, buckets_s: tuple[float, ...]) -> Histogram:
            made = Histogram(f"vllm:{name}", text, list(labels), registry=self._registry, buckets=buckets_s)
            return made.labels(**labels)

        self._running = gauge("num_requests_running", "Requests in the batch.")
        self._waiting = gauge("num_requests_waiting", "Requests waiting for a slot.")
        self._kv_usage = gauge("kv_cache_usage_perc", "Share of the KV blocks in use or reserved. 1 means all.")
        self._preemptions = counter("num_preemptions", "Preemptions: running requests that went back to waiting.")
        self._prefix_queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._prefix_hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of the requests that got their first token.")
        self._generation_tokens = counter("generation_tokens", "Output tokens.")
        self._ttft = histogram("time_to_first_token_seconds", "From the request's arrival to its first token.", TTFT_S)
        self._itl = histogram("inter_token_latency_seconds", "Between two tokens of a request.", ITL_S)
        self._queue = histogram(
            "request_queue_time_seconds", "From the request's arrival to its first admission.", QUEUE_S
        )
        self._e2e = histogram("e2e_request_latency_seconds", "From the request's arrival to its end.", E2E_S)
        ended = Counter("vllm:request_success", "Requests that ended, by reason.", [*labels, "finished_reason"],
                        registry=self._registry)  # fmt: skip
        self._ended = {reason: ended.labels(**labels, finished_reason=name) for reason, name in REASONS.items()}

    def take(self, step: StepUpdate) -> None:
        self._running.set(step.load.running)
        self._waiting.set(step.load.waiting)
        self._kv_usage.set(step.load.kv_usage)
        self._preemptions.inc(step.preempted)
        for stream in step.admitted:
            self._queue.observe((step.admitted_ns - stream.request.sent_ns) / 1e9)
        if self._prefix_caching:
            self._prefix_queries.inc(sum(stream.request.prompt_tokens for stream in step.admitted))
            self._prefix_hits.inc(step.prefix_hit_tokens)
        self._generation_tokens.inc(len(step.tokens))
        for stream, _ in step.tokens:
            self._token(stream, step.at_ns)
        for stream in step.ended:
            if (reason := stream.request.finish_reason) in self._ended:
                self._ended[reason].inc()
                self._e2e.observe((step.at_ns - stream.request.sent_ns) / 1e9)

    def _token(self, stream: TokenStream, at_ns: int) -> None:
        if stream.last_ns is None:
            self._prompt_tokens.inc(stream.request.prompt_tokens)
            self._ttft.observe((at_ns - stream.request.sent_ns) / 1e9)
        else:
            self._itl.observe((at_ns - stream.last_ns) / 1e9)

    def text(self) -> bytes:
        return generate_latest(self._registry)
