"""All measurements that need a GPU, in one command and within a time budget.

    python benchmarks/gpu_check.py [--budget-s 240] [--out runs/gpu_check.json]
    python benchmarks/gpu_check.py --device cpu --quick        the same stages at toy sizes: shows that all run

Stages, the most useful first: kernels against their oracles; CUDA graphs against eager; what the device can do; decode
steps against the floor that follows from it; where their time goes; `cbbench run` and `sweep`; transformers' continuous
batching beside ours; other ways to ask for the matrix products, and other settings of the kernels; swapping against
recomputing; FlashInfer's attention, where it is installed. docs/gpu.md says what each number means.
Needs torch, NumPy, triton (on a GPU) and cbbench's base packages, installed or beside this folder; weights are random.
Exit code 1 if a stage failed, a result was wrong, or none of kernels, graphs, ceilings and decode ran. A missed target
is shown and is not a failure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# cbbench from this checkout, installed or not; before this folder, whose files are scripts.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu.setting import Setting, Stage
from benchmarks.gpu.supervise import NoDevice, supervise, write
from benchmarks.gpu.table import ok, table, targets

STAGES = (
    Stage("kernels", "every kernel against its oracle", 60, "benchmarks.gpu.kernels:run"),
    Stage("graphs", "decode steps from CUDA graphs against eager ones", 30, "benchmarks.gpu.graphs:run"),
    Stage("ceilings", "bandwidth and matrix products of this device", 20, "benchmarks.gpu.ceilings:run"),
    Stage("decode", "decode steps against the floor", 60, "benchmarks.gpu.decode:run"),
    Stage("operators", "where the time of a decode step goes", 30, "benchmarks.gpu.operators:run"),
    Stage("runs", "cbbench run, static and continuous; cbbench sweep", 80, "benchmarks.gpu.runs:run"),
    Stage("peer", "transformers' continuous batching on the same requests", 90, "benchmarks.gpu.peer:run"),
    Stage("products", "a step's matrix products, and other ways to ask for them", 20, "benchmarks.gpu.products:run"),
    Stage("tuning", "the Triton kernels with other splits, tiles, stages and warps", 45, "benchmarks.gpu.tuning:run"),
    Stage("swap", "moving KV to the host and back against computing it again", 25, "benchmarks.gpu.swap:run"),
    Stage("flashinfer", "FlashInfer's attention against our oracle", 600, "benchmarks.gpu.flashinfer_attention:run"),
)


def main() -> None:
    options = _options()
    setting = Setting(options.device, options.quick)
    stages = [one for one in STAGES if one.name in options.stages]
    try:
        report = supervise(stages, setting, budget_s=options.budget_s, out=options.out, tell=_tell)
    except NoDevice as problem:
        _tell(f"error: --device cuda: {problem}; --device cpu --quick tries the script itself")
        sys.exit(2)
    report["targets"] = targets(report, setting.large)
    report["ok"] = ok(report)
    write(options.out, report)
    print(table(report))
    print(f"spent {report['spent_s']:.0f} of {options.budget_s:g} s; all numbers in {options.out}")
    sys.exit(0 if report["ok"] else 1)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=240.0, help="seconds; what does not fit is skipped, and said")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check.json"), help="JSON, written after every row")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="toy sizes; no number means anything")
    parser.add_argument("--stages", metavar="NAME,...", help="only these, in the order above")
    options = parser.parse_args()
    names = [one.name for one in STAGES]
    options.stages = options.stages.split(",") if options.stages else names
    if unknown := sorted(set(options.stages) - set(names)):
        parser.error(f"--stages: no such stage: {', '.join(unknown)}; there are {', '.join(names)}")
    return options


if __name__ == "__main__":
    main()
