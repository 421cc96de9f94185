"""FakeDevice: a CPU that behaves like a GPU at its slowest. Queued work runs only when something waits for it.

A copy takes what its source holds when it runs, not when it was queued; memory starts out as garbage; streams run
independently of one another. So a buffer that is reused too early, or a missing wait between streams, gives wrong
tokens here, where on a GPU it would do so once a week. With `eager_side` the side stream is the fast one instead: it
runs what it is given at once.

A graph is what torch computed while it was captured, on the memory that had then: replayed, it runs no Python. So what
a step looked up on the host, or would do otherwise for other numbers, stays as it was. Interpreted Triton kernels are
no operations of torch's: with `reruns` a graph is the work itself, run again.

Memory goes back to the stream it came from when the host lets go of it, whatever another stream still does there: so a
stream that touches another's memory has to say so (`uses`), and it is an error here if it does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engines.loop import Clock
from engines.reference import sampling
from engines.reference.device import Work
from engines.reference.kernels import Attend, MixedRows, oracles
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.kv_pool import KVPool

WORK_NS = 1_000  # what each queued piece of work takes, for the events


class FakeDevice:
    overlaps = True

    def __init__(self, clock: Clock, *, eager_side: bool = False, reruns: bool = False) -> None:
        self.clock = clock
        self._reruns = reruns
        self.main = FakeStream(self)
        self.side = FakeStream(self, eager=eager_side)
        self.uploads = FakeStream(self, eager=eager_side)
        self.captured: list[Work] = []
        self.capturing = False
        self.pinned_bytes = 0
        self.given: dict[int, Given] = {}  # by address; kept, so that no address comes twice

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(tuple(shape), dtype=dtype)
        self.pinned_bytes += 1 << max(tensor.nbytes - 1, 0).bit_length()  # as torch does
        return tensor

    def capture(self, work: Work) -> Work:
        self.main.synchronize()
        work()  # the first run
        self.capturing = True  # a copy from the host or an event in here would be an error on a GPU
        tape = Tape()
        try:
            with nullcontext() if self._reruns else tape:
                work()
        finally:
            self.capturing = False
        self.captured.append(work)
        return work if self._reruns else tape.replay


class Tape(TorchDispatchMode):
    """The operations of a graph, each with the tensors it had."""

    FORBIDDEN = ("aten._local_scalar_dense.default", "aten.nonzero.default")  # the host would have to wait

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert str(function) not in self.FORBIDDEN, f"{function}: looks at the device, which a capture forbids"
        result = function(*args, **kwargs or {})
        # What may be a view and has memory of its own is a copy: reshape, say.
        if function._schema.is_mutable or not function.is_view or not memory_of(result) <= memory_of((args, kwargs)):
            self._calls.append((function, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for function, args, kwargs, result in self._calls:
            again = function(*args, **kwargs)
            if not function._schema.is_mutable:
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor):
                        old.copy_(new)


@dataclass
class Given:
    memory: torch.Tensor
    streams: list[FakeStream]  # the one it came from, and those that use it


def memory_of(tree: Any) -> set[int]:
    """Where its tensors are."""
    return {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}


class FakeStream:
    def __init__(self, device: FakeDevice, *, eager: bool = False) -> None:
        self.device = device
        self.time_ns = 0
        self._eager = eager
        self._queue: deque[Work] = deque()

    def run(self, work: Work) -> None:
        assert not self.device.capturing, "a graph cannot hold work that is queued while it is captured"
        for cell in getattr(work, "__closure__", None) or ():
            with suppress(ValueError):  # a variable that was never set
                if isinstance(cell.cell_contents, torch.Tensor):
                    self._check(cell.cell_contents)
        self._queue.append(work)
        if self._eager:
            self.synchronize()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        assert target.shape == source.shape
        self._check(target)
        self._check(source)
        self.run(lambda: target.copy_(source))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        garbage = float("nan") if dtype.is_floating_point else True if dtype == torch.bool else torch.iinfo(dtype).max
        memory = torch.full(tuple(shape), garbage, dtype=dtype)
        self.device.given[memory.untyped_storage().data_ptr()] = Given(memory, [self])
        return memory

    def uses(self, tensor: torch.Tensor) -> None:
        self.device.given[tensor.untyped_storage().data_ptr()].streams.append(self)

    def _check(self, tensor: torch.Tensor) -> None:
        given = self.device.given.get(tensor.untyped_storage().data_ptr())
        assert given is None or self in given.streams, "another stream's memory, which may have been reused by then"

    def event(self, *, timed: bool = False) -> FakeEvent:
        return FakeEvent(self, timed=timed)

    def wait(self, event: FakeEvent) -> None:
        reach = event.reach_now()
        if reach is not None:
            self.run(reach)

    def advance(self) -> None:
        self.time_ns += WORK_NS
        with torch.inference_mode():  # what a GPU runs knows nothing of autograd
            self._queue.popleft()()

    def synchronize(self) -> None:
        while self._queue:
            self.advance()


class FakeEvent:
    def __init__(self, stream: FakeStream, *, timed: bool) -> None:
        self._stream = stream
        self._timed = timed
        self._mark: list[int] | None = None  # of the last recording: empty until passed, then its time

    def record(self) -> None:
        mark: list[int] = []
        self._mark = mark
        self._stream.run(lambda: mark.append(self._stream.time_ns))

    def reach_now(self) -> Work | None:
        """Runs the event's stream up to the mark as it is now; None if it was never recorded."""
        mark = self._mark
        if mark is None:
            return None

        def reach() -> None:
            while not mark:
                self._stream.advance()

        return reach

    def wait(self) -> int:
        if (reach := self.reach_now()) is not None:
            reach()
        if self._mark:
            self._stream.device.clock.wait_until(self._mark[0])
        return self._stream.device.clock.now_ns()

    def ns_since(self, earlier: FakeEvent) -> int:
        assert self._timed, "only a timed event keeps its time"
        assert earlier._timed, "only a timed event keeps its time"
        (end_ns,), (begin_ns,) = self._mark or [], earlier._mark or []  # one that has not passed has no time
        return end_ns - begin_ns


# Each one operation, as a kernel is: it looks at its buffers when it runs.
@torch.library.custom_op(
    "cbbench_tests::attend",
    mutates_args=(),
    schema="(Tensor q, Tensor kv, Tensor tables, Tensor lengths) -> Tensor",
)
def _attend(q: torch.Tensor, kv: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return oracles.paged_attention(q, kv, tables.numpy(), lengths.numpy(), np.arange(len(q) + 1))


@torch.library.custom_op(
    "cbbench_tests::attend_mixed",
    mutates_args=(),
    schema="(Tensor q, Tensor kv, Tensor[] rows) -> Tensor",
)
def _attend_mixed(q: torch.Tensor, kv: torch.Tensor, rows: list[torch.Tensor]) -> torch.Tensor:
    on = MixedRows(*rows)
    out = torch.full_like(q, float("nan"))  # of padding tokens: must reach no request
    n = int((on.decode_lengths > 0).sum())
    for tables, lengths, starts in (
        (on.decode_tables[:n], on.decode_lengths[:n], torch.arange(n + 1)),
        (on.chunk_tables, on.chunk_lengths, on.chunk_starts),
    ):
        real = int((starts.diff() > 0).sum())
        columns = tables[:real].numpy(), lengths[:real].numpy(), starts[: real + 1].numpy()
        attended = oracles.paged_attention(q, kv, *columns)
        first, last = int(starts[0]), int(starts[real])
        out[first:last] = attended[first:last]
    return out


@torch.library.custom_op(
    "cbbench_tests::sample",
    mutates_args=("out",),
    schema="(Tensor logits, Tensor columns, Tensor(a!) out) -> ()",
)
def _sample(logits: torch.Tensor, columns: torch.Tensor, out: torch.Tensor) -> None:
    sampling.sample(logits, columns, out)


class OracleKernels(TorchKernels):
    """The torch path with an attention that can be captured: it looks at the buffers when the step runs."""

    name = "oracle"
    captures = True

    def __init__(self) -> None:
        super().__init__(oracles.prepare)

    def sample(self, logits: torch.Tensor, columns: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        _sample(logits, columns, out)
        return out

    def static_decode(
        self, tables: torch.Tensor, lengths: torch.Tensor, pool: KVPool, heads: int
    ) -> Callable[[int], Attend]:
        def step(n: int) -> Attend:
            def attend(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
                attended: torch.Tensor = _attend(q, kv, tables[:n], lengths[:n])
                return attended

            return attend

        return step

    def static_mixed(self, rows: int, blocks: int, pool: KVPool, heads: int) -> Callable[[MixedRows], Attend]:
        def step(on: MixedRows) -> Attend:
            def attend(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
                attended: torch.Tensor = _attend_mixed(q, kv, list(on))
                return attended

            return attend

        return step
