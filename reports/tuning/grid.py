"""Settings to try where no move from the best one helps: a coarse grid of slots and token budget, then its neighbours.

The moves of moves.py climb from where the search began. Where runs are cheap, as on the simulator, the grid finds what
they cannot reach: a setting that meets the SLA behind others that do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log2, sqrt

import msgspec

from reports.limits import OFTEN
from reports.tuning.moves import LEAST_CHUNK_TOKENS, Bounds
from reports.tuning.trials import Setting, Trial, slow_tokens, stalled

COARSE = 4  # ratio of two neighbours in the grid, in slots and in tokens
FINE = (2.0, sqrt(2))  # ratios of the neighbours of the best setting that are tried then
LEAST_SLOTS = 4
SOME_SLOTS = 512  # more are tried only from a best setting near it


def next_of_grid(best: Trial, trials: Sequence[Trial], bounds: Bounds) -> Setting | None:
    """The untried setting of the grid nearest to the best one; then neighbours of the best one; None: all were tried.

    Settings that a trial shows to be worse are left out.
    """
    tried = {one.setting for one in trials}
    coarse = sorted(_coarse(best.setting, bounds), key=lambda one: _distance(one, best.setting))
    for to in (*coarse, *_neighbours(best.setting, bounds)):
        if to not in tried and not any(_shows_worse(one, to) for one in trials):
            return to
    return None


def _coarse(like: Setting, bounds: Bounds) -> Iterator[Setting]:
    """Other settings as in `like`."""
    slots = LEAST_SLOTS
    while slots <= min(SOME_SLOTS, bounds.most_slots):
        tokens = LEAST_CHUNK_TOKENS * COARSE
        while tokens <= bounds.most_tokens:
            if tokens >= slots:
                yield _of(like, slots, tokens)
            tokens *= COARSE
        slots *= COARSE


def _neighbours(setting: Setting, bounds: Bounds) -> Iterator[Setting]:
    slots, tokens = setting.max_num_seqs, setting.max_num_batched_tokens
    for ratio in FINE:
        for more_slots, more_tokens in ((1, 1 / ratio), (1, ratio), (ratio, 1), (1 / ratio, 1)):
            near_slots, near_tokens = round(slots * more_slots), round(tokens * more_tokens)
            least = max(near_slots, LEAST_CHUNK_TOKENS)
            if 1 <= near_slots <= bounds.most_slots and least <= near_tokens <= bounds.most_tokens:
                yield _of(setting, near_slots, near_tokens)


def _of(like: Setting, slots: int, tokens: int) -> Setting:
    return msgspec.structs.replace(like, max_num_seqs=slots, max_num_batched_tokens=tokens)


def _distance(one: Setting, other: Setting) -> float:
    slots = log2(one.max_num_seqs / other.max_num_seqs)
    return abs(slots) + abs(log2(one.max_num_batched_tokens / other.max_num_batched_tokens))


def _shows_worse(trial: Trial, to: Setting) -> bool:
    """Whether `trial` missed the SLA at the same token budget for want of slots, and `to` has fewer; or for slow
    decodes that no prompt stalls, and `to` has more."""
    setting, point = trial.setting, trial.point
    same = _of(setting, to.max_num_seqs, to.max_num_batched_tokens) == to
    if point.error is not None or trial.meets or not same:
        return False
    if setting.max_num_batched_tokens != to.max_num_batched_tokens:
        return False
    if to.max_num_seqs < setting.max_num_seqs:
        return point.signals.blocked.get("rows", 0.0) >= OFTEN
    return to.max_num_seqs > setting.max_num_seqs and bool(slow_tokens(point)) and not stalled(point)
