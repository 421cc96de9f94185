"""Other ways to compute what a step computes, beside the shipped one, for a change of a kernel or of its defaults.

    python benchmarks/gpu_variants.py [--budget-s 120] [--out runs/gpu_variants.json]
    python benchmarks/gpu_variants.py --device cpu --quick        the same stages at toy sizes

Each is compared with the shipped one's result first, then with its time. docs/gpu.md says what each number means.
"""

from __future__ import annotations

import sys
from pathlib import Path

# cbbench from this checkout, installed or not; before this folder, whose files are scripts.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu.command import main
from benchmarks.gpu.setting import Stage
from benchmarks.gpu.variants.report import variants_table

STAGES = (
    Stage("ceilings", "bandwidth and matrix products of this device", 20, "benchmarks.gpu.ceilings:run"),
    Stage("products", "a step's matrix products", 20, "benchmarks.gpu.variants.products:run"),
    Stage("tuning", "the Triton kernels' splits, tiles, stages and warps", 45, "benchmarks.gpu.variants.tuning:run"),
    Stage(
        "flashinfer",
        "FlashInfer's attention against our oracle",
        600,
        "benchmarks.gpu.variants.flashinfer_attention:run",
    ),
)

if __name__ == "__main__":
    main(STAGES, __doc__ or "", budget_s=120.0, out="runs/gpu_variants.json", more=variants_table)
