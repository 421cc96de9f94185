"""RemoteEngine: loads a server over HTTP, and measures itself while it does."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import msgspec

from engines.base import ClientReport, Observer, PartialRun, RunRecord
from engines.remote.config import RemoteConfig, Target, resolve
from engines.remote.load_client import Ran, run_alone
from engines.remote.preflight import check
from engines.remote.request_bodies import RequestFormat
from engines.remote.scrape import MetricsPage, ScrapedObserver, Scraper
from engines.remote.server_info import ServerInfo, inspect
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
        run = self._run_scraped if self.config.scrape else self._run
        ran = run(setup, plan, pacing, observer)
        if ran.problem is not None:
            why, exit_code = ran.problem
            raise PartialRun(f"{why}; {len(ran.record)} of {len(plan)} requests had ended", exit_code, ran.record)
        return ran.record

    def _run(self, setup: RequestFormat, plan: RequestPlan, pacing: Pacing, observer: Observer) -> Ran:
        workers = worker_count(self.config.workers, pacing)
        if workers > 1:
            ran = run_in_workers(setup, plan, pacing, observer, workers)
        else:
            ran = run_alone(setup, self.target, plan, pacing, observer)
        self.client = ran.stats.report(open_loop=pacing.rate_per_s is not None, workers=workers)
        return ran

    def _run_scraped(self, setup: RequestFormat, plan: RequestPlan, pacing: Pacing, observer: Observer) -> Ran:
        """The same, with what the server says about itself in the signals and in the client's report."""
        scraper = Scraper(MetricsPage(self.config, self.target))
        scraper.start(must_answer=self.config.metrics_url is not None)
        watched = ScrapedObserver(observer, scraper)
        try:
            ran = self._run(setup, plan, pacing, watched)
        finally:
            scraper.stop()
        record = replace(ran.record, signals=watched.signals)
        scraper.settle(sum(row.output_tokens for row in record.rows))
        assert self.client is not None
        self.client = msgspec.structs.replace(self.client, scrape=scraper.report(plan, record))
        return replace(ran, record=record)
