"""The output tokens of an answer: the count in its `usage`, checked against the events that were streamed."""

from __future__ import annotations

from typing import Literal, NamedTuple

TokenSource = Literal[
    "usage",
    "usage_unseen",  # usage, but most of its tokens came in no event, so that the time between tokens is not known
    "whole",  # usage, of an answer that came whole: no token of it has a time
    "counted",  # the token events, as there is no usage or an impossible one
]
Problem = Literal["below_events", "implausible"]

# A count above both is not believed: no model generates it. Hidden reasoning can exceed the plan, but not by this much.
MOST_UNPLANNED_OUTPUT_TOKENS = 16_384
MOST_UNPLANNED_PROMPT_TOKENS = 65_536
MOST_TIMES = 4  # the plan, or the events
# Tokens in an event: speculative decoding and packed chunks have a few; with more, the event does not show their times.
MOST_TOKENS_PER_EVENT = 8


class OutputCount(NamedTuple):
    tokens: int
    source: TokenSource
    problem: Problem | None = None  # why the usage was not believed


def output_count(
    reported: int | None, reasoning: int, *, events: int, reasoning_events: int, planned: int, whole: bool = False
) -> OutputCount:
    """reported: `completion_tokens`; reasoning: `completion_tokens_details.reasoning_tokens`, 0 if not reported.

    Most servers count reasoning in `completion_tokens`; those of xAI stream it and count it beside. An event has at
    least one token, so a count below the number of events is impossible. whole: the answer is not a stream; without a
    usage that can be believed its tokens are not known, and count as 0.
    """
    if reported is None:
        return OutputCount(0, "whole") if whole else OutputCount(events, "counted")
    most = max(MOST_UNPLANNED_OUTPUT_TOKENS, MOST_TIMES * max(planned, events))
    if reported > most or reasoning > most:
        return OutputCount(0, "whole", "implausible") if whole else OutputCount(events, "counted", "implausible")
    if whole:
        return OutputCount(reported, "whole")
    tokens = reported
    if events > reported:
        tokens = reported + reasoning
        if events > tokens:
            return OutputCount(events, "counted", "below_events")
    hidden = tokens > events and reasoning > MOST_TOKENS_PER_EVENT * reasoning_events
    unseen = hidden or tokens > MOST_TOKENS_PER_EVENT * events
    return OutputCount(tokens, "usage_unseen" if unseen else "usage")


def believable_cached_tokens(reported: int | None, prompt_tokens: int) -> int | None:
    """The `cached_tokens` of a usage; None if there are more than the prompt has tokens."""
    return None if reported is None or reported > prompt_tokens else reported


def believable_prompt_tokens(reported: int | None, planned: int) -> int | None:
    """The `prompt_tokens` of a usage; None if no prompt of this plan can have so many."""
    if reported is None or reported > max(MOST_UNPLANNED_PROMPT_TOKENS, MOST_TIMES * planned):
        return None
    return reported
