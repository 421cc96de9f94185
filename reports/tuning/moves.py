"""The moves: the settings that `cbbench tune` may try from the best one so far, and why each should help.

A move changes one setting.

    preempted, or waits for KV   another admission, then a lower max_num_seqs
    P99 TPOT over its bound      stalled by prompts: smaller chunks; with a few long prompts, a smaller max_prompt_chunk
                                 or prompt buckets; else a lower max_num_seqs
    P99 TTFT over its bound      a queue, and KV has room: a higher max_num_seqs; no queue: bigger chunks; behind a few
                                 long prompts: max_prompt_chunk, the shortest prompt first, prompt buckets
    P99 E2EL over its bound      the moves of its larger part, decode or TTFT; then those of the other
    all met, requests wait       a higher max_num_seqs while goodput grows, bigger chunks where the token budget is the
                                 limit
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

import msgspec

from reports.limits import OFTEN
from reports.schema import SlaResult
from reports.sweep_schema import Point
from reports.tuning.trials import (
    Setting,
    Trial,
    decode_share,
    has_room,
    late_first_token,
    missed,
    over,
    share,
    short_of_kv,
    slow_tokens,
    stalled,
)

CLOSE = 1.25  # ratio of two values of max_num_seqs between which no other is tried
LEAST_CHUNK_TOKENS = 64
SOMETIMES = 0.01  # share of the steps
PROMPTS_IN_STEP = 8  # that a step has room for where max_prompt_chunk limits each
PASSED_S = 30  # how long at most shorter prompts may be admitted before a long one


class Bounds(msgspec.Struct, frozen=True):
    """Limits of the search. bucket_edge_tokens: where long prompts begin; None: the lengths are too alike.
    long_prompt_tokens: the 99th percentile of prompt lengths; None: it is too near the median."""

    most_slots: int
    most_tokens: int  # max_num_batched_tokens at most
    bucket_edge_tokens: int | None = None
    long_prompt_tokens: int | None = None
    in_chunks: bool = True  # a prompt may be split over steps
    first_come: bool = True  # no other order is set
    cheap_runs: bool = False  # as on the simulator: a grid is tried where no move helps
    open_loop: bool = False  # requests arrive at a rate, so that no setting completes more of them


class Move(msgspec.Struct, frozen=True):
    rule: str
    to: Setting
    words: str


def moves_from(best: Trial, trials: Sequence[Trial], bounds: Bounds) -> Iterator[Move]:
    """The moves from `best`, the most promising first."""
    point = best.point
    slow, late = slow_tokens(point), late_first_token(point)
    if short_of_kv(point):
        yield from _kv_moves(best, trials)
    if slow:
        yield from _tpot_moves(best, trials, bounds, _over(slow, point))
    elif late:
        yield from _ttft_moves(best, trials, bounds, _over(late, point))
    else:
        yield from _room_moves(best, trials, bounds)
    if (answer := missed(point, "e2el")) and not missed(point, "ttft", "tpot", "itl"):
        rest = _ttft_moves if slow else _tpot_moves  # shortening the smaller part helps too
        yield from rest(best, trials, bounds, _over(answer, point))


def _kv_moves(best: Trial, trials: Sequence[Trial]) -> Iterator[Move]:
    preemptions = best.point.signals.preemptions or 0
    why = f"KV memory is short ({preemptions} preemptions, peak {share(best.point.signals.kv_usage_peak)})"
    if best.setting.admission is None and preemptions:
        to = msgspec.structs.replace(best.setting, admission="peak")
        yield Move("admission", to, f"{why}: admit only what the predicted peak of memory allows.")
    yield from _fewer_slots(best, trials, why)


def _tpot_moves(best: Trial, trials: Sequence[Trial], bounds: Bounds, why: str) -> Iterator[Move]:
    yield from _stall_moves(best, bounds, why)
    yield from _fewer_slots(best, trials, why)


def _stall_moves(best: Trial, bounds: Bounds, why: str) -> Iterator[Move]:
    """Where P99 TPOT is far above P50, the steps that also compute prompts are the slow ones."""
    point, setting = best.point, best.setting
    if not (times := stalled(point)):
        return
    p99 = "" if "TPOT" in why else "P99 TPOT is "
    stall = f"{why}, {p99}{times:.1f} times its median, so prompts stall decodes"
    smaller = max(LEAST_CHUNK_TOKENS, setting.max_num_seqs, setting.max_num_batched_tokens // 2)
    if smaller < setting.max_num_batched_tokens:
        to = msgspec.structs.replace(setting, max_num_batched_tokens=smaller)
        yield Move(
            "smaller-chunk", to, f"{stall}: lower max_num_batched_tokens, {setting.max_num_batched_tokens} → {smaller}."
        )
    yield from _prompt_chunk(best, bounds, stall)
    yield from _buckets(best, bounds, stall)


def _ttft_moves(best: Trial, trials: Sequence[Trial], bounds: Bounds, why: str) -> Iterator[Move]:
    signals = best.point.signals
    no_slot = signals.blocked.get("rows", 0.0)  # an occasional queue is enough to delay a P99
    if ((signals.waiting_mean or 0) >= 1 or no_slot >= SOMETIMES) and has_room(best.point):
        queue = f"{signals.waiting_mean or 0:.1f} requests wait, for a slot in {no_slot:.0%} of the steps"
        yield from _more_slots(best, trials, bounds, f"{why}, {queue}, KV has room")
    yield from _bigger_chunk(best, bounds, f"{why}, and first tokens wait for prefill")
    behind = f"{why}, and short prompts wait behind long ones"
    queues = (signals.waiting_mean or 0) >= 1 or sum(signals.blocked.values()) >= SOMETIMES
    chunk = _prompt_chunk(best, bounds, behind)
    shortest = _shortest_first(best, bounds, behind) if queues else ()
    queued = next(iter(best.point.slow_ttft), None) == "queue"  # the largest part of the slowest TTFTs
    yield from [*shortest, *chunk] if queued else [*chunk, *shortest]
    yield from _buckets(best, bounds, behind)
    if best.point.validity is None or best.point.validity.verdict != "overloaded":
        yield from _fewer_slots(best, trials, f"{why}, and a higher max_num_seqs or larger chunks did not help")


def _room_moves(best: Trial, trials: Sequence[Trial], bounds: Bounds) -> Iterator[Move]:
    signals = best.point.signals
    if (signals.waiting_mean or 0) < 1 or not has_room(best.point):
        return
    busy = "" if signals.device_busy is None else f"the device is {share(signals.device_busy)} busy, "
    waits = f"{busy}{signals.waiting_mean:.1f} requests wait and KV has room"
    yield from _more_slots(best, trials, bounds, waits)
    if signals.blocked.get("tokens", 0.0) >= OFTEN:
        yield from _bigger_chunk(
            best, bounds, f"the token budget is used up in {signals.blocked['tokens']:.0%} of the steps"
        )


def _more_slots(best: Trial, trials: Sequence[Trial], bounds: Bounds, why: str) -> Iterator[Move]:
    """Twice max_num_seqs; once a larger one was no better, the geometric mean with the smallest of those."""
    slots = best.setting.max_num_seqs
    larger = [one.setting.max_num_seqs for one in _alike(best, trials) if one.setting.max_num_seqs > slots]
    more = min(2 * slots, bounds.most_slots) if not larger else round(sqrt(slots * min(larger)))
    if more > slots and (not larger or min(larger) >= CLOSE * slots):
        back = "" if not larger else f"; {min(larger)} was too many"
        to = _with_slots(best.setting, more)
        yield Move("more-rows", to, f"{_upper(why)}: raise max_num_seqs, {slots} → {more}{back}.")


def with_more_slots(setting: Setting, bounds: Bounds) -> Setting | None:
    more = min(2 * setting.max_num_seqs, bounds.most_slots)
    return _with_slots(setting, more) if more > setting.max_num_seqs else None


def _fewer_slots(best: Trial, trials: Sequence[Trial], why: str) -> Iterator[Move]:
    slots = best.setting.max_num_seqs
    smaller = [one.setting.max_num_seqs for one in _alike(best, trials) if one.setting.max_num_seqs < slots]
    fewer = slots // 2 if not smaller else round(sqrt(slots * max(smaller)))
    if 1 <= fewer < slots and (not smaller or slots >= CLOSE * max(smaller)):
        yield Move(
            "fewer-rows", _with_slots(best.setting, fewer), f"{_upper(why)}: lower max_num_seqs, {slots} → {fewer}."
        )


def _bigger_chunk(best: Trial, bounds: Bounds, why: str) -> Iterator[Move]:
    now = best.setting.max_num_batched_tokens
    if (bigger := min(2 * now, bounds.most_tokens)) > now:
        to = msgspec.structs.replace(best.setting, max_num_batched_tokens=bigger)
        yield Move("bigger-chunk", to, f"{_upper(why)}: raise max_num_batched_tokens, {now} → {bigger}.")


def _prompt_chunk(best: Trial, bounds: Bounds, why: str) -> Iterator[Move]:
    """max_prompt_chunk, first as a share of the token budget, then half of it."""
    setting, long = best.setting, bounds.long_prompt_tokens
    if long is None or not bounds.in_chunks:
        return
    now = setting.max_prompt_chunk
    chunk = max(LEAST_CHUNK_TOKENS, setting.max_num_batched_tokens // PROMPTS_IN_STEP if now is None else now // 2)
    if chunk < min(now or setting.max_num_batched_tokens, long):
        to = msgspec.structs.replace(setting, max_prompt_chunk=chunk)
        yield Move("prompt-chunk", to, f"{_upper(why)}, {_long(long)}: max_prompt_chunk {chunk} tokens a step.")


def _shortest_first(best: Trial, bounds: Bounds, why: str) -> Iterator[Move]:
    """order shortest-prompt, with ageing so that shorter prompts pass a long one for PASSED_S at most; without ageing
    long prompts would starve."""
    long = bounds.long_prompt_tokens
    if long is None or not bounds.first_come or best.setting.order is not None:
        return
    ageing = float(f"{long / PASSED_S:.2g}")
    to = msgspec.structs.replace(best.setting, order="shortest-prompt", ageing=ageing)
    words = f"the shortest prompt first, with ageing, so that a long prompt is passed for {long / ageing:.0f} s at most"
    yield Move("shortest-first", to, f"{_upper(why)}, {_long(long)}: {words}.")


def _long(tokens: int) -> str:
    return f"1 in 100 of {tokens:,} tokens or more"


def _buckets(best: Trial, bounds: Bounds, why: str) -> Iterator[Move]:
    if bounds.bucket_edge_tokens is not None and best.setting.prompt_buckets is None:
        to = msgspec.structs.replace(best.setting, prompt_buckets=str(bounds.bucket_edge_tokens))
        yield Move(
            "buckets",
            to,
            f"{_upper(why)}: put prompts over {bounds.bucket_edge_tokens:,} tokens into batches of their own.",
        )


def _alike(best: Trial, trials: Sequence[Trial]) -> list[Trial]:
    """The trials that differ from the best one in max_num_seqs alone (and in the token budget that it needs)."""

    def without_slots(one: Setting) -> Setting:
        budget = max(one.max_num_batched_tokens, best.setting.max_num_batched_tokens)
        return msgspec.structs.replace(one, max_num_seqs=1, max_num_batched_tokens=budget)

    return [one for one in trials if without_slots(one.setting) == without_slots(best.setting)]


def _with_slots(setting: Setting, slots: int) -> Setting:
    """A decode takes a token of each step, so more slots may need a larger token budget."""
    budget = max(setting.max_num_batched_tokens, slots)
    return msgspec.structs.replace(setting, max_num_seqs=slots, max_num_batched_tokens=budget)


def _over(miss: SlaResult, point: Point) -> str:
    """P99 TTFT is 612 of 500 ms; P99 E2EL is 10,375 of 9000 ms, 88% of it decode"""
    parts = f", {decode_share(point):.0%} of it decode" if "e2el" in miss.metric and point.slow_e2el else ""
    return over(miss) + parts


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
