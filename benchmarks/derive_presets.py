"""Make the presets of workloads/presets from the trace files they come from.

    python benchmarks/derive_presets.py azure-conv=AzureLLMInferenceTrace_conv.csv \
        azure-code=AzureLLMInferenceTrace_code.csv sharegpt=sharegpt_8k_filtered_stats_llama2_tokenizer.csv

Each argument is PRESET=FILE; gzip files are read too. The sources below say where the files can be had. The result
goes to --out, and how far the grid is from its source (Kolmogorov-Smirnov distance) is printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import numpy as np

from workloads.columns import IntColumn
from workloads.length_pairs import BATCHES, JointGrid, correlation, max_over_mean, percentiles
from workloads.presets import Origin, Own, Preset
from workloads.sampling import resample
from workloads.workload_files import WorkloadFile, read_workload_file

STRATA = 64
PROMPTS_PER_STRATUM = 32
OUTPUTS_PER_STRATUM = {"azure-code": 128}  # of 138 rows each; the others have 300 and more
DEFAULT_OUTPUTS_PER_STRATUM = 256
MAX_GAPS = {"azure-conv": 6_000}  # from the start of the trace, so that the preset stays under 100 KB
AT = (0.001, 0.005, *(k / 100 for k in range(1, 100)), 0.995, 0.999)

AZURE = "https://github.com/Azure/AzurePublicDataset"
AZURE_COMMIT = "b469a113cedca53ddc3bdea71a143dc4b7d8700c"
AZURE_LICENCE = "CC-BY-4.0"
SPLITWISE = (
    "Patel, Choukse, Zhang, Shah, Goiri, Maleki, Bianchini: Splitwise: Efficient Generative LLM Inference Using "
    "Phase Splitting. ISCA 2024"
)
GRID_STEP = (
    f"rows sorted by prompt (equal prompts in trace order) and cut into {STRATA} strata of equal size; kept are "
    "quantiles of the prompts and of the outputs within each stratum"
)
GAP_STEP = "gaps between arrivals kept in trace order, rounded to a thousandth of the mean gap"

DESCRIPTIONS = {
    "azure-conv": "Conversations with an Azure LLM service, 2023: two-humped outputs, a wall of prompts near 4,096",
    "azure-code": "Code completion in an Azure LLM service, 2023: long prompts, very short outputs, silent spells",
    "sharegpt": "ShareGPT chats with their history as prompt, Llama-2 tokens, kept below 8,192 in total and 1,024 out",
}
ORIGINS = {
    "azure-conv": Origin(
        AZURE, "data/AzureLLMInferenceTrace_conv.csv", AZURE_COMMIT, AZURE_LICENCE, SPLITWISE, (GRID_STEP, GAP_STEP)
    ),
    "azure-code": Origin(
        AZURE, "data/AzureLLMInferenceTrace_code.csv", AZURE_COMMIT, AZURE_LICENCE, SPLITWISE, (GRID_STEP, GAP_STEP)
    ),
    "sharegpt": Origin(
        "https://github.com/project-etalon/etalon",
        "data/processed_traces/sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
        "d5f18de15a2227a2d469365afc4fa9e2df0c631d",
        "Apache-2.0",
        "Agrawal et al.: Etalon: Holistic Performance Evaluation Framework for LLM Inference Systems. arXiv 2407.07000",
        ("lengths only: nothing of the text of the ShareGPT corpus is here", GRID_STEP),
    ),
}


def derive(name: str, file: WorkloadFile) -> Preset:
    prompts, outputs = file.lengths.prompt_tokens, file.lengths.output_tokens
    order = np.argsort(prompts, kind="stable")
    strata = np.array_split(order, STRATA)
    per_stratum = OUTPUTS_PER_STRATUM.get(name, DEFAULT_OUTPUTS_PER_STRATUM)
    gaps, rate_per_s = unit_gaps(file, MAX_GAPS.get(name))
    return Preset(
        name=name,
        description=DESCRIPTIONS[name],
        origin=ORIGINS[name],
        own=own_numbers(prompts, outputs),
        trace_rate_per_s=rate_per_s,
        prompt_grid=tuple(tuple(resample(prompts[rows], PROMPTS_PER_STRATUM).tolist()) for rows in strata),
        output_grid=tuple(tuple(resample(np.sort(outputs[rows]), per_stratum).tolist()) for rows in strata),
        trace_gaps=tuple(gaps),
    )


def own_numbers(prompts: IntColumn, outputs: IntColumn) -> Own:
    def quantiles(tokens: IntColumn) -> tuple[int, ...]:
        return tuple(int(value) for value in np.quantile(tokens, AT, method="inverted_cdf"))

    def rounded(numbers: dict[str, float]) -> dict[str, float]:
        return {key: round(value, 4) for key, value in numbers.items()}

    return Own(
        pairs=len(prompts),
        prompt_tokens=rounded(percentiles(prompts)),
        output_tokens=rounded(percentiles(outputs)),
        correlation={
            key: None if value is None else round(value, 4) for key, value in correlation(prompts, outputs).items()
        },
        max_over_mean={str(batch): round(max_over_mean(outputs, batch), 4) for batch in BATCHES},
        at=AT,
        prompt_quantiles=quantiles(prompts),
        output_quantiles=quantiles(outputs),
    )


def unit_gaps(file: WorkloadFile, most: int | None) -> tuple[list[int], float]:
    """(gaps in thousandths of the mean gap, the trace's rate per s)"""
    if file.arrivals_us is None:
        return [], 0.0
    gaps_us = np.diff(file.arrivals_us)
    mean_us = float(gaps_us.mean())
    return np.rint(gaps_us[:most] * (1000 / mean_us)).astype(int).tolist(), round(1e6 / mean_us, 6)


def ks_distance(a: IntColumn, b: IntColumn) -> float:
    values = np.union1d(a, b)
    cdfs = [np.searchsorted(np.sort(column), values, side="right") / len(column) for column in (a, b)]
    return float(np.abs(cdfs[0] - cdfs[1]).max())


def write(preset: Preset, out: Path) -> Path:
    """One line per field of `origin` and `own` and per stratum, so that a person can look at the file."""

    def text(value: object, indent: str = " ") -> str:
        if isinstance(value, dict) and indent == " ":
            rows = [f'"{key}": {text(inner, "")}' for key, inner in value.items()]
            return "{\n  " + ",\n  ".join(rows) + "\n }"
        if isinstance(value, list) and value and isinstance(value[0], list):
            return "[\n  " + ",\n  ".join(text(row, "") for row in value) + "\n ]"
        return msgspec.json.encode(value).decode()

    fields = [f'"{key}": {text(value)}' for key, value in msgspec.json.decode(msgspec.json.encode(preset)).items()]
    path = out / f"{preset.name}.json"
    path.write_text("{\n " + ",\n ".join(fields) + "\n}\n", encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Derive presets from trace files.")
    parser.add_argument("sources", nargs="+", metavar="PRESET=FILE", help=f"presets: {', '.join(ORIGINS)}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "workloads" / "presets")
    arguments = parser.parse_args()
    for source in arguments.sources:
        name, _, path = source.partition("=")
        if name not in ORIGINS or not path:
            parser.error(f"'{source}': want PRESET=FILE with PRESET one of {', '.join(ORIGINS)}")
        file = read_workload_file(Path(path))
        preset = derive(name, file)
        written = write(preset, arguments.out)
        grid = preset.lengths
        assert isinstance(grid, JointGrid)
        print(
            f"{written.name}: {written.stat().st_size:,} bytes from {len(file.lengths):,} rows; KS distance "
            f"prompt {ks_distance(grid.prompts.reshape(-1), file.lengths.prompt_tokens):.4f} "
            f"output {ks_distance(grid.outputs.reshape(-1), file.lengths.output_tokens):.4f}"
        )


if __name__ == "__main__":
    main()
