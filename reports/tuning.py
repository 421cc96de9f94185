"""What a good engineer tries next, and why: the rules of `cbbench tune`.

Every move starts from the best setting so far and changes one thing. Which one is read from three signals: how busy the
device is, how full KV memory gets, and P99 TPOT.

    loses KV, or waits for it        another admission, then fewer rows
    P99 TPOT over its bound          long prompts stall it: smaller chunks, buckets; else come back with the rows
    P99 TTFT over its bound          a queue, and room: more rows; no queue: bigger chunks
    all met, somebody waits          more rows while goodput grows, bigger chunks where the token budget holds them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, log2, sqrt

import msgspec

from reports.limits import OFTEN
from reports.schema import Point, SlaResult

STALLED = 1.5  # P99 TPOT over P50: above it some tokens wait for others' prompts
CLOSE = 1.25  # between two numbers of rows nearer than this nothing new is to be learned
GAIN = 1.02  # what a larger setting must bring in goodput to be worth it
ROOM = 0.9  # KV usage at its peak under which more rows find memory
LEAST_CHUNK_TOKENS = 64


class Setting(msgspec.Struct, frozen=True):
    """What tune may change. None (or no tokens at all): the engine's default."""

    max_num_seqs: int
    max_num_batched_tokens: int
    admission: str | None = None
    prompt_buckets: str | None = None

    def label(self) -> str:
        words = [f"{self.max_num_seqs} rows"]
        words += [f"{self.max_num_batched_tokens} tokens a step"] if self.max_num_batched_tokens else []
        words += [f"admission {self.admission}"] if self.admission else []
        words += [f"buckets {self.prompt_buckets}"] if self.prompt_buckets else []
        return ", ".join(words)


class Bounds(msgspec.Struct, frozen=True):
    """How far the rules may go. `bucket_edge_tokens`: where long prompts begin; None: the lengths are too alike."""

    most_rows: int
    most_tokens: int  # of one step
    bucket_edge_tokens: int | None = None


class Trial(msgspec.Struct, frozen=True):
    setting: Setting
    point: Point

    @property
    def meets(self) -> bool:
        """By point estimate; an overloaded run measures only how long it was."""
        validity = self.point.validity
        fine = validity is None or validity.verdict not in ("invalid", "overloaded")
        return fine and all(one.verdict != "fail" and one.value is not None for one in self.point.sla)

    @property
    def goodput_per_s(self) -> float:
        """Requests per second within the SLA; all that complete where no bound is on a request's own latency."""
        point = self.point
        return (point.goodput_per_s if point.goodput_per_s is not None else point.request_per_s) or 0.0


class Move(msgspec.Struct, frozen=True):
    rule: str
    to: Setting
    words: str


class Decision(msgspec.Struct, frozen=True):
    """One step of the search. `to` is None where it ends."""

    rule: str
    words: str
    signals: str
    origin: Setting
    to: Setting | None


def bucket_edge_tokens(prompt_tokens: Sequence[int]) -> int | None:
    """A power of two between the median and the 95th percentile; None unless these are a factor of 4 apart or more."""
    median, long = (sorted(prompt_tokens)[int(share * (len(prompt_tokens) - 1))] for share in (0.5, 0.95))
    return 1 << round(log2(median * long) / 2) if long >= 4 * median else None


def best_of(trials: Sequence[Trial]) -> Trial:
    """Those within the SLA first; among them the largest goodput, and of those within 2 % of it the fewest rows."""
    ran = [one for one in trials if one.point.error is None]
    if not (fit := [one for one in ran if one.meets]):
        return min(ran, key=_excess)
    most = max(one.goodput_per_s for one in fit)
    return min(
        (one for one in fit if one.goodput_per_s * GAIN >= most),
        key=lambda one: (one.setting.max_num_seqs, -one.goodput_per_s),
    )


def decide(trials: Sequence[Trial], bounds: Bounds) -> Decision:
    """The next setting to try, with the reason; or the end, with the reason. At least one trial must have run."""
    best = best_of(trials)
    tried = {one.setting for one in trials}
    signals = signals_of(best.point)
    for move in moves_from(best, trials, bounds):
        if move.to not in tried and move.to != best.setting:
            return Decision(move.rule, move.words, signals, best.setting, move.to)
    return Decision("stop", _why_stop(best), signals, best.setting, None)


def moves_from(best: Trial, trials: Sequence[Trial], bounds: Bounds) -> Iterator[Move]:
    """Everything worth trying from here, the most promising first."""
    tpot, ttft = _missed(best.point, "tpot", "itl"), _missed(best.point, "ttft", "e2el")
    if _short_of_kv(best.point):
        yield from _kv_moves(best, trials)
    if tpot:
        yield from _stall_moves(best, bounds, _over(tpot))
        yield from _fewer_rows(best, trials, _over(tpot))
    elif ttft:
        yield from _ttft_moves(best, trials, bounds, _over(ttft))
    else:
        yield from _room_moves(best, trials, bounds)


def _kv_moves(best: Trial, trials: Sequence[Trial]) -> Iterator[Move]:
    preemptions = best.point.signals.preemptions or 0
    why = f"KV memory is short ({preemptions} preemptions, peak {_share(best.point.signals.kv_usage_peak)})"
    if best.setting.admission is None and preemptions:
        to = msgspec.structs.replace(best.setting, admission="peak")
        yield Move("admission", to, f"{why}: admit only what the predicted peak of memory allows.")
    yield from _fewer_rows(best, trials, why)


def _stall_moves(best: Trial, bounds: Bounds, why: str) -> Iterator[Move]:
    """P99 far above P50: the steps with somebody's prompt in them are the slow ones."""
    point, setting = best.point, best.setting
    if not (times := _stalled(point)):
        return
    stall = f"{why}, {times:.1f} times its median, so prompts stall running outputs"
    smaller = max(LEAST_CHUNK_TOKENS, setting.max_num_seqs, setting.max_num_batched_tokens // 2)
    if smaller < setting.max_num_batched_tokens:
        to = msgspec.structs.replace(setting, max_num_batched_tokens=smaller)
        yield Move("smaller-chunk", to, f"{stall}: a smaller chunk, {setting.max_num_batched_tokens} → {smaller}.")
    yield from _buckets(best, bounds, stall)


def _ttft_moves(best: Trial, trials: Sequence[Trial], bounds: Bounds, why: str) -> Iterator[Move]:
    signals = best.point.signals
    if (signals.waiting_mean or 0) >= 1 and _has_room(best.point):
        yield from _more_rows(best, trials, bounds, f"{why}, {signals.waiting_mean:.1f} requests wait, KV has room")
    yield from _bigger_chunk(best, bounds, f"{why}, and prompts are what a first token waits for")
    yield from _buckets(best, bounds, f"{why}, and short prompts stand behind long ones")
    if best.point.validity is None or best.point.validity.verdict != "overloaded":
        yield from _fewer_rows(best, trials, f"{why}, and no room was found")


def _room_moves(best: Trial, trials: Sequence[Trial], bounds: Bounds) -> Iterator[Move]:
    signals = best.point.signals
    if (signals.waiting_mean or 0) < 1 or not _has_room(best.point):
        return
    busy = "" if signals.device_busy is None else f"the device is {_share(signals.device_busy)} busy, "
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


def advice(best: Trial, bounds: Bounds) -> list[str]:
    """What no setting of these can do; for a person to weigh."""
    told, point = [], best.point
    if _short_of_kv(point):
        told.append(
            "KV memory is the limit: give it more blocks (--kv-blocks, or a smaller dtype), or shorter outputs."
        )
    if _missed(point, "tpot", "itl") and point.p50_tpot_ms and (point.p99_tpot_ms or 0) >= STALLED * point.p50_tpot_ms:
        told.append(
            "Prompts stall outputs even in small chunks: prefill and decode on separate devices would part them."
        )
    if point.validity is not None and point.validity.verdict == "overloaded":
        told.append("Requests arrive faster than they leave under every setting tried: lower --rate, or add replicas.")
    elif _missed(point, "ttft", "e2el") and (point.signals.waiting_mean or 0) >= 1:
        told.append("First tokens wait for a seat, and more seats do not help: a lower --rate, or another replica.")
    if best.setting.max_num_seqs == bounds.most_rows and (point.signals.waiting_mean or 0) >= 1 and best.meets:
        told.append(f"The search ends at {bounds.most_rows} rows; requests still wait there.")
    return told


def signals_of(point: Point) -> str:
    """The three that decisions rest on."""
    tpot = next((one for one in point.sla if "tpot" in one.metric), None)
    bound = "" if tpot is None else f" of {tpot.bound:g}"
    p99 = "not measured" if point.p99_tpot_ms is None else f"{point.p99_tpot_ms:,.4g}{bound} ms"
    signals = point.signals
    return f"device busy {_share(signals.device_busy)}, KV peak {_share(signals.kv_usage_peak)}, P99 TPOT {p99}"


def _why_stop(best: Trial) -> str:
    if not best.meets and best.point.sla:
        return "Nothing left to try meets the SLA; this comes closest."
    if (best.point.signals.waiting_mean or 0) < 1:
        return "Nobody waits here, so there is no more load to batch."
    if not _has_room(best.point):
        return "KV memory is full at this setting, so more rows would find none."
    return "What lies beyond was tried and brings no more goodput within the SLA."


def _stalled(point: Point) -> float | None:
    """P99 TPOT over its median, if that is much."""
    times = (point.p99_tpot_ms or 0.0) / point.p50_tpot_ms if point.p50_tpot_ms else 0.0
    return times if times >= STALLED else None


def _short_of_kv(point: Point) -> bool:
    blocked = point.signals.blocked
    return bool(point.signals.preemptions) or blocked.get("kv", 0.0) + blocked.get("watermark", 0.0) >= OFTEN


def _has_room(point: Point) -> bool:
    return not _short_of_kv(point) and (point.signals.kv_usage_peak or 0.0) < ROOM


def _missed(point: Point, *names: str) -> SlaResult | None:
    failed = [one for one in point.sla if one.verdict == "fail" and one.value is not None]
    return next((one for one in failed if any(name in one.metric for name in names)), None)


def _over(miss: SlaResult) -> str:
    """P99 TTFT is 612 of 500 ms"""
    name = miss.metric.removesuffix("_ms").removesuffix("_sched").replace("_", " ").upper()
    return f"{name} is {miss.value:,.4g} of {miss.bound:g} ms"


def _excess(trial: Trial) -> float:
    """How far the worst bound is missed, as a factor."""
    ratios = [max(one.value / one.bound, one.bound / one.value) if one.value and one.bound > 0 else inf
              for one in trial.point.sla if one.verdict == "fail"]  # fmt: skip
    return max(ratios, default=1.0)


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.0%}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
