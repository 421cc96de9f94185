"""Result files of other tools: read like runs of cbbench; and a run of cbbench written as vLLM's JSON."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from reports.interop import aiperf, guidellm, vllm
from reports.interop.documents import Document, read_documents
from reports.interop.results import Result, checked, stored
from reports.interop.vllm_export import as_vllm_json
from reports.stored_runs import Judgement, StoredRun, find_runs, read_stored
from workloads.errors import CbbenchError

__all__ = ["as_vllm_json", "is_result", "read_any", "read_results"]

AS_IT_IS = Judgement()
AIPERF_RECORDS, AIPERF_SUMMARY = "profile_export.jsonl", "profile_export_aiperf.json"


def read_any(paths: Iterable[Path], judgement: Judgement = AS_IT_IS) -> list[StoredRun]:
    """All runs that the paths stand for: run folders, folders of run folders, and files of other tools. gate, compare
    and report read through it. It writes nothing.

    A StoredRun has `run` (with a summary and verdicts), `record` (None where a file holds no single requests) and
    `notes` on what the files do not show. CbbenchError for a path that cannot be read.
    """
    found: list[StoredRun] = []
    for path in paths:
        if is_result(path):
            found += read_results(path, judgement)
        else:
            found += [read_stored(folder, judgement) for folder in find_runs([path])]
    return found


def is_result(path: Path) -> bool:
    """Whether it is a file of another tool, one result of such a file (FILE#2), or a folder of aiperf."""
    return path.is_file() or _picked(path)[1] is not None or _of_aiperf(path) is not None


def _picked(path: Path) -> tuple[Path, int | None]:
    """FILE#2 is the second result of a file; (the file, its number from 1, None for all)."""
    name, mark, number = path.name.rpartition("#")
    file = path.with_name(name) if mark and name else path
    return (file, int(number)) if file != path and number.isdecimal() and file.is_file() else (path, None)


def read_results(path: Path, judgement: Judgement = AS_IT_IS) -> list[StoredRun]:
    """The results in one file of vLLM, SGLang, guidellm or aiperf, or in a folder of aiperf's artifacts: one; several
    where guidellm measured several loads, or a file has several lines. FILE#2 is the second of them."""
    path, number = _picked(path)
    file = _of_aiperf(path) or path
    documents = read_documents(file)
    try:
        results = [checked(one) for one in _results(file, documents)]
    except CbbenchError as error:
        raise CbbenchError(None, f"{file}: {error.message}") from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:  # formats change between versions
        said = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise CbbenchError(
            None, f"{file}: unknown form of a result: {said} (docs/gates.md lists the known ones)"
        ) from None
    if number is not None:
        if not 1 <= number <= len(results):
            raise CbbenchError(None, f"{path}#{number}: the file has results 1 to {len(results)}")
        results = [results[number - 1]]
    return [stored(path, one, judgement) for one in results]


def _results(path: Path, documents: list[Document]) -> list[Result]:
    last = documents[-1]
    if "metadata" in last and "metrics" in last:
        summary = path.with_name(AIPERF_SUMMARY)
        beside = path.name == AIPERF_RECORDS and summary.is_file()
        return [aiperf.from_records(documents, read_documents(summary)[-1] if beside else None)]
    if isinstance(last.get("request_latency"), dict):
        records = path.with_name(AIPERF_RECORDS)
        beside = path.name == AIPERF_SUMMARY and records.is_file()
        return [aiperf.from_records(read_documents(records), last) if beside else aiperf.from_summary(last)]
    if isinstance(last.get("benchmarks"), list):
        return guidellm.from_report(last)
    if all("duration" in one and ("ttfts" in one or "request_throughput" in one) for one in documents):
        return [vllm.from_result(one, at if len(documents) > 1 else None) for at, one in enumerate(documents)]
    raise CbbenchError(None, "not a result of vLLM, SGLang, guidellm or aiperf: it has none of their keys")


def _of_aiperf(folder: Path) -> Path | None:
    """The file with single requests in a folder of aiperf's artifacts, or else its summary."""
    return next((folder / name for name in (AIPERF_RECORDS, AIPERF_SUMMARY) if (folder / name).is_file()), None)
