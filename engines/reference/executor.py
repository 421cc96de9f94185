"""TorchExecutor: runs StepPlans on a decoder, one forward pass a step, prompts and decodes mixed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engines.loop import Clock
from engines.reference.batch import Batch, SlotTokens, flatten
from engines.reference.device import Device, Event, open_device
from engines.reference.graphs import DecodeGraphs
from engines.reference.kernels import Kernels
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.kv_pool import KVPool
from engines.reference.mixed_graphs import MixedGraphs
from engines.reference.model.llama import Llama, Tokens
from engines.reference.staging import Send, Staging
from engines.reference.swap import HostPool
from engines.scheduling.plan import IntArray, StepPlan, StepResult
from engines.scheduling.scheduler import MAX_STEPS_IN_FLIGHT


@dataclass(frozen=True, slots=True)
class Launched:
    step: int
    start_ns: int
    began_ns: int  # when the host queued `begin`
    launched_ns: int  # and all of the step
    begin: Event
    end: Event
    tokens: torch.Tensor  # in pinned memory, valid once `end` has passed
    of_samples: IntArray | slice  # the tokens that were sampled, in row order
    bucket_padding: int  # rows


@dataclass(slots=True)
class DeviceTime:
    """When the device ends its steps, which the host may see later: it is told of each in the order of launch."""

    _end_ns: int = 0

    def host_ahead_ns(self, launched: Launched, busy_ns: int) -> int:
        """How long the device still worked when the host had launched all of the step; at least 1.

        A step begins when the host has queued its beginning and the device has ended the step before.
        """
        self._end_ns = max(launched.began_ns, self._end_ns) + busy_ns
        return max(self._end_ns - launched.launched_ns, 1)


class TorchExecutor:
    """On a CPU `submit` computes the step; on CUDA it only queues it, and `collect` waits for it."""

    def __init__(
        self,
        llama: Llama,
        pool: KVPool,
        *,
        max_num_seqs: int,
        clock: Clock,
        kernels: Kernels | None = None,
        device: Device | None = None,
        swap_blocks: int = 0,
        graph_sizes: Sequence[int] = (),
        mixed_graph_sizes: Sequence[int] = (),
        max_blocks: int = 0,
        buffers: int = MAX_STEPS_IN_FLIGHT,
    ) -> None:
        """graph_sizes: batch sizes of the decode steps that are captured as graphs; mixed_graph_sizes: numbers of
        tokens of the steps with a prompt that are; max_blocks: of a row in them;
        buffers: steps whose columns may be on their way to the device before the host waits for one."""
        self._llama = llama
        self._pool = pool
        self._clock = clock
        self._kernels = TorchKernels() if kernels is None else kernels
        self._device = open_device(llama.device, clock) if device is None else device
        # One entry more than there are slots: padding and dead rows write their token there.
        self._last_token = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=llama.device)
        self._slot_tokens = self._empty_slots()
        self._staging = Staging(self._device, buffers)
        self._host = HostPool(pool, swap_blocks, self._device)
        # One more than steps in flight: a result is read after the next step is queued.
        self._results = [self._device.pinned((max_num_seqs,), torch.int64) for _ in range(MAX_STEPS_IN_FLIGHT + 1)]
        self._submitted = 0
        self._last_end_ns = 0  # as the host saw it
        self._device_time = DeviceTime()
        self._launched: deque[Launched] = deque()
        graphs = llama, pool, self._kernels, self._device, self._last_token
        self._graphs: list[DecodeGraphs | MixedGraphs] = []  # the first that holds a step is taken
        if graph_sizes:
            self._graphs.append(DecodeGraphs(*graphs, max_blocks=max_blocks, sizes=graph_sizes))
        if mixed_graph_sizes:
            self._graphs.append(MixedGraphs(*graphs, max_blocks=max_blocks, sizes=mixed_graph_sizes))

    def restart(self) -> None:
        """For a new run: forgets the steps in flight of a run that was interrupted. The clock has started again."""
        self._launched.clear()
        self._last_end_ns = 0
        self._device_time = DeviceTime()
        self._slot_tokens = self._empty_slots()

    def _empty_slots(self) -> SlotTokens:
        return SlotTokens(len(self._last_token) - 1, None if self._device.overlaps else self._last_token.numpy())

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> None:
        start_ns = self._clock.now_ns()
        assert len(self._launched) < MAX_STEPS_IN_FLIGHT, "collect a step before the next is submitted"
        main = self._device.main
        begin, end = main.event(timed=True), main.event(timed=True)
        batch = flatten(plan, self._pool.block_size, self._slot_tokens)
        packed = next((one for graphs in self._graphs if (one := graphs.pack(batch)) is not None), None)
        begin.record()  # as late as possible: time in which the device waits for the host is not busy time
        began_ns = self._clock.now_ns()
        of_samples: IntArray | slice = slice(None)
        bucket_padding = 0
        with self._staging.step() as send:
            self._host.queue_moves(plan, send.now)
            if packed is not None:
                tokens, of_samples, bucket_padding = packed.launch(send), packed.of_samples, packed.bucket_padding
            else:
                tokens = self._launch_eager(batch, send)
        result = self._results[self._submitted % len(self._results)][: len(tokens)]
        self._submitted += 1
        main.copy(result, tokens)
        end.record()
        times = start_ns, began_ns, self._clock.now_ns()
        self._launched.append(Launched(plan.step, *times, begin, end, result, of_samples, bucket_padding))

    def collect(self) -> StepResult:
        launched = self._launched.popleft()
        end_ns = launched.end.wait()
        # A step queued behind another starts when that one ends.
        start_ns = max(launched.start_ns, self._last_end_ns)
        self._last_end_ns = end_ns
        busy_ns = launched.end.ns_since(launched.begin)
        return StepResult(
            launched.step,
            launched.tokens.numpy()[launched.of_samples].astype(np.int32),
            start_ns,
            end_ns,
            busy_ns,
            launched.bucket_padding,
            self._device_time.host_ahead_ns(launched, busy_ns) if self._device.overlaps else 0,
        )

    def _launch_eager(self, batch: Batch, send: Send) -> torch.Tensor:
        """Queue a step of prompts and decodes. Returns its sampled tokens on the device, in row order."""
        main = self._device.main
        ids, positions, slot_mapping = send(batch.ids), send(batch.positions), send(batch.slot_mapping)
        attend = self._kernels.prepare(batch.tables, batch.lengths, batch.starts, self._pool.layers[0], send)
        out = main.empty((len(batch.sampled),), torch.int64)
        if len(batch.sampled):
            sampled, slots, sampling = send(batch.sampled), send(batch.sample_slots), send(batch.sampling)
        send.go()
        # Without overlap the host knows every token before it is fed, so no id refers to a slot.
        tokens = Tokens(ids, positions, slot_mapping, attend, self._last_token if self._device.overlaps else None)

        def compute() -> None:
            hidden = self._llama.forward(tokens, self._pool, self._kernels)
            if len(out):
                logits = self._llama.logits(hidden.index_select(0, sampled), self._kernels)
                self._last_token.index_copy_(0, slots, self._kernels.sample(logits, sampling, out))

        main.run(compute)
        return out
