"""/metrics: the engine's state under vLLM's names, so that dashboards for vLLM work.

Only this module imports prometheus_client. All of it runs on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engines.serve.engine import StepUpdate, TokenStream
from engines.serve.load import KVBlocks

# vLLM's own buckets, in seconds.
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
E2E_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)

TPOT_S = ITL_S
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

REASONS = ("stop", "length", "abort")  # vLLM's, of ended requests


class Metrics:
    def __init__(self, model: str, max_model_len: int, *, prefix_caching: bool = False) -> None:
        """Without prefix caching the counters of the prefix cache stay at 0."""
        self._prefix_caching = prefix_caching
        self._registry = CollectorRegistry()
        labels = {"model_name": model, "engine": "0"}

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, list(labels), registry=self._registry).labels(**labels)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"vllm:{name}", text, list(labels), registry=self._registry).labels(**labels)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            made = Histogram(f"vllm:{name}", text, list(labels), registry=self._registry, buckets=buckets)
            return made.labels(**labels)

        self._running = gauge("num_requests_running", "Requests in the batch.")
        self._waiting = gauge("num_requests_waiting", "Requests waiting for a slot.")
        self._kv_usage = gauge("kv_cache_usage_perc", "Share of the KV blocks in use or reserved. 1 means all.")
        # vLLM has no metric for the parts, so these have our name.
        blocks = Gauge("cbbench:kv_blocks", "KV blocks by state; cached ones are evicted when they are needed.",
                       [*labels, "state"], registry=self._registry)  # fmt: skip
        self._kv_blocks = {one.name: blocks.labels(**labels, state=one.name) for one in fields(KVBlocks)}
        self._preemptions = counter("num_preemptions", "Preemptions: running requests that went back to waiting.")
        self._prefix_queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._prefix_hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of the requests that got their first token.")
        self._generation_tokens = counter("generation_tokens", "Output tokens.")
        self._ttft = histogram("time_to_first_token_seconds", "From the request's arrival to its first token.", TTFT_S)
        self._itl = histogram("inter_token_latency_seconds", "Between two tokens of a request.", ITL_S)
        self._queue = histogram(
            "request_queue_time_seconds", "From the request's arrival to its first admission.", E2E_S
        )
        self._prefill = histogram("request_prefill_time_seconds", "From the first admission to the first token.", E2E_S)
        self._decode = histogram("request_decode_time_seconds", "From the first token to the last.", E2E_S)
        self._inference = histogram(
            "request_inference_time_seconds", "From the first admission to the last token.", E2E_S
        )
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "Decode time of a request over its tokens but the first.", TPOT_S
        )
        self._e2e = histogram("e2e_request_latency_seconds", "From the request's arrival to its end.", E2E_S)
        lengths = _up_to(max_model_len)
        self._request_prompt = histogram("request_prompt_tokens", "Prompt tokens of an ended request.", lengths)
        self._request_output = histogram("request_generation_tokens", "Output tokens of an ended request.", lengths)
        self._request_most = histogram("request_params_max_tokens", "max_tokens of an ended request.", lengths)
        self._step_tokens = histogram("iteration_tokens_total", "Tokens computed in a step.", STEP_TOKENS)
        ended = Counter("vllm:request_success", "Requests that ended, by reason.", [*labels, "finished_reason"],
                        registry=self._registry)  # fmt: skip
        self._ended = {reason: ended.labels(**labels, finished_reason=reason) for reason in REASONS}

    def take(self, step: StepUpdate) -> None:
        self._running.set(step.load.running)
        self._waiting.set(step.load.waiting)
        self._kv_usage.set(step.load.kv.usage)
        for state, blocks in self._kv_blocks.items():
            blocks.set(getattr(step.load.kv, state))
        self._preemptions.inc(step.preempted)
        for stream in step.admitted:
            self._queue.observe((step.admitted_ns - stream.request.sent_ns) / 1e9)
        if self._prefix_caching:
            self._prefix_queries.inc(sum(stream.request.prompt_tokens for stream in step.admitted))
            self._prefix_hits.inc(step.prefix_hit_tokens)
        if step.computed_tokens:
            self._step_tokens.observe(step.computed_tokens)
        for stream, _ in step.tokens:
            if not stream.answered:
                self._token(stream, step.at_ns)

    def answered(self, stream: TokenStream, reason: str, output_tokens: int, at_ns: int) -> None:
        """The answer to a request is complete, or its client has gone. reason: one of REASONS."""
        request = stream.request
        self._ended[reason].inc()
        self._e2e.observe((at_ns - request.sent_ns) / 1e9)
        self._request_prompt.observe(request.prompt_tokens)
        self._request_output.observe(output_tokens)
        self._request_most.observe(request.max_output_tokens)
        if stream.admitted_ns is None or stream.first_ns is None or stream.last_ns is None:
            return
        decode_s = (stream.last_ns - stream.first_ns) / 1e9
        self._prefill.observe((stream.first_ns - stream.admitted_ns) / 1e9)
        self._decode.observe(decode_s)
        self._inference.observe((stream.last_ns - stream.admitted_ns) / 1e9)
        if output_tokens > 1:
            self._tpot.observe(decode_s / (output_tokens - 1))

    def _token(self, stream: TokenStream, at_ns: int) -> None:
        self._generation_tokens.inc()
        if stream.last_ns is None:
            self._prompt_tokens.inc(stream.request.prompt_tokens)
            self._ttft.observe((at_ns - stream.request.sent_ns) / 1e9)
        else:
            self._itl.observe((at_ns - stream.last_ns) / 1e9)

    def text(self) -> bytes:
        return generate_latest(self._registry)


def _up_to(most: int) -> list[int]:
    """1, 2, 5, 10, 20, ... up to `most`."""
    return [step * 10**power for power in range(len(str(most))) for step in (1, 2, 5) if step * 10**power <= most]
