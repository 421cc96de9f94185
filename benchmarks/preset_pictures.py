"""Draw the pictures of docs/workloads.md: the lengths of each preset, from a sample of 50,000.

python benchmarks/preset_pictures.py [--out docs/presets]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cbbench.experiment.workload_picture import length_chart, length_svg
from workloads.presets import PRESETS
from workloads.spec import build_plan

LEFT_OUT = ("bus-stop", "azure-conv-v2")  # three rows; the same picture as azure-conv's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "presets")
    out = parser.parse_args().out
    out.mkdir(exist_ok=True)
    for name, preset in PRESETS.items():
        if name in LEFT_OUT:
            continue
        plan = build_plan(name, num_requests=50_000, seed=0, arrival="constant", max_model_len=None)
        columns = {"prompt": plan.prompt_tokens, "output": plan.output_tokens}
        drawn = length_svg(length_chart(name, name, columns, preset.description))
        (out / f"{name}.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
