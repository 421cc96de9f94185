"""A run on the compiled core: what it covers, its arrays, and the record of what it did, block by block of steps."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.base import Observer, RunRecord
from engines.ledger import LEDGER, StepArray
from engines.recorder import EndedRequest, StepBlock, StepRecorder
from engines.request_table import RequestRow, StintRow
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.plan import IntArray
from engines.simulated.step_time import FloatArray, StepTables, StepTimeModel
from workloads.pacing import Pacing
from workloads.plan import RequestPlan

MIN_REQUESTS = 1000  # below, loading the compiled core takes longer than the scheduler's own loop
BLOCK_STEPS = 4096
NO_LIMIT = 1 << 62


def why_not(
    config: SchedulerConfig,
    model: StepTimeModel,
    plan: RequestPlan,
    duration_s: float | None,
    least_requests: int = MIN_REQUESTS,
) -> str | None:
    """Why this run is not one for the compiled core; None: it is."""
    reasons = {
        "static batching": config.mode != "continuous",
        config.prefill: config.prefill != "decode-first",
        f"order {config.order}": config.order != "fcfs" or config.ageing is not None,
        "prompt buckets": bool(config.prompt_buckets),
        "skip-ahead": config.skip_ahead > 0,
        "a limit on partial prefills": bool(config.max_num_partial_prefills or config.max_long_partial_prefills),
        f"admission {config.effective_admission}": config.effective_admission not in ("full-prompt", "full-reserve"),
        f"{config.on_kv_pressure} under KV pressure": config.on_kv_pressure not in ("recompute", "delay"),
        f"victim {config.victim}": config.victim != "newest",
        "prefix caching": config.prefix_caching,
        "quotas": bool(config.quotas),
        "planning that overlaps the running step": model.overlapped,
        "sliding windows": model.tables(1, 1) is None,
        "a duration": duration_s is not None,
        "turns that wait for answers": plan.turns is not None,
        f"fewer than {least_requests:,} requests": len(plan) < least_requests,
        "numba is not installed": find_spec("numba") is None,
        "requests that never fit": not _all_fit(config, plan),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _all_fit(config: SchedulerConfig, plan: RequestPlan) -> bool:
    positions = plan.prompt_tokens + plan.output_tokens - 1
    within = (positions < config.max_model_len) & (-(-positions // config.block_size) <= config.kv_blocks)
    if not config.chunked_prefill:
        within &= plan.prompt_tokens <= config.max_num_batched_tokens
    return bool(within.all())


def run_compiled(
    config: SchedulerConfig,
    tables: StepTables,
    plan: RequestPlan,
    pacing: Pacing,
    observer: Observer,
    *,
    front_end_ns: int,
    block_steps: int = BLOCK_STEPS,
) -> RunRecord:
    """The record of the scheduler's own loop, to the bit. The pacing must be fresh."""
    recorder = StepRecorder(observer, len(plan), config.kv_blocks, thinned=True)
    core = CompiledCore(config, tables, plan, pacing, front_end_ns, block_steps)
    for block in core.blocks():
        recorder.take_block(block)
        if observer.stopping:
            recorder.take_block(core.aborted())
            return recorder.record(interrupted=True)
    return recorder.record(interrupted=False)


class CompiledCore:
    def __init__(
        self,
        config: SchedulerConfig,
        tables: StepTables,
        plan: RequestPlan,
        pacing: Pacing,
        front_end_ns: int,
        block_steps: int,
    ) -> None:
        from engines.simulated import compiled_core as core

        self._core, self._plan, self._config = core, plan, config
        requests, slots = len(plan), config.max_num_seqs
        concurrency = pacing.concurrency or 0
        self._state = np.zeros(core.STATE_COLUMNS, np.int64)
        self._state[core.FREE] = config.kv_blocks
        self._state[core.SENDS] = concurrency  # all may be sent at once
        self._slot = np.zeros((slots, core.SLOT_COLUMNS), np.int64)
        self._request = np.zeros((requests, core.REQUEST_COLUMNS), np.int64)
        self._request[:, core.R_PROMPT] = plan.prompt_tokens
        self._request[:, core.R_OUTPUT] = plan.output_tokens
        self._request[:, core.R_FIRST :] = -1
        self._order = np.zeros(slots, np.int64)
        self._preempted = np.zeros(requests, np.int64)
        self._sends = np.zeros(max(concurrency, 1), np.int64)  # when a request of a closed loop may be sent; a ring
        self._schedule = pacing.schedule_ns
        if self._schedule is None:  # all at 0, or whenever one may be sent
            self._schedule = np.zeros(0 if concurrency else requests, np.int64)
        room = requests + requests // 2 + 4 * slots + 64  # grows where many are preempted
        self._runs, self._stints = np.zeros((room, 3), np.int64), np.zeros((room, 5), np.int64)
        self._ledger = np.zeros((block_steps, len(core.LEDGER_COLUMNS)), np.int64)
        self._finished, self._firsts = (np.zeros((block_steps * slots, 2), np.int64) for _ in range(2))
        full_reserve = config.effective_admission == "full-reserve"
        watermark = 0 if full_reserve else int(config.watermark * config.kv_blocks)
        self._settings = (
            slots, config.max_num_batched_tokens, config.block_size, config.kv_blocks, watermark,
            config.chunked_prefill, config.max_prompt_chunk or NO_LIMIT, full_reserve, concurrency, front_end_ns,
        )  # fmt: skip
        self._times = (
            tables.decode_base, tables.decode_kv, tables.mixed_base, tables.rows, tables.mixed_kv, tables.pair,
            tables.prefill_kv, tables.narrow, tables.floors, tables.gaps,
        )  # fmt: skip

    def blocks(self) -> Iterator[StepBlock]:
        core, polled = self._core, 0
        while True:
            answer = self._advance()
            until = int(self._state[core.NEXT])
            yield self._block(polled, until)
            polled = until
            if answer == core.ALL_ENDED:
                return

    def _block(self, polled: int, until: int) -> StepBlock:
        core = self._core
        finished = self._finished[: self._state[core.FINISHED]]
        firsts = self._firsts[: self._state[core.FIRSTS]]
        of_firsts = self._request[firsts[:, 0]]
        steps = self._steps(self._ledger[: self._state[core.BLOCK_STEPS]])
        ends_ns = steps["end_ns"][finished[:, 1] - (int(steps["step"][0]) if len(steps) else 0)]
        return StepBlock(
            steps=steps,
            ended_in=finished[:, 1].copy(),
            ended=self._ended(finished[:, 0], ends_ns, "length"),
            first_in=firsts[:, 1].copy(),
            ttfts_ms=(of_firsts[:, core.R_FIRST] - of_firsts[:, core.R_SENT]) / 1e6,
            polled_after=self._request[polled:until, core.R_POLLED].copy(),
            polled_ns=self._request[polled:until, core.R_SUBMITTED].copy(),
        )

    def run_through(self, ratios: FloatArray | None = None) -> tuple[IntArray, StepArray]:
        """The columns of all requests after the whole run, and its ledger, without a record: for statistics over many
        runs. ratios: factors of the time of each step and its gap, repeated as needed; the core then stops after each
        step, and was made for blocks of one."""
        core, rows, plain, step = self._core, [], self._times, 0
        while True:
            if ratios is not None:
                self._times = _scaled(plain, float(ratios[step % len(ratios)]))
            answer = self._advance()
            rows.append(self._ledger[: self._state[core.BLOCK_STEPS]].copy())
            step += 1
            if answer == core.ALL_ENDED:
                return self._request, self._steps(np.concatenate(rows))

    def _advance(self) -> int:
        """Up to the end of a block, or of the run."""
        core = self._core
        answer: int = core.advance(
            self._state, self._slot, self._request, self._order, self._preempted, self._sends, self._schedule,
            self._runs, self._stints, self._ledger, self._finished, self._firsts, *self._settings, *self._times,
        )  # fmt: skip
        if answer == core.GROW:
            self._runs = np.concatenate((self._runs, np.zeros_like(self._runs)))
            self._stints = np.concatenate((self._stints, np.zeros_like(self._stints)))
        assert answer != core.STUCK, "nothing can run, yet requests wait"
        return answer

    def _steps(self, rows: IntArray) -> StepArray:
        core, config = self._core, self._config
        steps = np.zeros(len(rows), LEDGER)
        for at, name in enumerate(core.LEDGER_COLUMNS):
            steps[name] = rows[:, at]
        steps["running"] = steps["active_slots"]
        steps["idle_slots"] = config.max_num_seqs - steps["active_slots"]
        return steps

    def _ended(self, indices: IntArray, ends_ns: IntArray, reason: str) -> Iterator[EndedRequest]:
        core, plan = self._core, self._plan
        columns = self._request[indices].tolist()
        tenants, priorities = plan.tenant[indices].tolist(), plan.priority[indices].tolist()
        for index, column, end_ns, tenant, priority in zip(
            indices.tolist(), columns, ends_ns.tolist(), tenants, priorities, strict=True
        ):
            first_ns = None if column[core.R_FIRST] < 0 else column[core.R_FIRST]
            stints = _chain(self._stints, column[core.R_STINT])
            row = RequestRow(
                i=index,
                scheduled=column[core.R_SCHEDULED],
                submitted=column[core.R_SUBMITTED],
                sent=column[core.R_SENT],
                first_byte=first_ns,
                first=first_ns,
                last=None if first_ns is None else column[core.R_LAST],
                end=end_ns,
                prompt_tokens=column[core.R_PROMPT],
                output_tokens=column[core.R_DONE],
                status="completed" if reason == "length" else "cancelled",
                finish_reason=reason,
                error=None,
                token_source="engine",
                tenant=plan.tenants[tenant],
                priority=priority,
                preemptions=column[core.R_PREEMPTIONS],
                events_at=0,  # the recorder's business
                events=column[core.R_DONE],
                stints=tuple(StintRow(*numbers) for numbers in stints),
            )
            yield EndedRequest(row, _chain(self._runs, column[core.R_RUN]))

    def aborted(self) -> StepBlock:
        """All that run or wait, in order of submission, ended now."""
        core, state = self._core, self._state
        running = self._order[: state[core.RUNNING]]
        for slot in running.tolist():
            core.leave(state, self._slot, self._request, self._stints, slot, int(state[core.STEP]))
        live = np.sort(
            np.concatenate((
                self._slot[running, core.REQUEST],
                self._preempted[: state[core.WAITING_AGAIN]],
                np.arange(state[core.QUEUE], state[core.NEXT]),
            ))
        )  # fmt: skip
        nothing = np.empty(0, np.int64)
        return StepBlock(
            steps=np.zeros(0, LEDGER),
            ended_in=np.full(len(live), state[core.STEP]),
            ended=self._ended(live, np.full(len(live), state[core.NOW]), "aborted"),
            first_in=nothing,
            ttfts_ms=np.empty(0),
            polled_after=nothing,
            polled_ns=nothing,
        )


def _scaled(times: tuple[Any, ...], ratio: float) -> tuple[Any, ...]:
    """The terms of the step time of a step that takes `ratio` times as long."""
    *terms, narrow, floor, gaps = times
    return (*(one * ratio for one in terms), narrow, floor * ratio, np.rint(gaps * ratio).astype(np.int64))


def _chain(pool: NDArray[np.int64], at: int) -> list[list[int]]:
    """The entries from `at` on, each without its last number, which says where the next one is."""
    entries = []
    while at >= 0:
        *entry, at = pool[at].tolist()
        entries.append(entry)
    return entries
