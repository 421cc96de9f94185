"""Make the presets of workloads/presets from the trace files they come from.

    python benchmarks/derive_presets.py azure-conv=AzureLLMInferenceTrace_conv.csv \
        azure-code=AzureLLMInferenceTrace_code.csv sharegpt=sharegpt_8k_filtered_stats_llama2_tokenizer.csv

Each argument is PRESET=FILE; gzip files are read too. preset_origins.py says where the files can be had, and
trace_sources.py reads them. The result goes to --out, and how far the grid is from its source (Kolmogorov-Smirnov
distance) is printed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from preset_origins import DESCRIPTIONS, LACKS, ORIGINS
from trace_sources import Source, read_source

from workloads.derivation import joint_grid, ks_distance, source_numbers, top_quantiles, unit_gaps, write_preset
from workloads.length_pairs import IndependentLengths, JointGrid
from workloads.presets import Preset
from workloads.sampling import resample

MARGINAL_CELLS = 4_096
TAIL_CELLS = 16


@dataclass(frozen=True)
class Grid:
    """Sizes of a joint grid. gaps: how many are kept, so that the file stays under 100 KB; None: all."""

    outputs: int = 256
    strata: int = 64
    prompts: int = 32
    gaps: int | None = None


GRIDS = {
    "azure-conv": Grid(gaps=6_000),
    "azure-conv-v2": Grid(gaps=6_000),
    "azure-code": Grid(outputs=128),  # of 138 rows each; the others of the first three have 300 and more
    "sharegpt": Grid(),
    "mooncake-conversation": Grid(outputs=128, gaps=6_000),  # of 188 rows
    "mooncake-synthetic": Grid(strata=32, outputs=64),  # of 125 rows
    "claude-code": Grid(outputs=128),
    "arxiv-summarization": Grid(outputs=128),
}


def derive(name: str, source: Source) -> Preset:
    common: dict[str, Any] = {"name": name, "description": DESCRIPTIONS[name], "origin": ORIGINS[name]}
    common |= {
        "own": source_numbers(source.prompts, source.outputs, paired=source.paired),
        "lacks": LACKS.get(name, ()),
    }
    if not source.paired:
        marginals = [
            tuple(resample(np.sort(side), MARGINAL_CELLS).tolist()) for side in (source.prompts, source.outputs)
        ]
        return Preset(**common, prompt_marginal=marginals[0], output_marginal=marginals[1])
    grid = GRIDS[name]
    prompt_grid, output_grid = joint_grid(source.prompts, source.outputs, grid.strata, grid.prompts, grid.outputs)
    gaps, rate_per_s = unit_gaps(source.arrivals_us, grid.gaps)
    tail = name == "azure-conv-v2"
    return Preset(
        **common,
        trace_rate_per_s=rate_per_s,
        prompt_grid=prompt_grid,
        prompt_tail=top_quantiles(source.prompts, grid.strata * grid.prompts, TAIL_CELLS) if tail else (),
        output_grid=output_grid,
        trace_gaps=gaps,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Derive presets from trace files.")
    parser.add_argument("sources", nargs="+", metavar="PRESET=FILE", help=f"presets: {', '.join(ORIGINS)}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "workloads" / "presets")
    arguments = parser.parse_args()
    for argument in arguments.sources:
        name, _, path = argument.partition("=")
        if name not in ORIGINS or not path:
            parser.error(f"'{argument}': want PRESET=FILE with PRESET one of {', '.join(ORIGINS)}")
        source = read_source(name, Path(path))
        preset = derive(name, source)
        written = arguments.out / f"{name}.json"
        write_preset(preset, written)
        lengths = preset.lengths
        if isinstance(lengths, JointGrid):
            kept = lengths.prompts.reshape(-1), lengths.outputs.reshape(-1)
        else:
            assert isinstance(lengths, IndependentLengths)
            kept = lengths.prompt.grid, lengths.output.grid
        print(
            f"{written.name}: {written.stat().st_size:,} bytes from {len(source.prompts):,} rows; KS distance "
            f"prompt {ks_distance(kept[0], source.prompts):.4f} output {ks_distance(kept[1], source.outputs):.4f}"
        )


if __name__ == "__main__":
    main()
