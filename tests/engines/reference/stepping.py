"""Helpers to drive the torch runtime: a scheduler and an executor in a loop, and StepPlans written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from engines.ledger import LEDGER
from engines.loop import VirtualClock
from engines.reference.executor import TorchExecutor
from engines.reference.kv_pool import KVPool
from engines.reference.model.llama import Llama
from engines.reference.sampling import columns, sample
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.plan import StepPlan
from engines.scheduling.request import GREEDY, Request, Sampling
from tests.ledger_identities import check_identities

NONE = np.empty(0, dtype=np.int64)


def pool_for(llama: Llama, blocks: int = 64, block_size: int = 16) -> KVPool:
    return KVPool(llama.config, blocks, block_size, dtype=llama.dtype, device=llama.device)


def executor_for(llama: Llama, pool: KVPool, max_num_seqs: int = 8) -> TorchExecutor:
    return TorchExecutor(llama, pool, max_num_seqs=max_num_seqs, clock=VirtualClock())


@dataclass(frozen=True)
class Row:
    """A row of a hand-made plan: computes tokens start .. start + count - 1 of the request in `slot`."""

    request: Request
    slot: int
    start: int
    count: int
    padding: int = 0
    samples: bool = True


@dataclass(frozen=True)
class Dead:
    slot: int
    length: int


@dataclass
class Tables:
    """Block tables by slot, filled by hand."""

    rows: dict[int, Sequence[int]] = field(default_factory=dict)

    def array(self, slots: int = 8, width: int = 64) -> NDArray[np.int32]:
        out = np.zeros((slots, width), dtype=np.int32)
        for slot, blocks in self.rows.items():
            out[slot, : len(blocks)] = blocks
        return out


def step_plan(
    rows: Sequence[Row], tables: NDArray[np.int32], *, dead: Sequence[Dead] = (), dead_tokens: int = 1, step: int = 1
) -> StepPlan:
    def column(values: Sequence[int]) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64)

    return StepPlan(
        step=step,
        now_ns=0,
        requests=[row.request for row in rows],
        slots=column([row.slot for row in rows]),
        starts=column([row.start for row in rows]),
        counts=column([row.count for row in rows]),
        padding=column([row.padding for row in rows]),
        samples=np.array([row.samples for row in rows], dtype=np.bool_),
        dead_slots=column([one.slot for one in dead]),
        dead_lengths=column([one.length for one in dead]),
        dead_tokens=dead_tokens if dead else 0,
        tables=tables,
    )


def request(index: int, prompt: Sequence[int], outputs: int, sampling: Sampling = GREEDY) -> Request:
    return Request(index, len(prompt), outputs, prompt=np.array(prompt, dtype=np.int32), sampling=sampling)


def outputs_of(one: Request) -> list[int]:
    assert one.tokens is not None
    return one.tokens[one.prompt_tokens : one.prompt_tokens + one.output_tokens].tolist()


@dataclass(frozen=True)
class Driven:
    plans: list[StepPlan]
    ledger: NDArray[np.void]

    @property
    def swapped(self) -> bool:
        return any(len(plan.swap_in) for plan in self.plans)


def drive(
    executor: TorchExecutor,
    config: SchedulerConfig,
    requests: Sequence[Request],
    *,
    depth: int = 0,
    eos_ids: frozenset[int] = frozenset(),
) -> Driven:
    """Submit everything and run to the end with `depth` steps in flight while planning."""
    scheduler = config.build(eos_ids)
    for one in requests:
        assert not scheduler.submit(one, 0).finished, one.error
    plans: list[StepPlan] = []
    rows = []
    in_flight = 0
    while not scheduler.idle:
        plan = scheduler.schedule(0)
        if plan is not None:
            executor.submit(plan)
            plans.append(plan)
            in_flight += 1
        if in_flight > depth or plan is None:
            rows.append(scheduler.update(executor.collect()).ledger_row)
            in_flight -= 1
    ledger = np.array(rows, dtype=LEDGER)
    check_identities(ledger, config.max_num_seqs, config.kv_blocks)
    return Driven(plans, ledger)


def serve(llama: Llama, config: SchedulerConfig, requests: Sequence[Request], *, depth: int = 0) -> list[StepPlan]:
    """The same on a CPU; returns the plans."""
    pool = pool_for(llama, config.kv_blocks, config.block_size)
    executor = TorchExecutor(
        llama, pool, max_num_seqs=config.max_num_seqs, clock=VirtualClock(), swap_blocks=config.swap_blocks
    )
    return drive(executor, config, requests, depth=depth).plans


def next_tokens(logits: torch.Tensor, samplings: Sequence[Sampling], output_indices: Sequence[int]) -> torch.Tensor:
    """logits: [rows, vocab]. Returns int64[rows] on the same device."""
    of_rows = torch.from_numpy(columns(samplings, output_indices)).to(logits.device)
    return sample(logits, of_rows, torch.empty(len(logits), dtype=torch.int64, device=logits.device))
