"""cbbench run: one run, its folder and its verdict."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from cbbench.cli.options import CONFIG_FILE, DEBUG, run_options, takes
from cbbench.cli.percentiles import PERCENTILES, read_percentiles


@takes(run_options, CONFIG_FILE, DEBUG)
def command(
    percentiles: Annotated[str | None, PERCENTILES] = None,
    until_decided: Annotated[
        bool | None,
        typer.Option(
            "--until-decided",
            rich_help_panel="Judgement",
            help="Go on, in rounds with other seeds, until every SLA is decided. --num-requests fixes the number "
            "instead. Default: off.",
        ),
    ] = None,
    max_requests: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            rich_help_panel="Judgement",
            help="With --until-decided: requests of all rounds. Default: 20,000.",
        ),
    ] = None,
    max_duration: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0,
            rich_help_panel="Judgement",
            help="With --until-decided: seconds of all rounds; no round begins that would exceed them. Default: none.",
        ),
    ] = None,
    **given: Any,
) -> int:
    """Run one workload once: throughput, TTFT, TPOT and where the work went.

    cbbench run --model tiny --workload bus-stop --mode static

    cbbench run --workload azure-conv --rate 2 --num-requests 100 --sla "p99_ttft_ms<=500"

    cbbench run --url http://127.0.0.1:8000 --concurrency 16

    cbbench run --engine simulated --hardware h100 --model llama-3.1-8b --rate 6 --num-requests 400
    """
    from cbbench.experiment.run import run
    from cbbench.experiment.until_decided import Limits, run_until_decided
    from cbbench.settings.build import build_settings
    from cbbench.settings.sources import gather
    from workloads.errors import CbbenchError

    for name, value in (("max_requests", max_requests), ("max_duration", max_duration)):
        if value is not None and not until_decided:
            raise CbbenchError(name, "needs `until_decided`")
    settings = build_settings(gather("run", given))
    if not until_decided:
        return run(settings, read_percentiles(percentiles))
    if given.get("num_requests") is not None:
        print(f"note: the run has {settings.workload.num_requests:,} requests, as --num-requests says", file=sys.stderr)
        return run(settings, read_percentiles(percentiles))
    limits = Limits(max_duration_s=max_duration) if max_requests is None else Limits(max_requests, max_duration)
    return run_until_decided(settings, limits)
