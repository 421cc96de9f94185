# ruff: noqa: E501
"""Break the scheduler on purpose, one way at a time, and see that a test notices.

    python benchmarks/mutations.py [WORD]      # only those whose file or description has WORD in it

Works on a copy. Each mutation is a bug that another engine had, or could have had. Exit code 1 if one survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = (
    "tests/engines/scheduling",
    "tests/engines/test_disaggregated.py",
    "tests/properties/test_scheduler.py",
    "tests/properties/test_disaggregated.py",
)
ROOM = "engines/scheduling/"
MUTATIONS = (
    # what it breaks, file, text, replacement
    ("blocks pass on before the fence", "blocks.py", "if fence <= collected:\n            self._recycle", "if True:\n            self._recycle"),
    ("slots pass on before the fence", "slots.py", "if fence <= collected:\n            heapq", "if True:\n            heapq"),
    ("one block too many in the pool", "blocks.py", "deque(range(1, num_blocks + 1))", "deque(range(0, num_blocks + 1))"),
    ("the last sampled token is fed back", "request.py", "self.output_limit - 1", "self.output_limit"),
    ("off by one at a block boundary", "kv.py", "return -(-positions // self.block_size)", "return positions // self.block_size + 1"),
    ("blocks are published before they are computed", "scheduler.py", "        ledger = StepLedger(", "        self.kv.publish(plan)\n        ledger = StepLedger("),
    ("the first victim is the oldest", "policies/preemption.py", "else candidates[-1])", "else candidates[0])"),
    ("pending blocks preempt all", "scheduler.py", "if short <= self.kv.pool.num_pending + self.kv.num_kept:", "if False:"),
    ("blocks of this step are given away twice", "scheduler.py", "int(self.running.growth(counts).sum()) if self.slots.num_free else 0", "0"),
    ("the watermark holds back a lone request", "resource_gate.py", "and self._slots.num_active > 0", ""),
    ("admission overdraws KV by one", "resource_gate.py", "if left < 0:", "if left < -1:"),
    ("hits count as free", "resource_gate.py", "self._kv.pool.num_cached_of(grant.hits) - len", "-len"),
    ("blocks are reserved twice", "kv.py", "kept = np.minimum(missing, self._reserved[slots])", "kept = 0 * missing"),
    ("tenants share prefixes", "kv.py", "self.index.match(request.tenant,", 'self.index.match("",'),
    ("a full hit leaves nothing to compute", "prefix.py", "range(0, known - self._block_size, self._block_size)", "range(0, known - self._block_size + 1, self._block_size)"),
    ("a forgotten block is still found", "prefix.py", "del self._block_at[self._key_of.pop(block)]", "self._key_of.pop(block)"),
    ("the parent is no part of the key", "prefix.py", "key = (parent, tokens.tobytes())", "key = (0, tokens.tobytes())"),
    ("ageing runs backwards", "policies/order.py", "+ self._rate_per_s", "- self._rate_per_s"),
    ("a returning tenant keeps old credit", "policies/order.py", "max(self.turn(request.tenant), floor)", "self.turn(request.tenant)"),
    ("a tenant over its quota holds back the others", "scheduler.py", "held_back.add(head.queue)", "break"),
    ("a head is skipped more than k times", "scheduler.py", "one.times_skipped += 1", "pass"),
    ("swapped requests wait behind newcomers", "waiting.py", "0 if request.resumes_first else 1", "1"),
    ("swap brings back the wrong order", "running.py", "zip(request.host_blocks, self._kv.blocks(slot), strict=True)", "zip(reversed(request.host_blocks), self._kv.blocks(slot), strict=True)"),
    ("an aborted swap leaks host blocks", "running.py", "        self._kv.host.release(request.host_blocks)\n        request.host_blocks = []", "        request.host_blocks = []"),
    ("blocks that were never copied back are copied out", "running.py", "if host_blocks := self._cancel_swap_in(slot):", "if host_blocks := []:"),
    ("padding is one column short", "policies/batching.py", "width - (remaining_columns - wants)", "width - (remaining_columns - wants) + 1"),
    ("the rectangle ignores the budget", "policies/batching.py", "budget // len(wants)", "budget"),
    ("the batch never frees its slots", "running.py", "if self.slots.num_active == 0:  # the", "if False:  # the"),
    ("a lost token after a preemption", "delivery.py", "request.pending -= 1", "pass"),
    ("recomputation counts as useful", "running.py", "request.computed_peak = max", "request.computed_peak = 0 * max"),
    ("EOS at the cap is a stop", "delivery.py", "and not at_cap:", ":"),
    ("buckets do not take turns", "policies/batching.py", "present[step % len(present)]", "present[-1]"),
    ("the forecast forgets a request that was just admitted", "scheduler.py", "self.policies.admission.admitted(request)", "pass"),
    ("the forecast forgets requests that end later", "policies/admission.py", "max(peak, int(self._peak_behind[at]) + held)", "peak"),
    ("a chunk may take the whole step", "policies/batching.py", "counts = wants if self.max_chunk is None else np.minimum(wants, self.max_chunk)", "counts = wants"),
    ("two instances: a slot is released while KV comes in", "running.py", "if slot in self._arrivals:", "if False:"),
    ("two instances: a slot decodes before its KV is there", "running.py", "wants *= ~columns.arriving[slots]", "pass"),
    ("two instances: blocks are given back when their transfer starts", "kv_transfer.py", "        self._not_started.append(transfer)", "        self._not_started.append(transfer)\n        self._kv.host.release(transfer.sources)"),
    ("two instances: a victim's blocks are still written to", "running.py", "self.slots.active[slots] & ~self.slots.arriving[slots]", "self.slots.active[slots]"),
    ("two instances: kept blocks preempt a prompt", "scheduler.py", "self.kv.pool.num_pending + self.kv.num_kept", "self.kv.pool.num_pending"),
    ("two instances: a request that waits for its KV is preempted", "scheduler.py", "if slot is None or self.slots.arriving[slot]:", "if slot is None:"),
    ("two instances: a prompt's instance decodes", "delivery.py", "elif request.output_tokens >= request.output_limit:", "elif False:"),
    ("two instances: a lost prompt waits in both", "scheduler.py", "            self.waiting.take_out(request)", "            self.waiting.forget()"),
    ("two instances: a slot is held from another's step on", "running.py", "                one.admitted_step = step", "                pass"),
    ("patience counts from the head, not from the oldest", "scheduler.py", "min(one.submitted_ns for one in waiting)", "request.submitted_ns"),
    ("a request pays for the tokens it asked for", "resource_gate.py", "account.tokens += charged - request.used_tokens", "pass"),
    ("an aborted request pays for its whole prompt", "request.py", "if not self.output_tokens:", "if False:"),
    ("two instances: an abort is not refunded", "scheduler.py", "        self.gate.settle(request)\n        self.policies.order.ended(request)\n\n    def abort", "        self.policies.order.ended(request)\n\n    def abort"),
    ("a prompt that does not fit is admitted by its first chunk", "resource_gate.py", "needs = grant.blocks if grant.blocks > grant.must_fit else grant.must_fit", "needs = grant.blocks"),
    ("the last is not the victim", "policies/preemption.py", "return int(candidates[-1])", "return int(candidates[0])"),
    ("in order, a step has no end", "policies/batching.py", "counts = np.clip(budget - before, 0, counts)", "pass"),
    ("a stop token of one request ends all", "delivery.py", "token in request.stop_token_ids or (", "token is not None or ("),
    ("patience counts requests of other buckets", "waiting.py", "[request for request in self if request.bucket == bucket]", "list(self)"),
)  # fmt: skip


def survives(copy: Path, file: str, text: str, replacement: str) -> bool:
    path = copy / ROOM / file
    original = path.read_text()
    if original.count(text) < 1:
        raise SystemExit(f"{file}: the text to mutate is not there any more: {text!r}")
    path.write_text(original.replace(text, replacement, 1))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *TESTS]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    try:
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=300).returncode == 0
    except subprocess.TimeoutExpired:
        return False  # it never ends: noticed
    finally:
        path.write_text(original)


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [one for one in MUTATIONS if word in one[0] or word in one[1]]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("engines", "workloads", "tests"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        for what, *mutation in chosen:
            survived = survives(copy, *mutation)
            survivors += survived
            print(f"{'SURVIVED' if survived else 'noticed '}  {what}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
