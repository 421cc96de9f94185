"""Where the presets come from: source, licence, citation and steps, what each is, and what its source lacks."""

from __future__ import annotations

from workloads.presets import Origin

STRATA = 64
AZURE = "https://github.com/Azure/AzurePublicDataset"
AZURE_COMMIT = "b469a113cedca53ddc3bdea71a143dc4b7d8700c"
AZURE_LICENCE = "CC-BY-4.0"
SPLITWISE = (
    "Patel, Choukse, Zhang, Shah, Goiri, Maleki, Bianchini: Splitwise: Efficient Generative LLM Inference Using "
    "Phase Splitting. ISCA 2024"
)
MOONCAKE = "https://github.com/kvcache-ai/Mooncake"
MOONCAKE_COMMIT = "3b5a594133958449a1feaf1c9e0fc1b553e34a28"
MOONCAKE_PAPER = (
    "Qin et al.: Mooncake: Trading More Storage for Less Computation, a KVCache-centric Architecture for Serving LLM "
    "Chatbot. FAST 2025"
)
GRID_STEP = (
    f"rows sorted by prompt (equal prompts in trace order) and cut into {STRATA} strata of equal size; kept are "
    "quantiles of the prompts and of the outputs within each stratum"
)
GAP_STEP = "gaps between arrivals kept in trace order, rounded to a thousandth of the mean gap"

DESCRIPTIONS = {
    "azure-conv": "Conversations with an Azure LLM service, 2023: two-humped outputs, a wall of prompts near 4,096",
    "azure-code": "Code completion in an Azure LLM service, 2023: long prompts, very short outputs, silent spells",
    "azure-conv-v2": "azure-conv with the largest prompts of its source, up to 14,050; azure-conv ends at 7,096",
    "mooncake-conversation": "Long conversations with the Kimi chat service, 2024: 12,000 tokens in, up to 126,000",
    "mooncake-synthetic": "Long documents and questions on them, put together by Mooncake: 15,000 tokens in, 150 out",
    "deepseek-r1": "A DeepSeek-R1 service of Alibaba, one day: outputs with reasoning, 1,500 tokens and up to 32,768",
    "claude-code": "Calls of Claude Code, 2025: 117,000 tokens in and 438 out on average",
    "arxiv-summarization": "Summaries of arXiv papers, Llama-2 tokens, kept below 4,096 in total",
    "sharegpt": "ShareGPT chats with their history as prompt, Llama-2 tokens, kept below 8,192 in total and 1,024 out",
}
ORIGINS = {
    "azure-conv": Origin(
        AZURE, "data/AzureLLMInferenceTrace_conv.csv", AZURE_COMMIT, AZURE_LICENCE, SPLITWISE, (GRID_STEP, GAP_STEP)
    ),
    "azure-code": Origin(
        AZURE, "data/AzureLLMInferenceTrace_code.csv", AZURE_COMMIT, AZURE_LICENCE, SPLITWISE, (GRID_STEP, GAP_STEP)
    ),
    "azure-conv-v2": Origin(
        AZURE,
        "data/AzureLLMInferenceTrace_conv.csv",
        AZURE_COMMIT,
        AZURE_LICENCE,
        SPLITWISE,
        (GRID_STEP, "of the top prompt quantile, sixteen quantiles of its own", GAP_STEP),
    ),
    "mooncake-conversation": Origin(
        MOONCAKE,
        "FAST25-release/traces/conversation_trace.jsonl",
        MOONCAKE_COMMIT,
        "Apache-2.0",
        MOONCAKE_PAPER,
        (GRID_STEP, "arrivals, which have a clock of 3 s, spread evenly at random within each tick", GAP_STEP),
    ),
    "mooncake-synthetic": Origin(
        MOONCAKE,
        "FAST25-release/traces/synthetic_trace.jsonl",
        MOONCAKE_COMMIT,
        "Apache-2.0",
        MOONCAKE_PAPER,
        (GRID_STEP.replace("64", "32"), GAP_STEP),
    ),
    "deepseek-r1": Origin(
        "https://github.com/alibaba/ServeGen",
        "data/reason/deepseek-r1",
        "f891d1189eb32b3868dfc443800c4150548c282a",
        "Apache-2.0",
        "Xiang et al.: ServeGen: Workload Characterization and Generation of Large Language Model Serving in "
        "Production. arXiv 2505.09999",
        ("length histograms of 73 clients and all windows counted together; kept are quantiles of each side",),
    ),
    "claude-code": Origin(
        "https://github.com/callanjfox/kv-cache-tester",
        "traces",
        "94f6046dfd9c0c8bc0cdb24a5aa6579bac8669bf",
        "Apache-2.0",
        "Fox: kv-cache-tester, traces of Claude Code sessions, 2024",
        (
            "710 of 739 sessions: the 29 largest files were not at hand, so the longest prompts are missing",
            "sessions that begin with the same three calls as an earlier one, and calls without output, left out",
            GRID_STEP,
        ),
    ),
    "arxiv-summarization": Origin(
        "https://github.com/project-etalon/etalon",
        "data/processed_traces/arxiv_summarization_filtered_stats_llama2_tokenizer.csv",
        "d5f18de15a2227a2d469365afc4fa9e2df0c631d",
        "Apache-2.0",
        "Agrawal et al.: Etalon: Holistic Performance Evaluation Framework for LLM Inference Systems. arXiv 2407.07000",
        ("lengths only: nothing of the text of the papers is here", GRID_STEP),
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
_NO_TIMES = "arrival times: the source has none"
_NO_PREFIXES = "shared prefixes: the source has them, a replay of its file keeps them"
LACKS = {
    "mooncake-conversation": (_NO_PREFIXES, "gaps below 3 s: the clock of the source ticks every 3 s"),
    "mooncake-synthetic": (_NO_PREFIXES, "arrivals of users: those of the source are a Poisson process"),
    "deepseek-r1": (
        "which output belongs to which prompt: the source has them apart, so they are drawn independently",
        "arrival times: the source has a rate for each client and ten minutes",
    ),
    "claude-code": ("arrival times: each session of the source has a clock of its own",),
    "arxiv-summarization": (_NO_TIMES,),
}
