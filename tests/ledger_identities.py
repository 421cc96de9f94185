"""The three identities of engines.ledger, checked."""

from __future__ import annotations

import numpy as np

from engines.ledger import KV_KINDS, WASTE, StepArray


def check_identities(steps: StepArray, max_num_seqs: int, kv_blocks: int) -> None:
    """Raise AssertionError naming the first step whose row does not add up."""
    waste = sum(steps[name] for name in WASTE)
    kv = sum(steps[f"kv_{kind}_blocks"] for kind in KV_KINDS)
    for what, left, right in (
        ("launched tokens", steps["launched_tokens"], steps["useful_tokens"] + waste),
        ("slot steps", steps["active_slots"] + steps["dead_slots"] + steps["idle_slots"], max_num_seqs),
        ("KV blocks", kv, kv_blocks),
    ):
        wrong = np.flatnonzero(left != right)
        if wrong.size:
            row = steps[wrong[0]]
            raise AssertionError(f"ledger: {what} do not add up in step {row['step']}: {row}")
