"""RemoteEngine: loads a server over HTTP, and measures its own client meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import msgspec

from engines.base import ClientReport, Observer, PartialRun, RunRecord
from engines.remote.config import RemoteConfig, Target, resolve
from engines.remote.failure_limit import FailureLimit, MostFailures
from engines.remote.load_client import LoadResult, run_in_this_process
from engines.remote.preflight import choose_request_format, not_adapted
from engines.remote.request_bodies import RequestFormat
from engines.remote.scrape import MetricsPage, ScrapedObserver, Scraper
from engines.remote.server_info import ServerInfo, read_server_info
from engines.remote.workers import run_in_workers, worker_count, workers_for_urls
from workloads.errors import ExitCode
from workloads.pacing import Pacing
from workloads.plan import RequestPlan


class RemoteEngine:
    """`client` is set by run(), also by one that ended early."""

    def __init__(self, config: RemoteConfig) -> None:
        self.config = config
        self.client: ClientReport | None = None

    @cached_property
    def target(self) -> Target:
        return resolve(self.config)

    @cached_property
    def server(self) -> ServerInfo:
        """Read from the server once. Raises CbbenchError if it cannot be loaded as configured; see read_server_info."""
        return read_server_info(self.config, self.target)

    def run(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> RunRecord:
        """Raises CbbenchError before the run, PartialRun when the server goes away or a worker dies during it."""
        formats = self._formats(plan, pacing, observer)
        one_page = len(formats) == 1 or self.config.metrics_url is not None
        run = self._run_scraped if self.config.scrape and one_page else self._run
        limit = FailureLimit(observer, self.config.max_failures or MostFailures())
        result = run(formats, plan, pacing, limit)
        if result.problem is not None:
            why, exit_code = result.problem
            raise PartialRun(f"{why}; {len(result.record)} of {len(plan)} requests had ended", exit_code, result.record)
        if limit.exceeded:
            why = f"the run was stopped, as `max_failures` was exceeded: {limit.problem}"
            raise PartialRun(why, ExitCode.LOAD_INVALID, result.record)
        return result.record

    def _formats(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> list[RequestFormat]:
        """Of the server at each URL, which all have the model of the first."""
        formats = []
        for number, config in enumerate(self.config.each):
            target, server = self.target, self.server
            if number:
                config = replace(config, model=self.server.model)
                target = resolve(config)
                server = read_server_info(config, target)
            chosen = choose_request_format(config, target, server, plan, pacing, observer)
            formats.append(chosen.with_request_ids())
        return formats

    def _run(
        self, formats: Sequence[RequestFormat], plan: RequestPlan, pacing: Pacing, observer: Observer
    ) -> LoadResult:
        workers = worker_count(self.config.workers, plan, pacing)
        if len(formats) > 1:
            workers = workers_for_urls(len(formats), workers, pacing)
        if workers > 1:
            result = run_in_workers(formats, plan, pacing, observer, workers)
        else:
            result = run_in_this_process(formats[0], self.target, plan, pacing, observer)
        report = result.stats.report(open_loop=pacing.rate_per_s is not None, workers=workers)
        notes = dict.fromkeys(self.server.notes + sum((one.notes for one in formats), ()))
        notes |= dict.fromkeys(not_adapted(formats[0], result.record))
        self.client = msgspec.structs.replace(
            report, notes=tuple(notes), prefixes_shared=plan.shares_prefixes, streamed=self.config.stream
        )
        return result

    def _run_scraped(
        self, formats: Sequence[RequestFormat], plan: RequestPlan, pacing: Pacing, observer: Observer
    ) -> LoadResult:
        """_run(), with the server's own metrics in the signals and in the client's report."""
        scraper = Scraper(MetricsPage(self.config, self.target))
        scraper.start(must_answer=self.config.metrics_url is not None)
        observer_with_metrics = ScrapedObserver(observer, scraper)
        try:
            result = self._run(formats, plan, pacing, observer_with_metrics)
        finally:
            scraper.stop()
        record = replace(result.record, signals=observer_with_metrics.signals)
        scraper.settle(sum(row.output_tokens for row in record.rows))
        assert self.client is not None
        self.client = msgspec.structs.replace(self.client, scrape=scraper.report(plan, record))
        return replace(result, record=record)
