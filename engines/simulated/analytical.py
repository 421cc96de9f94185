"""AnalyticalStepTimes: the time of a step from the shape of a model and the data sheet of a GPU. UNCALIBRATED.

One form for all steps; n = tokens of the step, of prompts and outputs together:

    step = fixed                                       kernel launches of every layer, latency of the all-reduces
         + blend(weights(n), arithmetic(n))            reading weights, and computing with them, overlap in part
         + activation · n                              activations, and the all-reduces' bytes
         + max(head, head_row · rows)                  the output head, of the rows that sample
         + kv · KV positions of single-token rows      slower beside prompt chunks where one kernel does both
         + pair · (query, key) pairs of the chunks     a chunk below 512 tokens does not fill the device
    and at least `host_floor`, in which the host plans the step and launches it; the device is idle in the rest.
With speculation a step that only decodes verifies more tokens than rows, and counts for several (speculation.py).

Routed experts: a step of n tokens touches E · (1 - (1 - k/E)^n) of E experts, if each token draws k of them evenly.
A layer with a sliding window reads at most `window` positions a row; the mean length of the rows decides.
Every duration is a sum of Python floats in a fixed order, rounded to whole ns: the same bits on every machine.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, Literal

import msgspec
import numpy as np

from engines.scheduling.plan import IntArray
from engines.simulated.power import blend, whole_power
from engines.simulated.speculation import SpeculationTerms
from engines.simulated.step_time import Origin, StepShape, StepTables

FULL_CHUNK = 512  # tokens of a prompt chunk from which its attention fills a GPU
# 1024 · (√(512 / tokens) - 1) by whole-number arithmetic: what shorter chunks cost on top of their pairs.
NARROW: IntArray = np.array(
    [0] + [math.isqrt((FULL_CHUNK << 20) // tokens) - 1024 for tokens in range(1, FULL_CHUNK + 1)], dtype=np.int64
)
SCHEMA: Final = "cbbench.analytical-step-time/1"
_blend = lru_cache(maxsize=1 << 16)(blend)


def narrow_pairs(tokens: IntArray, pairs: IntArray) -> int:
    """(query, key) pairs that chunks of `tokens`, too short to fill a GPU, cost on top of their `pairs`; [chunks]."""
    return int((pairs * NARROW[np.minimum(tokens, FULL_CHUNK)] >> 10).sum())


class ExpertTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Routed experts of all layers."""

    experts: int
    per_token: int
    expert: float  # ns to read one of them in every layer
    token: float  # ns of arithmetic, per token

    def touched(self, tokens: int) -> float:
        """Experts of a layer that some token of the step goes to, on average."""
        return self.experts * (1.0 - whole_power(1.0 - self.per_token / self.experts, tokens))


class WindowTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Layers with a sliding window; the other terms are then of the full layers alone."""

    tokens: int  # that a row sees at most
    kv: float  # ns per position read
    pair: float  # ns per (query, key) pair


class AnalyticalStepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """ns, each per what its name says."""

    schema: Literal["cbbench.analytical-step-time/1"] = SCHEMA
    fixed: float
    weights: float  # reading all weights that every step reads
    token: float  # arithmetic of the same weights
    blend: float  # exponent, at least 1
    activation: float  # per token
    head: float  # reading the output head
    head_row: float  # computing it, per row
    kv: float  # per position that a single-token row reads
    mixed_kv: float  # the same, beside prompt chunks
    pair: float
    experts: ExpertTerms | None = None
    window: WindowTerms | None = None
    speculation: SpeculationTerms | None = None
    host_floor: float = 0.0
    host_floor_row: float = 0.0  # per row, on top
    front_end_ns: int = 0
    swap_block_ns: float = 0.0  # per block moved out or in; 0: not known
    origin: Origin

    # what the simulator asks of any step-time model
    calibrated = False
    overlapped = False  # planning overlaps the running step: no gap, but `host_floor`

    @property
    def label(self) -> str:
        """Stands wherever a prediction is shown."""
        return f"UNCALIBRATED: {self.origin.source}"

    @property
    def knows_swaps(self) -> bool:
        return self.swap_block_ns > 0

    def with_blocks_of(self, tokens: int) -> AnalyticalStepTimes:
        """The same model for KV blocks of another size: moving one takes longer with its bytes."""
        known = self.origin.block_size
        if known is None or known == tokens:
            return self
        return msgspec.structs.replace(
            self,
            swap_block_ns=self.swap_block_ns * tokens / known,
            origin=msgspec.structs.replace(self.origin, block_size=tokens),
        )

    def duration_ns(self, shape: StepShape) -> int:
        return max(self.device_ns(shape), self.floor_ns(shape.rows, decode_only=shape.decode_only))

    def floor_ns(self, rows: int, *, decode_only: bool) -> int:
        floor = self.host_floor + self.host_floor_row * rows
        return round(floor / self._steps_in_one if decode_only else floor)

    def device_ns(self, shape: StepShape) -> int:
        if shape.decode_only:
            ns = self._decode_base_ns(shape.rows) + self._decode_kv * shape.kv
            if self.window is not None:
                ns = ns + self._window_kv * min(shape.kv, shape.rows * self.window.tokens)
        else:
            ns = self._base_ns(shape.tokens, shape.rows)
            ns = ns + self.mixed_kv * shape.kv
            ns = ns + self.pair * (shape.prefill_pairs + shape.narrow_pairs)
            if self.window is not None:
                ns = ns + self.window.kv * min(shape.kv, shape.rows * self.window.tokens)
                ns = ns + self.window.pair * min(shape.prefill_pairs, shape.tokens * self.window.tokens)
        if shape.swapped_blocks:
            ns = ns + self.swap_block_ns * shape.swapped_blocks
        return max(1, round(ns))

    def decode_device_ns(self, rows: int, kv: IntArray) -> IntArray:
        """device_ns of decode-only steps that differ in their KV alone, [steps]; the same bits, step for step."""
        ns = self._decode_base_ns(rows) + self._decode_kv * kv.astype(np.float64)
        if self.window is not None:
            ns = ns + self._window_kv * np.minimum(kv, rows * self.window.tokens)
        return np.maximum(1, np.rint(ns)).astype(np.int64)

    def gap_ns(self, rows: int) -> int:
        return 0

    def tables(self, max_rows: int, max_tokens: int) -> StepTables | None:
        if self.window is not None:
            return None
        return StepTables(
            decode_base=np.array([self._decode_base_ns(n) for n in range(max_rows + 1)]),
            decode_kv=self._decode_kv,
            mixed_base=np.array([self._token_ns(n) for n in range(max_tokens + 1)]),
            rows=np.array([self._head_ns(n) for n in range(max_rows + 1)]),
            mixed_kv=self.mixed_kv,
            pair=self.pair,
            prefill_kv=0.0,
            narrow=NARROW,
            floors=np.array(
                [[self.floor_ns(n, decode_only=decodes) for n in range(max_rows + 1)] for decodes in (False, True)]
            ),
            gaps=np.zeros(max_rows + 1, dtype=np.int64),
        )

    @property
    def _steps_in_one(self) -> float:
        """Steps without speculation that one with it is worth."""
        return 1.0 if self.speculation is None else self.speculation.tokens_per_step

    @property
    def _decode_kv(self) -> float:
        return self.kv / self._steps_in_one

    @property
    def _window_kv(self) -> float:
        return 0.0 if self.window is None else self.window.kv / self._steps_in_one

    def _decode_base_ns(self, rows: int) -> float:
        """Of a step that only decodes, what does not depend on the length of the rows."""
        alone = self._base_ns(rows, rows)
        if self.speculation is None:
            return alone
        verified = rows * (self.speculation.draft_tokens + 1)
        drafting = self.speculation.draft_tokens * self.speculation.draft_cost * alone
        return (self._base_ns(verified, verified) + drafting) / self._steps_in_one

    def _base_ns(self, tokens: int, rows: int) -> float:
        """What does not depend on the length of the rows."""
        return self._token_ns(tokens) + self._head_ns(rows)

    def _head_ns(self, rows: int) -> float:
        return max(self.head, self.head_row * rows)

    def _token_ns(self, tokens: int) -> float:
        weights, arithmetic = self.weights, self.token * tokens
        if self.experts is not None:
            weights = weights + self.experts.expert * self.experts.touched(tokens)
            arithmetic = arithmetic + self.experts.token * tokens
        return self.fixed + _blend(weights, arithmetic, self.blend) + self.activation * tokens
