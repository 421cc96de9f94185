"""Throughput in the steady window, without ramp and drain.

A run that starts empty and ends empty is slower at both ends, which weighs more in a short run. The window is derived
from raw times alone, for every engine and loop in the same way:

    streaming requests (between first and last token)
        ________      ____
       /        \\____/    \\___
      /                       \\___
     /|                  |        \\__
      start: 90 % of     end: the last request gets its first token;
      the median         after that the batch drains
"""

from __future__ import annotations

import numpy as np

from engines.base import RunRecord
from engines.request_table import MISSING
from reports.events import Events
from reports.metrics import RequestTimes
from reports.summary_schema import Steady

FULL = 0.9  # of the median


def steady(record: RunRecord, times: RequestTimes) -> Steady | None:
    """The steady window and its throughput. A token counts at its event, not at the end of its request.

    None without such a window, or where no request completed in it.
    """
    bounds = _window_ns(times)
    if bounds is None:
        return None
    start, end = bounds
    done = times.completed & (times.last_ns > start) & (times.last_ns <= end)
    if not done.any():
        return None
    # Events of a request share its tokens evenly: a server may send several tokens in one event.
    events, tokens = record.column("events"), record.column("output_tokens")
    delivered = float(Events(record).within(start, end) @ (tokens / np.maximum(events, 1)))
    seconds = (end - start) / 1e9
    return Steady(
        start_s=start / 1e9,
        end_s=end / 1e9,
        request_per_s=int(done.sum()) / seconds,
        output_token_per_s=delivered / seconds,
    )


def _window_ns(times: RequestTimes) -> tuple[int, int] | None:
    streamed = times.first_ns != MISSING
    if not streamed.any():
        return None
    first, last = times.first_ns[streamed], times.last_ns[streamed]
    at = np.concatenate([first, last])
    change = np.repeat([1, -1], first.shape[0])
    order = np.argsort(at, kind="stable")
    at, streaming = at[order], np.cumsum(change[order])
    end = int(first.max())
    # Median weighted by time, up to `end`, as the rest is the drain.
    lasted = np.diff(np.minimum(at, end), append=end)
    by_count = np.argsort(streaming, kind="stable")
    weight = np.cumsum(lasted[by_count])
    if weight[-1] <= 0:
        return None
    median = streaming[by_count][np.searchsorted(weight, weight[-1] / 2)]
    start = int(at[np.flatnonzero(streaming >= FULL * median)[0]])
    return (start, end) if end > start else None
