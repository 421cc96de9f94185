"""A disaggregated run by instance, and the KV transfers between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import RunRecord
from engines.ledger import INSTANCES, StepArray
from engines.request_table import MISSING, RequestRow, RequestTable, StintRow
from reports.quantiles import distribution
from reports.summary_schema import Transfers


def steps_by_instance(steps: StepArray) -> dict[str, StepArray]:
    """The ledger of each instance by its name; {"": steps} with one instance."""
    if not steps["instance"].any():
        return {"": steps}
    return {name: steps[steps["instance"] == number] for number, name in enumerate(INSTANCES)}


def transfers(record: RunRecord) -> Transfers | None:
    """The KV transfers of a run; None where there were none."""
    asked, ended, first = (record.column_ns(name) for name in ("transfer_asked", "transfer_ended", "first"))
    there = (asked != MISSING) & (ended != MISSING)
    if not there.any():
        return None
    kept = record.steps["kv_kept_blocks"][record.steps["instance"] == 0]
    return Transfers(
        requests=int(there.sum()),
        blocks=int(record.steps["transfer_blocks"].sum()),
        wait_ms=distribution((asked - first)[there] / 1e6),
        transfer_ms=distribution((ended - asked)[there] / 1e6),
        kept_blocks_peak=int(kept.max(initial=0)),
    )


def records_by_instance(record: RunRecord) -> dict[str, RunRecord]:
    """The slots and steps of each instance, its steps numbered from 1 and its slots from 0; without token events.
    {"": the record} with one instance."""
    if not record.steps["instance"].any():
        return {"": record}
    found: dict[str, RunRecord] = {}
    first_slot = 0
    for number, name in enumerate(INSTANCES):
        mine: NDArray[np.bool_] = record.steps["instance"] == number
        steps = record.steps[mine]
        slots = range(first_slot, first_slot + ledger_slots(steps))
        local = _own_numbers(mine)
        rows = (_row_in(row, local, slots, decodes=number > 0) for row in record.rows)
        found[name] = replace(record, rows=RequestTable.of(rows), steps=steps, event_values=np.empty(0, np.uint32))
        first_slot = slots.stop
    return found


def _own_numbers(mine: NDArray[np.bool_]) -> Callable[[int], int]:
    """From the number of a step to the number among the instance's own steps. Steps that are not in the ledger count
    too: a crash lost them, or the run ended before a step was launched for which a request had been admitted."""
    local = np.concatenate([[0], np.cumsum(mine)])
    last = len(mine)
    return lambda step: int(local[min(step, last)]) + max(step - last, 0)


def ledger_slots(steps: StepArray) -> int:
    """Slots of the instance that launched these steps."""
    return int(steps[0]["active_slots"] + steps[0]["dead_slots"] + steps[0]["idle_slots"]) if len(steps) else 0


def _row_in(row: RequestRow, local: Callable[[int], int], slots: range, *, decodes: bool) -> RequestRow:
    stays = [one for one in row.stints if one.slot in slots]
    return msgspec.structs.replace(
        row,
        stints=tuple(
            StintRow(one.slot - slots.start, *map(local, (one.admitted, one.sampled, one.ended))) for one in stays
        ),
        preemptions=_preemptions_there(row, len(stays), decodes=decodes),
        events=0,
        events_at=0,
        transfer_asked=row.transfer_asked if decodes else None,
        transfer_ended=row.transfer_ended if decodes else None,
    )


def _preemptions_there(row: RequestRow, stays: int, *, decodes: bool) -> int:
    """How many of the request's stints in an instance ended with a preemption."""
    before = len(row.stints) - stays if decodes else stays  # stints in the prefill instance
    handed_over = row.transfer_asked is not None  # the last of them ended with the transfer
    if not handed_over and before == len(row.stints):
        return 0 if decodes else row.preemptions
    there = before - handed_over
    return row.preemptions - there if decodes else there
