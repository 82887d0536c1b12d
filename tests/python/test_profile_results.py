# SPDX-License-Identifier: Apache-2.0
"""
What ringcast.profile writes: merged over ranks, made anew, compared, drawn, rated; and what it does
under names, numbers and errors that nobody planned.
"""

import csv
import json
import math
import struct
import subprocess
import sys
from typing import Any

import pytest
from profiles import (
    FILES,
    PICTURES,
    close,
    lines,
    named,
    profiled,
    read,
    summary,
    takes,
    told,
)

from ringcast.profile import NoProfile, report, results
from ringcast.profile.__main__ import main
from ringcast.profile.store import Operation

pytestmark = pytest.mark.alike

REPORT = "performance_report.md"


def write(folder: Any, send: float = 2.0, compute: float = 2.0, **options: Any) -> Any:
    """A profile of four steps with a broadcast of 1 ms and a send."""
    with profiled(folder, **options) as p:
        for _ in range(4):
            takes(p, 1, "broadcast", bytes=100)
            with p.region("layers.0.mlp"):
                p.clock.passes(compute)
                takes(p, send, "send", bytes=2 << 20)
            p.metric("tokens", compute)
            p.step()
    return folder


# ---- Ranks ---------------------------------------------------------------------------------------


def test_rank_0_merges_what_all_ranks_have_written(tmp_path):
    write(tmp_path, send=1, compute=6, rank=1, world=2)  # computes longer, communicates less
    write(tmp_path, send=5, compute=2, rank=0, world=2)
    assert named(tmp_path) == FILES | {"rank0", "rank1"}
    assert named(tmp_path / "rank0") == named(tmp_path / "rank1") == FILES
    merged = read(tmp_path, "comm_analysis.json")
    ranks = [read(tmp_path / f"rank{rank}", "comm_analysis.json") for rank in range(2)]
    for name in "total_comm_time exposed_comm_time total_time total_data total_operations".split():
        assert merged["summary"][name] == close(sum(each["summary"][name] for each in ranks)), name
    assert merged["summary"]["steps"] == 4 and merged["summary"]["comm_percentage"] == close(50)
    send = merged["by_operation_type"]["send"]
    wanted = {"count": 8, "min_time": 0.001, "max_time": 0.005, "avg_time": 0.003}
    assert {name: send[name] for name in wanted} == close(wanted) and send["std_time"] == close(
        0.002
    )
    assert [row["rank"] for row in lines(tmp_path)].count("1") == len(lines(tmp_path)) / 2
    found = read(tmp_path, "analysis_report.json")
    assert [(each["rank"], each["steps"]) for each in found["ranks"]] == [(0, 4), (1, 4)]
    assert found["steps"]["count"] == 4 and found["metrics"]["tokens"]["count"] == 8
    assert set(found["memory"]["by_rank"]) == {"0", "1"}
    assert any("rank 1 computes 6.00 ms" in each["finding"] for each in found["advice"])


def test_a_rank_that_writes_nothing_in_time_is_named_and_can_be_merged_later(tmp_path, capsys):
    write(tmp_path, rank=0, world=2, merge_timeout=0.05)
    found = read(tmp_path, "comprehensive_report.json")
    assert found["facts"]["missing_ranks"] == [1] and len(found["analysis_report"]["ranks"]) == 1
    assert "rank 1 had written nothing" in (tmp_path / REPORT).read_text()
    write(tmp_path, rank=1, world=2)
    assert main(["merge", str(tmp_path), "--no-pictures"]) == 0
    assert "2 ranks" in capsys.readouterr().out
    assert read(tmp_path, "comm_analysis.json")["summary"]["ranks"] == 2


# ---- Read again, and compared --------------------------------------------------------------------


def test_all_is_made_anew_from_the_one_file(tmp_path, capsys):
    write(tmp_path)
    before = {name: (tmp_path / name).read_text() for name in FILES}
    for name in FILES - {"profile.json", "detailed_timings.csv"}:
        (tmp_path / name).unlink()
    assert main(["report", str(tmp_path), "--no-pictures"]) == 0
    assert capsys.readouterr().out.startswith("# Performance report")
    assert {name: (tmp_path / name).read_text() for name in FILES} == before


OLD = '{"format": 2, "facts": {}, "ranks": [], "store": {}}'


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 99}', OLD])
def test_a_broken_file_is_refused(tmp_path, text, capsys):
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(NoProfile):
        results.load(str(tmp_path))
    assert main(["report", str(tmp_path)]) == 2
    assert "profile.json" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["report", "X"], ["merge", "X"], ["compare", "X", "X"]])
def test_a_folder_without_a_profile_is_told(tmp_path, command, capsys):
    assert main([part.replace("X", str(tmp_path / "none")) for part in command]) == 2
    error = capsys.readouterr().err
    assert "none" in error and error.count("\n") == 1


def compared(capsys: Any, *arguments: Any) -> Any:
    status = main(["compare", *map(str, arguments)])
    return status, capsys.readouterr().out


def test_what_changed_is_told_with_how_much(tmp_path, capsys):
    one, two = write(tmp_path / "1"), write(tmp_path / "2", send=3)
    status, text = compared(capsys, one, two, "--format", "json")
    changes = {each["what"]: each for each in json.loads(text)["changes"]}
    send = changes["send, 1 MiB to 16 MiB"]
    assert (status, send["before"], send["after"]) == (0, close(2000), close(3000))
    percents = {"send, 1 MiB to 16 MiB": 50, "broadcast, up to 1 KiB": 0, "a step": 20}
    percents["layers.0.mlp"] = 25
    assert {name: changes[name]["percent"] for name in percents} == close(percents)
    _, text = compared(capsys, one, two)
    assert "+50.0 %" in text and "broadcast" not in text
    assert "broadcast" in compared(capsys, one, two, "--all")[1]


@pytest.mark.parametrize("over, status", [("10%", 1), ("49.9", 1), ("50.1%", 0), ("1000%", 0)])
def test_what_got_slower_by_more_than_allowed_fails(tmp_path, capsys, over, status):
    one, two = write(tmp_path / "1"), write(tmp_path / "2", send=3)
    found, text = compared(capsys, one, two, "--fail-over", over)
    assert found == status and ("slower" in text) == bool(status)
    assert compared(capsys, two, one, "--fail-over", over)[0] == 0


def test_what_is_new_or_gone_is_told_and_does_not_fail(tmp_path, capsys):
    one, two = write(tmp_path / "1"), tmp_path / "2"
    told(lambda p: takes(p, 1, "gather"), folder=two)
    status, text = compared(capsys, one, two, "--fail-over", "0")
    assert status == 0 and text.count("gone") == 3 and text.count(" new") == 1


@pytest.mark.parametrize("over", ["x", "-3", "nan%x"])
def test_a_threshold_that_is_none_is_refused(capsys, over):
    with pytest.raises(SystemExit) as raised:
        main(["compare", "a", "b", f"--fail-over={over}"])
    assert raised.value.code == 2 and "per cent" in capsys.readouterr().err


# ---- Pictures ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def fonts(tmp_path_factory):
    """matplotlib keeps the files of its fonts open."""
    write_under_names(tmp_path_factory.mktemp("fonts"))


def size_of(path: Any) -> Any:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize("empty", [False, True])
def test_the_six_pictures_are_there(tmp_path, empty):
    pytest.importorskip("matplotlib")
    if empty:
        told(lambda p: None, folder=tmp_path, pictures=True, warmup=3)
    else:
        write(tmp_path, pictures=True)
    assert named(tmp_path) == FILES | PICTURES
    sizes = [size_of(tmp_path / name) for name in PICTURES]
    assert all(width > 400 and height > 200 for width, height in sizes)
    text = (tmp_path / REPORT).read_text()
    assert all(f"({name})" in text for name in PICTURES) and "no pictures" not in text


def test_many_names_and_ranks_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    for rank in reversed(range(3)):
        with profiled(tmp_path, rank=rank, world=3, pictures=True) as p:
            for index in [*range(40)] * 3:
                with p.region(f"model.layers.{index}.{'a_very_long_name_of_a_part' * 2}"):
                    p.clock.passes(index + 1)
                    takes(p, 1, f"operation_{index}" * 4, bytes=4**index % (1 << 31))
                if index == 39:
                    p.step()
    assert named(tmp_path) == FILES | PICTURES | {"rank0", "rank1", "rank2"}
    assert all(max(size_of(tmp_path / name)) < 3000 for name in PICTURES)


@pytest.mark.parametrize("why", ["is missing", "too old", "ZeroDivisionError"])
def test_without_pictures_all_else_is_there_and_the_report_says_why(tmp_path, monkeypatch, why):
    if why == "is missing":
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    else:
        matplotlib = pytest.importorskip("matplotlib")
        if why == "too old":
            monkeypatch.setattr(matplotlib, "__version_info__", (3, 9, 9))
        else:
            monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: 1 / 0)
    write(tmp_path, pictures=True)
    assert named(tmp_path) == FILES and why in (tmp_path / REPORT).read_text()


def test_the_process_needs_no_numpy_and_no_torch(tmp_path):
    program = f"""
import sys
for name in "numpy", "torch", "matplotlib":
    sys.modules[name] = None
from ringcast.profile import profile
with profile({str(tmp_path)!r}, warmup=0) as p:
    with p.operation("send"):
        pass
    p.step()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert named(tmp_path) == FILES


# ---- Rating and advice ---------------------------------------------------------------------------


def ratings(**metrics: float) -> Any:
    def script(p):
        takes(p, 1)
        p.clock.passes(3)
        for name, value in metrics.items():
            p.metric(name, value)

    return {each["measure"]: each for each in told(script)["analysis_report"]["rating"]}


@pytest.mark.parametrize(
    "measure, metric, upper, lower",
    [
        ("TP scaling efficiency", "tp_efficiency_percent", 75, 50),
        ("PP scaling efficiency", "pp_efficiency_percent", 60, 40),
        ("P2P bandwidth", "p2p_bandwidth_gbps", 200, 100),
        ("NVLink utilisation", "nvlink_utilisation_percent", 50, 30),
    ],
)
def test_the_thresholds_rate_each_measure(measure, metric, upper, lower):
    wanted = {upper + 0.1: "excellent", upper: "good", lower: "good", lower - 0.1: "to be improved"}
    assert {value: ratings(**{metric: value})[measure]["rating"] for value in wanted} == wanted


def test_what_was_not_measured_is_not_rated():
    found = ratings()
    assert [(found[name]["value"], found[name]["rating"]) for name in found] == [(None, None)] * 4
    assert "pp_efficiency_percent" in found["PP scaling efficiency"]["how"]


@pytest.mark.parametrize("reduces, at_most, rated", [(1.0, 90, None), (6.0, 40, "to be improved")])
def test_a_bound_of_the_efficiency_leaves_out_other_communication_and_rates_only_what_is_low(
    reduces, at_most, rated
):
    def script(p):
        takes(p, reduces, "all_reduce")
        takes(p, 3.0, "recv")
        takes(p, 1.0, "broadcast_object_list")
        p.clock.passes(6.0 - reduces)

    found = told(script)
    (one,) = (
        each
        for each in found["analysis_report"]["rating"]
        if each["measure"] == "TP scaling efficiency"
    )
    assert (one["value"], one["is_bound"], one["rating"]) == (close(at_most), True, rated)
    assert f"| at most {at_most:.1f} % | {rated or 'not rated'} |" in report.text(found)


def advice(*made: Any) -> str:
    with profiled() as p:
        for _ in range(20):
            for name, milliseconds in made:
                takes(p, milliseconds, name, bytes=1000)
            p.clock.passes(1.0)
            p.step()
        return json.dumps(p.stop()["analysis_report"]["advice"])


@pytest.mark.parametrize(
    "made, says",
    [
        ([], "nothing stands out"),
        ([("all_reduce", 1.0)], "start it earlier"),
        ([("all_reduce", 0.01)] * 30, "their latency counts"),
        ([("broadcast_object_list", 0.2)], "RINGCAST_VLLM=1"),
    ],
)
def test_advice_follows_what_was_found(made, says):
    assert says in advice(*made)
    assert made == [] or says not in advice()


# ---- What nobody planned -------------------------------------------------------------------------

NAMES = [
    "a|b", "line\nline", "<script>alert(1)</script>", '"quoted", with=commas', "$\\frac{$", "\udc80", "a\0b", "`code`",
    "[text](http://there)", "=1+1", "ж" * 300, "x" * 500_000, "\x1b[31m", "*",
]  # fmt: skip


def write_under_names(folder):
    def script(p):
        for name in NAMES:
            with p.region(name):
                takes(p, 1, name, bytes=5)
            p.metric(name, 1)

    told(script, folder=folder, pictures=True)


def test_no_name_breaks_a_file_or_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    write_under_names(tmp_path)
    assert named(tmp_path) == FILES | PICTURES
    text = (tmp_path / REPORT).read_text()
    assert "<script" not in text and "\nline" not in text and "](http" not in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("| ")}
    assert widths <= {6, 7, 8, 9, 10, 11}, "each cell of a row is within its table"
    with open(tmp_path / "detailed_timings.csv", encoding="utf-8", newline="") as file:
        assert {len(line) for line in csv.reader(file)} == {15}
    again = results.load(str(tmp_path)).store
    assert len(again.rows.kept) == 2 * len(NAMES)
    assert all(len(name) <= 200 for name in again.regions)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_numbers_that_are_none_do_not_lose_the_results(tmp_path, bad):
    for rank in 1, 0:
        with profiled(tmp_path, rank=rank, world=2) as p:
            for number in (3, bad, 5) if rank else (bad,):
                p.metric("loss", number)
            p.step()
    loss = read(tmp_path, "analysis_report.json")["metrics"]["loss"]
    wanted = {"count": 2, "min": 3, "max": 5, "last": 5, "not_finite": 2}
    assert {name: loss[name] for name in wanted} == wanted
    assert "metric loss: 2 values" in (tmp_path / REPORT).read_text()
    of_rank = read(tmp_path / "rank0", "analysis_report.json")["metrics"]["loss"]
    assert of_rank == {"count": 0, "not_finite": 1}


def test_everything_is_put_back_even_if_the_profile_cannot_end(tmp_path, monkeypatch):
    original = json.loads
    p = profiled(tmp_path / "results", step_at="json:loads")
    with pytest.raises(OSError), p:
        assert json.loads is not original and json.loads("1") == 1
        (tmp_path / "results").rmdir()
        (tmp_path / "results").write_text("")
    assert json.loads is original


# ---- What the figures leave out ------------------------------------------------------------------


def test_operations_in_flight_together_are_not_hidden_behind_each_other():
    def script(p):
        now = p.clock()
        p.clock.passes(10)
        # Two handles from 0 to 8; computing from 1 to 5, then the waits of both.
        for wait, end in (5, 7), (7, 8):
            times = [now + at * 1_000_000 for at in (0, end, 1, wait)]
            p._recorder.buffer().items.append(Operation(*times, "broadcast", "torch", 8, None))

    found = summary(told(script), "total_comm_time", "exposed_comm_time", "overlapped_comm_time")
    assert found == [close(0.015), close(0.004), close(0.004)]


@pytest.mark.parametrize("after, grew", [(1300, True), (1200, False)])
def test_memory_is_compared_with_the_end_of_the_warm_up(monkeypatch, after, grew):
    now = [100]
    memory = "ringcast.profile.session.memory_of_process"
    monkeypatch.setattr(memory, lambda: {"rss": now[0] << 20, "peak": now[0] << 20})
    with profiled(warmup=2) as p:
        for now[0] in 500, 1000, 1000, after, after:
            p.clock.passes(200)
            p.step()
        found = p.stop()["analysis_report"]
    (one,) = found["memory"]["by_rank"].values()
    assert (one["rss_first"], one["rss_last"]) == (1000 << 20, after << 20)
    assert ("memory grew by 300 MiB" in json.dumps(found["advice"])) == grew
