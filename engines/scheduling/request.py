"""Request: the life of one request inside the scheduler.

    NEW --> WAITING --admit--> RUNNING --finish--> FINISHED
               ^                  |
               +---- preempt -----+     (a new or waiting one may finish too: reject, abort)

One inequality explains it: 0 <= computed <= known <= prompt_tokens + max_output_tokens. `computed` positions are in KV;
`known` tokens have a value, or a launched step is sampling it. While a request runs, both are columns of its slot
(slots.py); while it waits, nothing is computed and `known` is derived here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NO_SLOT = -1


class State(Enum):
    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. temperature 0 is greedy; the draw depends on (seed, output index) alone."""

    temperature: float = 0.0
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    seed: int = 0


GREEDY = Sampling()


class Stint(NamedTuple):
    """One stay of a request in a slot. Steps count from 1; `sampled` is the first step that gave it a token, 0 if none.

    admitted ....... sampled ........ ended
    |<-- prefill -->|<--- decode --->|        (both ends are inside the stay)
    """

    slot: int
    admitted: int
    sampled: int
    ended: int


class Request:
    """Mutable, owned by the scheduler. Others read it."""

    __slots__ = (
        "admitted_step",
        "bucket",
        "computed_peak",
        "error",
        "event_runs",
        "finish_reason",
        "first_ns",
        "host_blocks",
        "ignore_eos",
        "index",
        "last_ns",
        "max_output_tokens",
        "min_output_tokens",
        "output_limit",
        "output_tokens",
        "pending",
        "preemptions",
        "priority",
        "prompt_tokens",
        "rank",
        "resumes_first",
        "sampled_step",
        "sampling",
        "scheduled_ns",
        "sent_ns",
        "sequence",
        "slot",
        "state",
        "stints",
        "stop_token_ids",
        "submitted_ns",
        "swapped_positions",
        "tenant",
        "times_skipped",
        "tokens",
        "transfer_asked_ns",
        "transfer_ended_ns",
    )

    def __init__(
        self,
        index: int,
        prompt_tokens: int,
        max_output_tokens: int,
        *,
        prompt: NDArray[np.int32] | None = None,
        tenant: str = "default",
        priority: int = 0,
        scheduled_ns: int = 0,
        sent_ns: int = 0,
        ignore_eos: bool = True,
        min_output_tokens: int = 0,
        stop_token_ids: frozenset[int] = frozenset(),
        sampling: Sampling = GREEDY,
    ) -> None:
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.max_output_tokens = max_output_tokens
        self.tenant = tenant
        self.priority = priority
        self.scheduled_ns = scheduled_ns
        self.sent_ns = sent_ns
        self.submitted_ns = 0
        self.ignore_eos = ignore_eos
        self.min_output_tokens = min_output_tokens  # an EOS before so many ends nothing, and is an output like others
        self.stop_token_ids = stop_token_ids  # each ends it as an EOS does, whatever ignore_eos says
        self.sampling = sampling
        # prompt ids, then the outputs as they come: [prompt_tokens + max_output_tokens]; None when only lengths matter
        self.tokens: NDArray[np.int32] | None = None
        if prompt is not None:
            self.tokens = np.zeros(prompt_tokens + max_output_tokens, dtype=np.int32)
            self.tokens[:prompt_tokens] = prompt
        self.state = State.NEW
        self.slot = NO_SLOT
        self.rank = 0.0  # set once at submit by the order policy
        self.sequence = 0  # order of submission, which breaks ties
        self.bucket = 0  # which prompts it is batched with
        self.times_skipped = 0  # requests admitted before it while it was the head of its queue and lacked KV
        self.output_tokens = 0  # delivered
        self.output_limit = max_output_tokens  # of the instance it is at: a prefill instance makes one token
        self.pending = 0  # being sampled by a launched step
        self.computed_peak = 0  # positions below it were computed in an earlier stint; computing them again is waste
        self.host_blocks: list[int] = []  # where its KV is while it is swapped out, or at the instance it comes from
        self.swapped_positions = 0  # how many positions those hold
        self.resumes_first = False  # swapped out under pressure: admitted before all that hold no KV
        self.preemptions = 0
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.transfer_asked_ns: int | None = None
        self.transfer_ended_ns: int | None = None
        self.event_runs: list[list[int]] = []  # [[first step, number of consecutive steps], ...] that gave a token
        self.stints: list[Stint] = []
        self.admitted_step = 0
        self.sampled_step = 0

    @property
    def queue(self) -> str:
        """The queue it waits in; it holds back no request of another queue."""
        return f"{self.tenant}/{self.bucket}"

    @property
    def known(self) -> int:
        """Tokens with a value, or being sampled."""
        return self.prompt_tokens + self.output_tokens + self.pending

    @property
    def kv_limit(self) -> int:
        """Positions of KV it can ever need where it is: the last sampled token is never fed back, hence the -1."""
        return self.prompt_tokens + self.output_limit - 1

    @property
    def fresh(self) -> bool:
        """It was never admitted."""
        return self.preemptions == 0 and self.output_tokens == 0

    @property
    def used_tokens(self) -> int:
        """Prompt and output tokens that an ended request has cost; of one that ended before its first token, the part
        of its prompt that was in KV."""
        prompt = self.prompt_tokens
        if not self.output_tokens:
            prompt = min(prompt, max(self.computed_peak, self.swapped_positions))
        return prompt + self.output_tokens

    @property
    def finished(self) -> bool:
        return self.state is State.FINISHED

    def deliver(self, step: int, now_ns: int) -> None:
        """One output token reached the user: the step that made it is `step`, and it ended at `now_ns`."""
        runs = self.event_runs
        if runs and runs[-1][0] + runs[-1][1] == step:
            runs[-1][1] += 1
        else:
            runs.append([step, 1])
        if self.first_ns is None:
            self.first_ns = now_ns
        self.last_ns = now_ns
        self.output_tokens += 1

    @property
    def last_step(self) -> int:
        """The newest step that gave it a token; 0: none did."""
        first, count = self.event_runs[-1] if self.event_runs else (1, 0)
        return first + count - 1

    def event_steps(self) -> NDArray[np.uint32]:
        """Step number of every delivered token, in order: uint32[output_tokens]."""
        if not self.event_runs:
            return np.empty(0, dtype=np.uint32)
        return np.concatenate([np.arange(first, first + count, dtype=np.uint32) for first, count in self.event_runs])

    def __repr__(self) -> str:
        done = f"{self.prompt_tokens}+{self.output_tokens}/{self.max_output_tokens}"
        return f"Request({self.index}: {done} {self.state.value})"
