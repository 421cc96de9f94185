"""cbbench serve: the reference engine behind the OpenAI API."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cbbench.cli.options import CONFIG_FILE, DEBUG, options_of, takes

if TYPE_CHECKING:
    from socket import socket

    from cbbench.settings.run import RunSettings
    from engines.serve.api_key import ApiKeys
    from engines.serve.server import Server


def serve_options() -> list[inspect.Parameter]:
    """The settings of the engine that is served here."""
    from cbbench.settings.run import RunSettings

    return options_of(RunSettings, lambda one: one.facts.served)


@takes(serve_options, CONFIG_FILE, DEBUG)
def command(
    host: Annotated[
        str, typer.Option(metavar="NAME", help="Address to listen at; the default is reached from this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="Port to listen at; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What clients call the model. Default: the value of --model.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Clients must send this key: env:NAME is an environment variable, file:PATH a file with one key on "
            "each line. Health and metrics need none. Default: no key is wanted.",
        ),
    ] = None,
    drain: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, help="When told to stop: grace period in seconds before requests in flight are aborted."
        ),
    ] = 30.0,
    **given: Any,
) -> int:
    """Serve the engine over HTTP like OpenAI: completions, chats, models, health and Prometheus metrics."""
    from cbbench.settings.build import build_settings
    from cbbench.settings.run import RunSettings
    from cbbench.settings.sources import gather
    from engines.serve.api_key import read_api_keys
    from engines.serve.server import bind

    keys = None if api_key is None else read_api_keys(api_key)
    known = RunSettings.all()  # cbbench.toml may hold more, for runs
    settings = build_settings({key: value for key, value in gather("serve", given).items() if known[key].facts.served})
    with bind(host, port) as bound:
        server = _build(settings, served_model_name or settings.engine.model, keys)
        return _run(server, bound, drain, f"{settings.scheduler.mode} · {served_model_name or settings.engine.model}")


def _build(settings: RunSettings, name: str, keys: ApiKeys | None) -> Server:
    from cbbench.experiment.engine_factories.reference import ReferenceFactory
    from engines.serve.server import reference_server

    reference = ReferenceFactory(settings)
    scheduler = reference.scheduler(settings, reference.kv_blocks(settings, most=None))
    return reference_server(
        reference.model,
        scheduler,
        name=name,
        random_weights=settings.engine.weights == "random",
        attention=settings.engine.attention,
        cuda_graphs=settings.engine.cuda_graphs,
        keys=keys,
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
