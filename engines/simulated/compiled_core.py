"""The scheduler's default family as one compiled loop over arrays. A second copy: engines/scheduling is the authority.

It covers what most simulated runs are: continuous batching, decodes first, first come first served, full-prompt or
full-reserve admission, recomputation of the newest under pressure; no prefix cache, quotas or buckets. All else runs on
the scheduler itself (compiled_run.py decides). A differential test over random settings holds the two together, step
for step and to the bit.

All state is in arrays of int64, so that a call can stop after a block of steps and the next one goes on:

    slot       [max_num_seqs, ...]   columns of the running batch, by slot
    order      [max_num_seqs]        its slots in plan order, which is the order of submission
    request    [requests, ...]       columns of all requests
    preempted  [requests]            requests that wait again, in order of submission; the new ones are QUEUE to NEXT
    runs       [..., 3]              token events: first step, consecutive steps, next run of the same request or -1
    stints     [..., 5]              slot, step admitted, of the first token, left; next stint of the same request or -1
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from numba import njit
except ModuleNotFoundError:  # then compiled_run.py does not come here, and the tests run it as plain Python

    def njit(**_: Any) -> Any:
        return lambda function: function


# fmt: off
# Columns of `slot`
COMPUTED, KNOWN, KV_LIMIT, PROMPT, PEAK, HELD, RESERVED, REQUEST, ADMITTED, SAMPLED, COUNT, TAKEN = range(12)
SLOT_COLUMNS = 12
# Columns of `request`
(R_PROMPT, R_OUTPUT, R_SCHEDULED, R_SENT, R_SUBMITTED, R_POLLED, R_DONE, R_PEAK, R_PREEMPTIONS,
 R_FIRST, R_LAST, R_RUN, R_LAST_RUN, R_STINT, R_LAST_STINT) = range(15)
REQUEST_COLUMNS = 15
# `state`: time, end of the last step, its number, the next request to arrive, the first that was never admitted, ...
(NOW, END, STEP, NEXT, QUEUE, RUNNING, WAITING_AGAIN, FREE, RESERVED_BLOCKS, SENDS_AT, SENDS, RUNS, STINTS,
 T_ADMITTED, T_PREEMPTED, T_EVICTED, T_BLOCKED, FINISHED, FIRSTS, BLOCK_STEPS) = range(20)
STATE_COLUMNS = 20
# Columns of `ledger`, under the names they have in engines/ledger.py
LEDGER_COLUMNS = (
    "step", "now_ns", "start_ns", "end_ns", "launched_tokens", "useful_tokens", "recomputed_tokens", "kv_positions",
    "decode_kv_positions", "prefill_kv_positions", "prefill_pairs", "sampled_tokens", "budget_unused_tokens",
    "prefill_rows", "decode_rows", "active_slots", "kv_used_blocks", "kv_reserved_blocks", "kv_free_blocks", "waiting",
    "admitted", "preempted", "evicted_tokens", "blocked", "busy_ns",
)
(L_STEP, L_NOW, L_START, L_END, L_LAUNCHED, L_USEFUL, L_RECOMPUTED, L_KV_POSITIONS, L_DECODE_KV, L_PREFILL_KV, L_PAIRS,
 L_SAMPLED, L_UNUSED, L_PREFILL_ROWS, L_DECODE_ROWS, L_ACTIVE, L_USED, L_RESERVED, L_FREE, L_WAITING, L_ADMITTED,
 L_PREEMPTED, L_EVICTED, L_BLOCKED, L_BUSY) = range(25)
# fmt: on
# What the loop answers
BLOCK_FULL, ALL_ENDED, GROW, STUCK = range(4)
# engines.scheduling.ledger.Blocked
NO, ROWS, TOKENS, KV, WATERMARK, PREEMPTED = 0, 1, 2, 3, 4, 6


@njit(cache=True)
def advance(
    state, slot, request, order, preempted, free_sends, schedule, runs, stints, ledger, finished, firsts,
    # settings
    max_num_seqs, budget, block_size, kv_blocks, watermark, chunked, max_chunk, full_reserve, concurrency, front_end,
    # step times
    decode_base, decode_kv, mixed_base, rows_ns, mixed_kv, pair_ns, prefill_kv_ns, narrow, floors, gaps,
):  # fmt: skip
    """Take steps until the block of the ledger is full or every request has ended."""
    n = request.shape[0]
    state[BLOCK_STEPS] = state[FINISHED] = state[FIRSTS] = 0
    while True:
        now = state[NOW]
        # -- poll: requests that have come due
        while state[NEXT] < n:
            i = state[NEXT]
            free_at = 0
            if concurrency > 0:
                if state[SENDS] == 0:
                    break
                free_at = free_sends[state[SENDS_AT]]
            scheduled = schedule[i] if schedule.shape[0] else free_at
            sent = max(scheduled, free_at)
            if sent + front_end > now:
                break
            if concurrency > 0:
                state[SENDS_AT] = (state[SENDS_AT] + 1) % concurrency
                state[SENDS] -= 1
            request[i, R_SCHEDULED], request[i, R_SENT] = scheduled, sent
            request[i, R_SUBMITTED], request[i, R_POLLED] = now, state[STEP]
            state[NEXT] += 1
        # the widest step closes a stint and opens a run for every slot
        if state[RUNS] + max_num_seqs > runs.shape[0] or state[STINTS] + 2 * max_num_seqs > stints.shape[0]:
            return GROW
        # -- preempt until KV fits
        preempted_any = False
        while True:
            share(slot, order, state[RUNNING], budget, max_chunk)
            growth = total_growth(slot, order, state[RUNNING], block_size)
            available = state[FREE] - state[RESERVED_BLOCKS]
            if growth <= available:
                break
            victim = state[RUNNING] - 1
            for at in range(state[RUNNING] - 1, -1, -1):
                s = order[at]
                if slot[s, KNOWN] - slot[s, COMPUTED] > 1:
                    victim = at
                    break
            preempt(state, slot, request, order, preempted, stints, victim)
            preempted_any = True
        # -- admit
        if preempted_any:
            state[T_BLOCKED] = PREEMPTED if state[WAITING_AGAIN] + state[NEXT] - state[QUEUE] > 0 else NO
        else:
            tokens = budget
            for at in range(state[RUNNING]):
                tokens -= slot[order[at], COUNT]
            set_aside = growth
            changed = False
            while state[WAITING_AGAIN] + state[NEXT] - state[QUEUE] > 0:
                again = state[WAITING_AGAIN] > 0
                i = preempted[0] if again else state[QUEUE]
                known = request[i, R_PROMPT] + request[i, R_DONE]
                limit = request[i, R_PROMPT] + request[i, R_OUTPUT] - 1
                want = min(known, limit)
                takes = 0
                if tokens > 0:
                    if chunked or request[i, R_PREEMPTIONS] > 0:
                        takes = min(min(want, tokens), max_chunk)
                    elif want <= tokens:
                        takes = want
                if takes == 0:
                    state[T_BLOCKED] = TOKENS
                    break
                if state[RUNNING] == max_num_seqs:
                    state[T_BLOCKED] = ROWS
                    break
                reserve = blocks_for(limit if full_reserve else want, block_size)
                left = state[FREE] - state[RESERVED_BLOCKS] - set_aside - reserve
                if left < 0:
                    state[T_BLOCKED] = KV
                    break
                if left < watermark and state[RUNNING] > 0:
                    state[T_BLOCKED] = WATERMARK
                    break
                if again:
                    for at in range(1, state[WAITING_AGAIN]):
                        preempted[at - 1] = preempted[at]
                    state[WAITING_AGAIN] -= 1
                else:
                    state[QUEUE] += 1
                admit(state, slot, request, order, i, known, limit, reserve, max_num_seqs)
                tokens -= takes
                changed = True
            if changed:
                share(slot, order, state[RUNNING], budget, max_chunk)
                available = state[FREE] - state[RESERVED_BLOCKS]
                if total_growth(slot, order, state[RUNNING], block_size) > available:
                    shorten(slot, order, state[RUNNING], block_size, available)
        # -- launch
        rows, computed_tokens, recomputed, decode_rows = 0, 0, 0, 0
        decode_pairs, chunk_pairs, narrow_pairs, prefill_kv, positions = 0, 0, 0, 0, 0
        for at in range(state[RUNNING]):
            s = order[at]
            start, count = slot[s, COMPUTED], slot[s, COUNT]
            positions += start
            if count == 0:
                continue
            rows += 1
            computed_tokens += count
            recomputed += max(0, min(count, slot[s, PEAK] - start))
            if start >= slot[s, PROMPT] and count == 1:
                decode_rows += 1
            pairs = count * start + count * (count + 1) // 2
            if count > 1:
                chunk_pairs += pairs
                prefill_kv += start
                narrow_pairs += (pairs * narrow[min(count, narrow.shape[0] - 1)]) >> 10
            else:
                decode_pairs += pairs
            missing = blocks_for(start + count, block_size) - slot[s, HELD]
            if missing > 0:
                slot[s, HELD] += missing
                state[FREE] -= missing
                kept = min(missing, slot[s, RESERVED])
                slot[s, RESERVED] -= kept
                state[RESERVED_BLOCKS] -= kept
        if rows == 0:
            if state[RUNNING] > 0 or state[WAITING_AGAIN] + state[NEXT] - state[QUEUE] > 0:
                return STUCK
            if state[NEXT] >= n:
                return ALL_ENDED
            free_at = free_sends[state[SENDS_AT]] if concurrency > 0 else 0
            scheduled = schedule[state[NEXT]] if schedule.shape[0] else free_at
            state[NOW] = max(now, max(scheduled, free_at) + front_end)
            continue
        # -- the time of the step
        if computed_tokens == rows:
            ns = decode_base[rows] + decode_kv * decode_pairs
        else:
            ns = mixed_base[computed_tokens] + rows_ns[rows]
            ns = ns + mixed_kv * decode_pairs
            ns = ns + pair_ns * (chunk_pairs + narrow_pairs)
            ns = ns + prefill_kv_ns * prefill_kv
        busy = max(1, np.int64(np.rint(ns)))
        duration = max(busy, floors[1 if computed_tokens == rows else 0, rows])
        start_ns = max(now, state[END]) + gaps[rows]
        end_ns = start_ns + duration
        state[STEP] += 1
        step = state[STEP]
        row = ledger[state[BLOCK_STEPS]]
        row[L_STEP], row[L_NOW], row[L_START], row[L_END] = step, now, start_ns, end_ns
        row[L_LAUNCHED], row[L_USEFUL], row[L_RECOMPUTED] = computed_tokens, computed_tokens - recomputed, recomputed
        row[L_KV_POSITIONS] = positions + computed_tokens
        row[L_DECODE_KV], row[L_PREFILL_KV], row[L_PAIRS] = decode_pairs, prefill_kv, chunk_pairs
        row[L_UNUSED] = budget - computed_tokens
        row[L_PREFILL_ROWS], row[L_DECODE_ROWS], row[L_ACTIVE] = rows - decode_rows, decode_rows, state[RUNNING]
        row[L_USED], row[L_RESERVED] = kv_blocks - state[FREE], state[RESERVED_BLOCKS]
        row[L_FREE] = state[FREE] - state[RESERVED_BLOCKS]
        row[L_WAITING] = state[WAITING_AGAIN] + state[NEXT] - state[QUEUE]
        row[L_ADMITTED], row[L_PREEMPTED] = state[T_ADMITTED], state[T_PREEMPTED]
        row[L_EVICTED], row[L_BLOCKED], row[L_BUSY] = state[T_EVICTED], state[T_BLOCKED], busy
        state[T_ADMITTED] = state[T_PREEMPTED] = state[T_EVICTED] = 0
        state[T_BLOCKED] = NO
        # -- update
        state[NOW] = state[END] = end_ns
        sampled, kept_rows = 0, 0
        for at in range(state[RUNNING]):
            s = order[at]
            count = slot[s, COUNT]
            end = slot[s, COMPUTED] + count
            slot[s, COMPUTED] = end
            ended = False
            if count > 0 and end == slot[s, KNOWN]:
                slot[s, KNOWN] += 1
                sampled += 1
                i = slot[s, REQUEST]
                if slot[s, SAMPLED] == 0:
                    slot[s, SAMPLED] = step
                deliver(state, request, runs, firsts, i, step, end_ns)
                ended = request[i, R_DONE] >= request[i, R_OUTPUT]
                if ended:
                    leave(state, slot, request, stints, s, step)
                    finished[state[FINISHED], 0], finished[state[FINISHED], 1] = i, step
                    state[FINISHED] += 1
                    if concurrency > 0:
                        free_sends[(state[SENDS_AT] + state[SENDS]) % concurrency] = end_ns
                        state[SENDS] += 1
            if not ended:
                order[kept_rows] = s
                kept_rows += 1
        state[RUNNING] = kept_rows
        row[L_SAMPLED] = sampled
        state[BLOCK_STEPS] += 1
        if state[BLOCK_STEPS] == ledger.shape[0]:
            return BLOCK_FULL


@njit(cache=True)
def blocks_for(positions, block_size):
    return (positions + block_size - 1) // block_size


@njit(cache=True)
def share(slot, order, running, budget, max_chunk):
    """COUNT of every slot in plan order: a token each first, then prompts take what is left."""
    total = 0
    for at in range(running):
        s = order[at]
        count = min(min(slot[s, KNOWN], slot[s, KV_LIMIT]) - slot[s, COMPUTED], max_chunk)
        slot[s, COUNT] = count
        total += count
    if total <= budget:
        return
    rest = budget
    for at in range(running):
        rest -= min(slot[order[at], COUNT], 1)
    for at in range(running):
        s = order[at]
        single = min(slot[s, COUNT], 1)
        more = max(0, min(slot[s, COUNT] - single, rest))
        rest -= slot[s, COUNT] - single
        slot[s, COUNT] = single + more


@njit(cache=True)
def growth_of(slot, s, block_size):
    """Blocks that this slot's step needs beyond those it holds and has reserved."""
    return max(0, blocks_for(slot[s, COMPUTED] + slot[s, COUNT], block_size) - slot[s, HELD] - slot[s, RESERVED])


@njit(cache=True)
def total_growth(slot, order, running, block_size):
    growth = 0
    for at in range(running):
        growth += growth_of(slot, order[at], block_size)
    return growth


@njit(cache=True)
def shorten(slot, order, running, block_size, available):
    """The last rows in plan order get no more than their own blocks hold."""
    growth = 0
    for at in range(running):
        s = order[at]
        growth += growth_of(slot, s, block_size)
        if growth > available:
            own = (slot[s, HELD] + slot[s, RESERVED]) * block_size - slot[s, COMPUTED]
            slot[s, COUNT] = min(slot[s, COUNT], own)


@njit(cache=True)
def admit(state, slot, request, order, i, known, limit, reserve, max_num_seqs):
    s = 0
    while slot[s, TAKEN]:  # the lowest free slot
        s += 1
    slot[s, TAKEN] = 1
    slot[s, COMPUTED], slot[s, KNOWN], slot[s, KV_LIMIT] = 0, known, limit
    slot[s, PROMPT], slot[s, PEAK], slot[s, REQUEST] = request[i, R_PROMPT], request[i, R_PEAK], i
    slot[s, HELD], slot[s, RESERVED] = 0, reserve
    slot[s, ADMITTED], slot[s, SAMPLED] = state[STEP] + 1, 0
    state[RESERVED_BLOCKS] += reserve
    state[T_ADMITTED] += 1
    at = state[RUNNING]
    while at > 0 and slot[order[at - 1], REQUEST] > i:
        order[at] = order[at - 1]
        at -= 1
    order[at] = s
    state[RUNNING] += 1


@njit(cache=True)
def preempt(state, slot, request, order, preempted, stints, victim):
    """The request at `victim` in plan order loses slot and blocks and waits again, in order of submission."""
    s = order[victim]
    i, computed = slot[s, REQUEST], slot[s, COMPUTED]
    for at in range(victim + 1, state[RUNNING]):
        order[at - 1] = order[at]
    state[RUNNING] -= 1
    state[T_PREEMPTED] += 1
    state[T_EVICTED] += computed
    request[i, R_PREEMPTIONS] += 1
    request[i, R_PEAK] = max(request[i, R_PEAK], computed)
    leave(state, slot, request, stints, s, state[STEP])
    at = state[WAITING_AGAIN]
    while at > 0 and preempted[at - 1] > i:
        preempted[at] = preempted[at - 1]
        at -= 1
    preempted[at] = i
    state[WAITING_AGAIN] += 1


@njit(cache=True)
def leave(state, slot, request, stints, s, collected):
    state[FREE] += slot[s, HELD]
    state[RESERVED_BLOCKS] -= slot[s, RESERVED]
    slot[s, TAKEN] = 0
    i, at = slot[s, REQUEST], state[STINTS]
    stints[at, 0], stints[at, 1], stints[at, 2] = s, slot[s, ADMITTED], slot[s, SAMPLED]
    stints[at, 3], stints[at, 4] = max(collected, slot[s, ADMITTED]), -1
    if request[i, R_LAST_STINT] < 0:
        request[i, R_STINT] = at
    else:
        stints[request[i, R_LAST_STINT], 4] = at
    request[i, R_LAST_STINT] = at
    state[STINTS] += 1


@njit(cache=True)
def deliver(state, request, runs, firsts, i, step, end_ns):
    """One output token. runs: [first step, consecutive steps, the request's next run or -1]."""
    last = request[i, R_LAST_RUN]
    if last >= 0 and runs[last, 0] + runs[last, 1] == step:
        runs[last, 1] += 1
    else:
        at = state[RUNS]
        runs[at, 0], runs[at, 1], runs[at, 2] = step, 1, -1
        if last < 0:
            request[i, R_RUN] = at
        else:
            runs[last, 2] = at
        request[i, R_LAST_RUN] = at
        state[RUNS] += 1
    if request[i, R_DONE] == 0:
        request[i, R_FIRST] = end_ns
        firsts[state[FIRSTS], 0], firsts[state[FIRSTS], 1] = i, step
        state[FIRSTS] += 1
    request[i, R_LAST] = end_ns
    request[i, R_DONE] += 1
