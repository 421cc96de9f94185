"""RemoteEngine: loads a server over HTTP, and measures itself while it does."""

from __future__ import annotations

from functools import cached_property

from engines.base import ClientReport, Observer, PartialRun, RunRecord
from engines.remote.check import check
from engines.remote.config import RemoteConfig, Target, resolve
from engines.remote.server import ServerInfo, inspect
from engines.remote.share import run_alone
from engines.remote.workers import run_in_workers, worker_count
from workloads.pacing import Pacing
from workloads.plan import RequestPlan


class RemoteEngine:
    """`client` is there after run(), also after one that ended early."""

    def __init__(self, config: RemoteConfig) -> None:
        self.config = config
        self.client: ClientReport | None = None

    @cached_property
    def target(self) -> Target:
        return resolve(self.config)

    @cached_property
    def server(self) -> ServerInfo:
        """Asks it, once. Raises EngineError in one line for every server that is not the one meant."""
        return inspect(self.config, self.target)

    def run(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> RunRecord:
        """Raises EngineError before the run, PartialRun when the server goes away during it."""
        setup = check(self.config, self.target, self.server, plan, pacing, observer)
        workers = worker_count(self.config.workers, pacing)
        if workers > 1:
            ran = run_in_workers(setup, plan, pacing, observer, workers)
        else:
            ran = run_alone(setup, self.target, plan, pacing, observer)
        self.client = ran.tally.report(open_loop=pacing.rate_per_s is not None, workers=workers)
        if ran.problem is not None:
            why, exit_code = ran.problem
            raise PartialRun(f"{why}; {len(ran.record)} of {len(plan)} requests had ended", exit_code, ran.record)
        return ran.record
