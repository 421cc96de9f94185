"""The run folder: whole, torn, killed, full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.base import RunRecord, Signal
from engines.ledger import LEDGER
from reports import files
from reports.files import write_atomic
from reports.folder import RunWriter, load, read_record, read_run, rebuild
from reports.schema import Criteria, RunFile
from reports.summary import completed_run
from tests.reports.factory import bus_stop, header, record, row
from workloads.errors import CbbenchError

RUN = header(event_unit="step", sla=["p50_ttft_ms<=500"])


def write(folder: Path, made: RunRecord, head: RunFile = RUN, *, finish: bool = True) -> RunFile | None:
    with RunWriter(folder, head) as writer:
        writer.steps_recorded(made.steps)
        for one in made.rows:
            writer.request_ended(one, made.event_values[one.events_at : one.events_at + one.events])
        for sample in made.signals:
            writer.sampled(sample)
        return writer.finish(made) if finish else None


def assert_same(left: RunRecord, right: RunRecord) -> None:
    assert list(left.rows) == list(right.rows)
    assert left.event_values.tolist() == right.event_values.tolist()
    assert left.steps.tolist() == right.steps.tolist()
    assert list(left.signals) == list(right.signals)
    assert (left.planned, left.event_unit) == (right.planned, right.event_unit)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    sample = Signal(5, 1, 2, 0.5, 0.25, 10.0, 0, 0, 3, ttft_ms=None, tpot_ms=1.5)
    made = msgspec_replace(bus_stop(), signals=[sample])
    run = write(tmp_path / "run", made)
    assert run == read_run(tmp_path / "run") == rebuild(tmp_path / "run")
    assert_same(read_record(tmp_path / "run"), made)
    assert load(tmp_path / "run").notes == ()
    assert not list((tmp_path / "run").glob("*.tmp"))


def msgspec_replace(made: RunRecord, **fields: object) -> RunRecord:
    return RunRecord(**{**{name: getattr(made, name) for name in made.__dataclass_fields__}, **fields})  # type: ignore[arg-type]


def test_a_refused_run_leaves_the_place_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in ("empty", "new/run", "new/other"):
        with RunWriter(tmp_path / place, RUN) as writer:
            writer.withdraw()
    assert [one.name for one in tmp_path.iterdir()] == ["empty"]
    assert not list((tmp_path / "empty").iterdir())
    made = bus_stop()
    with RunWriter(tmp_path / "new" / "run", RUN) as writer:
        writer.request_ended(made.rows[0], made.event_values[: made.rows[0].events])
        writer.withdraw()
    assert read_run(tmp_path / "new" / "run") == RUN, "what was measured stays"


def test_run_json_has_no_nan_and_null_for_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "run", record([row(0, status="failed", finish_reason="error", error="no")]), header())
    text = (tmp_path / "run" / "run.json").read_text()
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in run.json"))
    assert found["schema"] == "cbbench.run/1"
    assert found["summary"]["latency"]["ttft_ms"]["p99"] is None
    assert found["summary"]["requests"]["errors"] == {"no": 1}
    assert found["validity"]["verdict"] == "invalid"


def test_the_header_is_there_from_the_start(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "a" / "run", RUN)
    assert read_run(tmp_path / "a" / "run") == RUN
    assert len(read_record(tmp_path / "a" / "run")) == 0
    writer.close()
    assert rebuild(tmp_path / "a" / "run").interrupted


def test_a_killed_run_is_rebuilt(tmp_path: Path) -> None:
    write(tmp_path / "run", bus_stop(), finish=False)
    run = rebuild(tmp_path / "run")
    assert run.interrupted
    assert run.summary == completed_run(bus_stop(), RUN).summary
    assert rebuild(tmp_path / "run").interrupted  # it stays so


def test_rebuilding_under_other_slas(tmp_path: Path) -> None:
    write(tmp_path / "run", bus_stop())
    run = rebuild(tmp_path / "run", Criteria(sla=("max_ttft_ms<=1",)))
    assert [one.verdict for one in run.sla] == ["fail"]
    assert not run.interrupted


def test_sigkill_leaves_a_readable_folder(tmp_path: Path) -> None:
    script = f"""
        import os, signal, sys
        from pathlib import Path
        from reports.folder import RunWriter
        from tests.reports.factory import bus_stop, header
        made = bus_stop()
        writer = RunWriter(Path({str(tmp_path / "run")!r}), header(event_unit="step"))
        writer.steps_recorded(made.steps)
        for one in made.rows[:2]:
            writer.request_ended(one, made.event_values[one.events_at : one.events_at + one.events])
        os.kill(os.getpid(), signal.SIGKILL)
    """
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    run = rebuild(tmp_path / "run")
    assert run.summary is not None
    assert (run.summary.requests.completed, run.summary.requests.planned) == (2, 3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_any_torn_tails_are_read_and_said(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    write(folder, bus_stop((3, 5, 9)), finish=False)
    torn = False
    for name in ("requests.jsonl", "tokens.bin", "steps.bin"):
        size = (folder / name).stat().st_size
        keep = data.draw(st.integers(0, size), label=name)
        os.truncate(folder / name, keep)
        torn = torn or keep < size
    made, notes = load(folder)
    whole = bus_stop((3, 5, 9))
    for one, full in zip(made.rows, whole.rows, strict=False):
        own = made.event_values[one.events_at : one.events_at + one.events]
        assert own.tolist() == whole.event_values[full.events_at : full.events_at + full.events].tolist()[: len(own)]
    assert made.steps.tolist() == whole.steps.tolist()[: len(made.steps)]
    summary = completed_run(made, RUN, notes).summary
    assert summary is not None
    assert summary.requests.completed == len(made)
    if not torn:
        assert not notes


def test_a_corrupt_line_costs_one_request(tmp_path: Path) -> None:
    write(tmp_path / "run", bus_stop())
    path = tmp_path / "run" / "requests.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{nonsense", lines[2], '{"i": 1']))
    made, notes = load(tmp_path / "run")
    assert [one.i for one in made.rows] == [0, 2]
    assert notes == (
        "requests.jsonl: the last line was torn and is left out",
        "requests.jsonl: 1 corrupt lines are left out",
    )
    assert rebuild(tmp_path / "run").notes == notes


@pytest.mark.parametrize("field", ["first", "prompt_tokens", "events_at", "i"])
@pytest.mark.parametrize("value", [-(10**30), 10**30])
def test_a_number_that_no_column_holds_is_a_corrupt_line(tmp_path: Path, field: str, value: int) -> None:
    write(tmp_path / "run", bus_stop())
    path = tmp_path / "run" / "requests.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(lines[0]) | {field: value}), *lines[1:], ""]))
    made, notes = load(tmp_path / "run")
    assert [one.i for one in made.rows] == [1, 2]
    assert notes == ("requests.jsonl: 1 corrupt lines are left out",)


def test_lines_that_are_gone_from_a_finished_run_are_said(tmp_path: Path) -> None:
    write(tmp_path / "run", bus_stop())
    path = tmp_path / "run" / "requests.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    assert load(tmp_path / "run").notes == ("requests.jsonl: 1 of the 3 requests that ended are not in it",)
    path.unlink()
    assert "3 of the 3 requests" in load(tmp_path / "run").notes[0]


def test_short_token_events_are_told_from_a_short_ledger(tmp_path: Path) -> None:
    write(tmp_path / "run", bus_stop((3, 5, 9)))
    os.truncate(tmp_path / "run" / "tokens.bin", 4 * 10)
    made, notes = load(tmp_path / "run")
    assert notes == ("tokens.bin ends after 10 events: the later ones of 1 requests are missing",)
    assert [one.events for one in made.rows] == [3, 5, 2]
    os.truncate(tmp_path / "run" / "steps.bin", 4 * LEDGER.itemsize)
    made, notes = load(tmp_path / "run")
    assert notes[1:] == ("steps.bin ends at step 4: later token events of 1 requests were left out",)
    assert [one.events for one in made.rows] == [3, 4, 2]


def test_no_request_ends_twice(tmp_path: Path) -> None:
    write(tmp_path / "run", bus_stop())
    path = tmp_path / "run" / "requests.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[1], lines[1]]))
    made, notes = load(tmp_path / "run")
    assert [one.i for one in made.rows] == [0, 1, 2]
    assert notes == (
        "requests.jsonl: 2 lines repeat the index of an earlier request and are left out, the first of them 1",
    )


def test_blocks_of_lines_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "run", bus_stop())
    whole = list(read_record(tmp_path / "run").rows)
    for size in (1, 100, 257, 10_000):
        monkeypatch.setattr(files, "BLOCK_BYTES", size)
        assert list(read_record(tmp_path / "run").rows) == whole


def test_events_are_where_the_file_has_them(tmp_path: Path) -> None:
    (one, _), (two, _) = row(0, [1, 2]), row(1, [3, 4])
    with RunWriter(tmp_path / "run", header()) as writer:
        writer.request_ended(msgspec.structs.replace(one, events_at=7), np.array([0, 1000], np.uint32))
        writer.request_ended(msgspec.structs.replace(two, events_at=0), np.array([0, 1000], np.uint32))
    assert [one.events_at for one in read_record(tmp_path / "run").rows] == [0, 2]


def test_a_ledger_of_another_version(tmp_path: Path) -> None:
    write(tmp_path / "run", bus_stop())
    folder = tmp_path / "run"
    older = np.dtype([("was_here", "<i4"), *(one for one in LEDGER.descr if one[0] != "blocked")])
    steps = np.zeros(200, older)
    for name in set(older.names or ()) & set(LEDGER.names or ()):
        steps[name] = bus_stop().steps[name]
    (folder / "steps.bin").write_bytes(steps.tobytes())
    write_atomic(folder / "steps.json", {"dtype": older.descr})
    made, notes = load(folder)
    assert made.steps["dead_slots"].sum() == 340
    assert notes == ("steps.bin: another version wrote it; taken as 0: blocked",)


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    write(tmp_path / "run", bus_stop())
    before = (tmp_path / "run" / "run.json").read_text()
    for name, says in (("full", "is not empty"), ("file", "is a file"), ("run", "already holds a run")):
        with pytest.raises(CbbenchError, match=says) as caught:
            RunWriter(tmp_path / name, RUN)
        assert caught.value.exit_code == 2
    assert (tmp_path / "run" / "run.json").read_text() == before
    (tmp_path / "empty").mkdir()
    RunWriter(tmp_path / "empty", RUN).close()


def test_a_bad_sla_is_found_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(CbbenchError, match="unknown metric"):
        RunWriter(tmp_path / "run", header(sla=["speed>=1"]))
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_and_exit_1(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", RUN)
    writer._files["requests.jsonl"].close()
    writer._files["requests.jsonl"] = open("/dev/full", "wb")  # noqa: SIM115
    one, events = row(0, [1, 2])
    with pytest.raises(CbbenchError, match="No space left") as caught:
        writer.request_ended(one, events)
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)
    with pytest.raises(CbbenchError, match="No space left"):  # what could not be written is still in the buffer
        writer.close()
    assert all(file.closed for file in writer._files.values())
    assert read_run(tmp_path / "run") == RUN


def test_run_json_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "run", bus_stop(), finish=False)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CbbenchError, match="No space left"):
        rebuild(tmp_path / "run")
    assert read_run(tmp_path / "run") == RUN
    assert not list((tmp_path / "run").glob("*.tmp"))


def test_a_pipe_and_a_link_are_written_to_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    files.write_whole(tmp_path / "link", b"1")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"1"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    files.write_whole(tmp_path / "pipe", b"2")
    assert os.read(reader, 9) == b"2"
    os.close(reader)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "link", "pipe"]


def test_versions_and_scalars_of_libraries_are_written_as_plain_values(tmp_path: Path) -> None:
    class Version(str):
        __slots__ = ()

    write_atomic(tmp_path / "x.json", {"torch": Version("2.1"), "blocks": np.int64(7)})
    assert json.loads((tmp_path / "x.json").read_text()) == {"torch": "2.1", "blocks": 7}
    with pytest.raises(NotImplementedError, match="a object cannot"):
        write_atomic(tmp_path / "x.json", {"it": object()})


def run_json(**criteria: object) -> str:
    made: dict[str, object] = msgspec.to_builtins(header())
    return json.dumps(made | {"criteria": criteria})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        ("{", "run.json"),
        ('{"schema": "vllm"}', 'its schema is "vllm"'),
        ("[]", "Expected `object`"),
        ('{"schema": "cbbench.run/1", "engine": 3}', "Expected `object`"),
        (run_json(sla=["junk"]), 'SLA "junk"'),
        (run_json(confidence=5), "$.criteria.confidence"),
    ],
)
def test_what_is_no_run_says_so(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(CbbenchError) as caught:
        load(tmp_path)
    assert says in str(caught.value)
    assert caught.value.exit_code == 2
