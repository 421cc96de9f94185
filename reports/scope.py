"""The part of a load that an SLA is judged on: the brackets of p99_ttft_ms[tenant=quiet]<=500."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engines.base import RunRecord
from reports.metrics import BoolArray
from workloads.plan import IntColumn, RequestPlan

FORMS = "[tenant=NAME], [priority=N] or [prompt<=N]"
SCOPE = re.compile(r"\s*(?P<by>tenant|priority|prompt)\s*(?P<sign>=|<=?)\s*(?P<value>.+?)\s*")
MOST_NAMES = 12  # of tenants or priorities in a message


@dataclass(frozen=True)
class Scope:
    """Requests of one tenant, of one priority, or with prompts of at most so many tokens."""

    by: Literal["tenant", "priority", "prompt"]
    value: str  # a tenant's name, else a whole number

    def __str__(self) -> str:
        return f"{self.by}{'<=' if self.by == 'prompt' else '='}{self.value}"

    @property
    def words(self) -> str:
        """of tenant quiet"""
        return f"with prompts of at most {self.value} tokens" if self.by == "prompt" else f"of {self.by} {self.value}"

    def members(self, record: RunRecord) -> BoolArray:
        """Which rows of the record they are."""
        if self.by == "tenant":
            return record.where("tenant", self.value)
        column = record.column("priority" if self.by == "priority" else "prompt_tokens")
        which: BoolArray = column == int(self.value) if self.by == "priority" else column <= int(self.value)
        return which

    def missing_in_plan(self, plan: RequestPlan) -> str | None:
        """Why the plan has no such request, and what it has; None where it has some."""
        return self._missing([plan.tenants[at] for at in np.unique(plan.tenant)], plan.priority, plan.prompt_tokens)

    def missing_in(self, record: RunRecord) -> str | None:
        """The same of the requests that ended."""
        tenants = map(str, record.labels("tenant")[0])
        return self._missing(sorted(tenants), record.column("priority"), record.column("prompt_tokens"))

    def _missing(self, tenants: Collection[str], priority: IntColumn, prompt_tokens: IntColumn) -> str | None:
        if not len(prompt_tokens):
            return "there is no request at all"
        if self.by == "prompt":
            shortest = int(prompt_tokens.min())
            return None if shortest <= int(self.value) else f"no prompt is as short; the shortest has {shortest} tokens"
        there = list(tenants) if self.by == "tenant" else [str(one) for one in np.unique(priority).tolist()]
        if self.value in there:
            return None
        more = f" and {len(there) - MOST_NAMES} more" if len(there) > MOST_NAMES else ""
        return f"no such {self.by}; there {'is' if len(there) == 1 else 'are'} {', '.join(there[:MOST_NAMES])}{more}"


def parse_scope(text: str) -> Scope:
    """Read what stands in the brackets. ValueError says what would be right."""
    match = SCOPE.fullmatch(text)
    if match is not None and (match["sign"] == "=") == (match["by"] != "prompt"):
        if match["by"] == "tenant":
            return Scope("tenant", match["value"])
        if re.fullmatch(r"\d{1,9}", match["value"]):
            return Scope("priority" if match["by"] == "priority" else "prompt", str(int(match["value"])))
    raise ValueError(f"[{text}] is no part of a load; want {FORMS}")
