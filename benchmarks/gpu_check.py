"""All measurements that a new GPU needs, in one command and within a time budget.

    python benchmarks/gpu_check.py [--budget-s 300] [--out runs/gpu_check.json]
    python benchmarks/gpu_check.py --device cpu --quick        the same stages at toy sizes: shows that all run

Stages, the most useful first: what the device can do; kernels against their oracles; CUDA graphs against eager; decode
steps against the floor that follows from the first; `cbbench run` and `sweep`; transformers' continuous batching beside
ours; where the time of a step goes; swapping against recomputing. docs/gpu.md says what each number means.
The first four need torch, NumPy and triton alone; the others cbbench's base packages too. Weights are random.
Exit code 1 if a stage failed, a result was wrong, or none of the first four ran. A missed target is shown and is not a
failure.
"""

from __future__ import annotations

import sys
from pathlib import Path

# cbbench from this checkout, installed or not; before this folder, whose files are scripts.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu.command import main
from benchmarks.gpu.setting import Stage

STAGES = (
    Stage("ceilings", "bandwidth and matrix products of this device", 20, "benchmarks.gpu.ceilings:run"),
    Stage("kernels", "every kernel against its oracle", 60, "benchmarks.gpu.kernels:run"),
    Stage("graphs", "decode steps from CUDA graphs against eager ones", 30, "benchmarks.gpu.graphs:run"),
    Stage("decode", "decode steps against the floor", 60, "benchmarks.gpu.decode:run"),
    Stage("runs", "cbbench run, static and continuous; cbbench sweep", 80, "benchmarks.gpu.runs:run"),
    Stage("peer", "transformers' continuous batching on the same requests", 90, "benchmarks.gpu.peer:run"),
    Stage("operators", "where the time of a decode step goes", 30, "benchmarks.gpu.operators:run"),
    Stage("swap", "moving KV to the host and back against computing it again", 25, "benchmarks.gpu.swap:run"),
)

if __name__ == "__main__":
    main(STAGES, __doc__ or "", budget_s=300.0, out="runs/gpu_check.json")
