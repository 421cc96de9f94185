"""The command line of a script that runs stages: its options, and what becomes of the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.setting import Setting, Stage
from benchmarks.gpu.supervise import NoDevice, supervise, write
from benchmarks.gpu.table import ok, table, targets

Lines = Callable[[dict[str, Any]], list[str]]  # of a finished report


def main(stages: Sequence[Stage], doc: str, *, budget_s: float, out: str, more: Lines = lambda report: []) -> None:
    """more: lines under the table. Exit code 0, 1 where something failed or was wrong, 2 without a GPU."""
    options = _options(stages, doc, budget_s, out)
    setting = Setting(options.device, options.quick)
    asked = [one for one in stages if one.name in options.stages]
    try:
        report = supervise(asked, setting, budget_s=options.budget_s, out=options.out, tell=_tell)
    except NoDevice as problem:
        _tell(f"error: --device cuda: {problem}; --device cpu --quick tries the script itself")
        sys.exit(2)
    report["targets"] = targets(report, setting.large)
    report["ok"] = ok(report)
    write(options.out, report)
    print("\n".join([table(report), *more(report)]))
    print(f"spent {report['spent_s']:.0f} of {options.budget_s:g} s; all numbers in {options.out}")
    sys.exit(0 if report["ok"] else 1)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(stages: Sequence[Stage], doc: str, budget_s: float, out: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--budget-s", type=float, default=budget_s, help="seconds; what does not fit is skipped, and said"
    )
    parser.add_argument("--out", type=Path, default=Path(out), help="JSON, written after every row")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="toy sizes; no number means anything")
    parser.add_argument("--stages", metavar="NAME,...", help="only these, in the order above")
    options = parser.parse_args()
    names = [one.name for one in stages]
    options.stages = options.stages.split(",") if options.stages else names
    if unknown := sorted(set(options.stages) - set(names)):
        parser.error(f"--stages: no such stage: {', '.join(unknown)}; there are {', '.join(names)}")
    return options
