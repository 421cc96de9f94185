"""RequestPlan: the requests of a run as columns, fixed before it starts.

A plan holds no rate and no concurrency: those belong to Pacing, so that the same plan (and the same hash) can be sent
faster or slower. Prompt content is not in the hash either: it has a seed of its own (prompts.py) or a file
(prompt_texts.py).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from workloads.columns import IntColumn
from workloads.prompt_blocks import PromptBlocks
from workloads.prompt_texts import PromptTexts
from workloads.turns import Turns

UGAP = 1_000_000  # one mean inter-arrival gap, in the unit of `arrivals_ugap`


NoteKind = Literal["arrivals", "times", "reading", "repeated", "outputs", "fields"]


@dataclass(frozen=True, slots=True)
class Note:
    """What a reader of the result should know about how a workload file was used.

    kind    arrivals: its arrival times are not used; times: how its time stamps were read; reading: how its rows were;
            repeated: it has fewer rows than requests were asked for; outputs: some of its prompts state no output
            length; fields: some of its fields are not sent
    tenant  whose workload the file is; None: that of all requests
    """

    kind: NoteKind
    text: str
    tenant: str | None = None

    def __str__(self) -> str:
        return self.text if self.tenant is None else f"{self.tenant}: {self.text}"


@dataclass(frozen=True, eq=False)
class RequestPlan:
    """Columns of length n, all int64. Row i is request i.

    arrivals_ugap  arrival time in millionths of the mean gap, non-decreasing: request i is due at
                   arrivals_ugap[i] / 1e6 / rate seconds when a rate is given
    prompt_tokens  >= 1
    output_tokens  >= 1, the forced (or largest) number of output tokens
    tenant         index into `tenants`
    priority       0 is the most urgent
    session        id of the session the request is a turn of, -1 for none: its prompt is the beginning of the
                   session's text, so a later and longer turn repeats all of an earlier one
    prefix         id of the prefix the prompt shares with others, -1 for none: the prompt begins with the
                   prefix's prefix_tokens[id] tokens; a shorter prompt with as many of them as it has tokens
    """

    arrivals_ugap: IntColumn
    prompt_tokens: IntColumn
    output_tokens: IntColumn
    tenant: IntColumn
    priority: IntColumn
    session: IntColumn
    prefix: IntColumn
    tenants: tuple[str, ...] = ("default",)
    prefix_tokens: tuple[int, ...] = ()  # length of each prefix
    spec: str = ""
    seed: int = 0
    outside_context: float = 0.0  # share of (prompt, output) pairs that were redrawn to fit the context
    notes: tuple[Note, ...] = ()
    trace_rate_per_s: float | None = None  # mean rate of the trace whose arrivals the plan has; None: another process
    texts: PromptTexts | None = None  # content of the prompts, if a file has it
    turns: Turns | None = None  # which answer each request waits for; None: it is due whatever became of others
    blocks: PromptBlocks | None = None  # what each prompt shares with others, if a trace says it

    @property
    def prompts_counted(self) -> bool:
        """Whether prompt_tokens are exact; else they are estimates until the server counts."""
        return self.texts is None or self.texts.counted_by != "server"

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts begin alike, so that a prefix cache is to be hit; texts of a file may."""
        told = self.texts is not None or self.blocks is not None
        return bool(told or (self.prefix >= 0).any() or (self.session >= 0).any())

    def __post_init__(self) -> None:
        for name in COLUMNS:
            column = getattr(self, name)
            if column.dtype != np.int64 or column.shape != (len(self),):
                raise ValueError(f"plan column {name}: want int64[{len(self)}], got {column.dtype}{column.shape}")
        if len(self) and self.prefix.max() >= len(self.prefix_tokens):
            raise ValueError(f"plan column prefix: {self.prefix.max()} has no length in prefix_tokens")

    def __len__(self) -> int:
        return int(self.prompt_tokens.shape[0])

    @cached_property
    def sha256(self) -> str:
        """Identity of the requests: the columns as little-endian int64, the tenant names, the prefixes' lengths."""
        digest = hashlib.sha256()
        for name in COLUMNS:
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(getattr(self, name), dtype="<i8").tobytes())
        digest.update("\0".join(self.tenants).encode())
        digest.update(np.array(self.prefix_tokens, dtype="<i8").tobytes())  # adds no bytes without prefixes
        if self.blocks is not None:
            for column in (np.array([self.blocks.block_tokens]), self.blocks.starts, self.blocks.ids):
                digest.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        if self.turns is not None:
            for column in (self.turns.after, self.turns.think_ns):
                digest.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        return digest.hexdigest()

    @staticmethod
    def of(prompt_tokens: object, output_tokens: object, **columns: object) -> RequestPlan:
        """A plan from lengths alone; every other column takes its neutral value (unit arrivals one gap apart)."""
        prompts = np.asarray(prompt_tokens, dtype=np.int64)
        n = prompts.shape[0]
        filled = {
            "arrivals_ugap": np.arange(n, dtype=np.int64) * UGAP,
            "tenant": np.zeros(n, dtype=np.int64),
            "priority": np.zeros(n, dtype=np.int64),
            "session": np.full(n, -1, dtype=np.int64),
            "prefix": np.full(n, -1, dtype=np.int64),
        } | columns
        return RequestPlan(prompt_tokens=prompts, output_tokens=np.asarray(output_tokens, dtype=np.int64), **filled)  # type: ignore[arg-type]


COLUMNS = ("arrivals_ugap", "prompt_tokens", "output_tokens", "tenant", "priority", "session", "prefix")


def realised(plan: RequestPlan) -> dict[str, Any]:
    """Statistics of a plan, for `workload.realised` of run.json. Token counts; outside_context is a share.

    prompt_tokens is None if only the server counts them. reusable_prompt_tokens: how many an infinite prefix cache
    would have at their beginnings, if the plan says what they share.
    """
    names, counts = np.unique(plan.tenant, return_counts=True)
    reusable = reusable_tokens(plan)
    shared = {} if reusable is None else {"reusable_prompt_tokens": int(reusable.sum())}
    return shared | {
        "prompt_tokens": _summary(plan.prompt_tokens) if plan.prompts_counted else None,
        "output_tokens": _summary(plan.output_tokens),
        "outside_context": plan.outside_context,
        "tenants": {plan.tenants[name]: int(count) for name, count in zip(names, counts, strict=True)},
    }


def reusable_tokens(plan: RequestPlan) -> IntColumn | None:
    """int64[n]: tokens at the beginning of each prompt that earlier prompts had; None if the plan does not say what
    they share. Answers are not counted: those in a session's prompt are not what the server made of it."""
    if plan.texts is not None or not plan.shares_prefixes:
        return None
    if plan.blocks is not None:
        return plan.blocks.reusable_tokens(plan.prompt_tokens)
    reusable = np.zeros(len(plan), dtype=np.int64)
    had: dict[tuple[int, int], int] = {}  # (prefix, session) -> most tokens of it so far; session -1: the prefix alone
    for index, (tokens, prefix, session) in enumerate(
        zip(plan.prompt_tokens.tolist(), plan.prefix.tolist(), plan.session.tolist(), strict=True)
    ):
        common = min(plan.prefix_tokens[prefix], tokens) if prefix >= 0 else 0
        shared = min(had.get((prefix, -1), 0), common)
        had[prefix, -1] = max(had.get((prefix, -1), 0), common)
        if session >= 0:
            shared = max(shared, min(had.get((prefix, session), 0), tokens))
            had[prefix, session] = max(had.get((prefix, session), 0), tokens)
        reusable[index] = shared
    return reusable


def _summary(tokens: IntColumn) -> dict[str, float]:
    p50, p90, p99 = np.percentile(tokens, (50, 90, 99)).tolist()
    return {"mean": float(tokens.mean()), "p50": p50, "p90": p90, "p99": p99, "max": int(tokens.max())}
