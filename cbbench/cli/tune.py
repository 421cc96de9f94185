"""cbbench tune: the setting with the highest goodput under the SLA, and why it is the one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cbbench.cli.options import CONFIG_FILE, DEBUG, run_options, takes


@takes(run_options, CONFIG_FILE, DEBUG)
def command(
    most_runs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs to explore with, at most.")] = 24,
    confirm_runs: Annotated[
        int, typer.Option(min=1, metavar="N", help="After the simulator: runs of the real engine, at most.")
    ] = 4,
    proof_requests: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="On the simulator: requests of a run that proves what was found, at most."
        ),
    ] = 20_000,
    **given: Any,
) -> int:
    """Search max-num-seqs, tokens per step and per prompt, admission, order and buckets for the highest goodput within
    --sla, and say why.

    With --step-time-model RUN (or --hardware NAME) it explores on the simulator and confirms on the real engine; with
    --engine simulated it only predicts; with neither, every run is real. On the simulator it then tries what it found
    with as many requests as a proof takes, and goes on from there if that fails. The outcome is a cbbench.toml, with
    the flags of vLLM and SGLang that mean the same.
    """
    from cbbench.experiment.tune import tune
    from cbbench.settings.sources import gather

    return tune(gather("tune", given), most_runs=most_runs, confirm_runs=confirm_runs, proof_requests=proof_requests)
