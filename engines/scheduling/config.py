"""SchedulerConfig: every setting of a scheduler, checked, and the scheduler it describes. DisaggregatedConfig: two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from engines.scheduling.kv import KVManager
from engines.scheduling.plan import StepNumbers
from engines.scheduling.policies import Policies
from engines.scheduling.policies.admission import Admission, FullPrompt, FullReserve, Optimistic, Peak, PromptFits
from engines.scheduling.policies.batching import Batching, Continuous, InOrder, PaddedStatic, Static
from engines.scheduling.policies.order import (
    Ageing,
    ByPriority,
    Fair,
    Order,
    ShortestKnown,
    ShortestPredicted,
    ShortestPrompt,
    SkipAhead,
)
from engines.scheduling.policies.partial_prefills import NO_LIMIT, PartialPrefills
from engines.scheduling.policies.preemption import (
    Delay,
    Last,
    LeastComputed,
    LowestPriority,
    Newest,
    NoPriorityPreemption,
    Pressure,
    PriorityPreemption,
    Recompute,
    Reject,
    Swap,
    Victims,
)
from engines.scheduling.resource_gate import Quota, Quotas, ResourceGate
from engines.scheduling.scheduler import Scheduler
from engines.scheduling.slots import Slots
from workloads.errors import CbbenchError

AdmissionName = Literal["full-prompt", "full-reserve", "optimistic", "prompt-fits", "peak"]
OrderName = Literal["fcfs", "shortest-prompt", "shortest-known", "shortest-predicted", "priority", "fair"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Raises CbbenchError, naming the field, where settings contradict each other."""

    kv_blocks: int  # usable; the dummy block is extra
    max_model_len: int
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    block_size: int = 16
    mode: Literal["continuous", "static"] = "continuous"
    chunked_prefill: bool = True
    prefill: Literal["decode-first", "prefill-first", "in-order"] = "decode-first"
    max_prompt_chunk: int | None = None  # tokens one prompt may take of a step
    max_num_partial_prefills: int | None = None  # prompts that may be partly computed at a time
    max_long_partial_prefills: int | None = None  # of these, prompts longer than max_prompt_chunk
    prompt_buckets: tuple[int, ...] = ()
    static: Literal["padded", "compact-held", "compact-freed"] = "padded"
    static_patience_s: float = 0.0
    order: OrderName = "fcfs"
    ageing: float | None = None  # tokens (or levels of priority) of advantage per second waited
    skip_ahead: int = 0
    preempt_for_priority: bool = False
    admission: AdmissionName | None = None  # None: full-prompt, or full-reserve where implied
    watermark: float = 0.01  # share of the KV blocks
    on_kv_pressure: Literal["recompute", "swap", "delay", "reject"] = "recompute"
    victim: Literal["newest", "last", "least-computed", "lowest-priority"] = "newest"
    swap_blocks: int = 0
    prefix_caching: bool = False
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    tenant_weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            if getattr(self, name) < 1:
                raise CbbenchError(name, f"must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.watermark < 1:
            raise CbbenchError("watermark", f"must be a share of the KV blocks, 0 <= w < 1, got {self.watermark}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise CbbenchError(
                "max_num_batched_tokens",
                f"{self.max_num_batched_tokens} is less than `max_num_seqs` {self.max_num_seqs}, so a full batch could "
                f"not decode; raise it to at least {self.max_num_seqs}",
            )
        if list(self.prompt_buckets) != sorted(set(self.prompt_buckets)) or any(b < 1 for b in self.prompt_buckets):
            raise CbbenchError(
                "prompt_buckets", f"must be ascending prompt lengths like 512,4096, got {self.prompt_buckets}"
            )
        if self.on_kv_pressure == "swap" and self.swap_blocks < 1:
            raise CbbenchError(
                "on_kv_pressure", "swap needs `swap_blocks` N, the number of KV blocks to keep on the host"
            )
        if self.max_prompt_chunk is not None and not self.chunked_prefill:
            raise CbbenchError("max_prompt_chunk", "means nothing with `chunked_prefill` off; drop one of them")
        if self.max_long_partial_prefills is not None and self.max_prompt_chunk is None:
            raise CbbenchError("max_long_partial_prefills", "needs `max_prompt_chunk` N: longer prompts are long")
        if self.preempt_for_priority and self.order != "priority":
            raise CbbenchError("preempt_for_priority", f"needs `order` priority, got `order` {self.order}")
        if self.tenant_weights and self.order != "fair":
            raise CbbenchError("tenant_weight", f"needs `order` fair, got `order` {self.order}")
        self._check_implied_admission()

    def _check_implied_admission(self) -> None:
        implied_by = {self.mode == "static": "`mode` static", self.on_kv_pressure == "delay": "`on_kv_pressure` delay"}
        if True in implied_by and self.admission not in (None, "full-reserve"):
            raise CbbenchError(
                "admission",
                f"{implied_by[True]} implies full-reserve (a running request must never lack a block), got "
                f"{self.admission}; drop it or say full-reserve",
            )

    @property
    def effective_admission(self) -> AdmissionName:
        reserve = self.mode == "static" or self.on_kv_pressure == "delay"
        return self.admission or ("full-reserve" if reserve else "full-prompt")

    def build(
        self,
        eos_ids: frozenset[int] = frozenset(),
        *,
        numbers: StepNumbers | None = None,
        source: Scheduler | None = None,
    ) -> Scheduler:
        """source: the instance that hands requests over to this one, if there is one; they share `numbers`."""
        slots = Slots(self.max_num_seqs)
        kv = KVManager(
            self.kv_blocks,
            self.block_size,
            self.max_num_seqs,
            self.max_model_len,
            swap_blocks=self.swap_blocks,
            prefix_caching=self.prefix_caching,
            source=None if source is None else source.kv,
        )
        gate = ResourceGate(
            slots,
            kv,
            Quotas(self.quotas),
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            chunked=self.chunked_prefill or self.mode == "static",
        )
        policies = Policies(
            batching=self._batching(),
            partial_prefills=PartialPrefills(
                self.max_num_partial_prefills or NO_LIMIT,
                self.max_long_partial_prefills or NO_LIMIT,
                self.max_prompt_chunk or NO_LIMIT,
            ),
            order=self._order(),
            admission=self._admission(),
            pressure=self._pressure(),
            victims=self._victims(),
            skip_ahead=SkipAhead(self.skip_ahead),
            priority=PriorityPreemption() if self.preempt_for_priority else NoPriorityPreemption(),
            # Where the first in plan order is never the victim and gets its tokens first, it always gets on.
            resume_whole=self.prefill == "prefill-first" or self.victim != "last",
        )
        instance, first_slot = (0, 0) if source is None else (1, source.slots.num_slots)
        return Scheduler(
            slots,
            kv,
            gate,
            policies,
            eos_ids=eos_ids,
            numbers=numbers,
            instance=instance,
            first_slot=first_slot,
        )

    def _batching(self) -> Batching:
        if self.mode == "continuous":
            kind = InOrder if self.prefill == "in-order" else Continuous
            return kind(
                chunked=self.chunked_prefill,
                decode_first=self.prefill != "prefill-first",
                max_chunk=self.max_prompt_chunk,
                buckets=self.prompt_buckets,
            )
        patience_ns = round(self.static_patience_s * 1e9)
        if self.static == "padded":
            return PaddedStatic(patience_ns=patience_ns, buckets=self.prompt_buckets)
        return Static(holds=self.static == "compact-held", patience_ns=patience_ns, buckets=self.prompt_buckets)

    def _order(self) -> Order:
        match self.order:
            case "fcfs":
                order = Order()
            case "shortest-prompt":
                order = ShortestPrompt()
            case "shortest-known":
                order = ShortestKnown()
            case "shortest-predicted":
                order = ShortestPredicted()
            case "priority":
                order = ByPriority()
            case "fair":
                order = Fair(self.tenant_weights)
        return order if self.ageing is None else Ageing(order, self.ageing)

    def _admission(self) -> Admission:
        watermark_blocks = int(self.watermark * self.kv_blocks)
        match self.effective_admission:
            case "full-prompt":
                return FullPrompt(watermark_blocks)
            case "full-reserve":
                return FullReserve()
            case "optimistic":
                return Optimistic(watermark_blocks)
            case "prompt-fits":
                return PromptFits(watermark_blocks)
            case "peak":
                return Peak(watermark_blocks)

    def _pressure(self) -> Pressure:
        match self.on_kv_pressure:
            case "recompute":
                return Recompute()
            case "swap":
                return Swap()
            case "delay":
                return Delay()
            case "reject":
                return Reject()

    def _victims(self) -> Victims:
        match self.victim:
            case "newest":
                return Newest()
            case "last":
                return Last()
            case "least-computed":
                return LeastComputed()
            case "lowest-priority":
                return LowestPriority()


@dataclass(frozen=True, slots=True)
class DisaggregatedConfig:
    """A prefill and a decode instance of one engine. Raises CbbenchError where a setting makes no sense for them."""

    prefill: SchedulerConfig
    decode: SchedulerConfig

    def __post_init__(self) -> None:
        assert self.prefill.block_size == self.decode.block_size, "a block is copied as it is"
        for one in (self.prefill, self.decode):
            if one.mode == "static":
                raise CbbenchError(
                    "disaggregate", "needs `mode` continuous: a static batch computes its prompts itself"
                )
            if one.on_kv_pressure == "swap":
                raise CbbenchError(
                    "disaggregate",
                    "goes with `on_kv_pressure` recompute, delay or reject, got swap: KV that left the prefill "
                    "instance is on no host",
                )

    def build(self, eos_ids: frozenset[int] = frozenset()) -> tuple[Scheduler, Scheduler]:
        """(prefill, decode), which number their steps together."""
        numbers = StepNumbers()
        prefill = self.prefill.build(eos_ids, numbers=numbers)
        # The decode instance only ever computes a prompt again, and that is always split: none is too long for a step.
        decode = replace(self.decode, chunked_prefill=True)
        return prefill, decode.build(eos_ids, numbers=numbers, source=prefill)
