"""RequestTable: the rows of a run as columns, about 200 bytes a request where a list of RequestRow takes 900."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import MISSING, Ns, RequestRow, Rows, Stint
from workloads.columns import IntColumn

FIELDS = RequestRow.__struct_fields__
LABELS = ("status", "finish_reason", "error", "token_source", "tenant")  # text that is much the same in every row
# Labels are codes, and stints are where those of the row end in a column of their own.
_DTYPE = np.dtype([(name, "<i4" if name in LABELS else "<i8") for name in FIELDS])
_LABELS_AT = tuple(FIELDS.index(name) for name in LABELS)
_STINTS_AT = FIELDS.index("stints")
FIRST_ROWS = 256


class RequestTable(Rows):
    """Grows by append(); reads like a list of RequestRow, each built when it is asked for."""

    def __init__(self) -> None:
        self._table: NDArray[np.void] = np.zeros(FIRST_ROWS, _DTYPE)
        self._count = 0
        self._stints = array("q")  # slot, admitted, sampled, ended of each; row after row
        self._codes: dict[str | None, int] = {}  # of the texts of all LABELS
        self._texts: list[str | None] = []

    def append(self, row: RequestRow) -> None:
        if self._count == len(self._table):
            # In place, and by a quarter: a long table must not be there twice.
            self._table.resize(self._count + max(FIRST_ROWS, self._count // 4), refcheck=False)
        for stint in row.stints:
            self._stints.extend((stint.slot, stint.admitted, stint.sampled, stint.ended))
        values: list[Any] = list(msgspec.structs.astuple(row))
        for at in _LABELS_AT:
            values[at] = self._code(values[at])
        values[_STINTS_AT] = len(self._stints)
        self._table[self._count] = tuple([MISSING if value is None else value for value in values])
        self._count += 1

    def extend(self, rows: Sequence[RequestRow]) -> None:
        """As append() of each, but a column at a time, which is quicker."""
        begin, end = self._count, self._count + len(rows)
        if begin == end:
            return
        if end > len(self._table):
            self._table.resize(max(end, begin + begin // 4), refcheck=False)
        part = self._table[begin:end]
        columns = dict(zip(FIELDS, zip(*map(msgspec.structs.astuple, rows), strict=True), strict=True))
        stints = columns.pop("stints")
        for name, values in columns.items():
            if name in LABELS:
                codes = {text: self._code(text) for text in dict.fromkeys(values)}
                part[name] = [codes[text] for text in values] if len(codes) > 1 else codes[values[0]]
            elif name in TIMES and None in values:
                part[name] = [MISSING if value is None else value for value in values]
            else:
                part[name] = values
        part["stints"] = len(self._stints) + 4 * np.cumsum(np.fromiter(map(len, stints), np.int64, len(rows)))
        for stint in chain.from_iterable(stints):
            self._stints.extend((stint.slot, stint.admitted, stint.sampled, stint.ended))
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
        fields = dict(zip(FIELDS, self._table[at].item(), strict=True))
        fields |= {name: None for name in TIMES if fields[name] == MISSING}
        fields |= {name: self._texts[fields[name]] for name in LABELS}
        begin = int(self._table["stints"][at - 1]) if at else 0
        numbers = self._stints[begin : fields["stints"]].tolist()
        fields["stints"] = tuple(Stint(*numbers[i : i + 4]) for i in range(0, len(numbers), 4))
        return RequestRow(**fields)

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
        ends = self._table["stints"][: self._count]
        begins = np.concatenate(([0], ends[:-1])) if self._count else ends
        admitted = np.zeros(self._count, dtype=np.int64)
        seated = begins < ends
        admitted[seated] = np.frombuffer(self._stints, dtype=np.int64)[begins[seated] + 1]
        return admitted

    def stints(self) -> tuple[IntColumn, NDArray[np.int64]]:
        numbers = np.array(self._stints, dtype=np.int64).reshape(-1, 4)
        counts = np.diff(self._table["stints"][: self._count], prepend=0) // 4
        return np.repeat(np.arange(self._count), counts), numbers


# The times that may never have come.
TIMES = tuple(field.name for field in msgspec.structs.fields(RequestRow) if field.type == Ns | None)
