"""Server: from a bound socket to the end of the last stream. reference_server: one over the reference engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from engines.garbage import light_garbage_collection
from engines.loop import Instance, WallClock
from engines.scheduling.config import SchedulerConfig
from engines.serve.api_key import ApiKeys
from engines.serve.app import Api, ServedModel, make_app
from engines.serve.engine import EngineThread
from engines.serve.metrics import Metrics
from engines.tokenizers.model_text import ModelText, load_model_text, model_files
from workloads.errors import CbbenchError, ExitCode

if TYPE_CHECKING:
    from engines.reference.model.weights import LoadedModel

GRACE_S = 2.0  # for handlers to end their responses, once the engine has ended


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address but not listening, so that a port in use is an error before the model is loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, OverflowError) as error:
        raise CbbenchError("host", f"{host}, `port` {port}: {error}") from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise CbbenchError("port", f"{port}: cannot listen at {host}: {error.strerror}") from None
    return bound


class Server:
    """Made on any thread; `run` is for one event loop, once."""

    def __init__(
        self, instance: Instance, clock: WallClock, text: ModelText, served: ServedModel, keys: ApiKeys | None = None
    ) -> None:
        """keys: who may use the API; None: all."""
        metrics = Metrics(served.name, served.max_model_len, prefix_caching=instance.scheduler.kv.index.enabled)
        self.engine = EngineThread(instance, clock, on_step=metrics.take)
        self._app = make_app(Api(self.engine, text, served, metrics), keys)
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Stop and drain; a second call aborts. On the event loop's thread."""
        if self._stop.is_set():
            self.engine.hurry()
        self._stop.set()

    async def run(self, bound: socket.socket, drain_s: float, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`, then let running requests end for `drain_s`. CbbenchError where the engine dies.

        ready: called when the server accepts requests.
        """
        with light_garbage_collection():
            await self._run(bound, drain_s, ready)

    async def _run(self, bound: socket.socket, drain_s: float, ready: Callable[[], None]) -> None:
        self.engine.start()
        runner = web.AppRunner(
            self._app,
            access_log=None,
            handler_cancellation=True,  # a handler ends when its client disconnects, even while it writes nothing
            shutdown_timeout=GRACE_S,
        )
        await runner.setup()
        site = web.SockSite(runner, bound)
        try:
            await site.start()
            ready()
            stopped: asyncio.Future[Any] = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait([stopped, self.engine.done], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            await site.stop()  # new connections are refused from here on
        finally:
            await self.engine.stop(drain_s)
            await runner.cleanup()
        if (error := self.engine.done.result()) is not None:
            raise CbbenchError(None, f"the engine died: {type(error).__name__}: {error}", ExitCode.ERROR) from error


def reference_server(
    model: LoadedModel,
    config: SchedulerConfig,
    *,
    name: str,
    random_weights: bool,
    attention: str = "auto",
    cuda_graphs: bool | None = None,
    keys: ApiKeys | None = None,
) -> Server:
    """The reference engine's runtime, with the text of its model."""
    from engines.reference.engine import ReferenceEngine  # loads torch

    engine = ReferenceEngine(model, config, attention=attention, cuda_graphs=cuda_graphs)
    served = ServedModel(name, model.llama.config.vocab, config.max_model_len, config.kv_blocks * config.block_size)
    text = load_model_text(None if random_weights else model_files(model.name))
    return Server(engine.instance(), engine.clock, text, served, keys)
