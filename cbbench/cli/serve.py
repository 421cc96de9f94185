"""cbbench serve: the reference engine behind the OpenAI API."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cbbench.cli.options import (
    CONFIG_FILE,
    DEBUG,
    JUDGEMENT,
    ON_OFF,
    OUTPUT,
    PAIR,
    RUN_OPTIONS,
    SERVER,
    WORKLOAD,
    takes,
)

if TYPE_CHECKING:
    from socket import socket

    from cbbench.config import RunConfig
    from engines.serve.server import Server

_OF_A_RUN = (SERVER, WORKLOAD, PAIR, JUDGEMENT, OUTPUT)
_OF_OTHER_ENGINES = ("engine", "law", "hardware")


def _served(parameter: Any) -> bool:
    """Whether an option of `run` is a setting of the engine that is served here."""
    panel = parameter.annotation.__metadata__[0].rich_help_panel
    return panel.removesuffix(ON_OFF) not in _OF_A_RUN and parameter.name not in _OF_OTHER_ENGINES


SERVE_OPTIONS = tuple(filter(_served, RUN_OPTIONS))
_SETTINGS = {one.name for one in SERVE_OPTIONS}  # cbbench.toml may hold more, for runs


@takes(*SERVE_OPTIONS, CONFIG_FILE, DEBUG)
def command(
    host: Annotated[
        str, typer.Option(metavar="NAME", help="Address to listen at; the default is reached from this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="Port to listen at; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What clients call the model. Default: the value of --model.")
    ] = None,
    drain: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, help="When told to stop: let what runs end for this many seconds, then break it off."
        ),
    ] = 30.0,
    **given: Any,
) -> int:
    """Serve the engine over HTTP like OpenAI: completions, chats, models, health and Prometheus metrics."""
    from cbbench.settings import gather
    from cbbench.validation import build_config
    from engines.serve.server import bind

    config = build_config({key: value for key, value in gather("serve", given).items() if key in _SETTINGS})
    with bind(host, port) as bound:
        server = _build(config, served_model_name or config.model)
        return _run(server, bound, drain, f"{config.mode} · {served_model_name or config.model}")


def _build(config: RunConfig, name: str) -> Server:
    from cbbench.experiment.engine_factories.reference import Reference
    from engines.serve.server import reference_server

    reference = Reference(config)
    scheduler = reference.scheduler(config, reference.kv_blocks(config, most=None))
    return reference_server(
        reference.model,
        scheduler,
        name=name,
        random_weights=config.weights == "random",
        attention=config.attention,
        cuda_graphs=config.cuda_graphs,
    )


def _run(server: Server, bound: socket, drain_s: float, title: str) -> int:
    import asyncio
    import signal

    async def until_told() -> None:
        loop = asyncio.get_running_loop()
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, server.stop)
        host, port = bound.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        await server.run(bound, drain_s, ready=lambda: print(f"{title} at {url}/v1 (Ctrl-C stops)", file=sys.stderr))

    asyncio.run(until_told())
    return 0
