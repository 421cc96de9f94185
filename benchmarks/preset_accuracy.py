"""How far samples of the presets are from the traces they come from.

    python benchmarks/preset_accuracy.py FOLDER [--samples N] [--seed S]

FOLDER has the traces, by the names below. For each preset: the Kolmogorov-Smirnov distance of either side and, where
the source has pairs, both rank correlations. Exit code 1 above 0.03 of a distance or 0.05 of a correlation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from preset_origins import ORIGINS
from trace_sources import read_source

from workloads.derivation import ks_distance
from workloads.length_pairs import correlation
from workloads.spec import build_plan

MOST_KS, MOST_CORRELATION = 0.03, 0.05
FILES = {
    "azure-conv": "azure2023_conv.csv.gz",
    "azure-conv-v2": "azure2023_conv.csv.gz",
    "azure-code": "azure2023_code.csv.gz",
    "sharegpt": "sharegpt_8k_llama2tok.csv.gz",
    "mooncake-conversation": "mooncake_fast25_conversation.jsonl.gz",
    "mooncake-synthetic": "mooncake_fast25_synthetic.jsonl.gz",
    "deepseek-r1": "servegen_deepseek-r1_clients.jsonl.gz",
    "claude-code": "claudecode_kvcachetester_sessions.jsonl.gz",
    "arxiv-summarization": "arxiv_summ_llama2tok.csv.gz",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    good = True
    print(f"{'preset':22}{'KS prompt':>10}{'KS output':>11}{'rank correlation':>18}{'of the source':>15}")
    for name in ORIGINS:
        source = read_source(name, options.folder / FILES[name])
        plan = build_plan(name, num_requests=options.samples, seed=options.seed, arrival="constant", max_model_len=None)
        ks = ks_distance(plan.prompt_tokens, source.prompts), ks_distance(plan.output_tokens, source.outputs)
        good &= max(ks) <= MOST_KS
        cells = ["-", "-"]
        if source.paired:
            ranks = [
                correlation(*pair)["spearman"] or 0.0
                for pair in ((plan.prompt_tokens, plan.output_tokens), (source.prompts, source.outputs))
            ]
            good &= abs(ranks[0] - ranks[1]) <= MOST_CORRELATION
            cells = [f"{rank:.3f}" for rank in ranks]
        print(f"{name:22}{ks[0]:10.4f}{ks[1]:11.4f}{cells[0]:>18}{cells[1]:>15}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
