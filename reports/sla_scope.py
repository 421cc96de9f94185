"""The part of a load that an SLA applies to: the brackets of p99_ttft_ms[tenant=quiet]<=500."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engines.base import RunRecord
from reports.metrics import BoolArray
from reports.stages import Stages
from workloads.columns import IntColumn
from workloads.plan import RequestPlan
from workloads.rates import EXAMPLE

FORMS = "[tenant=NAME], [priority=N], [prompt<=N] or [stage=N]"
SCOPE = re.compile(r"\s*(?P<by>tenant|priority|prompt|stage)\s*(?P<sign>=|<=?)\s*(?P<value>.+?)\s*")
MOST_NAMES = 12  # tenants, priorities or stages listed in a message


@dataclass(frozen=True)
class Scope:
    """Requests of one tenant, of one priority, with prompts of at most so many tokens, or due in one stage of the rate.

    stages: those of the run, None where its rate does not change.
    """

    by: Literal["tenant", "priority", "prompt", "stage"]
    value: str  # a tenant's name, else a whole number

    def __str__(self) -> str:
        return f"{self.by}{'<=' if self.by == 'prompt' else '='}{self.value}"

    @property
    def words(self) -> str:
        """of tenant quiet"""
        return f"with prompts of at most {self.value} tokens" if self.by == "prompt" else f"of {self.by} {self.value}"

    def members(self, record: RunRecord, stages: Stages | None) -> BoolArray:
        """bool[rows of the record]: True for the requests in scope."""
        if self.by == "tenant":
            return record.where("tenant", self.value)
        if self.by == "stage":
            return self._due_in_stage(record.column_ns("scheduled"), stages)
        column = record.column("priority" if self.by == "priority" else "prompt_tokens")
        which: BoolArray = column == int(self.value) if self.by == "priority" else column <= int(self.value)
        return which

    def missing_in_plan(self, plan: RequestPlan, stages: Stages | None) -> str | None:
        """Why the plan has no request in scope, and which values it has; None where it has some."""
        if self.by == "stage":
            due_ns = plan.arrivals_ugap if stages is None else stages.due_ns(plan.arrivals_ugap)
            return self._missing_stage(due_ns, stages)
        return self._missing([plan.tenants[at] for at in np.unique(plan.tenant)], plan.priority, plan.prompt_tokens)

    def missing_in(self, record: RunRecord, stages: Stages | None) -> str | None:
        """As `missing_in_plan`, for the requests that ended."""
        if self.by == "stage":
            return self._missing_stage(record.column_ns("scheduled"), stages)
        tenants = map(str, record.labels("tenant")[0])
        return self._missing(sorted(tenants), record.column("priority"), record.column("prompt_tokens"))

    def _missing(self, tenants: Collection[str], priority: IntColumn, prompt_tokens: IntColumn) -> str | None:
        if not len(prompt_tokens):
            return "there are no requests"
        if self.by == "prompt":
            shortest = int(prompt_tokens.min())
            return None if shortest <= int(self.value) else f"the shortest prompt has {shortest} tokens"
        there = list(tenants) if self.by == "tenant" else [str(one) for one in np.unique(priority).tolist()]
        return None if self.value in there else f"no such {self.by}; {_there_are(there)}"

    def _due_in_stage(self, due_ns: IntColumn, stages: Stages | None) -> BoolArray:
        span = None if stages is None else stages.find(self.value)
        return np.zeros(len(due_ns), dtype=np.bool_) if span is None else span.holds(due_ns)

    def _missing_stage(self, due_ns: IntColumn, stages: Stages | None) -> str | None:
        if stages is None:
            return f"the rate has no stages; write `rate` as {EXAMPLE}"
        span = stages.find(self.value)
        if span is None:
            return f"no such stage; {_there_are([str(one) for one in stages.spans])}"
        if span.holds(due_ns).any():
            return None
        return f"no request was due in stage {span}, which begins at {span.start_s:g} s"


def _there_are(names: Collection[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(list(names)[:MOST_NAMES])}{more}"


def parse_scope(text: str) -> Scope:
    """Read the text in the brackets. ValueError says what would be right."""
    match = SCOPE.fullmatch(text)
    if match is not None and (match["sign"] == "=") == (match["by"] != "prompt"):
        if match["by"] == "tenant":
            return Scope("tenant", match["value"])
        if re.fullmatch(r"\d{1,9}", match["value"]):
            return Scope(match["by"], str(int(match["value"])))  # type: ignore[arg-type]
        if match["by"] == "stage" and re.fullmatch(r"\d{1,4}\.\d|then", match["value"]):
            return Scope("stage", match["value"])
    raise ValueError(f"[{text}] is not a part of a load; write {FORMS}")
