"""What has ended is on disk, however busy the client is."""

from __future__ import annotations

import os
import time

import pytest

from benchmarks.kills import fast_server, kill_once
from tests.wire.driving import Watching, load
from tests.wire.fake import GOOD, Call, FakeServer


class Slow(Watching):
    """Records so slowly that the client has no moment without sends and reads."""

    def request_ended(self, *args: object) -> None:
        super().request_ended(*args)  # type: ignore[arg-type]
        time.sleep(0.002)


async def quick(call: Call) -> None:
    await call.send(GOOD)


def test_records_keep_up_with_the_ends() -> None:
    with FakeServer(quick) as server:
        ran = load(server, requests=300, concurrency=8, observer=Slow())
    assert ran.failures == [None] * 300
    assert 1 <= ran.report.record_backlog_peak < 60
    assert (ran.report.record_lag_p99_ms or 0.0) > 1


@pytest.mark.parametrize("workers", [1, 2])
def test_the_time_to_a_record_is_shown(workers: int) -> None:
    with FakeServer(quick) as server:
        ran = load(server, requests=20, concurrency=2, workers=workers, observer=Slow())
    assert ran.report.record_backlog_peak >= 1
    assert (ran.report.record_lag_p99_ms or 0.0) > 2


@pytest.mark.slow
def test_a_kill_loses_only_what_ended_just_before() -> None:
    ahead = os.geteuid() == 0
    with fast_server(ahead=ahead) as url:
        kills = [kill_once(url, after_s, 16, ahead=ahead) for after_s in (0.21, 0.29, 0.53, 0.64, 0.75, 0.87)]
    undisturbed = [kill for kill in kills if kill.counts]
    if not undisturbed:
        pytest.skip("other work had the client's core")
    assert all(kill.answered > 100 for kill in kills)
    assert [kill for kill in undisturbed if kill.lost] == []
