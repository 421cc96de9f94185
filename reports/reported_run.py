"""A run with what a report needs of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engines.base import RunRecord
from reports.metrics import RequestTimes, request_times
from reports.percentiles import SHOWN, Percentiles, percentiles
from reports.schema import RunFile
from reports.summary_schema import Distribution, Summary


class ReportedRun(NamedTuple):
    """label: tells two runs of a report apart; "" where there is one."""

    label: str
    run: RunFile
    record: RunRecord
    times: RequestTimes
    asked: Sequence[float] = SHOWN  # percentiles that the tables show

    def named(self, name: str) -> str:
        """The name with the label of the run before it."""
        return f"{self.label} {name}".strip()

    def labelled(self, sentence: str) -> str:
        return f"{self.label}: {sentence}" if self.label else sentence

    @property
    def percentiles(self) -> Percentiles:
        return percentiles(self.summary, self.times, self.asked)

    @property
    def summary(self) -> Summary:
        assert self.run.summary is not None
        return self.run.summary

    @property
    def open_loop(self) -> bool:
        return self.run.workload.pacing.open_loop

    def judged_latencies(self) -> dict[str, Distribution]:
        """TTFT, TPOT and E2EL; in open loop from the scheduled time, as SLAs are judged."""
        latency = self.summary.latency
        if self.open_loop:
            return {"TTFT": latency.ttft_sched_ms, "TPOT": latency.tpot_ms, "E2EL": latency.e2el_sched_ms}
        return {"TTFT": latency.ttft_ms, "TPOT": latency.tpot_ms, "E2EL": latency.e2el_ms}


def reported_run(label: str, run: RunFile, record: RunRecord, asked: Sequence[float] = SHOWN) -> ReportedRun:
    """ValueError for a run without a summary."""
    if run.summary is None:
        raise ValueError("the run has no summary; rebuild it first")
    return ReportedRun(label, run, record, request_times(record), asked)
