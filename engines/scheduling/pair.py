"""PairConfig: a scheduler that computes prompts and one that decodes, and what goes with that."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engines.base import EngineError
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.scheduler import Scheduler, StepNumbers


@dataclass(frozen=True, slots=True)
class PairConfig:
    """Two instances of one engine. EngineError, naming the flag, where a setting makes no sense for them."""

    prefill: SchedulerConfig
    decode: SchedulerConfig

    def __post_init__(self) -> None:
        assert self.prefill.block_size == self.decode.block_size, "a block is copied as it is"
        for one in (self.prefill, self.decode):
            if one.mode == "static":
                raise EngineError("--disaggregate: needs --mode continuous: a static batch computes its prompts itself")
            if one.on_kv_pressure == "swap":
                raise EngineError(
                    "--disaggregate: goes with --on-kv-pressure recompute, delay or reject, got swap: KV that left the "
                    "prefill instance is on no host"
                )

    def build(self, eos_ids: frozenset[int] = frozenset()) -> tuple[Scheduler, Scheduler]:
        """(prefill, decode), which number their steps together."""
        numbers = StepNumbers()
        prefill = self.prefill.build(eos_ids, numbers=numbers)
        # Here a prompt is only ever computed again, and that is always split: none is too long for a step.
        decode = replace(self.decode, chunked_prefill=True)
        return prefill, decode.build(eos_ids, numbers=numbers, source=prefill)
