"""What the points of a sweep run on: one bench for all, or a server of its own for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from cbbench.experiment.bench import Bench
from cbbench.settings.run import RunSettings
from reports.schema import RunFile
from workloads.errors import CbbenchError
from workloads.plan import RequestPlan

Work = tuple[str, str | None]  # the hash of a plan, and that of what its prompts say where a file has them
Place = tuple[Bench, RunSettings]  # where a point is measured, and with which settings


class Benches(Protocol):
    def plan_sha256(self, config: RunSettings) -> str | None:
        """Of the requests that a point of this config asks; None until there is a server to ask for its context."""
        ...

    def same_work(self, config: RunSettings, done: Work) -> bool:
        """Whether that work is what a point of this config asks, or what others of the same settings asked before."""
        ...

    def at(self, config: RunSettings, fill: Mapping[str, str], log: Path) -> AbstractContextManager[Place]: ...


class OneBench:
    def __init__(self, base: RunSettings) -> None:
        self.bench = Bench(base)
        self._known: dict[tuple[object, ...], Work] = {}

    def plan_sha256(self, config: RunSettings) -> str | None:
        return self._work(config)[0]

    def same_work(self, config: RunSettings, done: Work) -> bool:
        return self._work(config) == done

    def _work(self, config: RunSettings) -> Work:
        settings = config.plan_identity()
        if settings not in self._known:
            self._known[settings] = work_of_plan(self.bench.plan(config))
        return self._known[settings]

    def at(self, config: RunSettings, fill: Mapping[str, str], log: Path) -> AbstractContextManager[Place]:
        return nullcontext((self.bench, config))


class BenchPerPoint:
    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Work] = {}

    def plan_sha256(self, config: RunSettings) -> str | None:
        return known[0] if (known := self._known.get(config.plan_identity())) is not None else None

    def same_work(self, config: RunSettings, done: Work) -> bool:
        return self._known.setdefault(config.plan_identity(), done) == done

    @contextmanager
    def at(self, config: RunSettings, fill: Mapping[str, str], log: Path) -> Iterator[Place]:
        with server_for(config, fill, log) as served:
            bench = Bench(served)
            if not self.same_work(config, work_of_plan(bench.plan(served))):
                context = bench.factory.context_tokens(served)
                raise CbbenchError(
                    None,
                    f"this server's context of {context} tokens makes other requests than the points before, so that "
                    "they cannot be compared; `max_model_len` N holds it for all",
                )
            yield bench, served


def work_of_plan(plan: RequestPlan) -> Work:
    return plan.sha256, None if plan.texts is None else plan.texts.sha256


def work_of_run(run: RunFile) -> Work:
    return run.workload.sha256, run.workload.prompts_sha256


@contextmanager
def server_for(config: RunSettings, fill: Mapping[str, str], log: Path) -> Iterator[RunSettings]:
    """The settings with the address of the server that `launch` starts; as they are where nothing is launched."""
    if config.server.launch is None:
        yield config
        return
    from engines.remote.launch import launched

    log.parent.mkdir(parents=True, exist_ok=True)
    with launched(config.server.launch, fill, log, config.server.ready_timeout) as url:
        yield config.replaced(url=url)
