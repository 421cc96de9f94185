"""The small parts of the load client, each by itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest

from engines.remote import kernel_stamps, tgi
from engines.remote.answer import StreamedAnswer
from engines.remote.client_stats import ClientStats, Histogram, core_wait_ns
from engines.remote.config import RemoteConfig
from engines.remote.load_client import Partition
from engines.remote.openai import RequestSpec, chat_body, completion_body, interpret
from engines.remote.request_bodies import WORDS, BodyWindow, PromptMaker
from engines.remote.socket_poller import EVENT_READ, SocketPoller
from engines.remote.sse import SseEvent
from workloads.pacing import Pacing
from workloads.plan import RequestPlan


def test_the_load_client_imports_no_torch_and_no_framework() -> None:
    heavy = ("torch", "scipy", "asyncio", "httpx")
    code = f"import sys, engines.remote.engine; print(*(m for m in {heavy} if m in sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == ""


# Waiting


def test_a_wait_ends_at_its_time_and_not_before() -> None:
    reactor = SocketPoller()
    late_ns = []
    for _ in range(20):
        until_ns = time.monotonic_ns() + 3_000_000
        while time.monotonic_ns() < until_ns:
            for on_ready, events in reactor.ready(until_ns):
                on_ready(events)
        late_ns.append(time.monotonic_ns() - until_ns)
    reactor.close()
    assert min(late_ns) < (500_000 if reactor.precise else 2_000_000)


def test_a_socket_ends_a_wait() -> None:
    reactor = SocketPoller()
    ours, theirs = socket.socketpair()
    heard: list[int] = []
    reactor.watch(ours.fileno(), EVENT_READ, heard.append)
    theirs.send(b"x")
    began = time.monotonic()
    for on_ready, events in reactor.ready(time.monotonic_ns() + 5_000_000_000):
        on_ready(events)
    assert heard == [EVENT_READ]
    assert time.monotonic() - began < 2
    reactor.forget(ours.fileno())
    assert reactor.ready(time.monotonic_ns()) == []
    for sock in (ours, theirs):
        sock.close()
    reactor.close()


# Stamps


@pytest.mark.skipif(not kernel_stamps.SUPPORTED, reason="the kernel gives no receive stamps here")
def test_the_kernel_knows_when_bytes_came_however_late_they_are_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    assert kernel_stamps.enable_stamps(receiver)
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    late_ns = []
    for _ in range(5):
        before_ns = time.monotonic_ns()
        sender.send(b"x")
        after_ns = time.monotonic_ns()
        time.sleep(0.03)
        _, control, _, _ = receiver.recvmsg(10, kernel_stamps.CONTROL_BYTES)
        arrived_ns = kernel_stamps.arrival_ns(control, time.monotonic_ns())
        if arrived_ns is not None:  # the first may come before the kernel has switched its stamps on
            late_ns.append(arrived_ns - after_ns)
            assert arrived_ns > before_ns - 1_000_000
    sender.close()
    receiver.close()
    assert late_ns
    assert min(late_ns) < 5_000_000, "the 30 ms before the read are not in it"


def test_without_a_stamp_there_is_none() -> None:
    assert kernel_stamps.arrival_ns([], 5) is None
    assert kernel_stamps.arrival_ns([(socket.SOL_SOCKET, 999, b"\0" * 48)], 5) is None


# Own measurements


def test_a_histogram_knows_its_quantiles_to_a_few_percent() -> None:
    values = np.random.default_rng(0).lognormal(12, 2, 20_000).astype(int) + 1
    histogram = Histogram()
    for value in values:
        histogram.add(int(value))
    for q in (0.5, 0.9, 0.99):
        known = histogram.quantile_ms(q)
        assert known == pytest.approx(np.quantile(values, q) / 1e6, rel=0.06)
    assert Histogram().quantile_ms(0.99) is None


def test_histograms_of_extremes() -> None:
    histogram = Histogram()
    for value in (-5, 0, 1, 10**13):
        histogram.add(value)
    assert histogram.quantile_ms(1) == pytest.approx(10**7)


def test_tallies_add_up() -> None:
    whole, halves = ClientStats(), [ClientStats(), ClientStats()]
    for i in range(1, 200):
        for tally in (whole, halves[i % 2]):
            tally.count_sent(i * 1000, i * 1000 + 10, i * 1000 + 10 + i)
            tally.token_events += 3
    merged = msgspec.msgpack.decode(msgspec.msgpack.encode(halves[0]), type=ClientStats)
    merged.merge(halves[1])
    assert merged == whole


def test_a_wait_that_one_process_could_not_measure_is_not_known_of_all() -> None:
    known, unknown = ClientStats(core_wait_ns=5), ClientStats(core_wait_ns=None)
    known.merge(ClientStats(core_wait_ns=6))
    assert known.core_wait_ns == 11
    known.merge(unknown)
    assert known.core_wait_ns is None
    assert known.report(open_loop=False, workers=2).core_wait_s is None


@pytest.mark.skipif(core_wait_ns() is None, reason="the kernel does not say how long a thread waited for a core")
def test_a_thread_that_shares_its_core_has_waited_for_it() -> None:
    cores = os.sched_getaffinity(0)
    spin = f"import os; os.sched_setaffinity(0, [{min(cores)}]); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as other:
        try:
            os.sched_setaffinity(0, {min(cores)})
            assert other.stdout is not None
            other.stdout.readline()
            before_ns = core_wait_ns()
            end_s = time.monotonic() + 0.2
            while time.monotonic() < end_s:
                pass
            after_ns = core_wait_ns()
        finally:
            os.sched_setaffinity(0, cores)
            other.kill()
    assert before_ns is not None
    assert after_ns is not None
    assert after_ns - before_ns > 20_000_000, "the two took turns"


def test_what_was_not_measured_is_none() -> None:
    report = ClientStats().report(open_loop=True, workers=1)
    assert report.loop_lag_p99_ms is None
    assert report.send_lag_p99_ms is None
    assert report.achieved_over_asked_rate is None
    assert report.coalesced_event_share is None
    assert report.cpu_share is None
    assert report.stamps == "read"


def test_the_achieved_rate_is_that_of_the_sends() -> None:
    tally = ClientStats()
    for i in range(11):
        tally.count_sent(i * 100, i * 100, i * 125)
    assert tally.report(open_loop=True, workers=1).achieved_over_asked_rate == pytest.approx(0.8)
    assert tally.report(open_loop=False, workers=1).achieved_over_asked_rate is None


# Answers


def test_gaps_add_up_to_the_whole_without_rounding_errors() -> None:
    answer = StreamedAnswer(interpret)
    for i in range(1001):
        answer.token(123_456 + i * 10_499)  # 10.499 us: rounded one by one, half a millisecond would be lost
    gaps_us = answer.gaps_us()
    assert gaps_us[0] == 0
    assert int(gaps_us.sum()) == 10_499
    assert gaps_us.dtype == np.uint32


def test_an_event_of_another_kind_may_hold_anything() -> None:
    answer = StreamedAnswer(interpret)
    interpret(answer, SseEvent(b"not json", b"ping"), 1)
    interpret(answer, SseEvent(b""), 1)
    interpret(answer, SseEvent(b"  "), 1)
    assert answer.failure is None
    assert not answer.done
    interpret(answer, SseEvent(b" [DONE] "), 1)
    assert answer.done


# Bodies


def test_the_shape_of_the_bodies() -> None:
    config = RemoteConfig(url="u", ignore_eos=False)
    asked = RequestSpec(prompt=[1, 2], output_tokens=3)
    assert msgspec.json.decode(completion_body(config, "m", asked)) == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 3,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    chat = msgspec.json.decode(chat_body(config, "m", RequestSpec(prompt="hi", output_tokens=3)))
    assert chat["messages"] == [{"role": "user", "content": "hi"}]


def test_the_words_are_many_and_different() -> None:
    assert len(WORDS) == len(set(WORDS)) > 200


def test_a_text_has_as_many_words_as_tokens_are_left() -> None:
    plan = RequestPlan.of([30, 5], [1, 1])
    maker = PromptMaker(plan, as_ids=False, token_ids=(0, 1), prompt_seed=0, overhead_tokens=10)
    assert [len(str(maker.spec(i).prompt).split()) for i in (0, 1)] == [20, 1]


def test_bodies_are_made_ahead_within_bounds() -> None:
    made: list[int] = []

    def make(index: int) -> bytes:
        made.append(index)
        return b"x" * (5 * 2**20 if index < 4 else 10)

    window = BodyWindow(make, range(10), count=4)
    while not window.full:
        window.make_one()
    assert made == [0, 1], "ten megabytes are more than enough ahead"
    assert len(window.take(0)) == 5 * 2**20
    assert len(window.take(3)) == 5 * 2**20, "1 and 2 were not wanted"
    assert made == [0, 1, 3]
    while not window.full:
        window.make_one()
    assert made == [0, 1, 3, 4, 5, 6, 7]
    for index in range(4, 10):
        window.take(index)
    window.make_one()
    assert window.full
    assert made == [0, 1, *range(3, 10)]


# Shares


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    "pacing", [{"rate_per_s": 10.0}, {"concurrency": 7}, {}, {"rate_per_s": 10.0, "concurrency": 5}]
)
def test_the_partitions_of_workers_make_the_whole(workers: int, pacing: dict[str, float]) -> None:
    plan = RequestPlan.of([1] * 20, [1] * 20)

    def whole() -> Pacing:
        return Pacing(plan.arrivals_ugap, **pacing)  # type: ignore[arg-type]

    parts = [Partition(plan, whole(), worker, workers) for worker in range(workers)]
    caps = [part.concurrency for part in parts]
    assert sum(cap or 0 for cap in caps) == (whole().concurrency or 0)
    late_ns = 10**12
    due, scheduled = [], {}
    for part in parts:
        while not part.exhausted:
            for one in part.due(late_ns):
                due.append(one.index)
                scheduled[one.index] = one.scheduled_ns
                part.completed(one.index, late_ns)
    assert sorted(due) == list(range(20))
    if "rate_per_s" in pacing:
        assert [scheduled[i] for i in range(20)] == [i * 100_000_000 for i in range(20)]


# TGI


def test_tgi_streams() -> None:
    answer = StreamedAnswer(tgi.interpret)
    events = (
        b'{"token":{"id":1,"text":"a","special":false},"generated_text":null,"details":null}',
        b'{"token":{"id":2,"text":"","special":true},"generated_text":"a","details":{"finish_reason":"length","generated_tokens":2,"input_length":7}}',
    )
    for at_ns, event in enumerate(events):
        tgi.interpret(answer, SseEvent(event), at_ns)
    answer.status = 200
    assert answer.end(None) is None
    assert (len(answer.token_ns), answer.output_tokens, answer.prompt_tokens) == (2, 2, 7)
    assert (answer.finish_reason, answer.done) == ("length", True)


def test_tgi_errors_and_bodies() -> None:
    answer = StreamedAnswer(tgi.interpret)
    tgi.interpret(answer, SseEvent(b'{"error":"out of memory","error_type":"generation"}', b"error"), 1)
    failure = answer.end(None)
    assert failure is not None
    assert (failure.kind, failure.message) == ("stream_error", "out of memory")
    body = msgspec.json.decode(tgi.body(RemoteConfig(url="u", api="tgi"), RequestSpec(prompt="hi", output_tokens=3)))
    assert body["inputs"] == "hi"
    assert body["parameters"]["max_new_tokens"] == 3
    assert "temperature" not in body["parameters"], "it refuses 0"
