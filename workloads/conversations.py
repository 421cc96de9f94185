"""Conversations: whose turn a request is, and how long its prompt has grown by then.

    prompt of a turn = prompt of the turn before + its answer + what this turn adds

A turn goes out when the plan says so, whether or not the turn before has been answered; and what stands for the answer
in its prompt is text of the planned length, not what the server said. So a prefix cache can hold the prompt of an
earlier turn, not its answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.pairs import stream
from workloads.plan import IntColumn, RequestPlan

_SEAT_STREAM = 4  # of the tenant's own seed


@dataclass(frozen=True)
class Turns:
    """Columns, a row per request."""

    seat: IntColumn  # which of the conversations that go on at a time
    earlier: IntColumn  # how many conversations were over before in the same seat
    prompt_tokens: IntColumn


def take_turns(drawn: RequestPlan, seats: int, seed: int, max_model_len: int | None) -> Turns:
    """Each request is the next turn in one of `seats`, drawn with equal chances; its drawn prompt is what it adds.

    A conversation whose next turn would pass max_model_len tokens, answer included, is over; the turn begins another.
    """
    seat = _draw(len(drawn), seats, seed)
    earlier, prompts = np.zeros((2, len(drawn)), dtype=np.int64)
    said, over = [0] * seats, [0] * seats  # tokens so far, answers included; conversations that have ended
    for i, (at, adds, answer) in enumerate(
        zip(seat.tolist(), drawn.prompt_tokens.tolist(), drawn.output_tokens.tolist(), strict=True)
    ):
        if said[at] and max_model_len is not None and said[at] + adds + answer > max_model_len:
            said[at], over[at] = 0, over[at] + 1
        earlier[i], prompts[i] = over[at], said[at] + adds
        said[at] += adds + answer
    return Turns(seat, earlier, prompts)


def _draw(count: int, seats: int, seed: int) -> IntColumn:
    high = stream(seed, _SEAT_STREAM).random_raw(count) >> np.uint64(32)
    return ((high * np.uint64(seats)) >> np.uint64(32)).astype(np.int64)
