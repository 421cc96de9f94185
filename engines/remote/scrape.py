"""Scraping: reads the server's own metrics during the load, four times a second, in a thread of its own.

The load's event loop never waits for a page: a signal takes the newest sample there is.
"""

from __future__ import annotations

import http.client
import threading
import time
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import Observer, RunRecord, ScrapeReport, Signal
from engines.ledger import StepArray
from engines.remote.config import RemoteConfig, Target, resolve
from engines.remote.prometheus import COUNTERS, Meaning, Reading, read_page
from engines.remote.server_info import connect
from engines.request_table import RequestRow
from workloads.errors import CbbenchError
from workloads.plan import RequestPlan

PATHS = (
    "/metrics",
    "/prometheus/metrics",
)  # the second is that of trtllm-serve
TIMEOUT_S = 2.0
PERIOD_S = 0.25
STALE_NS = 1_000_000_000  # age from which a sample is not used in a signal
SETTLE_S = 0.3  # a server may count its last tokens a little after it sent them
MAX_SETTLES = 3
AGREE_SHARE = 0.01


class MetricsPage:
    """The page with a server's metrics, read over one connection that stays open. `path` may be any of `paths`.

    By http.client, as httpx takes more CPU time per page, and the event loop cannot run meanwhile.
    """

    def __init__(self, config: RemoteConfig, target: Target) -> None:
        if config.metrics_url is not None:
            # It may be another server, which must not get the key and the headers.
            config = replace(config, url=config.metrics_url, api_key=None, headers=())
            target = resolve(config, "metrics_url")
        self._config = replace(config, connect_timeout_s=TIMEOUT_S)
        self._target = target
        base = target.paths.base
        named = config.metrics_url is not None and base
        self.paths = (base,) if named else tuple(base + path for path in PATHS)
        self.path = self.paths[0]
        self._connection: http.client.HTTPConnection | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._target.tls else 'http'}://{self._target.host_header}{self.path}"

    def read(self) -> str:
        """Raises OSError, HTTPException or CbbenchError, in one line."""
        try:
            if self._connection is None or self._connection.sock is None:
                self._connection = http.client.HTTPConnection(self._target.host, self._target.port)
                self._connection.sock = connect(self._config, self._target)
            self._connection.request("GET", self.path, headers=self._config.caller)
            response = self._connection.getresponse()
            body = response.read()
            if response.status != 200:
                raise http.client.HTTPException(f"HTTP {response.status}")
            return body.decode("utf-8", "replace")
        except BaseException:
            self.close()  # its state is unknown
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True)
class Sample:
    at_ns: int  # time.monotonic_ns(), when the page had come
    readings: dict[Meaning, Reading]
    preemptions: int | None  # since the run began


class Growth:
    """How much counters grew, also across restarts of the server, which set them back to 0."""

    def __init__(self, first: dict[Meaning, Reading]) -> None:
        self._last = {name: first[name].value for name in COUNTERS if name in first}
        self.total: dict[Meaning, float] = dict.fromkeys(self._last, 0.0)
        self.restarted = False

    def add(self, readings: dict[Meaning, Reading]) -> None:
        for name in COUNTERS:
            if name in readings:
                value = readings[name].value
                before = self._last.get(name, 0.0)  # a counter that appears later began at 0
                self.restarted |= value < before
                grown = value if value < before else value - before
                self.total[name] = self.total.get(name, 0.0) + grown
                self._last[name] = value


class Scraper:
    """start(), then latest() from any thread, then stop(), settle() and report()."""

    def __init__(self, page: MetricsPage) -> None:
        self._page = page
        self._latest: Sample | None = None
        self._growth = Growth({})
        self._names: dict[Meaning, str] = {}
        self._samples = 0
        self._missed = 0
        self._problem: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="scrape", daemon=True)

    def start(self, *, must_answer: bool) -> None:
        """Read the sample that growth counts from, and start the thread if there is a page.

        must_answer: raises CbbenchError where there is none, or where it has no known metric.
        """
        readings = self._find()
        if readings is None and must_answer:
            raise CbbenchError("metrics_url", f"GET {self._page.url}: {self._problem}")
        if readings is None:
            return
        if not readings and must_answer:
            raise CbbenchError("metrics_url", f"{self._page.url} has no metric of a server that cbbench knows")
        self._growth = Growth(readings)
        self._keep(readings)
        self._thread.start()

    def latest(self) -> Sample | None:
        sample = self._latest
        return sample if sample is not None and time.monotonic_ns() - sample.at_ns < STALE_NS else None

    def stop(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._page.close()

    def settle(self, output_tokens: int) -> None:
        """After stop(): read until the server has counted all tokens received, at most MAX_SETTLES times."""
        for _ in range(MAX_SETTLES if self._samples else 0):
            if not self._sample():
                break
            counted = self._growth.total.get("output_tokens")
            if counted is None or agree(counted, output_tokens):
                break
            time.sleep(SETTLE_S)
        self._page.close()

    def report(self, plan: RequestPlan, record: RunRecord) -> ScrapeReport:
        total = self._growth.total
        queries, hits, misses = (total.get(name) for name in ("prefix_queries", "prefix_hits", "prefix_misses"))
        if queries is None and hits is not None and misses is not None:
            queries = hits + misses
        rate = self._latest.readings.get("prefix_hit_rate") if self._latest else None
        return ScrapeReport(
            url=self._page.url,
            samples=self._samples,
            missed=self._missed,
            problem=self._problem,
            sources={
                "running": self._names.get("running", "client"),
                "waiting": self._names.get("waiting", "client"),
                "kv_usage": self._names.get("kv_usage", "not exposed"),
                "preemptions": self._names.get("preemptions", "not exposed"),
            },
            restarted=self._growth.restarted,
            output_tokens=_whole(total.get("output_tokens")),
            output_tokens_received=_received(record),
            requests=_whole(total.get("requests")),
            requests_ended=len(record),
            preemptions=_whole(total.get("preemptions")),
            prefix_hit_rate=hits / queries if queries and hits is not None else rate.value if rate else None,
            # Prompts of a file may share prefixes, and may repeat.
            prefixes_shared=plan.shares_prefixes,
        )

    def _find(self) -> dict[Meaning, Reading] | None:
        """The first page with a known metric; else the first page that exists."""
        found: dict[str, dict[Meaning, Reading]] = {}
        for path in self._page.paths:
            self._page.path = path
            readings = self._read()
            if readings is not None:
                found[path] = readings
            if readings:
                break
        if not found:
            self._page.path = self._page.paths[0]
            return None
        self._missed, self._problem = 0, None
        self._page.path = max(found, key=lambda path: len(found[path]))
        return found[self._page.path]

    def _watch(self) -> None:
        while not self._over.wait(PERIOD_S):
            self._sample()

    def _sample(self) -> bool:
        readings = self._read()
        if readings is None:
            return False
        self._growth.add(readings)
        self._keep(readings)
        return True

    def _keep(self, readings: dict[Meaning, Reading]) -> None:
        self._samples += 1
        self._names.update({meaning: reading.name for meaning, reading in readings.items()})
        self._latest = Sample(time.monotonic_ns(), readings, _whole(self._growth.total.get("preemptions")))

    def _read(self) -> dict[Meaning, Reading] | None:
        try:
            return read_page(self._page.read())
        except (OSError, CbbenchError, http.client.HTTPException) as error:
            said = error.message if isinstance(error, CbbenchError) else str(error)
            self._missed += 1
            self._problem = " ".join(said.split()) or type(error).__name__
            return None


class ScrapedObserver:
    """The run's Observer, with the server's metrics in every signal instead of the client's estimates."""

    def __init__(self, observer: Observer, scraper: Scraper) -> None:
        self._observer = observer
        self._scraper = scraper
        self.signals: list[Signal] = []

    @property
    def stopping(self) -> bool:
        return self._observer.stopping

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None:
        self._observer.request_ended(row, events)

    def steps_recorded(self, steps: StepArray) -> None:
        self._observer.steps_recorded(steps)

    def sampled(self, signal: Signal) -> None:
        sample = self._scraper.latest()
        if sample is not None:
            signal = _with_server(signal, sample)
        self.signals.append(signal)
        self._observer.sampled(signal)


def agree(theirs: float, ours: float) -> bool:
    return abs(theirs - ours) <= AGREE_SHARE * max(theirs, ours)


def _with_server(signal: Signal, sample: Sample) -> Signal:
    values = {name: reading.value for name, reading in sample.readings.items()}
    return msgspec.structs.replace(
        signal,
        running=round(values.get("running", signal.running)),
        waiting=round(values.get("waiting", signal.waiting)),
        kv_usage=values.get("kv_usage"),
        preemptions=sample.preemptions,
    )


def _received(record: RunRecord) -> int:
    return sum(row.output_tokens for row in record.rows)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
