"""What a step's sampled tokens do to its requests: each gets one more output token, or ends, or continues elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engines.ledger import StepArray
from engines.scheduling.plan import StepPlan, StepResult
from engines.scheduling.request import Request, State


@dataclass(slots=True)
class Outcome:
    """What a collected step, an abort or a rejection changed."""

    delivered: list[Request] = field(default_factory=list)  # each got one more output token
    finished: list[Request] = field(default_factory=list)
    handed_over: list[Request] = field(default_factory=list)  # to the decode instance, with their first token delivered
    ledger_row: NDArray[np.void] | None = None  # of the collected step
    skipped_steps: StepArray | None = None  # instead: the ledger of steps that a fast-forward took at once


Ended = list[tuple[Request, str]]  # with the finish reason


def deliver(
    plan: StepPlan, result: StepResult, eos_ids: Collection[int], stop_ids: Collection[int], outcome: Outcome
) -> Ended:
    """Deliver the sampled tokens of a step to its requests, in row order; the requests that end with that.

    stop_ids: `eos_ids`, and all that end any of the requests.

    This loop is most of what a step costs the host. So the usual token, neither the first after admission nor the
    last, is written here, without a call.
    """
    ended: Ended = []
    delivered = outcome.delivered
    step, end_ns = result.step, result.end_ns
    sampled = plan.samples.nonzero()[0].tolist()
    tokens = [None] * len(sampled) if result.tokens is None else result.tokens.tolist()
    for row, token in zip(sampled, tokens, strict=True):
        request = plan.requests[row]
        outputs = request.output_tokens + 1
        if (
            request.state is not State.RUNNING
            or request.sampled_step == 0
            or outputs >= request.max_output_tokens
            or token in stop_ids
        ):
            if request.state is not State.FINISHED:
                _deliver_one(request, result, token, eos_ids, outcome, ended)
            continue
        if token is not None and request.tokens is not None:
            request.tokens[request.prompt_tokens + outputs - 1] = token
        run = request.event_runs[-1]
        if run[0] + run[1] == step:
            run[1] += 1
        else:
            request.event_runs.append([step, 1])
        request.last_ns = end_ns
        request.output_tokens = outputs
        delivered.append(request)
    return ended


def _deliver_one(
    request: Request, result: StepResult, token: int | None, eos_ids: Collection[int], outcome: Outcome, ended: Ended
) -> None:
    """Any token. One that stops is not shown to the user; at the output limit the reason is length, whatever it is."""
    if request.state is State.WAITING:  # preempted while its token was being sampled
        request.pending -= 1
    elif request.sampled_step == 0:
        request.sampled_step = result.step
    at_cap = request.output_tokens + 1 >= request.max_output_tokens
    enough = request.output_tokens >= request.min_output_tokens
    stops = token in request.stop_token_ids or (token in eos_ids and not request.ignore_eos)
    if stops and enough and not at_cap:
        ended.append((request, "stop"))
        return
    if token is not None and request.tokens is not None:
        request.tokens[request.prompt_tokens + request.output_tokens] = token
    request.deliver(result.step, result.end_ns)
    outcome.delivered.append(request)
    if at_cap:
        ended.append((request, "length"))
    elif request.output_tokens >= request.output_limit:
        outcome.handed_over.append(request)


def deliver_run(request: Request, first_step: int, steps: int, end_ns: int) -> None:
    """One token in each of `steps` steps from `first_step` on, to a request that decodes. They end at `end_ns`."""
    if request.sampled_step == 0:  # it has just been computed again after a preemption
        request.sampled_step = first_step
    run = request.event_runs[-1]
    if run[0] + run[1] == first_step:
        run[1] += steps
    else:
        request.event_runs.append([first_step, steps])
    request.last_ns = end_ns
    request.output_tokens += steps
