"""Two tenants on the simulator, one of which floods: an SLA on the other, from sweep to gate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cbbench.conftest import Outcome

Call = Callable[..., Outcome]
SIMULATED = ("--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b")
FLOOD = (
    *SIMULATED, "--workload", "prompt=fixed(64);output=fixed(32)", "--tenants", "quiet;noisy:weight=0,burst=10:200",
    "--num-requests", 260, "--max-num-seqs", 8, "--rate", 5,
)  # fmt: skip


def test_policies_are_compared_for_the_tenant_that_matters(cbbench: Call) -> None:
    quiet = "p90_ttft_ms[tenant=quiet]<=2000"
    swept = cbbench("sweep", "order", "--values", "fcfs,fair", *FLOOD, "--sla", quiet, "-o", "out")
    assert swept.code == 0, swept.err
    assert "by tenant" in swept.out
    state = json.loads(Path("out/sweep.json").read_text())
    assert state["recommendation"]["values"] == ["fair"]
    fcfs, fair = state["points"]
    assert fcfs["sla"][0]["verdict"] == "inconclusive", "one burst is one event"
    assert fair["sla"][0]["scope"] == "tenant=quiet"
    assert fair["sla"][0]["value"] <= 2000 < fcfs["sla"][0]["value"]
    assert fair["by_tenant"]["quiet"]["p99_ttft_ms"] < fcfs["by_tenant"]["quiet"]["p99_ttft_ms"]
    assert fair["by_tenant"]["noisy"]["p99_ttft_ms"] > 2000

    compared = cbbench("compare", "out/order-fcfs", "out/order-fair")
    assert compared.code == 0
    assert "tenant quiet" in compared.out

    gated = cbbench("gate", "out/order-fcfs", "--sla", quiet)
    assert gated.code == 5
    assert "p90_ttft_sched_ms[tenant=quiet]" in gated.out
    shown = cbbench("report", "out/order-fcfs")
    assert quiet in shown.out  # its brackets are no markup
    unknown = cbbench("gate", "out/order-fcfs", "--sla", "p90_ttft_ms[tenant=loud]<=2000")
    assert unknown.code == 2
    assert unknown.error_line.endswith("no such tenant; there are noisy, quiet")


@pytest.mark.parametrize("command", [("run",), ("sweep", "order", "--values", "fcfs,fair"), ("tune",)])
def test_a_tenant_that_is_not_there_is_said_before_the_run(cbbench: Call, command: tuple[str, ...]) -> None:
    outcome = cbbench(*command, *FLOOD, "--sla", "p99_ttft_ms[tenant=loud]<=500", "-o", "out")
    assert outcome.code == 2
    assert '--sla: "p99_ttft_ms[tenant=loud]<=500": no such tenant; there are quiet, noisy' in outcome.error_line
    assert not Path("out").exists()


def test_a_bad_part_is_a_usage_error(cbbench: Call) -> None:
    outcome = cbbench("run", *FLOOD, "--sla", "p99_ttft_ms[quiet]<=500")
    assert outcome.code == 2
    assert "write [tenant=NAME]" in outcome.error_line


def test_a_sweep_is_not_judged_anew_by_a_tenant_that_is_not_there(cbbench: Call) -> None:
    asked = ("sweep", "order", "--values", "fcfs", *FLOOD, "-o", "out")
    assert cbbench(*asked).code == 0
    before = Path("out/order-fcfs/run.json").read_bytes()
    assert cbbench(*asked, "--sla", "p99_ttft_ms[tenant=loud]<=500").code == 2
    assert Path("out/order-fcfs/run.json").read_bytes() == before


def test_a_weight_gives_a_tenant_a_larger_share(cbbench: Call) -> None:
    equals = (*SIMULATED, "--workload", "prompt=fixed(64);output=fixed(32)", "--tenants", "a;b", "--num-requests", 200)
    overloaded = (*equals, "--max-num-seqs", 8, "--rate", 500, "--order", "fair")
    assert cbbench("run", *overloaded, "-o", "equal").code == 0
    assert cbbench("run", *overloaded, "--tenant-weight", "a:4", "-o", "weighted").code == 0
    equal, weighted = (
        json.loads(Path(f"{out}/run.json").read_text())["summary"]["by_tenant"] for out in ("equal", "weighted")
    )
    assert weighted["a"]["latency"]["ttft_ms"]["mean"] < 0.7 * equal["a"]["latency"]["ttft_ms"]["mean"]
    assert weighted["b"]["latency"]["ttft_ms"]["mean"] > 1.1 * equal["b"]["latency"]["ttft_ms"]["mean"]
