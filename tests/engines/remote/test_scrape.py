"""What servers call things, and what becomes of it: in signals, in counts, in notes. No number is invented."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engines.base import ScrapeReport
from engines.remote.prometheus import NAMES, read_page
from engines.remote.scrape import Growth
from reports.client_limits import scrape_notes
from tests.wire.driving import Outcome, load
from tests.wire.fake import DONE, END, HEAD, Call, FakeServer, chunk, plain, text, usage
from workloads.errors import CbbenchError

# As the servers print them, cut down to what is asked for and to what could be taken for it.
VLLM = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 50.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 40.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 1.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 2.0
"""
SGLANG = """
sglang:num_running_reqs{model_name="m",priority="",tp_rank="0"} 7.0
sglang:num_running_reqs{model_name="m",priority="1",tp_rank="0"} 3.0
sglang:num_running_reqs{model_name="m",priority="2",tp_rank="0"} 4.0
sglang:num_running_reqs{model_name="m",priority="",tp_rank="1"} 7.0
sglang:num_running_reqs_offline_batch{model_name="m"} 99.0
sglang:num_queue_reqs{model_name="a \\"b\\" }, c"} 1.0
sglang:full_token_usage{model_name="m"} 0.9
sglang:token_usage{model_name="m"} 0.4
sglang:cache_hit_rate{model_name="m"} 0.1
sglang:num_retracted_reqs{model_name="m"} 6.0
sglang:generation_tokens_total{model_name="m"} 12.0
"""
TGI = """
tgi_batch_current_size 4
tgi_batch_current_max_tokens 4096
tgi_queue_size 2
tgi_request_success{method="generate"} 9
tgi_request_generated_tokens_bucket{le="64"} 3
tgi_request_generated_tokens_sum 640
tgi_request_generated_tokens_count 10
"""
LLAMACPP = """
# HELP llamacpp:prompt_tokens_seconds Average prompt throughput in tokens/s.
llamacpp:prompt_tokens_seconds nan
llamacpp:kv_cache_usage_ratio nan
llamacpp:requests_processing 1
llamacpp:requests_deferred 0
llamacpp:tokens_predicted_total 77
llamacpp:prompt_tokens_total 60
llamacpp:prompt_tokens_cached_total 20
"""
TRTLLM = "trtllm_num_requests_running 3.0\ntrtllm_kv_cache_utilization 0.62\ntrtllm_kv_cache_hit_rate 0.5\n"
TRITON = """
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 9
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 5
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 4
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm"} 88
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm"} 0.5
"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (VLLM, {"running": 7, "waiting": 2, "kv_usage": 0.75, "preemptions": 5, "prefix_queries": 100,
                "prefix_hits": 40, "output_tokens": 1500, "requests": 3}),
        (SGLANG, {"running": 7, "waiting": 1, "kv_usage": 0.4, "prefix_hit_rate": 0.1, "output_tokens": 12}),
        (TGI, {"running": 4, "waiting": 2, "output_tokens": 640, "requests": 9}),
        (LLAMACPP, {"running": 1, "waiting": 0, "output_tokens": 77, "prefix_hits": 20, "prefix_misses": 60}),
        (TRTLLM, {"running": 3, "kv_usage": 0.62, "prefix_hit_rate": 0.5}),
        (TRITON, {"running": 5, "waiting": 4, "kv_usage": 0.5}),
        ("vllm:gpu_cache_usage_perc 0.5\n", {"kv_usage": 0.5}),
        ("", {}),
        ("<html>vllm:num_requests_running 3</html>", {}),
        ("vllm:num_requests_running three\nvllm:num_requests_running{ 3\nvllm:num_requests_running", {}),
        ("vllm:num_requests_running 3 1700000000000\r\n", {"running": 3}),
    ],
)  # fmt: skip
def test_pages(page: str, expected: dict[str, float]) -> None:
    assert {meaning: reading.value for meaning, reading in read_page(page).items()} == expected


def test_our_own_server_has_the_names() -> None:
    pytest.importorskip("prometheus_client")
    from engines.serve.metrics import Metrics

    found = read_page(Metrics("m", 4096).text().decode())
    assert {"running", "waiting", "kv_usage", "preemptions", "output_tokens", "requests"} <= set(found)


def test_the_newer_name_wins() -> None:
    newer, older = NAMES["kv_usage"][:2]
    assert read_page(f"{older} 0.1\n{newer} 0.2\n")["kv_usage"] == (newer, 0.2)


def test_counters_grow_over_a_restart_and_from_nothing() -> None:
    growth = Growth(read_page("vllm:generation_tokens_total 100"))
    growth.add(read_page("vllm:generation_tokens_total 150\nvllm:num_preemptions_total 2"))
    assert (growth.total, growth.restarted) == ({"output_tokens": 50, "preemptions": 2}, False)
    growth.add(read_page("vllm:generation_tokens_total 10"))
    assert (growth.total["output_tokens"], growth.restarted) == (60, True)
    growth.add({})  # a page that lost them says nothing
    assert growth.total["output_tokens"] == 60


class Metered:
    """A fake server whose metrics page is `page()`; the pages that were asked for are counted."""

    def __init__(self, page: Callable[[], bytes], tokens: int = 2, token_s: float = 0.0) -> None:
        self.asked = 0
        self.tokens_sent = 0
        self._page = page
        self._tokens, self._token_s = tokens, token_s

    async def answer(self, call: Call) -> None:
        await call.send(HEAD)
        for i in range(self._tokens):
            await call.pause(self._token_s)
            self.tokens_sent += 1
            await call.send(chunk(text("a", "length" if i + 1 == self._tokens else None)))
        await call.send(chunk(usage(self._tokens)) + chunk(DONE) + END)

    async def metrics(self, path: str) -> bytes:
        self.asked += 1
        return self._page()


def loaded(metered: Metered, requests: int = 2, **config: Any) -> tuple[Outcome, ScrapeReport]:
    with FakeServer(metered.answer, metrics=metered.metrics) as server:
        outcome = load(server, requests, scrape=True, **config)
    assert outcome.report.scrape is not None
    return outcome, outcome.report.scrape


def ok(body: str) -> bytes:
    return plain("200 OK", body.encode(), "text/plain; version=0.0.4")


def test_signals_hold_what_the_server_says() -> None:
    metered = Metered(
        lambda: ok(f'{VLLM}\nvllm:num_preemptions_total{{engine="1"}} {metered.asked}'), tokens=60, token_s=0.015
    )
    outcome, scrape = loaded(metered, output_tokens=60)
    assert outcome.observer.signals
    assert list(outcome.record.signals) == outcome.observer.signals
    for signal in outcome.observer.signals:
        assert (signal.running, signal.waiting, signal.kv_usage) == (7, 2, 0.75)
    so_far = [signal.preemptions for signal in outcome.observer.signals]
    assert so_far == sorted(so_far, key=lambda count: count or 0)
    assert scrape.preemptions is not None
    assert 0 <= (so_far[0] or 0) <= scrape.preemptions
    assert scrape.sources["kv_usage"] == "vllm:kv_cache_usage_perc"
    seconds = max(row.end for row in outcome.record.rows) / 1e9
    assert 3 <= metered.asked <= 4 * seconds + 6, "at most 4 a second, one before and a few after"


def test_what_is_not_exposed_is_none_and_the_client_fills_in_its_own() -> None:
    outcome, scrape = loaded(Metered(lambda: ok(TGI), tokens=40, token_s=0.008), output_tokens=40)
    signal = outcome.observer.signals[0]
    assert (signal.running, signal.kv_usage, signal.preemptions) == (4, None, None)
    assert scrape.sources == {
        "running": "tgi_batch_current_size",
        "waiting": "tgi_queue_size",
        "kv_usage": "not exposed",
        "preemptions": "not exposed",
    }
    outcome, scrape = loaded(Metered(lambda: plain("404 Not Found"), tokens=40, token_s=0.008), output_tokens=40)
    assert (outcome.observer.signals[0].running, outcome.observer.signals[0].kv_usage) == (2, None)
    assert (scrape.samples, scrape.problem, scrape.sources["running"]) == (0, "HTTP 404", "client")
    assert scrape_notes(scrape) == ()


@pytest.mark.parametrize(("factor", "noted"), [(1.0, False), (2.0, True)])
def test_the_counts_of_both_sides_are_compared(factor: float, noted: bool) -> None:
    metered = Metered(lambda: ok(f"llamacpp:tokens_predicted_total {metered.tokens_sent * factor:g}"))
    _, scrape = loaded(metered, 5)
    assert (scrape.output_tokens, scrape.output_tokens_received) == (round(10 * factor), 10)
    assert scrape_notes(scrape) == (("the server counted 20 output tokens during the run, the client 10",) * noted)


def test_tokens_counted_late_are_waited_for() -> None:
    late = time.monotonic() + 0.4
    metered = Metered(lambda: ok(f"llamacpp:tokens_predicted_total {10 if time.monotonic() > late else 0}"))
    assert loaded(metered, 5)[1].output_tokens == 10


@pytest.mark.parametrize(
    "names",
    [
        {"vllm:prefix_cache_queries_total": 100, "vllm:prefix_cache_hits_total": 30},
        {"llamacpp:prompt_tokens_total": 70, "llamacpp:prompt_tokens_cached_total": 30},
    ],
    ids=["of so many", "beside so many"],
)
def test_unplanned_prefix_hits_are_noted(names: dict[str, int]) -> None:
    metered = Metered(lambda: ok("\n".join(f"{name} {metered.asked * value}" for name, value in names.items())))
    _, scrape = loaded(metered)
    assert scrape.prefix_hit_rate == pytest.approx(0.3)
    assert "30% of the prompt tokens hit the server's prefix cache" in scrape_notes(scrape)[0]


def test_a_page_that_hangs_delays_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.remote.scrape.TIMEOUT_S", 0.6)
    monkeypatch.setattr("engines.remote.scrape.STALE_NS", 300_000_000)
    pages = 0

    async def hanging(path: str) -> bytes:
        nonlocal pages
        pages += 1
        if pages > 1:
            await asyncio.sleep(60)
        return ok(VLLM)

    metered = Metered(lambda: b"", tokens=100, token_s=0.009)
    with FakeServer(metered.answer, metrics=hanging) as server:
        outcome = load(server, 2, output_tokens=100, scrape=True)
    assert np.diff(outcome.event_ms()[:100]).max() < 500
    news = [signal.kv_usage for signal in outcome.observer.signals if signal.t > 600_000_000]
    assert news
    assert set(news) == {None}, "old news is no news"


def test_metrics_elsewhere() -> None:
    async def triton(path: str) -> bytes:
        return ok(TRITON)

    with FakeServer(metrics=triton) as other, FakeServer() as server:
        outcome = load(server, scrape=True, metrics_url=f"{other.url}/metrics", api_key="secret")
    assert outcome.report.scrape is not None
    assert outcome.report.scrape.sources["kv_usage"].startswith("nv_trt_llm_kv_cache_block_metrics")
    assert other.get_heads
    assert not any("secret" in head for head in other.get_heads), "the key is for the server that is loaded"


def test_metrics_at_their_second_address() -> None:
    async def trtllm(path: str) -> bytes:
        return plain("200 OK", b"[]") if path == "/metrics" else ok(TRTLLM)

    with FakeServer(metrics=trtllm) as server:
        outcome = load(server, scrape=True)
    assert outcome.report.scrape is not None
    assert outcome.report.scrape.url == f"{server.url}/prometheus/metrics"
    assert outcome.report.scrape.sources["running"] == "trtllm_num_requests_running"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("{server}/prometheus/nothing", "has no metric of a server that cbbench knows"),
        ("http://127.0.0.1:9", "refused"),
        ("ftp://127.0.0.1", "metrics_url: ftp://127.0.0.1: want http"),
    ],
)
def test_metrics_that_were_named_must_be_there(url: str, words: str) -> None:
    with FakeServer() as server, pytest.raises(CbbenchError) as caught:
        load(server, scrape=True, metrics_url=url.format(server=server.url))
    assert caught.value.field == "metrics_url"
    assert words in str(caught.value)
    assert caught.value.exit_code == 2
