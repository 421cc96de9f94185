"""What the points of a sweep run on: one bench for all, or a server of its own for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import msgspec

from cbbench.config import RunConfig, UsageError
from cbbench.experiment.bench import Bench

Place = tuple[Bench, RunConfig]  # where a point is measured, and with which settings


class Benches(Protocol):
    plan_sha256: str | None  # of the requests that all points share; None until there is a server to ask

    def at(self, config: RunConfig, value: str, log: Path) -> AbstractContextManager[Place]: ...


class OneBench:
    def __init__(self, base: RunConfig) -> None:
        self._bench = Bench(base)
        self.plan_sha256: str | None = self._bench.plan(base).sha256

    def at(self, config: RunConfig, value: str, log: Path) -> AbstractContextManager[Place]:
        return nullcontext((self._bench, config))


class BenchPerPoint:
    def __init__(self, plan_sha256: str | None) -> None:
        """plan_sha256: of the points of an earlier call."""
        self.plan_sha256 = plan_sha256

    @contextmanager
    def at(self, config: RunConfig, value: str, log: Path) -> Iterator[Place]:
        with server_for(config, value, log) as served:
            bench = Bench(served)
            sha256 = bench.plan(served).sha256
            if self.plan_sha256 not in (None, sha256):
                context = bench.kind.context_tokens(served)
                raise UsageError(
                    f"this server's context of {context} tokens makes other requests than the points before, so that "
                    "they cannot be compared; --max-model-len N holds it for all"
                )
            self.plan_sha256 = sha256
            yield bench, served


@contextmanager
def server_for(config: RunConfig, value: str, log: Path) -> Iterator[RunConfig]:
    """The settings with the address of the server that --launch starts; as they are where nothing is launched."""
    if config.launch is None:
        yield config
        return
    from engines.remote.launch import launched

    log.parent.mkdir(parents=True, exist_ok=True)
    with launched(config.launch, value, log, config.ready_timeout) as url:
        yield msgspec.structs.replace(config, url=url)
