"""How long a request may take in all, and when a server says to come back."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from engines.remote.headers import retry_after_s
from tests.wire.driving import load
from tests.wire.fake import GOOD, HEAD, Call, FakeServer, chunk, plain, text


@pytest.mark.parametrize("drip", [b": keep-alive\n\n", text("a")], ids=["comments", "tokens"])
def test_a_drip_ends_at_the_deadline(drip: bytes) -> None:
    """Every byte restarts the read timeout."""

    async def script(call: Call) -> None:
        if call.number:
            await call.send(GOOD)
            return
        await call.send(HEAD)
        for _ in range(100):
            await call.pause(0.05)
            await call.send(chunk(drip))

    ran = load(script, requests=2, concurrency=1, read_timeout_s=0.3, request_timeout_s=0.6)
    assert ran.failures == ["timeout", None]
    late = ran.record.rows[0]
    assert "0.6 s after sending" in (late.error or "")
    assert late.sent is not None
    assert 0.55e9 < late.end - late.sent < 1.2e9


def test_an_answer_within_the_deadline_is_an_answer() -> None:
    async def script(call: Call) -> None:
        await call.pause(0.2)
        await call.send(GOOD)

    assert load(script, requests=4, concurrency=2, request_timeout_s=1.0).failures == [None] * 4


@pytest.mark.parametrize("workers", [1, 2])
def test_retry_after_is_recorded(workers: int) -> None:
    async def script(call: Call) -> None:
        refusal = plain("429 Too Many Requests", b"{}")
        wait = b"\r\nRetry-After: %d\r\n" % (call.number + 1)
        await call.send(refusal.replace(b"\r\n", wait, 1) if call.number < 3 else GOOD)

    with FakeServer(script) as server:
        ran = load(server, requests=6, concurrency=2, workers=workers)
    assert (ran.report.retry_afters, ran.report.retry_after_s) == (3, (1.0, 3.0))
    assert ran.failures.count("http_4xx") == 3
    assert len(server.bodies) == 6, "it is not obeyed"


def test_forms_of_retry_after() -> None:
    assert retry_after_s("120") == 120
    assert retry_after_s(formatdate(time.time() + 60, usegmt=True)) == pytest.approx(60, abs=2)
    assert retry_after_s(formatdate(time.time() - 60, usegmt=True)) == 0
    for wrong in ("", "soon", "-5", "1.5", "9" * 30, "Fri, 99 Foo 2026"):
        assert retry_after_s(wrong) is None
