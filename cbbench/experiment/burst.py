"""What an engine can serve at most: the plan, all at once. It tells an adaptive sweep of the rate where to begin."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from cbbench.config import RunConfig, UsageError
from cbbench.experiment.run import measure
from cbbench.experiment.servers import Benches, work_of_run
from reports.files import FolderError
from reports.folder import discard, read_run

FOLDER = "burst"


def burst_capacity(base: RunConfig, benches: Benches, folder: Path) -> float | None:
    """Requests/s, from an earlier call where there is one. None when Ctrl-C ended it. UsageError if none completed."""
    config = msgspec.structs.replace(base, rate=None, arrival=None, sla=())
    place = folder / FOLDER
    try:
        run = read_run(place)
        usable = run.summary is not None and not run.interrupted and benches.same_work(base, work_of_run(run))
    except FolderError:
        usable = False
    if not usable:
        if place.exists():
            discard(place)
        print("all requests at once, to see about how many a second are served", file=sys.stderr)
        with benches.at(config, {}, folder / f"{FOLDER}.server.log") as (bench, served):
            run = measure(bench, served, place, title=FOLDER)
        if run.interrupted:
            return None
    capacity = run.summary.throughput.request_per_s if run.summary is not None else None
    if not capacity:
        raise UsageError("--adaptive: no request of a burst completed, so there is no rate to begin with")
    return capacity
