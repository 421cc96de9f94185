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
    ("seats pass on before the fence", "rows.py", "if fence <= collected:\n            heapq", "if True:\n            heapq"),
    ("one block too many in the pool", "blocks.py", "deque(range(1, num_blocks + 1))", "deque(range(0, num_blocks + 1))"),
    ("the last sampled token is fed back", "request.py", "self.output_limit - 1", "self.output_limit"),
    ("off by one at a block boundary", "kv.py", "return -(-positions // self.block_size)", "return positions // self.block_size + 1"),
    ("blocks are published before they are computed", "scheduler.py", "        tally = StepTally(", "        self.kv.publish(plan)\n        tally = StepTally("),
    ("the first victim is the oldest", "policies/pressure.py", "else slots[-1])", "else slots[0])"),
    ("pending blocks evict everybody", "making_room.py", "if short <= kv.pool.num_pending + kv.num_kept:", "if False:"),
    ("blocks of this step are given away twice", "admitting.py", "int(kv.beyond_promise(slots, computed + counts).sum())", "0"),
    ("the watermark holds back a lone request", "gate.py", "and self._rows.num_live > 0", ""),
    ("admission overdraws KV by one", "gate.py", "if left < 0:", "if left < -1:"),
    ("hits count as free", "gate.py", " + self._kv.pool.num_cached_of(hits)", ""),
    ("a promise is kept twice", "kv.py", "kept = np.minimum(missing, self._promised[slots])", "kept = 0 * missing"),
    ("tenants share prefixes", "kv.py", "self.index.match(request.tenant,", 'self.index.match("",'),
    ("a full hit leaves nothing to compute", "prefix.py", "range(0, known - self._block_size, self._block_size)", "range(0, known - self._block_size + 1, self._block_size)"),
    ("a forgotten block is still found", "prefix.py", "del self._block_at[self._key_of.pop(block)]", "self._key_of.pop(block)"),
    ("the parent is no part of the key", "prefix.py", "key = (parent, tokens.tobytes())", "key = (0, tokens.tobytes())"),
    ("ageing runs backwards", "policies/order.py", "+ self._rate_per_s", "- self._rate_per_s"),
    ("a returning tenant keeps old credit", "policies/order.py", "max(self.turn(request.tenant), floor)", "self.turn(request.tenant)"),
    ("a tenant over its quota holds back the others", "admitting.py", "skip.add(head.queue)", "break"),
    ("nobody is passed more than k times, but k is forgotten", "admitting.py", "one.bypassed += 1", "pass"),
    ("swapped requests wait behind newcomers", "waiting.py", "0 if request.resumes_first else 1", "1"),
    ("swap brings back the wrong order", "seating.py", "zip(request.host_blocks, self.kv.blocks(slot), strict=True)", "zip(reversed(request.host_blocks), self.kv.blocks(slot), strict=True)"),
    ("an aborted swap leaks host blocks", "seating.py", "        self.kv.host.release(request.host_blocks)\n        request.host_blocks = []", "        request.host_blocks = []"),
    ("blocks that were never copied back are copied out", "seating.py", "if host_blocks := self._stays_out(slot):", "if host_blocks := []:"),
    ("padding is one column short", "policies/batching.py", "width - (remaining_columns - wants)", "width - (remaining_columns - wants) + 1"),
    ("the rectangle ignores the budget", "policies/batching.py", "budget // len(wants)", "budget"),
    ("the batch never lets go", "seating.py", "if self.rows.num_live == 0:  # the", "if False:  # the"),
    ("a lost token after a preemption", "scheduler.py", "request.pending -= 1", "pass"),
    ("recomputation counts as useful", "seating.py", "request.computed_peak = max", "request.computed_peak = 0 * max"),
    ("EOS at the cap is a stop", "scheduler.py", "and not at_cap:", ":"),
    ("buckets do not take turns", "policies/batching.py", "present[step % len(present)]", "present[-1]"),
    ("the forecast forgets who has just sat down", "admitting.py", "policies.admission.seated(head)", "pass"),
    ("the forecast forgets who ends later", "policies/admission.py", "max(peak, int(self._peak_behind[at]) + held)", "peak"),
    ("a chunk may take the whole step", "policies/batching.py", "counts = wants if self.max_chunk is None else np.minimum(wants, self.max_chunk)", "counts = wants"),
    ("two instances: a seat is given up while KV comes in", "seating.py", "elif state is State.RUNNING and request.slot in self.arrivals:", "elif False:"),
    ("two instances: a seat decodes before its KV is there", "seating.py", "wants *= ~rows.arriving[slots]", "pass"),
    ("two instances: blocks are given back when their transfer starts", "handover.py", "        self._not_started.append(transfer)", "        self._not_started.append(transfer)\n        self._kv.host.release(transfer.sources)"),
    ("two instances: a victim's blocks are still written to", "making_room.py", "rows.live[slots] & ~rows.arriving[slots]", "rows.live[slots]"),
    ("two instances: kept blocks evict who computes a prompt", "making_room.py", "kv.pool.num_pending + kv.num_kept", "kv.pool.num_pending"),
    ("two instances: who waits for KV gets up for another", "admitting.py", "if slot is None or slot in seating.arrivals:", "if slot is None:"),
    ("two instances: a prompt's instance decodes", "scheduler.py", "elif request.output_tokens >= request.output_limit:", "elif False:"),
    ("two instances: a lost prompt waits in both", "seating.py", "            self.waiting.take_out(request)", "            self.waiting.forget()"),
    ("two instances: a seat is held from another's step on", "seating.py", "            one.seated_step = step", "            pass"),
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
        return False  # it hangs: noticed
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
