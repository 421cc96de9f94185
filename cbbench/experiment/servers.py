"""What the points of a sweep run on: one bench for all, or a server of its own for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import msgspec

from cbbench.config import RunConfig, UsageError
from cbbench.experiment.bench import Bench

Place = tuple[Bench, RunConfig]  # where a point is measured, and with which settings
WORK = ("workload", "tenants", "num_requests", "arrival", "seed", "max_model_len", "misfit")  # what makes a plan


class Benches(Protocol):
    def plan_sha256(self, config: RunConfig) -> str | None:
        """Of the requests that a point of this config asks; None until there is a server to ask for its context."""
        ...

    def same_work(self, config: RunConfig, sha256: str) -> bool:
        """Whether that plan is what a point of this config asks, or what others of the same settings asked before."""
        ...

    def at(self, config: RunConfig, fill: Mapping[str, str], log: Path) -> AbstractContextManager[Place]: ...


class OneBench:
    def __init__(self, base: RunConfig) -> None:
        self.bench = Bench(base)
        self._known: dict[tuple[object, ...], str] = {}

    def plan_sha256(self, config: RunConfig) -> str | None:
        work = work_of(config)
        if work not in self._known:
            self._known[work] = self.bench.plan(config).sha256
        return self._known[work]

    def same_work(self, config: RunConfig, sha256: str) -> bool:
        return self.plan_sha256(config) == sha256

    def at(self, config: RunConfig, fill: Mapping[str, str], log: Path) -> AbstractContextManager[Place]:
        return nullcontext((self.bench, config))


class BenchPerPoint:
    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], str] = {}

    def plan_sha256(self, config: RunConfig) -> str | None:
        return self._known.get(work_of(config))

    def same_work(self, config: RunConfig, sha256: str) -> bool:
        return self._known.setdefault(work_of(config), sha256) == sha256

    @contextmanager
    def at(self, config: RunConfig, fill: Mapping[str, str], log: Path) -> Iterator[Place]:
        with server_for(config, fill, log) as served:
            bench = Bench(served)
            if not self.same_work(config, bench.plan(served).sha256):
                context = bench.kind.context_tokens(served)
                raise UsageError(
                    f"this server's context of {context} tokens makes other requests than the points before, so that "
                    "they cannot be compared; --max-model-len N holds it for all"
                )
            yield bench, served


def work_of(config: RunConfig) -> tuple[object, ...]:
    """What decides about the plan, beside the context of a model or server."""
    return tuple(getattr(config, name) for name in WORK)


@contextmanager
def server_for(config: RunConfig, fill: Mapping[str, str], log: Path) -> Iterator[RunConfig]:
    """The settings with the address of the server that --launch starts; as they are where nothing is launched."""
    if config.launch is None:
        yield config
        return
    from engines.remote.launch import launched

    log.parent.mkdir(parents=True, exist_ok=True)
    with launched(config.launch, fill, log, config.ready_timeout) as url:
        yield msgspec.structs.replace(config, url=url)
