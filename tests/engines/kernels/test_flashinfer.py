"""The steps that FlashInfer plans. Its kernels need a GPU; the code before them does not.

On a GPU with FlashInfer installed these tests run its kernels. Without a GPU `by_pages` computes in their place what
its documentation says of its arguments: behind the real package's `plan` and `run` where that is installed, and behind
types that only keep what they are given where it is not.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed, and the rest of a step is its")

from engines.loop import VirtualClock
from engines.reference.executor import TorchExecutor
from engines.reference.kernels import Attend, choose, flashinfer_kernels
from engines.reference.kernels.flashinfer_kernels import FlashInferKernels, Library
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.kernels.triton_kernels import TritonKernels
from engines.reference.model.config import SHAPES, ModelConfig
from engines.reference.model.weights import load_model
from engines.scheduling.config import SchedulerConfig
from tests.engines.kernels.checks.paged import DEVICE, Case, assert_close, case, reference
from tests.engines.reference.fake_device import FakeDevice
from tests.engines.reference.stepping import drive, outputs_of, pool_for, request, serve
from workloads.errors import CbbenchError

CUDA = torch.device("cuda")
HND = 1
CAUSAL = 1


def by_pages(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    qo_indptr: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    *,
    causal: bool,
    out: torch.Tensor,
) -> None:
    """keys, values: [pages, kv_heads, page_size, head_dim]. A query that sees nothing gives NaN."""
    (edges, pages), page_size = (qo_indptr.tolist(), indptr.tolist()), keys.shape[2]
    for row, last in enumerate(last_page_len.tolist()):
        held = indices[pages[row] : pages[row + 1]].long()
        length, n = (len(held) - 1) * page_size + last, edges[row + 1] - edges[row]
        k, v = (side[held].transpose(0, 1).flatten(1, 2)[:, :length].float() for side in (keys, values))
        k, v = (side.repeat_interleave(q.shape[1] // len(k), 0) for side in (k, v))
        scores = q[edges[row] : edges[row + 1]].float().transpose(0, 1) @ k.transpose(1, 2) * q.shape[2] ** -0.5
        if causal:
            scores = scores.masked_fill(torch.ones(n, length).triu(length - n + 1).bool().to(q.device), float("-inf"))
        out[edges[row] : edges[row + 1]] = (scores.softmax(-1) @ v).transpose(0, 1).to(out.dtype)


class Kept:
    """In place of a wrapper: it knows the last plan only, as the real one does."""

    def __init__(self, workspace: torch.Tensor, kv_layout: str, use_tensor_cores: bool = True) -> None:
        assert kv_layout == "HND"
        assert use_tensor_cores

    def run(self, q: torch.Tensor, kv: torch.Tensor, *, out: torch.Tensor) -> None:
        self.compute(q, kv[:, 0], kv[:, 1], out=out)


class KeptDecode(Kept):
    def plan(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, *rest: int, **types: Any):
        rows = torch.arange(len(indptr), dtype=torch.int32)
        columns = {"qo_indptr": rows, "indptr": indptr, "indices": indices, "last_page_len": last_page_len}
        self.compute = partial(by_pages, **columns, causal=False)


class KeptPrefill(Kept):
    def plan(self, qo_indptr: torch.Tensor, *rest: Any, causal: bool, **types: Any) -> None:
        indptr, indices, last_page_len = rest[:3]
        columns = {"qo_indptr": qo_indptr, "indptr": indptr, "indices": indices, "last_page_len": last_page_len}
        self.compute = partial(by_pages, **columns, causal=causal)


class Compiled:
    """In place of what FlashInfer compiles, called as its 0.7.4 calls that."""

    def plan(
        self, workspace: Any, ints: Any, pinned: Any, qo_indptr: Any, indptr: Any, lengths: Any, *rest: Any
    ) -> str:
        for column in (qo_indptr, indptr, lengths):  # it reads them through pointers
            assert (column.device.type, column.dtype, column.is_contiguous()) == ("cpu", torch.int32, True)
        return "planned"

    def paged_run(self, *arguments: Any) -> None:
        _workspace, _ints, planned, q, keys, values, *columns, out, _lse, mask, layout, window = arguments[:15]
        assert (planned, layout, window) == ("planned", HND, -1)
        assert all(column.dtype == torch.int32 for column in columns)
        assert keys.stride() == values.stride()
        assert q.stride(2) == 1
        assert out.is_contiguous()
        by_pages(q, keys, values, *columns, causal=mask == CAUSAL, out=out)


def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer up to the point where it would compile; no pinned memory, and the capability of a Hopper."""
    from flashinfer import decode, prefill, utils

    if torch.version.cuda is None:
        pytest.skip("torch is built without CUDA: FlashInfer's plan asks for its version")
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **about: empty(*shape, **about))
    for module in (decode, prefill, utils):
        monkeypatch.setattr(module, "get_compute_capability", lambda device: (9, 0))
    for module in (decode, prefill):
        monkeypatch.setattr(module, "get_batch_prefill_module", lambda *about: Compiled())


@pytest.fixture(params=["stand-in", "flashinfer"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    if request.param == "stand-in":
        return Library("0", KeptDecode, KeptPrefill)
    if find_spec("flashinfer") is None:
        pytest.skip("flashinfer needs flashinfer, which is not installed: calls are checked against a stand-in only")
    if DEVICE.type != "cuda":
        without_a_gpu(monkeypatch)
    return flashinfer_kernels.load()


def kernels_for(c: Case, library: Library) -> FlashInferKernels:
    heads, head_dim = c.q.shape[1:]
    config = ModelConfig(1, 64, heads, c.kv.shape[2], head_dim, 64, 64, 4096)
    return FlashInferKernels(config, DEVICE, len(c.lengths), library)


def prepared(kernels: FlashInferKernels, c: Case) -> Attend:
    tables, lengths, starts = (column.cpu().numpy() for column in (c.tables, c.lengths.long(), c.starts.long()))
    return kernels.prepare(tables, lengths, starts, c.kv, lambda array: torch.from_numpy(array).to(DEVICE))


STEPS = {
    "one row": ([1], [1]),
    "decodes around a block": ([1, 15, 16, 17, 31, 32, 33, 250], [1] * 8),
    "a prompt": ([40], [40]),
    "chunks": ([30, 20, 100], [30, 7, 90]),
    "both": ([257, 5, 30, 44], [1, 1, 30, 9]),
    "a decode behind a chunk": ([5, 30, 20], [1, 30, 1]),
    "padding": ([7, 3, 1], [1, 3, 20]),
    "padding alone": ([1], [6]),
    "more queries than KV, twice": ([3, 2], [5, 4]),
}


@pytest.mark.parametrize("shape", [(64, 3, 3), (128, 2, 4), (64, 1, 9)], ids=lambda shape: "-".join(map(str, shape)))
@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_any_mix(step: str, shape: tuple[int, int, int], library: Library) -> None:
    head_dim, kv_heads, group = shape
    c = case(*STEPS[step], kv_heads=kv_heads, group=group, head_dim=head_dim, dtype=torch.float16)
    attend = prepared(kernels_for(c, library), c)
    with torch.inference_mode():
        for _ in range(2):  # the second layer uses the first one's plan
            assert_close(attend(c.q, c.kv), reference(c))


def test_queries_may_lie_beside_keys_and_values(library: Library) -> None:
    """As in a layer: q is a part of the tensor that the projection gave."""
    c = case([20, 9], [1, 9], kv_heads=2, group=4, dtype=torch.float16)
    wide = torch.full((len(c.q), 12, 64), float("nan"), dtype=c.q.dtype, device=DEVICE)
    wide[:, :8] = c.q
    assert_close(prepared(kernels_for(c, library), c)(wide[:, :8], c.kv), reference(c))


def test_a_step_in_flight_keeps_its_plan(library: Library) -> None:
    """While a step may still run the next is planned, by wrappers of its own."""
    shape = {"kv_heads": 2, "group": 2, "dtype": torch.float16}
    cases = [case([40, 21, 9], [1, 1, 9], **shape), case([3, 50], [1, 30], **shape), case([64], [1], **shape)]
    kernels = kernels_for(cases[0], library)
    attends = []
    for c in cases:
        attends.append(prepared(kernels, c))
        for one, attend in [*zip(cases, attends, strict=False)][:-3:-1]:  # the next is planned, and this one goes on
            assert_close(attend(one.q, one.kv), reference(one))


@pytest.mark.parametrize("mode", ["continuous", "static"])
def test_a_run_gives_the_tokens_of_a_cpu(mode: str) -> None:
    llama = load_model("tiny", dtype="fp32", device="cpu").llama
    settings = SchedulerConfig(kv_blocks=64, max_model_len=128, max_num_seqs=4, max_num_batched_tokens=19, mode=mode)
    random = np.random.default_rng(2)
    prompts = [random.integers(3, 512, n).tolist() for n in (3, 17, 30, 1, 9)]
    mine, others = ([request(i, prompt, 12) for i, prompt in enumerate(prompts)] for _ in range(2))
    serve(llama, settings, others)
    flash = FlashInferKernels(llama.config, torch.device("cpu"), 4, Library("0", KeptDecode, KeptPrefill))
    executor = TorchExecutor(
        llama, pool_for(llama), max_num_seqs=4, clock=VirtualClock(), kernels=TorchKernels(flash.prepare),
        device=FakeDevice(VirtualClock()),
    )  # fmt: skip
    drive(executor, settings, mine, depth=1)
    assert [outputs_of(one) for one in mine] == [outputs_of(one) for one in others]


def chosen(monkeypatch: pytest.MonkeyPatch, shape: str, dtype: torch.dtype, missing: tuple[str, ...] = ()) -> None:
    monkeypatch.setattr(choose, "find_spec", lambda name: None if name in missing else True)
    choose.choose_kernels("flashinfer", SHAPES[shape], dtype, CUDA, 8)


@pytest.mark.parametrize(
    ("shape", "dtype", "missing", "says"),
    [
        (
            "smollm2-135m",
            torch.float16,
            ("flashinfer",),
            r"flashinfer needs flashinfer, which is not installed: .*'cbbench\[flashinfer\]'",
        ),
        (
            "smollm2-135m",
            torch.float16,
            ("triton",),
            r"flashinfer needs triton, which is not installed: pip install 'cbbench\[gpu\]'",
        ),
        ("smollm2-135m", torch.float32, (), "runs in float32, and flashinfer takes `dtype` bf16 or fp16"),
        ("tiny", torch.float16, (), r"heads of 16 numbers, and flashinfer takes 64 or 128; take triton"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(
    shape: str, dtype: torch.dtype, missing: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CbbenchError, match=f"^attention: .*{says}"):
        chosen(monkeypatch, shape, dtype, missing)


def test_without_a_gpu_it_is_refused_in_one_line() -> None:
    with pytest.raises(CbbenchError, match=r"^attention: the kernels of flashinfer run on a GPU, and `device` is cpu$"):
        choose.choose_kernels("flashinfer", SHAPES["tiny"], torch.float16, torch.device("cpu"), 8)


def test_auto_never_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "find_spec", lambda name: True)
    kernels = choose.choose_kernels("auto", SHAPES["smollm2-135m"], torch.float16, CUDA, 8)
    assert type(kernels) is TritonKernels


def test_a_package_that_does_not_load_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(CbbenchError, match=r"^attention: flashinfer does not load: .*; reinstall it: pip"):
        chosen(monkeypatch, "smollm2-135m", torch.bfloat16)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("Could not find nvcc\nand much else", "Could not find nvcc"),
        ("Ninja build failed. Output:\n[1/9] nvcc\nfill.h:52:10: fatal error: curand_kernel.h: No such file\n#include",
         "fill.h:52:10: fatal error: curand_kernel.h: No such file"),
    ],
)  # fmt: skip
def test_kernels_that_cannot_be_compiled_are_said_in_one_line(message: str, line: str) -> None:
    class NoCompiler(KeptDecode):
        def plan(self, *columns: Any, **types: Any) -> None:
            raise RuntimeError(message)

    c = case([5], dtype=torch.float16)
    attend = prepared(kernels_for(c, Library("0", NoCompiler, KeptPrefill)), c)
    with pytest.raises(CbbenchError) as refused:
        attend(c.q, c.kv)
    assert str(refused.value) == f"attention: flashinfer cannot plan a step: {line} (`debug` shows all)"


def test_no_graph_holds_its_steps() -> None:
    from engines.reference.graphs import choose_sizes

    c = case([5], dtype=torch.float16)
    kernels = kernels_for(c, Library("0.7.4", KeptDecode, KeptPrefill))
    assert choose_sizes(None, kernels, CUDA, 8) == (
        (), "off: flashinfer plans each step on the host; attention triton does not",
    )  # fmt: skip
    with pytest.raises(CbbenchError, match=r"^cuda_graphs: flashinfer plans"):
        choose_sizes(True, kernels, CUDA, 8)
