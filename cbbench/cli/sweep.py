"""cbbench sweep: the same work at several values of one or two settings, and the values to use."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cbbench.cli.options import CONFIG_FILE, DEBUG, run_options, takes

SWEEP = "Sweep"


@takes(run_options, CONFIG_FILE, DEBUG)
def command(
    param: Annotated[
        str,
        typer.Argument(
            metavar="PARAM[,PARAM]",
            help="What to vary: one or two settings of a run, by the names of their flags, as in max-num-seqs, rate, "
            "mode, kv-blocks or chunked-prefill. With {PARAM} in --launch, any word for what it sets there.",
        ),
    ],
    values: Annotated[
        list[str] | None,
        typer.Option(
            metavar="V,V,...",
            rich_help_panel=SWEEP,
            help="The values to try, as in 1,4,16,32; for two settings twice, in their order, and every combination is "
            "measured. With | between values that have commas.",
        ),
    ] = None,
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive",
            rich_help_panel=SWEEP,
            help="Instead of --values: try powers of two, then look closer around the knee and around the edge of the "
            "SLA. A rate climbs until arrivals outrun completions.",
        ),
    ] = False,
    between: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH",
            rich_help_panel=SWEEP,
            help="Bounds of --adaptive. Default: by the workload, for max-num-seqs, max-num-batched-tokens, kv-blocks, "
            "concurrency and rate.",
        ),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=1000,
            rich_help_panel=SWEEP,
            show_default=False,
            help="Runs of each setting, in turns (A B C, C B A, ...); from 3 on they give intervals. Default: 1.",
        ),
    ] = 1,
    every_rate: Annotated[
        bool,
        typer.Option(
            "--every-rate",
            rich_help_panel=SWEEP,
            help="Measure the rates above the first at which arrivals outrun completions too. Default: skip them.",
        ),
    ] = False,
    **given: Any,
) -> int:
    """Run the same requests at each setting, draw the curve and recommend one; with -o DIR a broken-off sweep resumes.

    cbbench sweep max-num-seqs --values 1,4,16,32 --sla "p99_tpot_ms<=50"

    cbbench sweep max-num-seqs,mode --values 4,16 --values static,continuous

    cbbench sweep rate --adaptive --sla "p99_ttft_ms<=500"

    cbbench sweep max-num-seqs --values 8,16 --launch "vllm serve MODEL --max-num-seqs {max-num-seqs} --port {port}"
    """
    from cbbench.experiment.sweep import SweepRequest, sweep
    from cbbench.settings.sources import gather

    asked = SweepRequest(param, tuple(values or ()), adaptive, between, repeat, every_rate)
    return sweep(asked, gather("sweep", given, swept=param.split(",")), given)
