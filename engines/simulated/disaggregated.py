"""A prefill and a decode instance on one virtual clock, each on a device of its own, and a link between the two."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from engines.base import Observer, RunRecord
from engines.disaggregated import TimedInstance, TwoInstances
from engines.loop import Clock, VirtualClock
from engines.recorded_loop import run_loop
from engines.scheduling.config import DisaggregatedConfig
from engines.scheduling.kv_transfer import Transfer
from engines.simulated.cost import CostExecutor
from engines.simulated.engine import PROMPT_IDS, make_request
from engines.simulated.front_end import behind_front_end
from engines.simulated.step_time import StepTimeModel
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.source import PlanSource


class TimedLink:
    """Transfers one after another, each as long as its blocks take, whatever the instances compute meanwhile."""

    def __init__(self, block_ns: float, clock: Clock) -> None:
        self._block_ns = block_ns
        self._clock = clock
        self._started: deque[tuple[Transfer, int]] = deque()  # and when it ends
        self._end_ns = 0  # of the newest

    def start(self, transfer: Transfer) -> None:
        lasts_ns = max(1, round(self._block_ns * len(transfer.sources)))
        self._end_ns = max(self._clock.now_ns(), self._end_ns) + lasts_ns
        self._started.append((transfer, self._end_ns))

    def ends_ns(self) -> int | None:
        return self._started[0][1] if self._started else None

    def collect(self) -> Transfer:
        return self._started.popleft()[0]


@dataclass(frozen=True, slots=True)
class SimulatedDisaggregatedEngine:
    """Every run starts from idle instances at time 0. The same input gives the same record, bit for bit."""

    config: DisaggregatedConfig
    step_times: StepTimeModel  # of either device
    link_bytes_per_s: float
    kv_bytes_per_token: int
    client: None = None

    def run(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> RunRecord:
        clock, depth = VirtualClock(), int(self.step_times.overlapped)
        prefill, decode = (
            TimedInstance(one, CostExecutor(self.step_times, clock), depth) for one in self.config.build()
        )
        link = TimedLink(self.block_ns, clock)
        caches = self.config.prefill.prefix_caching or self.config.decode.prefix_caching
        prompts = Prompts(plan, PROMPT_IDS) if caches else None
        source = behind_front_end(PlanSource(plan, pacing, prompts), self.step_times)
        return run_loop(
            TwoInstances(prefill, decode, link), source, clock, observer, planned=len(plan), make_request=make_request
        )

    @property
    def block_ns(self) -> float:
        """Of a block on the link."""
        return 1e9 * self.kv_bytes_per_token * self.config.decode.block_size / self.link_bytes_per_s

    def describe(self) -> dict[str, Any]:
        """The `config` of run.json's engine: that of the decode instance, with what the prefill instance has
        of its own, the link, and the step-time model with its origin."""
        prefill = asdict(self.config.prefill)
        own = ("max_num_seqs", "max_num_batched_tokens", "kv_blocks")
        return {
            "core": "scheduler: two instances",
            "disaggregate": True,
            **{f"prefill_{name}": prefill[name] for name in own},
            "kv_link_gb_per_s": self.link_bytes_per_s / 1e9,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "law": msgspec.to_builtins(self.step_times),
            "law_label": self.step_times.label,
        }
