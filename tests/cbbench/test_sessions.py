"""--think-ms through the whole command line, on the simulator and over HTTP: no turn before its answer and thinking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from engines.request_table import MISSING
from reports.folder import read_record, read_run
from tests.cbbench.conftest import Outcome
from tests.wire.fake import GOOD, Call, FakeServer
from workloads.plan import RequestPlan
from workloads.tenant_plan import build_tenant_plan

THINK_MS = 40
REQUESTS = 24
LOAD = (
    "--tenants", "chat:sessions=3", "--workload", "prompt=fixed(8);output=fixed(2)", "--num-requests", REQUESTS,
    "--rate", 60, "--think-ms", f"fixed({THINK_MS})",
)  # fmt: skip
SIMULATED = ("--engine", "simulated", "--hardware", "h100", "--model", "tiny")
Run = Callable[..., Outcome]


def plan() -> RequestPlan:
    return build_tenant_plan(
        "chat:sessions=3", workload="prompt=fixed(8);output=fixed(2)", num_requests=REQUESTS, seed=0, arrival="poisson",
        max_model_len=8192, misfit="error",
    )  # fmt: skip


def waits_ms(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """([turns] from the end of the answer before to sending, [turns] from arrival to sending)"""
    record = read_record(folder)
    index = record.column("i")
    sent, end = (np.empty(REQUESTS) for _ in range(2))
    sent[index], end[index] = record.column_ns("sent") / 1e6, record.column_ns("end") / 1e6
    assert (record.column_ns("sent") != MISSING).all()
    session, arrival = plan().session, plan().arrivals_ugap / 1e6 / 60 * 1e3
    pairs = [(a, b) for s in set(session.tolist()) for own in [np.flatnonzero(session == s)]
             for a, b in pairwise(own)]  # fmt: skip
    before, turn = np.array(pairs).T
    return sent[turn] - end[before], sent[turn] - arrival[turn]


def check(folder: Path) -> None:
    after_answer, after_arrival = waits_ms(folder)
    assert (after_answer >= THINK_MS - 1e-3).all()
    assert (after_arrival >= -1e-3).all()
    assert (np.minimum(after_answer - THINK_MS, after_arrival) < 30).all(), "no turn is later than it need be"
    assert (after_arrival > 30).any(), "some turns did wait"
    assert read_run(folder).workload.pacing.think_ms == f"fixed({THINK_MS})"


def test_on_the_simulator(cbbench: Run, tmp_path: Path) -> None:
    assert cbbench("run", *SIMULATED, *LOAD, "-o", tmp_path / "run").code == 0
    check(tmp_path / "run")


@pytest.mark.parametrize("workers", [1, 2])
def test_over_http(cbbench: Run, tmp_path: Path, workers: int) -> None:
    async def script(call: Call) -> None:
        await call.pause(0.05)
        await call.send(GOOD)

    with FakeServer(script) as server:
        outcome = cbbench(
            "run", "--url", server.url, *LOAD, "--workers", workers, "--warmup", 0, "--no-scrape",
            "--max-model-len", 8192, "--session-header", "X-Session-Id", "-o", tmp_path / "run",
        )  # fmt: skip
    assert outcome.code == 0, outcome.err
    check(tmp_path / "run")
    sent = [
        line.partition(": ")[2] for head in server.heads for line in head.splitlines() if line.startswith("X-Session")
    ]
    assert Counter(map(int, sent)) == Counter(plan().session.tolist())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--think-ms", "fixed(5)"), "error: --think-ms: needs --rate\n"),
        (
            ("--rate", 5, "--think-ms", "fixed(5)"),
            "error: --think-ms: the workload has no sessions",
        ),
        (("--rate", 5, "--tenants", "a:sessions=1", "--think-ms", "soon"), "error: --think-ms: "),
        (("--session-header", "X Session"), "error: --session-header: 'X Session' is not a header name"),
        (("--session-header", "Content-Length"), "error: --session-header: Content-Length is set by cbbench"),
    ],
)
def test_bad_input(cbbench: Run, arguments: tuple[object, ...], line: str) -> None:
    outcome = cbbench("run", *SIMULATED, *arguments)
    assert (outcome.code, outcome.err.startswith(line), outcome.err.count("\n")) == (2, True, 1), outcome.err
