"""Graphs, the pinned ring and overlap, on a device that does everything as late as it may."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from engines.loop import VirtualClock
from engines.reference.executor import DeviceTime, Launched, TorchExecutor
from engines.reference.graphs import bucket_sizes, choose_sizes
from engines.reference.kernels import Kernels
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.mixed_graphs import LARGEST, mixed_sizes
from engines.reference.model.llama import Llama
from engines.reference.model.weights import load_model
from engines.reference.staging import Staging
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import Request, Sampling
from tests.engines.reference.fake_device import FakeDevice, FakeStream, OracleKernels
from tests.engines.reference.stepping import Dead, Row, Tables, drive, outputs_of, pool_for, request, serve, step_plan
from workloads.errors import CbbenchError

CANARY = 7.0
MAX_NUM_SEQS = 6


@pytest.fixture(scope="module")
def llama() -> Llama:
    return load_model("tiny", dtype="fp32", device="cpu").llama


def requests() -> list[Request]:
    rng = np.random.default_rng(2)
    shapes = [(3, 20), (17, 5), (30, 12), (1, 25), (9, 1), (16, 16), (2, 18)]
    kinds = [Sampling(), Sampling(temperature=0.8, top_p=0.95), Sampling(temperature=1.2)]
    return [
        request(i, rng.integers(3, 512, p).tolist(), o, Sampling(k.temperature, k.top_k, k.top_p, seed=i))
        for i, (p, o) in enumerate(shapes)
        for k in [kinds[i % 3]]
    ]


@pytest.fixture(scope="module")
def expected(llama: Llama) -> list[list[int]]:
    alone = requests()
    for one in alone:
        serve(llama, SchedulerConfig(kv_blocks=64, max_model_len=128, max_num_seqs=1), [one])
    return [outputs_of(one) for one in alone]


def executor_on(
    device: FakeDevice, llama: Llama, config: SchedulerConfig, *, graphs: bool = True, buffers: int = 2
) -> TorchExecutor:
    pool = pool_for(llama, config.kv_blocks, config.block_size)
    return TorchExecutor(
        llama,
        pool,
        max_num_seqs=config.max_num_seqs,
        clock=device.clock,
        kernels=OracleKernels(),
        device=device,
        swap_blocks=config.swap_blocks,
        graph_sizes=bucket_sizes(config.max_num_seqs) if graphs else (),
        mixed_graph_sizes=mixed_sizes(config.max_num_batched_tokens) if graphs else (),
        max_blocks=-(-config.max_model_len // config.block_size),
        buffers=buffers,
    )


def config(**options: object) -> SchedulerConfig:
    defaults = {"kv_blocks": 64, "max_model_len": 128, "max_num_seqs": MAX_NUM_SEQS}
    return SchedulerConfig(**defaults | options)  # type: ignore[arg-type]


CONFIGS: dict[str, Callable[[], SchedulerConfig]] = {
    "continuous": config,
    "chunked": lambda: config(max_num_batched_tokens=7),
    "preempting": lambda: config(kv_blocks=9, watermark=0.0),
    "swapping": lambda: config(kv_blocks=9, watermark=0.0, on_kv_pressure="swap", swap_blocks=20),
    "padded": lambda: config(max_num_seqs=4, mode="static"),
}


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_those_of_a_cpu(llama: Llama, expected: list[list[int]], name: str, graphs: bool) -> None:
    settings = CONFIGS[name]()
    device = FakeDevice(VirtualClock(), eager_side=graphs)
    mine = requests()
    run = drive(executor_on(device, llama, settings, graphs=graphs), settings, mine, depth=1)
    assert [outputs_of(one) for one in mine] == expected
    assert run.swapped == (name == "swapping")
    padding = run.ledger["bucket_padding_tokens"]
    assert padding.any() == graphs
    assert padding[run.ledger["prefill_pairs"] > 0].any() == graphs


@pytest.mark.parametrize("buffers", [1, 2])
def test_a_ring_of_any_length_gives_the_same_tokens(llama: Llama, expected: list[list[int]], buffers: int) -> None:
    """With one buffer each step has to wait for the copies of the last."""
    mine = requests()
    device = FakeDevice(VirtualClock())
    drive(executor_on(device, llama, config(), buffers=buffers), config(), mine, depth=1)
    assert [outputs_of(one) for one in mine] == expected


def test_a_buffer_is_not_written_before_the_copies_out_of_it_have_run() -> None:
    device = FakeDevice(VirtualClock())
    staging = Staging(device, 2)
    read: list[list[torch.Tensor]] = []
    for step in range(5):
        with staging.step() as send:
            sent = [send(np.full(n, 10 * step + n)) for n in (1, 3)]
            sent.append(send.now(np.array([step % 2 == 0])))
            sent.append(send(np.full(200_000, 10 * step)))  # does not fit at first
            sent.append(send.now(np.full(2, step), torch.zeros(2, dtype=torch.int64)))
            sent.append(send(np.full(4, -step)))
            send.go()
        device.main.run(partial(lambda sent: read.append([one.clone() for one in sent]), sent))
    device.main.synchronize()
    for step, (one, three, flag, many, into, last) in enumerate(read):
        assert one.tolist() == [10 * step + 1]
        assert three.tolist() == [10 * step + 3] * 3
        assert flag.tolist() == [step % 2 == 0]
        assert (many == 10 * step).all()
        assert into.tolist() == [step] * 2
        assert last.tolist() == [-step] * 4


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_all_columns_of_a_step_cross_in_one_copy(llama: Llama, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in, beside the step before, and one out: the tokens. A copy costs some us whatever it carries. A graph's
    columns then go to its own memory, on the device."""
    device = FakeDevice(VirtualClock())
    executor = executor_on(device, llama, config(), graphs=graphs)
    copies: list[FakeStream] = []
    copy = FakeStream.copy
    monkeypatch.setattr(FakeStream, "copy", lambda self, to, of: (copies.append(self), copy(self, to, of))[1])
    steps = len(drive(executor, config(), requests(), depth=1).plans)
    assert copies.count(device.uploads) == steps
    assert copies.count(device.main) == steps * (2 if graphs else 1)


def test_a_captured_graph_runs_no_python_and_waits_for_nothing() -> None:
    """Of the fake itself: what a real capture would refuse or freeze must not pass here."""
    device, number, steps = FakeDevice(VirtualClock()), torch.zeros(2), [1.0]
    replay = device.capture(lambda: number.add_(torch.arange(2.0) * steps[0]))
    steps[0] = 5.0
    number.zero_()
    replay()
    assert number.tolist() == [0.0, 1.0]
    for work in (lambda: number.sum().item(), lambda: number.any() and None, lambda: number.nonzero()):
        with pytest.raises(AssertionError, match="which a capture forbids"):
            device.capture(work)


def test_padding_rows_touch_no_live_block(llama: Llama) -> None:
    """Three rows in a bucket of four, two of them live: the dummy block takes what the others write."""
    settings = config(max_num_seqs=4)
    device = FakeDevice(VirtualClock())
    executor = executor_on(device, llama, settings)
    pool = executor._pool
    pool.layers.fill_(CANARY)
    prompts = [[5, 6, 7], [8, 9]]
    ones = [request(i, prompt, 8) for i, prompt in enumerate(prompts)]
    tables = Tables({0: [3], 1: [5], 2: [9]}).array(4)
    rows = [Row(ones[0], 0, 2, 1), Row(ones[1], 1, 1, 1)]
    executor.submit(step_plan(rows, tables, dead=[Dead(slot=2, length=4)]))
    result = executor.collect()
    assert result.bucket_padding_tokens == 1
    changed = (pool.layers != CANARY).flatten(2).any(dim=2).any(dim=0)
    assert changed.nonzero().flatten().tolist() == [0, 3, 5]
    assert (pool.layers[:, 3, :, :, [0, 1, *range(3, 16)]] == CANARY).all()
    assert (pool.layers[:, 0, :, :, [1, 2, *range(4, 16)]] == CANARY).all()  # padding writes at 0, the dead row at 3


def test_nan_in_the_dummy_block_reaches_no_request(llama: Llama, expected: list[list[int]]) -> None:
    device = FakeDevice(VirtualClock())
    executor = executor_on(device, llama, config())
    executor._pool.layers[:, 0] = float("nan")
    mine = requests()
    drive(executor, config(), mine, depth=1)
    assert [outputs_of(one) for one in mine] == expected


def test_a_stop_seen_one_step_late_is_discarded_and_counted(llama: Llama) -> None:
    """Request 0 ends at an EOS that the host sees when the next step is on its way."""
    free = request(0, [5, 6, 7], 12)
    serve(llama, SchedulerConfig(kv_blocks=64, max_model_len=128, max_num_seqs=1), [free])
    tokens = outputs_of(free)
    eos = next(token for i, token in enumerate(tokens) if i >= 2 and token not in tokens[:i])
    one = request(0, [5, 6, 7], 12)
    one.ignore_eos = False
    device = FakeDevice(VirtualClock())
    run = drive(executor_on(device, llama, config()), config(), [one], depth=1, eos_ids=frozenset([eos]))
    assert one.finish_reason == "stop"
    assert outputs_of(one) == tokens[: tokens.index(eos)]
    assert run.ledger["discarded_tokens"].tolist() == [0] * (len(run.ledger) - 1) + [1]


def test_a_step_starts_when_the_one_before_it_ends(llama: Llama) -> None:
    device = FakeDevice(VirtualClock())
    run = drive(executor_on(device, llama, config()), config(), requests(), depth=1)
    assert (run.ledger["start_ns"][1:] >= run.ledger["end_ns"][:-1]).all()
    assert (run.ledger["busy_ns"] > 0).all()


def test_a_device_that_waits_for_launches_is_told_from_one_that_works() -> None:
    """Times in us. Launching takes 60, working 20 or 90: the device ends with the last launch, or long after it."""

    def launched(began: int, until: int) -> Launched:
        nothing: Any = None
        times = (began * 1000, began * 1000, until * 1000)
        return Launched(1, *times, begin=nothing, end=nothing, tokens=nothing, of_samples=slice(None), bucket_padding=0)

    time = DeviceTime()
    assert time.host_ahead_ns(launched(0, 60), 60_000) == 1  # ended with the last launch: at 60
    assert time.host_ahead_ns(launched(100, 160), 90_000) == 30_000  # at 190
    assert time.host_ahead_ns(launched(170, 230), 90_000) == 50_000  # behind the other: from 190 to 280
    assert time.host_ahead_ns(launched(250, 310), 30_000) == 1  # from 280 on, and ended with the last launch


def test_only_a_device_of_its_own_has_the_host_ahead(llama: Llama) -> None:
    run = drive(executor_on(FakeDevice(VirtualClock()), llama, config()), config(), requests(), depth=1)
    assert (run.ledger["host_ahead_ns"] > 0).all()
    on_host = TorchExecutor(llama, pool_for(llama, 64, 16), max_num_seqs=MAX_NUM_SEQS, clock=VirtualClock())
    assert not drive(on_host, config(), requests()).ledger["host_ahead_ns"].any()


@pytest.mark.parametrize("most", [1, 7, 16, 17, 100, 512, 1000, 1024, 8192])
def test_sizes_of_mixed_steps_waste_little_and_end_where_launches_no_longer_matter(most: int) -> None:
    sizes = mixed_sizes(most)
    assert sizes[-1] == min(most, LARGEST)
    assert list(sizes) == sorted(set(sizes))
    for tokens in range(16, sizes[-1] + 1):
        padding = min(size for size in sizes if size >= tokens) - tokens
        assert padding <= max(15, tokens // 8)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 16, 20, 64, 100, 256, 300, 1000])
def test_buckets_hold_1_and_all_slots_and_waste_little(most: int) -> None:
    sizes = bucket_sizes(most)
    assert sizes[0] == 1
    assert sizes[-1] == most
    assert list(sizes) == sorted(set(sizes))
    for rows in range(1, most + 1):
        padding = min(size for size in sizes if size >= rows) - rows
        assert padding <= max(7, rows // 8)


def test_graphs_are_captured_from_large_to_small(llama: Llama) -> None:
    device = FakeDevice(VirtualClock())
    executor_on(device, llama, config(max_num_seqs=5))
    sizes = [work.args[0] for work in device.captured]  # type: ignore[attr-defined]
    assert sizes == [5, 4, 2, 1, *reversed(mixed_sizes(config().max_num_batched_tokens))]


GPU, CPU = torch.device("cuda"), torch.device("cpu")


def test_graphs_are_chosen_where_they_can_be() -> None:
    assert choose_sizes(None, OracleKernels(), GPU, 6) == ((1, 2, 4, 6), "on, for up to 6 rows")
    assert choose_sizes(True, OracleKernels(), GPU, 1) == ((1,), "on, for up to 1 rows")
    assert choose_sizes(False, OracleKernels(), GPU, 6) == ((), "off: asked for")
    assert choose_sizes(None, OracleKernels(), CPU, 6) == ((), "off: they need a GPU, and the device is cpu")
    assert choose_sizes(None, TorchKernels(), GPU, 6)[0] == ()


@pytest.mark.parametrize(("kernels", "device"), [(OracleKernels(), CPU), (TorchKernels(), GPU)])
def test_graphs_asked_for_where_they_cannot_be_are_refused(kernels: Kernels, device: torch.device) -> None:
    with pytest.raises(CbbenchError, match=r"^cuda_graphs: "):
        choose_sizes(True, kernels, device, 6)
