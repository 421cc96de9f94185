"""cbbench run: one run, its folder and its verdict."""

from __future__ import annotations

from typing import Any

from cbbench.cli.options import CONFIG_FILE, DEBUG, RUN_OPTIONS, takes


@takes(*RUN_OPTIONS, CONFIG_FILE, DEBUG)
def command(**given: Any) -> int:
    """Run one workload once: throughput, TTFT, TPOT and where the work went."""
    from cbbench.config import build_config
    from cbbench.experiment.run import run
    from cbbench.settings import gather

    return run(build_config(gather("run", given)))
