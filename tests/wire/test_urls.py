"""One load over several servers."""

from __future__ import annotations

from typing import Any

import pytest

from cbbench.settings.build import build_settings
from tests.wire.driving import load
from tests.wire.fake import GOOD, Call, FakeServer
from workloads.errors import CbbenchError


async def quick(call: Call) -> None:
    await call.send(GOOD)


def test_the_load_is_split_evenly() -> None:
    with FakeServer(quick) as one, FakeServer(quick) as two:
        ran = load(one, requests=21, concurrency=4, other_urls=(two.url,), warmup_requests=0)
        assert ran.failures == [None] * 21
        assert (len(one.bodies), len(two.bodies), ran.report.workers) == (11, 10, 2)
        assert ran.report.requests_by_address == {f"127.0.0.1:{one.port}": 11, f"127.0.0.1:{two.port}": 10}
        assert one.most_open_calls <= 2


@pytest.mark.parametrize("wrong", ["concurrency", "no server"])
def test_what_cannot_be_split_is_refused(wrong: str) -> None:
    with FakeServer(quick) as one, FakeServer(quick) as two:
        others = (two.url,) if wrong == "concurrency" else ("http://127.0.0.1:9",)
        with pytest.raises(CbbenchError) as caught:
            load(one, requests=4, concurrency=1 if wrong == "concurrency" else 4, other_urls=others)
    assert (caught.value.field, caught.value.exit_code) == (("concurrency", 2) if wrong == "concurrency" else (None, 6))


def test_one_url_has_the_identity_that_it_had() -> None:
    one = build_settings({"url": "http://127.0.0.1:9"})
    assert one.server.url == "http://127.0.0.1:9"
    assert one.config_hash() == build_settings({"url": ["http://127.0.0.1:9"]}).config_hash()
    two: dict[str, Any] = {"url": ["http://127.0.0.1:9", "http://127.0.0.1:8"]}
    assert build_settings(two).server.url == ("http://127.0.0.1:9", "http://127.0.0.1:8")
    assert build_settings(two).config_hash() != one.config_hash()
    with pytest.raises(CbbenchError, match="each server once"):
        build_settings({"url": ["http://127.0.0.1:9", "http://127.0.0.1:9"]})
