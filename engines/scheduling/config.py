"""SchedulerConfig: every knob of the scheduler, checked, and the scheduler it describes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engines.base import EngineError
from engines.scheduling.gate import ResourceGate
from engines.scheduling.kv import KVManager
from engines.scheduling.policies.admission import Admission, FullPrompt, FullReserve
from engines.scheduling.policies.batching import Batching, Continuous, PaddedStatic, Static
from engines.scheduling.policies.order import Fcfs
from engines.scheduling.policies.pressure import Delay, Pressure, Recompute, Reject
from engines.scheduling.rows import Rows
from engines.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Raises EngineError, naming the flag, where settings contradict each other."""

    kv_blocks: int  # usable; the dummy block is extra
    max_model_len: int
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    block_size: int = 16
    mode: Literal["continuous", "static"] = "continuous"
    chunked_prefill: bool = True
    prefill: Literal["decode-first", "prefill-first"] = "decode-first"
    static: Literal["padded", "compact-held", "compact-freed"] = "padded"
    admission: Literal["full-prompt", "full-reserve"] | None = None  # None: full-prompt, or full-reserve where implied
    watermark: float = 0.01  # share of the KV blocks
    on_kv_pressure: Literal["recompute", "delay", "reject"] = "recompute"

    def __post_init__(self) -> None:
        for flag in ("kv_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            if getattr(self, flag) < 1:
                raise EngineError(f"--{flag.replace('_', '-')}: must be at least 1, got {getattr(self, flag)}")
        if not 0 <= self.watermark < 1:
            raise EngineError(f"--watermark: must be a share of the KV blocks, 0 <= w < 1, got {self.watermark}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise EngineError(
                f"--max-num-batched-tokens: {self.max_num_batched_tokens} is less than --max-num-seqs "
                f"{self.max_num_seqs}, so a full batch could not decode; raise it to at least {self.max_num_seqs}"
            )
        implied_by = (
            "--mode static"
            if self.mode == "static"
            else "--on-kv-pressure delay"
            if self.on_kv_pressure == "delay"
            else ""
        )
        if implied_by and self.admission not in (None, "full-reserve"):
            raise EngineError(
                f"--admission: {implied_by} implies full-reserve (a seated request must never run short), "
                f"got {self.admission}; drop the flag or say full-reserve"
            )

    @property
    def effective_admission(self) -> Literal["full-prompt", "full-reserve"]:
        reserve = self.mode == "static" or self.on_kv_pressure == "delay"
        return self.admission or ("full-reserve" if reserve else "full-prompt")

    def build(self, eos_ids: frozenset[int] = frozenset()) -> Scheduler:
        rows = Rows(self.max_num_seqs)
        kv = KVManager(self.kv_blocks, self.block_size, self.max_num_seqs, self.max_model_len)
        gate = ResourceGate(
            rows,
            kv,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            chunked=self.chunked_prefill or self.mode == "static",
        )
        return Scheduler(
            rows,
            kv,
            gate,
            batching=self._batching(),
            order=Fcfs(),
            admission=self._admission(),
            pressure=self._pressure(),
            eos_ids=eos_ids,
        )

    def _batching(self) -> Batching:
        if self.mode == "continuous":
            return Continuous(chunked=self.chunked_prefill, decode_first=self.prefill == "decode-first")
        return PaddedStatic() if self.static == "padded" else Static(holds=self.static == "compact-held")

    def _admission(self) -> Admission:
        if self.effective_admission == "full-reserve":
            return FullReserve()
        return FullPrompt(watermark_blocks=int(self.watermark * self.kv_blocks))

    def _pressure(self) -> Pressure:
        match self.on_kv_pressure:
            case "recompute":
                return Recompute()
            case "delay":
                return Delay()
            case "reject":
                return Reject()
