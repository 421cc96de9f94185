"""Which resource limits a point of a sweep, so that a larger setting does not help; derived from its signals.

client        the load client did not keep up, so the numbers do not describe the server
kv            requests are preempted, or wait for KV blocks
concurrency   less than one request waits, yet arrivals outrun completions: the cap on concurrency holds them back
demand        less than one request waits on average: there is no more load to batch
compute       the device is busy, and a larger batch only makes each token slower
host          requests wait although the device is idle: planning, sampling or sending takes the time
slots         requests wait for a slot
token_budget  requests wait because the token budget of the step is used up
partial_prefills  requests wait because as many prompts are partly computed as may be
batch         static batching: requests wait for the running batch to end
quota         requests wait because their tenant is at its quota
queue         requests wait, and no signal shows for what
unknown       the queue was not measured
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from reports.curves import merge, neighbours, short_label
from reports.sweep_schema import Point, SweepFile

BUSY = 0.8  # share of the time; above it the device has little capacity left
IDLE = 0.6
SLOWER = 1.1  # TPOT of a point over that of the point before
PARTS_OF_TTFT = {"client": "the client", "intake": "the running step", "queue": "the queue", "server": "the server"}
OFTEN = 0.1  # share of the steps in which the head of the queue was blocked
OUT_OF_KV = ("kv", "watermark", "peak")  # reasons in the ledger
WAITS = (  # reason in the ledger, name of the limit, what requests wait for
    ("rows", "slots", "a slot"),
    ("tokens", "token_budget", "the step's token budget"),
    ("partial", "partial_prefills", "a prompt that is partly computed to be done"),
    ("batch", "batch", "the running batch to end"),
    ("quota", "quota", "their tenant's quota"),
)


@dataclass(frozen=True)
class Limit:
    name: str
    sentence: str
    evidence: dict[str, float | int | str | None]


def annotated(points: Sequence[Point]) -> list[Point]:
    """The points, each with the limit of its setting and the reason, by the medians over its repeats, which are the
    numbers shown beside it. The neighbours of a setting show whether TPOT rises."""
    curve = merge(points)
    found = {
        one.values: _told(one.point, *cause(neighbours(curve, one.values)[0], one.point)) for one in curve if one.runs
    }
    told = []
    for point in points:
        name, why = found[point.values] if point.error is None else (None, None)
        told.append(msgspec.structs.replace(point, limit=name, why=why))
    return told


def _told(point: Point, name: str, why: str) -> tuple[str, str]:
    """The limit with its reason. Where an SLA on TTFT is missed, the reason has its largest part too, as that need not
    be what limits throughput."""
    late = any(one.verdict == "fail" and "ttft" in one.metric for one in point.sla)
    if late and point.slow_ttft:
        part, share = next(iter(point.slow_ttft.items()))
        why += f"; the slowest first tokens spend {share:.0%} of their time in {PARTS_OF_TTFT.get(part, part)}"
    return name, why


def limit_of(chosen: Point, before: Point | None, beyond: Point | None) -> Limit:
    """What limits the setting beyond the chosen point; `before` and `beyond` are its neighbours in the sweep."""
    # The next point shows it. Where there is none, the chosen one is compared with the one before.
    left, right = (chosen, beyond) if beyond is not None else (before, chosen)
    name, why = cause(left, right)
    why = f"at {short_label(right.values)} {why}"
    sentence = f"Nothing larger was tried; {why}." if before is not None else f"{why[:1].upper()}{why[1:]}."
    if beyond is not None:
        sentence = f"Beyond it: {why}."
    missed = [one for one in beyond.sla if one.verdict == "fail"] if beyond is not None else []
    if beyond is not None and missed:
        shown = ", ".join(f"{one.name} {milliseconds(one.value)} against {one.bound:g}" for one in missed)
        sentence += f" {short_label(beyond.values)} misses the SLA ({shown})."
        name = name if name in ("kv", "compute", "host", "client") else "sla"
    return Limit(name, sentence, _evidence(chosen, beyond))


def cause(left: Point | None, right: Point) -> tuple[str, str]:
    """(name, sentence) of what limits the right point; the left point is its smaller neighbour."""
    if right.instances:  # the instance that most requests wait for is the limit, however idle the other
        slowest = max(right.instances, key=lambda name: right.instances[name].waiting_mean or 0.0)
        name, why = cause(None if left is None else _of_instance(left, slowest), _of_instance(right, slowest))
        return name, why if name == "demand" else f"{why}, at the {slowest} instance"
    signals = right.signals
    busy, waiting = signals.device_busy, signals.waiting_mean
    if right.validity is not None and right.validity.verdict == "client_limited":
        return "client", f"the load client is the limit: {right.validity.reasons[0]}"
    out_of_kv = sum(signals.blocked.get(reason, 0.0) for reason in OUT_OF_KV)
    if signals.preemptions or out_of_kv >= OFTEN:
        return "kv", _kv(right, out_of_kv)
    if waiting is not None and waiting < 1:
        if right.saturated is None:
            return "demand", f"{_few_wait(waiting)}, so there is no more load to batch"
        if right.concurrency is not None:
            capped = f"the cap on concurrency ({right.concurrency}) holds requests back"
            return "concurrency", f"{capped}, and {_few_wait(waiting)}: {right.saturated}"
    slower, faster = _ratios(left, right)
    if left is not None and busy is not None and busy >= BUSY and slower >= SLOWER and slower > faster:
        return "compute", (
            f"compute is the limit (device {busy:.0%} busy, median TPOT {milliseconds(left.p50_tpot_ms)} to "
            f"{milliseconds(right.p50_tpot_ms)} ms for {faster:.2f}x the throughput)"
        )
    if busy is not None and busy < IDLE and waiting is not None and waiting >= 1:
        launching = signals.launch_bound or 0.0
        waits = f", and waits for launches in {launching:.0%}" if launching >= OFTEN else ""
        return "host", (
            f"the host is the limit (the device is idle {1 - busy - launching:.0%} of the time{waits}, "
            f"while {waiting:.1f} requests wait)"
        )
    for key, name, what in WAITS:
        share = signals.blocked.get(key, 0.0)
        if share >= OFTEN:
            return name, f"requests wait for {what} in {share:.0%} of the steps{_while_busy(busy)}"
    if right.saturated is not None:
        return "queue", right.saturated
    if waiting is not None:
        for key, name, what in sorted(WAITS, key=lambda one: -signals.blocked.get(one[0], 0.0)):
            if share := signals.blocked.get(key, 0.0):  # few steps, but long ones
                why = f"{waiting:.1f} requests wait on average, for {what} in {share:.1%} of the steps"
                return name, f"{why}{_while_busy(busy)}"
        return "queue", f"{waiting:.1f} requests wait on average{_while_busy(busy)}"
    return "unknown", "no signal shows a limit"


def _few_wait(waiting: float) -> str:
    return f"less than one request waits on average ({waiting:.2g})" if waiting else "no request waits"


def _of_instance(point: Point, name: str) -> Point:
    return msgspec.structs.replace(point, signals=point.instances.get(name, point.signals), instances={})


def _kv(point: Point, out_of_kv: float) -> str:
    signals = point.signals
    usage = "" if signals.kv_usage_peak is None else f", KV usage peaks at {signals.kv_usage_peak:.0%}"
    return (
        f"KV memory is the limit ({signals.preemptions or 0} preemptions, the queue waits for KV in {out_of_kv:.0%} "
        f"of the steps{usage})"
    )


def _while_busy(busy: float | None) -> str:
    return "" if busy is None else f" (device {busy:.0%} busy)"


def _ratios(left: Point | None, right: Point) -> tuple[float, float]:
    """TPOT and throughput of the right point over the left one's; 1 where a number is missing."""
    if left is None:
        return 1.0, 1.0
    pairs = (left.p50_tpot_ms, right.p50_tpot_ms), (left.output_token_per_s, right.output_token_per_s)
    slower, faster = (after / before if before and after else 1.0 for before, after in pairs)
    return slower, faster


def unused_slots(sweep: SweepFile) -> str | None:
    """A sentence where some settings have more slots than requests can be in flight; else None."""
    most = sweep.most_in_flight
    if most is None or "max-num-seqs" not in sweep.params:
        return None
    at = sweep.params.index("max-num-seqs")
    tried = {one.values[at] for one in sweep.points}
    idle = sorted(one for one in tried if isinstance(one, int) and one > most)
    if not idle:
        return None
    return f"At most {most} requests are in flight, so max_num_seqs above that ({short_label(idle)}) changes nothing."


def milliseconds(value: float | None) -> str:
    """1,234 or 12.34"""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _evidence(chosen: Point, beyond: Point | None) -> dict[str, float | int | str | None]:
    evidence: dict[str, float | int | str | None] = {}
    for prefix, point in (("", chosen), ("next_", beyond)):
        if point is None:
            continue
        signals = point.signals
        evidence |= {
            f"{prefix}setting": short_label(point.values),
            f"{prefix}output_token_per_s": point.output_token_per_s,
            f"{prefix}p99_ttft_ms": point.p99_ttft_ms,
            f"{prefix}p50_tpot_ms": point.p50_tpot_ms,
            f"{prefix}p99_tpot_ms": point.p99_tpot_ms,
            f"{prefix}device_busy": signals.device_busy,
            f"{prefix}kv_usage_peak": signals.kv_usage_peak,
            f"{prefix}preemptions": signals.preemptions,
            f"{prefix}waiting_mean": signals.waiting_mean,
        }
    return evidence
