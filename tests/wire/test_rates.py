"""A rate that changes, on real sockets: requests leave when the stages say so, from one process or from two."""

from __future__ import annotations

import pytest

from engines.remote.config import RemoteConfig
from engines.remote.engine import RemoteEngine
from tests.wire.driving import Watching
from tests.wire.fake import FakeServer
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.rates import NS, RateSchedule

LATE_NS = 400_000_000  # on a machine that does other work too; less than the silence between the stages


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_requests_leave_by_the_stages(workers: int) -> None:
    rate = RateSchedule.parse("40 for 0.5s, 0 for 0.5s, 10..70 for 0.5s")
    plan = RequestPlan.of([8] * 40, [2] * 40)
    watching = Watching()
    with FakeServer() as server:
        engine = RemoteEngine(RemoteConfig(url=server.url, warmup_requests=0, workers=workers))
        engine.run(plan, Pacing(plan.arrivals_ugap, rate_per_s=rate), watching)
    rows = sorted(watching.rows, key=lambda row: row.i)
    assert [row.scheduled for row in rows] == rate.due_ns(plan.arrivals_ugap).tolist()
    assert [row.i for row in rows if row.scheduled < NS // 2] == list(range(20))
    for row in rows:
        assert row.sent is not None
        assert 0 <= row.sent - row.scheduled < LATE_NS
    assert not any(NS // 2 <= row.scheduled < NS for row in rows)
    assert engine.client is not None
    assert engine.client.achieved_over_asked_rate == pytest.approx(1, abs=0.3)
