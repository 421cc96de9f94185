"""Prompts that begin alike, as asked: `prefix=0.6x2048`, that share of the requests begins with the same 2,048 tokens.

A third number is that of the groups, each with a prefix of its own: `prefix=0.6x2048x8`. A shorter prompt begins with
as many of them as it has tokens. Which requests, and of which group, is drawn from a stream of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from workloads.columns import IntColumn
from workloads.errors import CbbenchError
from workloads.length_distributions import MAX_TOKENS
from workloads.sampling import PREFIXES, bit_stream

_TEXT = re.compile(r"\s*(\d*\.?\d+)\s*x\s*(\d{1,9})\s*(?:x\s*(\d{1,6}))?\s*")


@dataclass(frozen=True, slots=True)
class PrefixGroups:
    share: Fraction
    tokens: int
    groups: int = 1

    def draw(self, count: int, seed: int) -> IntColumn:
        """int64[count]: the group of each request, -1 for none."""
        raw = bit_stream(seed, PREFIXES).random_raw(2 * count).reshape(count, 2) >> np.uint64(32)
        shares = raw[:, 0] < np.uint64(int(self.share * 2**32))
        group = (raw[:, 1] * np.uint64(self.groups)) >> np.uint64(32)
        return np.where(shares, group.astype(np.int64), np.int64(-1))


def split_prefix(spec: str) -> tuple[str, PrefixGroups | None]:
    """(the workload without its `prefix=` part, that part). Raises CbbenchError."""
    base, found = spec, re.search(r";\s*prefix=([^;]*)$", spec)
    if found is None:
        return base, None
    read = _TEXT.fullmatch(found[1])
    if read is not None:
        share, tokens, groups = Fraction(read[1]), int(read[2]), int(read[3] or 1)
        if share <= 1 and 1 <= tokens <= MAX_TOKENS and groups >= 1:
            return spec[: found.start()].strip(), PrefixGroups(share, tokens, groups)
    raise CbbenchError(
        "workload",
        f"cannot read 'prefix={found[1]}'; want SHARExTOKENS, as in prefix=0.6x2048, or with the number of groups, "
        "as in prefix=0.6x2048x8",
    )
