"""RequestTable: the rows of a run as columns, about 200 bytes a request where a list of RequestRow takes 900."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import MISSING, RequestRow, Rows, Stint
from workloads.plan import IntColumn

LABELS = ("status", "finish_reason", "error", "token_source", "tenant")  # text that is much the same in every row
COUNTS = tuple(name for name in RequestRow.__struct_fields__ if name not in (*LABELS, "stints"))
_DTYPE = np.dtype([*((name, "<i8") for name in COUNTS), *((name, "<i4") for name in LABELS), ("stints_end", "<i8")])
STINT = Stint.__struct_fields__
FIRST_ROWS = 256


class RequestTable(Rows):
    """Grows by append(); reads like a list of RequestRow, each built when it is asked for."""

    def __init__(self) -> None:
        self._table: NDArray[np.void] = np.zeros(FIRST_ROWS, _DTYPE)
        self._count = 0
        self._stints = array("q")  # the numbers of each stint, in the order of STINT; row after row
        self._codes: dict[str | None, int] = {}  # of the texts of all LABELS
        self._texts: list[str | None] = []

    def append(self, row: RequestRow) -> None:
        if self._count == len(self._table):
            # In place, and by a quarter: a long table must not be there twice.
            self._table.resize(self._count + max(FIRST_ROWS, self._count // 4), refcheck=False)
        for stint in row.stints:
            self._stints.extend((stint.slot, stint.admitted, stint.sampled, stint.ended))
        counts = [MISSING if (value := getattr(row, name)) is None else value for name in COUNTS]
        codes = [self._code(getattr(row, name)) for name in LABELS]
        self._table[self._count] = (*counts, *codes, len(self._stints))
        self._count += 1

    def extend(self, rows: Sequence[RequestRow]) -> None:
        """As append() of each, but a column at a time, which is quicker."""
        begin, end = self._count, self._count + len(rows)
        if end > len(self._table):
            self._table.resize(max(end, begin + begin // 4), refcheck=False)
        part = self._table[begin:end]
        for name in COUNTS:
            value_of = attrgetter(name)
            if name in TIMES:
                part[name] = [MISSING if (value := value_of(row)) is None else value for row in rows]
            else:
                part[name] = np.fromiter(map(value_of, rows), np.int64, len(rows))
        for name in LABELS:
            texts = [getattr(row, name) for row in rows]
            codes = {text: self._code(text) for text in dict.fromkeys(texts)}
            part[name] = np.fromiter(map(codes.__getitem__, texts), np.int32, len(rows))
        already = len(self._stints)
        stints = [stint for row in rows for stint in row.stints]
        columns = [np.fromiter(map(attrgetter(name), stints), np.int64, len(stints)) for name in STINT]
        self._stints.frombytes(np.stack(columns, axis=1).tobytes())
        part["stints_end"] = already + len(STINT) * np.cumsum([len(row.stints) for row in rows], dtype=np.int64)
        self._count = end

    def _code(self, text: str | None) -> int:
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self._texts)
            self._texts.append(text)
        return code

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> RequestRow: ...
    @overload
    def __getitem__(self, at: slice) -> list[RequestRow]: ...
    def __getitem__(self, at: int | slice) -> RequestRow | list[RequestRow]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self._count))]
        if not -self._count <= at < self._count:
            raise IndexError(f"row {at} of {self._count}")
        at %= self._count
        *values, stints_end = self._table[at].item()
        fields = dict(zip(COUNTS, values, strict=False))
        for name in TIMES:
            if fields[name] == MISSING:
                fields[name] = None
        fields |= {name: self._texts[code] for name, code in zip(LABELS, values[len(COUNTS) :], strict=True)}
        begin = int(self._table["stints_end"][at - 1]) if at else 0
        numbers = self._stints[begin:stints_end].tolist()
        stints = tuple(Stint(*numbers[i : i + 4]) for i in range(0, len(numbers), 4))
        return RequestRow(**fields, stints=stints)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestTable) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def column(self, name: str) -> IntColumn:
        column: IntColumn = self._table[name][: self._count].astype(np.int64)
        return column

    def labels(self, name: str) -> tuple[list[str | None], IntColumn]:
        present, codes = np.unique(self._table[name][: self._count], return_inverse=True)
        return [self._texts[code] for code in present.tolist()], codes.astype(np.int64)

    def first_steps(self) -> IntColumn:
        ends = self._table["stints_end"][: self._count]
        begins = np.concatenate(([0], ends[:-1])) if self._count else ends
        admitted = np.zeros(self._count, dtype=np.int64)
        seated = begins < ends
        admitted[seated] = np.frombuffer(self._stints, dtype=np.int64)[begins[seated] + 1]
        return admitted


# The times that may never have come.
TIMES = tuple(
    field.name for field in msgspec.structs.fields(RequestRow) if field.name in COUNTS and field.type == int | None
)
