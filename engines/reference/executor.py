"""TorchExecutor: runs StepPlans on a decoder, one forward pass a step, prompts and decodes mixed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from engines.loop import Clock
from engines.reference.batch import build_batch
from engines.reference.kernels import PrepareAttention, cpu
from engines.reference.kv_pool import KVPool
from engines.reference.model.llama import Llama
from engines.reference.sampling import next_tokens
from engines.reference.swap import HostPool
from engines.scheduling.plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class _Launched:
    step: int
    tokens: torch.Tensor  # [samples] on the device
    start_ns: int
    timer: _Timer


class TorchExecutor:
    """On a CPU `submit` computes the step; on CUDA it only queues it, and `collect` waits for it."""

    def __init__(
        self,
        llama: Llama,
        pool: KVPool,
        *,
        max_num_seqs: int,
        clock: Clock,
        prepare_attention: PrepareAttention = cpu.prepare,
        swap_blocks: int = 0,
    ) -> None:
        self._llama = llama
        self._pool = pool
        self._clock = clock
        self._prepare_attention = prepare_attention
        self._last_token = torch.zeros(max_num_seqs, dtype=torch.int64, device=llama.device)
        self._launched: deque[_Launched] = deque()
        self._host = HostPool(pool, swap_blocks)

    def submit(self, plan: StepPlan) -> None:
        start_ns = self._clock.now_ns()
        timer = _Timer(self._llama.device, self._clock)
        with torch.inference_mode():
            tokens = self._compute(plan)
        timer.stop()
        self._launched.append(_Launched(plan.step, tokens, start_ns, timer))

    def collect(self) -> StepResult:
        launched = self._launched.popleft()
        busy_ns, end_ns = launched.timer.wait()
        tokens = launched.tokens.cpu().numpy().astype(np.int32)
        return StepResult(launched.step, tokens, launched.start_ns, end_ns, busy_ns)

    def _compute(self, plan: StepPlan) -> torch.Tensor:
        self._host.carry_out(plan, self._pool)
        batch = build_batch(plan, self._pool, self._last_token, self._prepare_attention)
        hidden = self._llama.forward(batch.tokens, self._pool)
        if not batch.requests:
            return batch.slots
        logits = self._llama.logits(hidden.index_select(0, batch.sampled))
        tokens = next_tokens(logits, [request.sampling for request in batch.requests], batch.output_indices)
        self._last_token[batch.slots] = tokens
        return tokens


class _Timer:
    """How long the device works on what is queued between construction and `stop`."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self._clock = clock
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            self._events = (begin, end)
            self._events[0].record()
        self._begin_ns = self._end_ns = clock.now_ns()

    def stop(self) -> None:
        if self._events:
            self._events[1].record()
        self._end_ns = self._clock.now_ns()

    def wait(self) -> tuple[int, int]:
        """(busy_ns, end_ns)"""
        if not self._events:
            return self._end_ns - self._begin_ns, self._end_ns
        self._events[1].synchronize()
        return round(self._events[0].elapsed_time(self._events[1]) * 1e6), self._clock.now_ns()
