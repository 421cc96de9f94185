"""The moves: everything that `cbbench tune` may try from a setting, and why it should help.

Every move starts from the best setting so far and changes one thing.

    loses KV, or waits for it        another admission, then fewer rows
    P99 TPOT over its bound          prompts stall it: smaller chunks, and where a few are long, of one prompt alone, or
                                     buckets; else come back with the rows
    P99 TTFT over its bound          a queue, and room: more rows; no queue: bigger chunks; behind a few long prompts:
                                     small chunks of those, the shortest first, buckets
    P99 E2EL over its bound          those of its longer part, decode or the wait; then those of the other
    all met, somebody waits          more rows while goodput grows, bigger chunks where the token budget holds them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

import msgspec

from reports.limits import OFTEN, milliseconds
from reports.schema import SlaResult
from reports.sweep_schema import Point
from reports.tuning.trials import (
    Setting,
    Trial,
    decode_share,
    has_room,
    late_first_token,
    missed,
    share,
    short_of_kv,
    slow_tokens,
    stalled,
)

CLOSE = 1.25  # between two numbers of rows nearer than this nothing new is to be learned
LEAST_CHUNK_TOKENS = 64
SOMETIMES = 0.01  # share of the steps
PROMPTS_ABREAST = 8  # that a step has room for, where none may take more than its share
PASSED_S = 30  # how long at the most shorter prompts may go before a long one


class Bounds(msgspec.Struct, frozen=True):
    """How far the rules may go. `bucket_edge_tokens`: where long prompts begin; None: the lengths are too alike.
    `long_prompt_tokens`: the prompts' 99th percentile; None: it is too near their median."""

    most_rows: int
    most_tokens: int  # of one step
    bucket_edge_tokens: int | None = None
    long_prompt_tokens: int | None = None
    in_chunks: bool = True  # a prompt may be split over steps
    first_come: bool = True  # nobody chose another order


class Move(msgspec.Struct, frozen=True):
    rule: str
    to: Setting
    words: str


def moves_from(best: Trial, trials: Sequence[Trial], bounds: Bounds) -> Iterator[Move]:
    """Everything worth trying from here, the most promising first."""
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
        rest = _ttft_moves if slow else _tpot_moves  # an answer is as late by its smaller part
        yield from rest(best, trials, bounds, _over(answer, point))


def _kv_moves(best: Trial, trials: Sequence[Trial]) -> Iterator[Move]:
    preemptions = best.point.signals.preemptions or 0
    why = f"KV memory is short ({preemptions} preemptions, peak {share(best.point.signals.kv_usage_peak)})"
    if best.setting.admission is None and preemptions:
        to = msgspec.structs.replace(best.setting, admission="peak")
        yield Move("admission", to, f"{why}: admit only what the predicted peak of memory allows.")
    yield from _fewer_rows(best, trials, why)


def _tpot_moves(best: Trial, trials: Sequence[Trial], bounds: Bounds, why: str) -> Iterator[Move]:
    yield from _stall_moves(best, bounds, why)
    yield from _fewer_rows(best, trials, why)


def _stall_moves(best: Trial, bounds: Bounds, why: str) -> Iterator[Move]:
    """P99 far above P50: the steps with somebody's prompt in them are the slow ones."""
    point, setting = best.point, best.setting
    if not (times := stalled(point)):
        return
    p99 = "" if "TPOT" in why else "P99 TPOT is "
    stall = f"{why}, {p99}{times:.1f} times its median, so prompts stall running outputs"
    smaller = max(LEAST_CHUNK_TOKENS, setting.max_num_seqs, setting.max_num_batched_tokens // 2)
    if smaller < setting.max_num_batched_tokens:
        to = msgspec.structs.replace(setting, max_num_batched_tokens=smaller)
        yield Move("smaller-chunk", to, f"{stall}: a smaller chunk, {setting.max_num_batched_tokens} → {smaller}.")
    yield from _prompt_chunk(best, bounds, stall)
    yield from _buckets(best, bounds, stall)


def _ttft_moves(best: Trial, trials: Sequence[Trial], bounds: Bounds, why: str) -> Iterator[Move]:
    signals = best.point.signals
    no_seat = signals.blocked.get("rows", 0.0)  # a P99 is late already where the queue stands now and then
    if ((signals.waiting_mean or 0) >= 1 or no_seat >= SOMETIMES) and has_room(best.point):
        queue = f"{signals.waiting_mean or 0:.1f} requests wait, for a seat in {no_seat:.0%} of the steps"
        yield from _more_rows(best, trials, bounds, f"{why}, {queue}, KV has room")
    yield from _bigger_chunk(best, bounds, f"{why}, and prompts are what a first token waits for")
    behind = f"{why}, and short prompts stand behind long ones"
    queues = (signals.waiting_mean or 0) >= 1 or sum(signals.blocked.values()) >= SOMETIMES
    chunk = _prompt_chunk(best, bounds, behind)
    shortest = _shortest_first(best, bounds, behind) if queues else ()
    seatless = next(iter(best.point.slow_ttft), None) == "queue"  # where the slowest first tokens spend most
    yield from [*shortest, *chunk] if seatless else [*chunk, *shortest]
    yield from _buckets(best, bounds, behind)
    if best.point.validity is None or best.point.validity.verdict != "overloaded":
        yield from _fewer_rows(best, trials, f"{why}, and more rows or larger chunks did not help")


def _room_moves(best: Trial, trials: Sequence[Trial], bounds: Bounds) -> Iterator[Move]:
    signals = best.point.signals
    if (signals.waiting_mean or 0) < 1 or not has_room(best.point):
        return
    busy = "" if signals.device_busy is None else f"the device is {share(signals.device_busy)} busy, "
    waits = f"{busy}{signals.waiting_mean:.1f} requests wait and KV has room"
    yield from _more_rows(best, trials, bounds, waits)
    if signals.blocked.get("tokens", 0.0) >= OFTEN:
        yield from _bigger_chunk(
            best, bounds, f"the step's tokens are spent in {signals.blocked['tokens']:.0%} of steps"
        )


def _more_rows(best: Trial, trials: Sequence[Trial], bounds: Bounds, why: str) -> Iterator[Move]:
    """Twice as many; once twice as many was no better, half way (geometrically) to the nearest that was no better."""
    rows = best.setting.max_num_seqs
    larger = [one.setting.max_num_seqs for one in _alike(best, trials) if one.setting.max_num_seqs > rows]
    more = min(2 * rows, bounds.most_rows) if not larger else round(sqrt(rows * min(larger)))
    if more > rows and (not larger or min(larger) >= CLOSE * rows):
        back = "" if not larger else f"; {min(larger)} was too many"
        to = _with_rows(best.setting, more)
        yield Move("more-rows", to, f"{_upper(why)}: raise concurrency, {rows} → {more} rows{back}.")


def _fewer_rows(best: Trial, trials: Sequence[Trial], why: str) -> Iterator[Move]:
    rows = best.setting.max_num_seqs
    smaller = [one.setting.max_num_seqs for one in _alike(best, trials) if one.setting.max_num_seqs < rows]
    fewer = rows // 2 if not smaller else round(sqrt(rows * max(smaller)))
    if 1 <= fewer < rows and (not smaller or rows >= CLOSE * max(smaller)):
        yield Move("fewer-rows", _with_rows(best.setting, fewer), f"{_upper(why)}: come back, {rows} → {fewer} rows.")


def _bigger_chunk(best: Trial, bounds: Bounds, why: str) -> Iterator[Move]:
    now = best.setting.max_num_batched_tokens
    if (bigger := min(2 * now, bounds.most_tokens)) > now:
        to = msgspec.structs.replace(best.setting, max_num_batched_tokens=bigger)
        yield Move("bigger-chunk", to, f"{_upper(why)}: more tokens a step, {now} → {bigger}.")


def _prompt_chunk(best: Trial, bounds: Bounds, why: str) -> Iterator[Move]:
    """One prompt gets a share of a step, and then half of that."""
    setting, long = best.setting, bounds.long_prompt_tokens
    if long is None or not bounds.in_chunks:
        return
    now = setting.max_prompt_chunk
    chunk = max(LEAST_CHUNK_TOKENS, setting.max_num_batched_tokens // PROMPTS_ABREAST if now is None else now // 2)
    if chunk < min(now or setting.max_num_batched_tokens, long):
        to = msgspec.structs.replace(setting, max_prompt_chunk=chunk)
        yield Move(
            "prompt-chunk", to, f"{_upper(why)}, {_long(long)}: no more than {chunk} tokens of one prompt a step."
        )


def _shortest_first(best: Trial, bounds: Bounds, why: str) -> Iterator[Move]:
    """With ageing, as else the longest would never have their turn: so much that they wait PASSED_S for it at most."""
    long = bounds.long_prompt_tokens
    if long is None or not bounds.first_come or best.setting.order is not None:
        return
    ageing = float(f"{long / PASSED_S:.2g}")
    to = msgspec.structs.replace(best.setting, order="shortest-prompt", ageing=ageing)
    words = f"the shortest prompt first, with ageing, so that such a one is passed for {long / ageing:.0f} s at most"
    yield Move("shortest-first", to, f"{_upper(why)}, {_long(long)}: {words}.")


def _long(tokens: int) -> str:
    return f"one in 100 of {tokens:,} tokens or more"


def _buckets(best: Trial, bounds: Bounds, why: str) -> Iterator[Move]:
    if bounds.bucket_edge_tokens is not None and best.setting.prompt_buckets is None:
        to = msgspec.structs.replace(best.setting, prompt_buckets=str(bounds.bucket_edge_tokens))
        yield Move("buckets", to, f"{_upper(why)}: batch prompts over {bounds.bucket_edge_tokens:,} tokens apart.")


def _alike(best: Trial, trials: Sequence[Trial]) -> list[Trial]:
    """Those that differ from the best one in rows alone (and the budget that many rows need)."""

    def but_rows(one: Setting) -> Setting:
        budget = max(one.max_num_batched_tokens, best.setting.max_num_batched_tokens)
        return msgspec.structs.replace(one, max_num_seqs=1, max_num_batched_tokens=budget)

    return [one for one in trials if but_rows(one.setting) == but_rows(best.setting)]


def _with_rows(setting: Setting, rows: int) -> Setting:
    """Every row gets a token of each step, so more rows may need a larger budget."""
    budget = max(setting.max_num_batched_tokens, rows)
    return msgspec.structs.replace(setting, max_num_seqs=rows, max_num_batched_tokens=budget)


def _over(miss: SlaResult, point: Point) -> str:
    """P99 TTFT is 612 of 500 ms; P99 E2EL is 10,375 of 9000 ms, 88% of it decode"""
    name = miss.metric.removesuffix("_ms").removesuffix("_sched").replace("_", " ").upper()
    whose = f" of {miss.scope.replace('=', ' ')}" if miss.scope else ""
    parts = f", {decode_share(point):.0%} of it decode" if "e2el" in miss.metric and point.slow_e2el else ""
    return f"{name}{whose} is {milliseconds(miss.value)} of {miss.bound:g} ms{parts}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
