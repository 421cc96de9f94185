"""RequestRow: what is recorded of one request; RequestTable: the rows of a run as columns.

The table takes about 200 bytes a request, a list of RequestRow 900.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, Self, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from workloads.columns import IntColumn

Status = Literal["completed", "failed", "cancelled"]

MISSING = -1  # a time that never came, in int64 columns; null in files


# As far as a column of 64 bits holds them; a line beyond that was not written by us.
Ns = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class StintRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Stint of the scheduler (engines.scheduling.request), as files have it."""

    slot: Count
    admitted: Count
    sampled: Count
    ended: Count


class RequestRow(msgspec.Struct, frozen=True, gc=False):
    """One line of requests.jsonl. Times in ns since the run began, None where they never came.

    There may be a million of them. They hold nothing that could hold them, so the garbage collector need not look.
    """

    i: Count
    scheduled: Ns
    submitted: Ns | None
    sent: Ns | None
    first_byte: Ns | None
    first: Ns | None
    last: Ns | None
    end: Ns
    prompt_tokens: Count
    output_tokens: Count
    status: Status
    finish_reason: str | None  # stop | length | rejected | aborted | error, or the class of a failure over HTTP
    error: str | None
    token_source: str  # engine | usage | usage_unseen | counted; see engines/remote/usage.py
    tenant: str
    priority: Ns
    preemptions: Count
    events_at: Count  # offset of this request's token events in tokens.bin, in values
    events: Count
    stints: tuple[StintRow, ...] = ()
    first_answer: Ns | None = None  # first token of the answer, where reasoning came before it
    transfer_asked: Ns | None = None  # the decode instance had room and asked the prefill instance for its KV
    transfer_ended: Ns | None = None  # and had all of it
    cached_tokens: Count | None = None  # of the prompt, from a prefix cache, as the server's usage says
    request_id: str | None = None  # X-Request-Id, ending in -i


FIELDS = RequestRow.__struct_fields__
# Text that is much the same in every row; of a request_id, what stands before its number.
LABELS = ("status", "finish_reason", "error", "token_source", "tenant", "request_id")
# Labels are codes, and stints are where those of the row end in a column of their own.
_DTYPE = np.dtype([(name, "<i4" if name in LABELS else "<i8") for name in FIELDS])
_LABELS_AT = tuple(FIELDS.index(name) for name in LABELS)
_STINTS_AT = FIELDS.index("stints")
_REQUEST_ID_AT = FIELDS.index("request_id")
FIRST_ROWS = 256


class RequestTable(Sequence[RequestRow]):
    """Grows by append(); reads like a list of RequestRow, each built when it is asked for."""

    def __init__(self) -> None:
        self._table: NDArray[np.void] = np.zeros(FIRST_ROWS, _DTYPE)
        self._count = 0
        self._stints = array("q")  # slot, admitted, sampled, ended of each; row after row
        self._codes: dict[str | None, int] = {}  # of the texts of all LABELS
        self._texts: list[str | None] = []

    @classmethod
    def of(cls, rows: Iterable[RequestRow]) -> Self:
        table = cls()
        table.extend(list(rows))
        return table

    def append(self, row: RequestRow) -> None:
        if self._count == len(self._table):
            # In place, and by a quarter: a long table must not be there twice.
            self._table.resize(self._count + max(FIRST_ROWS, self._count // 4), refcheck=False)
        for stint in row.stints:
            self._stints.extend((stint.slot, stint.admitted, stint.sampled, stint.ended))
        values: list[Any] = list(msgspec.structs.astuple(row))
        values[_REQUEST_ID_AT] = _without_number(row)
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
        columns["request_id"] = tuple(map(_without_number, rows))
        for name, values in columns.items():
            if name in LABELS:
                codes = {text: self._code(text) for text in dict.fromkeys(values)}
                part[name] = [codes[text] for text in values] if len(codes) > 1 else codes[values[0]]
            elif name in OPTIONAL and None in values:
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
        fields |= {name: None for name in OPTIONAL if fields[name] == MISSING}
        fields |= {name: self._texts[fields[name]] for name in LABELS}
        if fields["request_id"] is not None:
            fields["request_id"] += f"-{fields['i']}"
        begin = int(self._table["stints"][at - 1]) if at else 0
        numbers = self._stints[begin : fields["stints"]].tolist()
        fields["stints"] = tuple(StintRow(*numbers[i : i + 4]) for i in range(0, len(numbers), 4))
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
        was_admitted = begins < ends
        admitted[was_admitted] = np.frombuffer(self._stints, dtype=np.int64)[begins[was_admitted] + 1]
        return admitted

    def stints(self) -> tuple[IntColumn, NDArray[np.int64]]:
        numbers = np.array(self._stints, dtype=np.int64).reshape(-1, 4)
        counts = np.diff(self._table["stints"][: self._count], prepend=0) // 4
        return np.repeat(np.arange(self._count), counts), numbers


# Numbers that may be missing: times that never came, counts that are not known.
OPTIONAL = tuple(field.name for field in msgspec.structs.fields(RequestRow) if field.type in (Ns | None, Count | None))


def _without_number(row: RequestRow) -> str | None:
    return None if row.request_id is None else row.request_id.removesuffix(f"-{row.i}")
