"""cbbench gate: may this run be merged? SLAs, and a comparison with a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cbbench.cli.options import DEBUG, takes


@takes(DEBUG)
def command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, folders of such folders, or result files.")
    ],
    sla: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPR",
            help="A bound, as in 'p99_ttft_ms<=500', 'p99_ttft_ms\\[tenant=quiet]<=500' or '…\\[stage=3]<=500', or "
            "mlperf:llama2-70b-interactive; repeat for more. Default: the run's own.",
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(metavar="P", help="Confidence of every verdict. Default: the run's own; 0.99 for mlperf presets."),
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="What to compare with, a run for each RUN or one for all; repeat for more. Default: none.",
        ),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=PCT",
            help="How much worse a metric may be, as in tpot=3% or e2el\\[tenant=quiet]=5%; repeat for more. Default: "
            "tpot=3%, e2el=5%, ttft=5% and throughput=3%; none at all between simulated runs.",
        ),
    ] = None,
    allow_different: Annotated[
        bool, typer.Option("--allow-different", help="Compare even where the requests were not the same.")
    ] = False,
    assist: Annotated[
        bool,
        typer.Option(
            "--assist",
            help="Model-assisted verdicts on P99 and other percentiles: corrected by simulations with step times "
            "calibrated on the run itself, and labelled so. For runs of cbbench's own engines. Default: off.",
        ),
    ] = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Annotate the GitHub job, and add to its step summary.")
    ] = False,
    benchmark_json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the JSON of github-action-benchmark.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
    **given: Any,
) -> int:
    """Judge stored runs: exit code 0 pass, 3 SLA failed, 4 worse than the baseline, 5 inconclusive, 7 invalid load.

    Several runs of one setting with other seeds are judged together.
    """
    from cbbench.experiment.judge_runs import Outputs, Question, judge

    question = Question(
        runs=tuple(runs),
        sla=tuple(sla or ()),
        confidence=confidence,
        baseline=tuple(baseline or ()),
        budget=tuple(budget or ()),
        allow_different=allow_different,
        assist=assist,
    )
    return judge(question, Outputs(junit=junit, github=github, benchmark_json=benchmark_json, json=json))
