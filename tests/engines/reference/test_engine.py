"""ReferenceEngine end to end on the tiny model: records, description, usage errors."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from engines.base import SilentObserver
from engines.reference.engine import ReferenceEngine
from engines.reference.kv_capacity import default_kv_blocks
from engines.reference.model.weights import LoadedModel, load_model
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import Sampling
from tests.ledger_identities import check_identities
from workloads.errors import CbbenchError
from workloads.pacing import Pacing
from workloads.plan import RequestPlan


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("tiny", dtype="fp32", device="cpu")


def _config(**changes: object) -> SchedulerConfig:
    return SchedulerConfig(**{"kv_blocks": 64, "max_model_len": 128, "max_num_seqs": 4} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["continuous", "static"])
def test_a_run_gives_every_request_its_tokens(model: LoadedModel, mode: str) -> None:
    plan = RequestPlan.of([5, 30, 1, 60, 17, 9], [4, 1, 9, 12, 3, 20])
    engine = ReferenceEngine(model, _config(mode=mode))
    for _ in range(2):  # an engine runs again, from an idle pool and a new clock
        record = engine.run(plan, Pacing(plan.arrivals_ugap), SilentObserver())
        assert {row.i: row.output_tokens for row in record.rows} == dict(enumerate(plan.output_tokens.tolist()))
        assert {row.status for row in record.rows} == {"completed"}
        check_identities(record.steps, 4, 64)
        steps = record.steps
        assert (steps["busy_ns"] <= steps["end_ns"] - steps["start_ns"]).all()
        assert (steps["start_ns"][1:] >= steps["end_ns"][:-1]).all()
        assert int(steps["start_ns"][0]) < 1_000_000_000  # the clock starts with the run, not with the engine


def test_eos_ends_a_request_that_does_not_ignore_it(model: LoadedModel) -> None:
    """At a high temperature the tiny model draws its EOS (id 2 of 512) sooner or later."""
    plan = RequestPlan.of([3] * 16, [120] * 16)
    hot = Sampling(temperature=50.0, seed=1)
    kept = ReferenceEngine(model, _config(), sampling=hot).run(plan, Pacing(plan.arrivals_ugap), SilentObserver())
    assert {row.finish_reason for row in kept.rows} == {"length"}
    engine = ReferenceEngine(model, _config(), sampling=hot, ignore_eos=False)
    record = engine.run(plan, Pacing(plan.arrivals_ugap), SilentObserver())
    stopped = [row for row in record.rows if row.finish_reason == "stop"]
    assert stopped
    assert all(row.output_tokens < 120 for row in stopped)


def test_describe_says_what_ran_and_why(model: LoadedModel) -> None:
    described = ReferenceEngine(model, _config()).describe()
    assert json.loads(json.dumps(described)) == described
    assert described["kv_blocks"] == 64
    assert described["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4  # K and V, layers, heads, head_dim, float32
    assert described["parameters"] == 106_816
    assert (described["dtype"], described["dtype_reason"]) == ("float32", "asked for")
    assert described["weights"] == "random weights, seed 0"
    assert described["cuda_graphs"] == "off: they need a GPU, and the device is cpu"
    assert described["overlap_steps"] == 0


def test_a_context_longer_than_the_models_is_refused(model: LoadedModel) -> None:
    with pytest.raises(CbbenchError, match=r"^max_model_len: 9000 is more than the context of tiny, 8192 tokens"):
        ReferenceEngine(model, _config(max_model_len=9000))


def test_a_pool_that_does_not_fit_is_refused(model: LoadedModel) -> None:
    with pytest.raises(CbbenchError, match=r"^kv_blocks: 1000000000000 blocks take .* GiB of KV, .* GiB are free"):
        ReferenceEngine(model, _config(kv_blocks=10**12))


def test_a_host_pool_that_does_not_fit_is_refused(model: LoadedModel) -> None:
    with pytest.raises(
        CbbenchError, match=r"^swap_blocks: 1000000000000 blocks take .* GiB of KV, .* GiB are free on the host"
    ):
        ReferenceEngine(model, _config(swap_blocks=10**12, on_kv_pressure="swap"))


def test_default_blocks_hold_every_slot_of_a_small_model(model: LoadedModel) -> None:
    assert default_kv_blocks(model, block_size=16, max_num_seqs=4, max_model_len=100) == 28


def test_importing_the_room_loads_no_torch() -> None:
    code = "import sys, engines.reference; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["auto", "torch"])
def test_attention_on_a_cpu_is_torchs(model: LoadedModel, name: str) -> None:
    engine = ReferenceEngine(model, _config(), attention=name)
    assert engine.describe()["attention"].startswith("torch: ")


def test_triton_on_a_cpu_is_refused_in_one_line(model: LoadedModel) -> None:
    with pytest.raises(CbbenchError, match=r"^attention: the kernels of triton run on a GPU, and `device` is cpu"):
        ReferenceEngine(model, _config(), attention="triton")
