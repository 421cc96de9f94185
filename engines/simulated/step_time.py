"""StepTimeModel: how long a step takes, by a few non-negative coefficients; read from and written to a JSON file.

Two regimes, because attention runs another kernel when every row has a single token:

    decode-only   step + row·rows + beyond_knee·max(0, rows - knee) + kv·ΣKV
    mixed         step + token·tokens + beyond_knee·max(0, tokens - knee) + row·rows + kv·ΣKV of single-token rows
                       + pair·Σ(query, key) pairs of the chunks + prefill_kv·ΣKV in front of the chunks

and before each step a gap, in which the host plans. Every duration is a sum of Python floats in a fixed order, rounded
to whole ns, so a model gives the same bits on every machine. NumPy is used element by element only, never for a sum.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.scheduling.plan import IntArray
from workloads.errors import CbbenchError

FloatArray = NDArray[np.float64]
SCHEMA: Final = "cbbench.step-time-model/1"
STEP_TIMES_FILE: Final = "step_time_model.json"  # what `cbbench calibrate RUN` writes, in RUN
FIELD: Final = "step_time_model"  # the setting that names such a file
OLD_STEP_TIMES_FILE: Final = "law.json"  # of earlier versions, with the same content under the schema cbbench.law/1


class StepShape(NamedTuple):
    """What the time of one step depends on. Padding and dead rows count, as they are launched."""

    tokens: int
    rows: int
    kv: int  # positions read by rows with a single token, dead rows included
    prefill_kv: int  # KV positions before the chunks
    prefill_pairs: int  # (query, key) pairs of the chunks, with what is before them: count·start + count·(count+1)/2
    swapped_blocks: int = 0
    narrow_pairs: int = 0  # pairs that chunks too short to fill a GPU cost on top of `prefill_pairs`

    @property
    def decode_only(self) -> bool:
        return self.tokens == self.rows


class DecodeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """ns of a step in which every row has a single token."""

    step: float
    row: float
    kv: float
    beyond_knee: float = 0.0  # per row beyond `knee_rows`, on top of `row`
    knee_rows: int = 0


class MixedTerms(msgspec.Struct, frozen=True, kw_only=True):
    """ns of a step with prompt chunks, with or without decodes."""

    step: float
    token: float
    beyond_knee: float  # per token beyond `knee_tokens`, on top of `token`
    knee_tokens: int
    row: float
    kv: float
    pair: float
    prefill_kv: float


class GapTerms(msgspec.Struct, frozen=True, kw_only=True):
    """ns between the end of a step and the start of the next, in which the host plans and delivers tokens."""

    step: float
    row: float


class HoldOut(msgspec.Struct, frozen=True, kw_only=True):
    """Relative errors on held-out steps."""

    steps: int
    mean: float
    p95: float
    total: float  # of the summed time, signed; throughput has the same error


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model comes from, so that a reader can check it."""

    source: str  # a run, or hardware and model
    model: str | None = None
    device: str | None = None
    kv_blocks: int | None = None  # of the run's KV pool: the default of a simulated run
    block_size: int | None = None  # tokens; of the blocks of kv_blocks and swap_block_ns
    max_model_len: int | None = None  # tokens
    kv_bytes_per_token: int | None = None  # K and V of all layers
    hold_out: dict[str, HoldOut] = {}  # by regime: decode, mixed, gap
    fitted_on: dict[str, tuple[int, int]] = {}  # smallest and largest rows, tokens, kv; other values are extrapolated
    warnings: tuple[str, ...] = ()


class StepTimeModel(Protocol):
    """What the simulator asks of any model of step times, fitted or analytical."""

    @property
    def calibrated(self) -> bool: ...
    @property
    def origin(self) -> Origin: ...
    @property
    def label(self) -> str:
        """Shown with every prediction."""
        ...

    @property
    def overlapped(self) -> bool:
        """Whether the next step is planned while one runs."""
        ...

    @property
    def front_end_ns(self) -> int:
        """From a request's arrival at the server to the scheduler: HTTP and the tokenizer."""
        ...

    @property
    def knows_swaps(self) -> bool: ...

    def with_blocks_of(self, tokens: int) -> StepTimeModel: ...

    def device_ns(self, shape: StepShape) -> int:
        """What the device works in a step."""
        ...

    def floor_ns(self, rows: int, *, decode_only: bool) -> int:
        """What the host takes for a step at least: the step is this long where the device is done before."""
        ...

    def decode_device_ns(self, rows: int, kv: IntArray) -> IntArray:
        """device_ns of decode-only steps that differ only in kv; the same values to the bit."""
        ...

    def gap_ns(self, rows: int) -> int:
        """Host time before a step, in which nothing runs."""
        ...

    def tables(self, max_rows: int, max_tokens: int) -> StepTables | None:
        """For the compiled core, of steps that swap nothing; None: the model has terms that the core lacks."""
        ...


@dataclass(frozen=True, slots=True)
class StepTables:
    """A step-time model as arrays: ns = decode_base[rows] + decode_kv·kv of a step that only decodes, else
    mixed_base[tokens] + rows[rows] + mixed_kv·kv + pair·(pairs + narrow pairs) + prefill_kv·KV in front of the chunks;
    the step takes at least `floors`. The sums are in the order of device_ns, so the bits are the same."""

    decode_base: FloatArray  # [max_rows + 1]
    decode_kv: float
    mixed_base: FloatArray  # [max_tokens + 1]
    rows: FloatArray  # [max_rows + 1]
    mixed_kv: float
    pair: float
    prefill_kv: float
    narrow: IntArray  # 1/1024 of its pairs that a chunk of so many tokens costs on top; longer chunks as the last entry
    floors: IntArray  # [2, max_rows + 1], ns: of steps with chunks, and of those that only decode
    gaps: IntArray  # [max_rows + 1], ns


class FittedStepTimes(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal["cbbench.step-time-model/1", "cbbench.law/1"] = SCHEMA
    calibrated: bool  # False: from data sheets, not from a run
    decode: DecodeTerms
    mixed: MixedTerms
    gap: GapTerms
    swap_block_ns: float = 0.0  # per block moved out or in; 0: unknown, see knows_swaps
    overlapped: bool = False  # the next step is planned while one runs, as on a GPU
    row_buckets: tuple[int, ...] = ()  # decode-only steps are padded to the next larger one (CUDA graphs)
    origin: Origin

    @property
    def label(self) -> str:
        """Shown with every prediction."""
        return f"calibrated on {self.origin.source}" if self.calibrated else f"UNCALIBRATED: {self.origin.source}"

    @property
    def front_end_ns(self) -> int:
        """Part of the run that was fitted, as far as it was there."""
        return 0

    @property
    def knows_swaps(self) -> bool:
        """Whether the cost of moving a KV block is known. It is never 0: a fit to steps that moved none gives 0."""
        return self.swap_block_ns > 0

    def with_blocks_of(self, tokens: int) -> FittedStepTimes:
        """The model for KV blocks of this many tokens: the time to move a block is proportional to its bytes."""
        known = self.origin.block_size
        if known is None or known == tokens or not self.knows_swaps:
            return self
        return msgspec.structs.replace(
            self,
            swap_block_ns=self.swap_block_ns * tokens / known,
            origin=msgspec.structs.replace(
                self.origin,
                block_size=tokens,
                kv_blocks=None if (blocks := self.origin.kv_blocks) is None else max(1, blocks * known // tokens),
            ),
        )

    def moved(self, reading: float, computing: float, hardware: str) -> FittedStepTimes:
        """The model on other hardware, by its data sheet: what reads memory takes `reading` times as long, what
        computes `computing` times. The gap, in which the host plans, stays. No longer calibrated."""
        decode, mixed, origin = self.decode, self.mixed, self.origin
        return msgspec.structs.replace(
            self,
            calibrated=False,
            decode=DecodeTerms(
                step=decode.step * reading, row=decode.row * computing, kv=decode.kv * reading,
                beyond_knee=decode.beyond_knee * computing, knee_rows=decode.knee_rows,
            ),
            mixed=MixedTerms(
                step=mixed.step * reading, token=mixed.token * computing, beyond_knee=mixed.beyond_knee * computing,
                knee_tokens=mixed.knee_tokens, row=mixed.row * computing, kv=mixed.kv * reading,
                pair=mixed.pair * computing, prefill_kv=mixed.prefill_kv * reading,
            ),
            swap_block_ns=0.0,
            origin=msgspec.structs.replace(
                origin,
                source=f"{origin.source}, moved from {origin.device} to {hardware} by their data sheets",
                device=hardware,
                kv_blocks=None,
                hold_out={},
                warnings=(*origin.warnings, f"measured on {origin.device}, not on {hardware}"),
            ),
        )  # fmt: skip

    def floor_ns(self, rows: int, *, decode_only: bool) -> int:
        """Part of the steps that were fitted."""
        return 0

    def duration_ns(self, shape: StepShape) -> int:
        return self.device_ns(shape)

    def device_ns(self, shape: StepShape) -> int:
        if shape.decode_only:
            ns = self._decode_base_ns(shape.rows) + self.decode.kv * shape.kv
        else:
            terms, beyond = self.mixed, max(0, shape.tokens - self.mixed.knee_tokens)
            ns = terms.step + terms.token * shape.tokens
            ns = ns + terms.beyond_knee * beyond
            ns = ns + terms.row * shape.rows
            ns = ns + terms.kv * shape.kv
            ns = ns + terms.pair * shape.prefill_pairs
            ns = ns + terms.prefill_kv * shape.prefill_kv
        if shape.swapped_blocks:
            ns = ns + self.swap_block_ns * shape.swapped_blocks
        return max(1, round(ns))

    def decode_device_ns(self, rows: int, kv: IntArray) -> IntArray:
        """device_ns of decode-only steps that differ only in kv; the same values to the bit."""
        ns = self._decode_base_ns(rows) + self.decode.kv * kv.astype(np.float64)
        return np.maximum(1, np.rint(ns)).astype(np.int64)

    def gap_ns(self, rows: int) -> int:
        return round(self.gap.step + self.gap.row * rows)

    def tables(self, max_rows: int, max_tokens: int) -> StepTables:
        terms, tokens = self.mixed, np.arange(max_tokens + 1)
        mixed_base = terms.step + terms.token * tokens
        return StepTables(
            decode_base=np.array([self._decode_base_ns(n) for n in range(max_rows + 1)]),
            decode_kv=self.decode.kv,
            mixed_base=mixed_base + terms.beyond_knee * np.maximum(0, tokens - terms.knee_tokens),
            rows=np.array([terms.row * n for n in range(max_rows + 1)]),
            mixed_kv=terms.kv,
            pair=terms.pair,
            prefill_kv=terms.prefill_kv,
            narrow=np.zeros(1, dtype=np.int64),
            floors=np.zeros((2, max_rows + 1), dtype=np.int64),
            gaps=np.array([self.gap_ns(n) for n in range(max_rows + 1)], dtype=np.int64),
        )

    def _decode_base_ns(self, rows: int) -> float:
        launched, terms = self._launched_rows(rows), self.decode
        return terms.step + terms.row * launched + terms.beyond_knee * max(0, launched - terms.knee_rows)

    def _launched_rows(self, rows: int) -> int:
        at = bisect_left(self.row_buckets, rows)
        return self.row_buckets[at] if at < len(self.row_buckets) else rows


def save_step_times(model: FittedStepTimes, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(model), indent=2) + b"\n")


def load_step_times(path: Path) -> FittedStepTimes:
    """From a file or the folder of a calibrated run. Raises CbbenchError, naming the file, if it is not a model."""
    if path.is_dir():
        path = _file_in(path)
    try:
        model = msgspec.json.decode(path.read_bytes(), type=FittedStepTimes)
    except FileNotFoundError:
        raise CbbenchError(FIELD, f"{path}: no such file; `cbbench calibrate RUN` writes one") from None
    except (msgspec.DecodeError, OSError) as error:
        raise CbbenchError(FIELD, f"{path}: not a step-time model ({SCHEMA}): {error}") from None
    for group in (model.decode, model.mixed, model.gap):
        for name, value in msgspec.structs.asdict(group).items():
            if not 0 <= value < float("inf"):
                raise CbbenchError(FIELD, f"{path}: {name} must be a number of at least 0, got {value}")
    if list(model.row_buckets) != sorted(set(model.row_buckets)):
        raise CbbenchError(FIELD, f"{path}: row_buckets must be increasing, got {list(model.row_buckets)}")
    return msgspec.structs.replace(model, schema=SCHEMA)


def _file_in(folder: Path) -> Path:
    """The model of a calibrated run, as this version or an earlier one named it."""
    new, old = folder / STEP_TIMES_FILE, folder / OLD_STEP_TIMES_FILE
    return old if old.is_file() and not new.is_file() else new
