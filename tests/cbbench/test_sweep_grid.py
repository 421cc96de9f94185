"""What can be swept, by which values, in which order; all on the simulator."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cbbench.experiment.campaign import TimeLeft, in_words
from cbbench.experiment.sweep_params import parse_grid, parse_params, parse_values
from cbbench.experiment.sweep_runs import Sweep, folder_of
from cbbench.settings.run import RunSettings
from tests.cbbench.conftest import Outcome
from workloads.errors import CbbenchError

Call = Callable[..., Outcome]
SIMULATED = ("--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b")
SMALL = (*SIMULATED, "--num-requests", 8, "--workload", "prompt=uniform(16,96);output=uniform(8,32)")


def state() -> Any:
    return json.loads(Path("out/sweep.json").read_text())


def test_every_setting_is_either_a_option_or_says_why_not() -> None:
    known = RunSettings.all().values()
    assert {one.value_type for one in known if one.facts.unswept is None} <= {int, float, bool, str}
    for one in known:
        if one.facts.unswept is None:
            assert parse_params(one.key, None) == (one.key,)
            continue
        with pytest.raises(CbbenchError, match=f"cannot sweep {one.key}: it "):
            parse_params(one.key, None)


@pytest.mark.parametrize(
    ("param", "text", "values"),
    [
        ("max-num-seqs", "8, 16", [8, 16]),
        ("rate", "0.5,2,4.0", [0.5, 2, 4]),
        ("chunked-prefill", "true,false", [True, False]),
        ("order", "fcfs,fair", ["fcfs", "fair"]),
        ("prompt-buckets", "512,4096|1024", ["512,4096", "1024"]),
        ("workload", "prompt=fixed(9);output=fixed(9)|bus-stop", ["prompt=fixed(9);output=fixed(9)", "bus-stop"]),
    ],
)
def test_values_are_read_by_the_kind_of_the_setting(param: str, text: str, values: list[object]) -> None:
    parsed = parse_values(param, text)
    assert parsed == values
    assert [type(one) for one in parsed] == [type(one) for one in [2 if v == 2.0 else v for v in values]]


@pytest.mark.parametrize(
    ("params", "texts", "words"),
    [
        ("max-num-seqs", ["8,x"], "takes whole numbers"),
        ("max-num-seqs", ["0,8"], "max-num-seqs must be a whole number >= 1, got 0"),
        ("chunked-prefill", ["on"], "true or false"),
        ("order", ["fastest"], "not one of fcfs"),
        ("rate", ["1,1.0"], "each value once"),
        ("rate", ["1,,2"], "without gaps"),
        ("rate,mode", ["1,2"], "once for each of rate, mode"),
        ("rate", ["1", "2"], "once for each of rate"),
        ("rate,rate", ["1", "2"], "two different ones"),
        ("rate,mode,order", ["1"], "one name, or two"),
        ("ratte", ["1"], "did you mean rate"),
        ("max_num_seqs", ["1"], "did you mean max-num-seqs"),
        ("model", ["tiny"], "loaded once"),
    ],
)
def test_bad_grids(params: str, texts: list[str], words: str) -> None:
    with pytest.raises(CbbenchError, match=words):
        parse_grid(parse_params(params, None), texts, None)


def test_a_product_of_two(cbbench: Call) -> None:
    outcome = cbbench("sweep", "max-num-seqs,max-num-batched-tokens", "--values", "2,4", "--values", "64,3",
                      *SMALL, "-o", "out")  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert state()["settings"] == [[2, 64], [2, 3], [4, 64], [4, 3]]
    assert [point["values"] for point in state()["points"] if point["error"]] == [[4, 3]], "the others run"
    assert len({point["folder"] for point in state()["points"]}) == 4
    assert Path("out/max-num-seqs-2+max-num-batched-tokens-64/run.json").exists()
    assert len(state()["recommendation"]["values"]) == 2


@pytest.mark.parametrize(
    ("param", "values", "more"),
    [
        ("order", "fcfs,shortest-known", ()),
        ("admission", "full-prompt,full-reserve,optimistic,prompt-fits,peak", ()),
        ("victim", "newest,last,least-computed", ()),
        ("on-kv-pressure", "recompute,swap,delay,reject", ("--kv-blocks", 24)),
        ("static", "padded,compact-held,compact-freed", ("--mode", "static")),
        ("prefill", "decode-first,prefill-first,in-order", ()),
        ("prompt-buckets", "32,64|64", ()),
        ("chunked-prefill", "true,false", ()),
        ("prefix-caching", "true,false", ()),
        ("watermark", "0,5.5", ()),
        ("max-model-len", "128,256", ()),
        ("block-size", "8,16", ()),
    ],
)
def test_options(cbbench: Call, param: str, values: str, more: tuple[object, ...]) -> None:
    outcome = cbbench("sweep", param, "--values", values, *SMALL, *more, "-o", "out", "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert len(found["points"]) == len(found["settings"])
    assert all(point["output_token_per_s"] > 0 for point in found["points"]), found["points"]


def test_modes_take_their_own_settings_and_show_what_is_predicted(cbbench: Call) -> None:
    outcome = cbbench("sweep", "mode", "--values", "static,continuous", *SMALL, "--static", "compact-freed",
                      "--prefill", "prefill-first", "--max-num-seqs", 4, "-o", "out")  # fmt: skip
    assert outcome.code == 0, outcome.err
    static, continuous = state()["points"]
    assert (static["mode"], continuous["mode"]) == ("static", "continuous")
    assert "continuous over static" in outcome.out
    assert f"{static['max_over_mean']:.2f}x" in outcome.out
    assert f"{continuous['output_token_per_s'] / static['output_token_per_s']:.2f}x" in outcome.out


def test_other_work_is_not_ranked(cbbench: Call) -> None:
    arguments = (*SIMULATED, "--num-requests", 4, "-o", "out")
    outcome = cbbench("sweep", "workload", "--values", "azure-conv,azure-code", *arguments)
    assert outcome.code == 0, outcome.err
    assert state()["workload_sha256"] is None
    assert state()["recommendation"]["values"] is None
    assert "not comparable" in " ".join(outcome.out.split())


def test_repeats_go_there_and_back_and_resume(cbbench: Call) -> None:
    command = ("sweep", "max-num-seqs", "--values", "2,4", *SMALL, "-o", "out")
    cbbench(*command, "--repeat", 2)
    outcome = cbbench(*command, "--repeat", 3)
    assert outcome.code == 0, outcome.err
    titles = [line.partition(" ")[2] for line in outcome.err.splitlines() if line.partition("/")[0].isdigit()]
    assert [title.partition(" · ")[0] for title in titles] == [
        "max-num-seqs 2, repeat 1 of 3: already there",
        "max-num-seqs 4, repeat 1 of 3: already there",
        "max-num-seqs 4, repeat 2 of 3: already there",
        "max-num-seqs 2, repeat 2 of 3: already there",
        "max-num-seqs 2, repeat 3 of 3",
        "max-num-seqs 4, repeat 3 of 3",
    ]
    assert [(point["values"], point["repeat"]) for point in state()["points"]] == [
        ([slots], repeat) for slots in (2, 4) for repeat in range(3)
    ]
    speeds = {point["output_token_per_s"] for point in state()["points"] if point["values"] == [2]}
    assert len(speeds) == 3, "the simulator repeats with other plans"
    assert "3 runs each" in outcome.out
    cbbench(*command)
    assert (state()["repeats"], len(state()["points"])) == (3, 6), "fewer repeats do not forget the others"


def test_rates_beyond_saturation_are_skipped_and_said(cbbench: Call) -> None:
    command = ("sweep", "rate", "--values", "1,4000,5000", *SIMULATED, "--num-requests", 60, "--max-num-seqs", 2,
               "--workload", "prompt=fixed(64);output=fixed(64)", "-o", "out")  # fmt: skip
    outcome = cbbench(*command)
    assert "rate 5000: skipped" in outcome.err
    assert state()["skipped"] == [[5000]]
    assert "Not measured: 5000." in outcome.out
    assert [point["values"] for point in state()["points"]] == [[1], [4000]]
    assert "outran completions" in state()["points"][1]["saturated"]
    cbbench(*command, "--every-rate")
    assert [point["values"] for point in state()["points"]] == [[1], [4000], [5000]]
    assert state()["skipped"] == []


def test_an_older_sweep_is_one_clear_line(cbbench: Call) -> None:
    Path("out").mkdir()
    Path("out/sweep.json").write_text('{"schema": "cbbench.sweep/1", "param": "rate", "values": [1]}')
    for outcome in (cbbench("sweep", "rate", "--values", "1", *SMALL, "-o", "out"), cbbench("report", "out")):
        assert outcome.code == 2
        assert "an older cbbench wrote it" in outcome.error_line


def test_flags_of_swept_settings_are_refused(cbbench: Call) -> None:
    outcome = cbbench("sweep", "mode,max-num-seqs", "--values", "static", "--values", "4", *SMALL, "--max-num-seqs", 3)
    assert outcome.code == 2
    assert "--max-num-seqs: the sweep varies it" in outcome.error_line


def test_names_of_parameters_are_filled_into_launch(cbbench: Call) -> None:
    script = "import sys; print(sys.argv[1:]); sys.exit(3)"
    launch = f"{sys.executable} -c {shlex.quote(script)} --a={{a}} {{b-c}} {{port}}"
    outcome = cbbench("sweep", "a,b-c", "--values", "1,2", "--values", "x y", "--launch", launch, "-o", "out")
    assert outcome.code == 6
    assert "['--a=2', 'x y', '" in state()["points"][1]["error"]
    wrong = cbbench("sweep", "a,b-c", "--values", "1", "--values", "2", "--launch", "x {value} {a} {port}")
    assert wrong.code == 2
    assert "{b-c} in --launch" in wrong.error_line


def test_order_of_runs_and_their_folders() -> None:
    swept = Sweep(("max-num-seqs",), {}, repeats=3)
    order = [(one.setting[0], one.repeat) for one in swept.interleaved([(1,), (2,), (3,)])]
    assert order == [(1, 0), (2, 0), (3, 0), (3, 1), (2, 1), (1, 1), (1, 2), (2, 2), (3, 2)]
    assert folder_of(["rate"], [0.5]) == "rate-0.5"
    assert folder_of(["rate", "mode"], [2, "static"], 1) == "rate-2+mode-static~2"
    assert folder_of(["b"], ["512,4096"]) != folder_of(["b"], ["512-4096"])
    assert len({target.config.workload.prompt_seed for target in swept.interleaved([(1,), (2,)]) if target.config}) == 6


def test_time_left_is_the_schedule_and_what_comes_on_top() -> None:
    now = [0.0]
    pace = TimeLeft(lambda: now[0])
    slow, fast = (RunSettings.of({"rate": rate, "num_requests": 60}) for rate in (1.0, 6.0))
    assert pace.left_s([fast]) is None
    pace.begin()
    now[0] = 64.0
    pace.end(slow)
    assert pace.left_s([fast, fast]) == pytest.approx(2 * (10 + 4))
    assert pace.left_s([]) == 0
    assert [in_words(one) for one in (0.2, 40, 200, 9000)] == ["1 s", "40 s", "3 min", "2.5 h"]
