"""The metrics of a server's queue and KV cache on its /metrics page, under the names of all known servers."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Final, Literal, NamedTuple

Meaning = Literal[
    "running",
    "waiting",
    "kv_usage",  # share, 0..1
    "prefix_hit_rate",  # share, 0..1
    "preemptions",  # this and the following only ever grow, until the server restarts
    "prefix_hits",
    "prefix_queries",
    "prefix_misses",
    "output_tokens",
    "requests",
]
SHARES: Final = ("kv_usage", "prefix_hit_rate")
COUNTERS: Final = ("preemptions", "prefix_hits", "prefix_queries", "prefix_misses", "output_tokens", "requests")

# Names of samples on the page; of a renamed one the newest name first. The first that is present counts.
# vLLM (and cbbench serve), SGLang, TGI, llama.cpp, trtllm-serve, Triton with TensorRT-LLM.
NAMES: Final[dict[Meaning, tuple[str, ...]]] = {
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "tgi_batch_current_size",
        "llamacpp:requests_processing",
        "trtllm_num_requests_running",
        'nv_trt_llm_request_metrics{request_type="scheduled"}',
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "tgi_queue_size",
        "llamacpp:requests_deferred",
        "trtllm_num_requests_waiting",
        'nv_trt_llm_request_metrics{request_type="waiting"}',
    ),
    "kv_usage": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
        "trtllm_kv_cache_utilization",
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',
    ),
    "prefix_hit_rate": ("sglang:cache_hit_rate", "trtllm_kv_cache_hit_rate"),
    # SGLang's num_retracted_reqs is not a counter: it covers the last reporting period alone.
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "prefix_hits": (
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
        "llamacpp:prompt_tokens_cached_total",
    ),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_misses": ("llamacpp:prompt_tokens_total",),  # llama.cpp has no counter of both together
    "output_tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "tgi_request_generated_tokens_sum",
        "llamacpp:tokens_predicted_total",
        "trtllm_generation_tokens_total",
    ),
    "requests": (
        "vllm:request_success_total",
        "sglang:num_requests_total",
        "tgi_request_success",
        "trtllm_request_success_total",
    ),
}
# Rows that hold the total where other rows hold parts of it: of SGLang's priorities, and of a model's ranks.
_TOTAL_ROWS = {"priority": "", "tp_rank": "0"}

_LABEL = r'\w+="(?:[^"\\]|\\.)*"'
_LABELS = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_KNOWN = sorted({name.partition("{")[0] for names in NAMES.values() for name in names})
# One search over the page, as the event loop cannot run meanwhile; "^" for "\n" would be several times slower.
_SAMPLE = re.compile(rf"\n({'|'.join(map(re.escape, _KNOWN))})(?:\{{((?:{_LABEL}[, ]*)*)\}})?[ \t]+(\S+)")


class Reading(NamedTuple):
    name: str  # on the page
    value: float


class _Row(NamedTuple):
    labels: dict[str, str]
    value: float


def read_page(page: str) -> dict[Meaning, Reading]:
    """The metrics on the page. A meaning missing from the result is not exposed, which is not 0."""
    rows: dict[str, list[_Row]] = defaultdict(list)
    for name, labels, number in _SAMPLE.findall("\n" + page):
        value = _number(number)
        if value is not None:
            rows[name].append(_Row(dict(_LABELS.findall(labels)), value))
    found: dict[Meaning, Reading] = {}
    for meaning, names in NAMES.items():
        for name in names:
            if values := _values(rows, name):
                # Ranks divide the requests; the fullest of their KV caches is the one that makes requests wait.
                found[meaning] = Reading(name, max(values) if meaning in SHARES else sum(values))
                break
    return found


def _number(text: str) -> float | None:
    """None if it is not a number: llama.cpp has nan before its first request."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _values(rows: dict[str, list[_Row]], name: str) -> list[float]:
    name, _, wanted = name.partition("{")
    labels = _LABELS.findall(wanted)
    kept = [row for row in rows.get(name, ()) if all(row.labels.get(key) == value for key, value in labels)]
    for label, whole in _TOTAL_ROWS.items():
        kept = [row for row in kept if row.labels.get(label, whole) == whole] or kept
    return [row.value for row in kept]
