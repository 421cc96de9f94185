"""What the points of a sweep run on: one bench for all, or a server of its own for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import msgspec

from cbbench.config import RunConfig, UsageError
from cbbench.experiment.bench import Bench
from reports.schema import RunFile
from workloads.plan import RequestPlan

Work = tuple[str, str | None]  # the hash of a plan, and that of what its prompts say where a file has them
Place = tuple[Bench, RunConfig]  # where a point is measured, and with which settings
WORK = ("workload", "tenants", "num_requests", "arrival", "seed", "max_model_len", "misfit")  # what makes a plan


class Benches(Protocol):
    def plan_sha256(self, config: RunConfig) -> str | None:
        """Of the requests that a point of this config asks; None until there is a server to ask for its context."""
        ...

    def same_work(self, config: RunConfig, done: Work) -> bool:
        """Whether that work is what a point of this config asks, or what others of the same settings asked before."""
        ...

    def at(self, config: RunConfig, fill: Mapping[str, str], log: Path) -> AbstractContextManager[Place]: ...


class OneBench:
    def __init__(self, base: RunConfig) -> None:
        self.bench = Bench(base)
        self._known: dict[tuple[object, ...], Work] = {}

    def plan_sha256(self, config: RunConfig) -> str | None:
        return self._work(config)[0]

    def same_work(self, config: RunConfig, done: Work) -> bool:
        return self._work(config) == done

    def _work(self, config: RunConfig) -> Work:
        settings = plan_settings(config)
        if settings not in self._known:
            self._known[settings] = work_of_plan(self.bench.plan(config))
        return self._known[settings]

    def at(self, config: RunConfig, fill: Mapping[str, str], log: Path) -> AbstractContextManager[Place]:
        return nullcontext((self.bench, config))


class BenchPerPoint:
    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Work] = {}

    def plan_sha256(self, config: RunConfig) -> str | None:
        return known[0] if (known := self._known.get(plan_settings(config))) is not None else None

    def same_work(self, config: RunConfig, done: Work) -> bool:
        return self._known.setdefault(plan_settings(config), done) == done

    @contextmanager
    def at(self, config: RunConfig, fill: Mapping[str, str], log: Path) -> Iterator[Place]:
        with server_for(config, fill, log) as served:
            bench = Bench(served)
            if not self.same_work(config, work_of_plan(bench.plan(served))):
                context = bench.kind.context_tokens(served)
                raise UsageError(
                    f"this server's context of {context} tokens makes other requests than the points before, so that "
                    "they cannot be compared; --max-model-len N holds it for all"
                )
            yield bench, served


def plan_settings(config: RunConfig) -> tuple[object, ...]:
    """What decides about the plan, beside the context of a model or server."""
    return tuple(getattr(config, name) for name in WORK)


def work_of_plan(plan: RequestPlan) -> Work:
    return plan.sha256, None if plan.texts is None else plan.texts.sha256


def work_of_run(run: RunFile) -> Work:
    return run.workload.sha256, run.workload.prompts_sha256


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
