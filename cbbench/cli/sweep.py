"""cbbench sweep: the same work at several values of one setting, and the value to use."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cbbench.cli.options import CONFIG_FILE, DEBUG, RUN_OPTIONS, takes


@takes(*RUN_OPTIONS, CONFIG_FILE, DEBUG)
def command(
    param: Annotated[
        str,
        typer.Argument(
            metavar="PARAM",
            help="What to vary: max-num-seqs, max-num-batched-tokens, kv-blocks, concurrency, rate or mode; with "
            "{value} in --launch, any word for what it sets.",
        ),
    ],
    values: Annotated[str, typer.Option(metavar="V,V,...", help="The values to try, as in 1,4,16,32. Required.")],
    **given: Any,
) -> int:
    """Run the same requests at each value of one setting and recommend one; with -o DIR a broken-off sweep resumes."""
    from cbbench.config import UsageError
    from cbbench.experiment.sweep import sweep
    from cbbench.settings import gather

    of_the_server = "{value}" in (given.get("launch") or "")
    if given.get(param.replace("-", "_")) is not None and not of_the_server:
        raise UsageError(f"--{param} is what the sweep varies; give its values by --values alone")
    return sweep(param, values, gather("sweep", given))
