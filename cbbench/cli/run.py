"""cbbench run: one run, its folder and its verdict."""

from __future__ import annotations

from typing import Annotated, Any

from cbbench.cli.options import CONFIG_FILE, DEBUG, run_options, takes
from cbbench.cli.percentiles import PERCENTILES, read_percentiles


@takes(run_options, CONFIG_FILE, DEBUG)
def command(percentiles: Annotated[str | None, PERCENTILES] = None, **given: Any) -> int:
    """Run one workload once: throughput, TTFT, TPOT and where the work went.

    cbbench run --model tiny --workload bus-stop --mode static

    cbbench run --workload azure-conv --rate 2 --num-requests 100 --sla "p99_ttft_ms<=500"

    cbbench run --url http://127.0.0.1:8000 --concurrency 16

    cbbench run --engine simulated --hardware h100 --model llama-3.1-8b --rate 6 --num-requests 400
    """
    from cbbench.experiment.run import run
    from cbbench.settings.build import build_settings
    from cbbench.settings.sources import gather

    return run(build_settings(gather("run", given)), read_percentiles(percentiles))
