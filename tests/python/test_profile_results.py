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
from profiles import FILES, PICTURES, close, lines, named, profiled, read

from ringcast.profile import NoProfile, report, results
from ringcast.profile.__main__ import main

pytestmark = pytest.mark.alike


def write(
    folder: Any, send: float = 2.0, compute: float = 2.0, steps: int = 4, **options: Any
) -> Any:
    """A profile of steps with a broadcast of 1 ms and a send."""
    with profiled(folder, **options) as p:
        for _ in range(steps):
            with p.operation("broadcast", bytes=100):
                p.clock.passes(1)
            with p.region("layers.0.mlp"):
                p.clock.passes(compute)
                with p.operation("send", bytes=2 << 20):
                    p.clock.passes(send)
            p.metric("tokens", compute)
            p.step()
    return folder


REPORT = "performance_report.md"

# ---- Ranks ---------------------------------------------------------------------------------------


@pytest.fixture
def two_ranks(tmp_path):
    """Rank 1 computes longer and communicates less."""
    write(tmp_path, send=1, compute=6, rank=1, world=2)
    write(tmp_path, send=5, compute=2, rank=0, world=2)
    return tmp_path


def test_rank_0_merges_what_all_ranks_have_written(two_ranks):
    assert named(two_ranks) == FILES | {"rank0", "rank1"}
    assert named(two_ranks / "rank0") == named(two_ranks / "rank1") == FILES
    merged, ranks = read(two_ranks, "comm_analysis.json"), [
        read(two_ranks / f"rank{rank}", "comm_analysis.json") for rank in range(2)
    ]  # fmt: skip
    for name in (
        "total_comm_time",
        "exposed_comm_time",
        "total_time",
        "total_data",
        "total_operations",
    ):
        assert merged["summary"][name] == close(sum(each["summary"][name] for each in ranks)), name
    assert (
        merged["summary"]["steps"] == 4
        and " of 4 steps on 2 processes" in (two_ranks / REPORT).read_text()
    )
    send = merged["by_operation_type"]["send"]
    assert (send["count"], send["min_time"], send["max_time"]) == (8, close(0.001), close(0.005))
    assert send["avg_time"] == close(0.003) and send["std_time"] == close(0.002)
    assert merged["summary"]["comm_percentage"] == close(50)
    assert [row["rank"] for row in lines(two_ranks)].count("1") == len(lines(two_ranks)) / 2
    report = read(two_ranks, "analysis_report.json")
    assert [(each["rank"], each["steps"]) for each in report["ranks"]] == [(0, 4), (1, 4)]
    assert report["steps"]["count"] == 4
    assert (
        set(report["memory"]["by_rank"]) == {"0", "1"} and report["metrics"]["tokens"]["count"] == 8
    )
    assert any("rank 1 computes 6.00 ms a step" in each["finding"] for each in report["advice"])


def test_a_rank_that_writes_nothing_in_time_is_named_and_can_be_merged_later(tmp_path, capsys):
    write(tmp_path, rank=0, world=2, merge_timeout=0.05)
    told = read(tmp_path, "comprehensive_report.json")
    assert told["facts"]["missing_ranks"] == [1] and len(told["analysis_report"]["ranks"]) == 1
    assert "rank 1 had written nothing in time" in (tmp_path / "performance_report.md").read_text()
    write(tmp_path, rank=1, world=2)
    assert main(["merge", str(tmp_path), "--no-pictures"]) == 0
    assert "2 ranks" in capsys.readouterr().out
    assert read(tmp_path, "comm_analysis.json")["summary"]["ranks"] == 2


# ---- Read again ----------------------------------------------------------------------------------


def test_all_is_made_anew_from_the_one_file(tmp_path, capsys):
    write(tmp_path)
    before = {name: (tmp_path / name).read_text() for name in FILES}
    for name in FILES - {"profile.json", "detailed_timings.csv"}:
        (tmp_path / name).unlink()
    assert main(["report", str(tmp_path), "--no-pictures"]) == 0
    assert capsys.readouterr().out.startswith("# Performance report")
    assert {name: (tmp_path / name).read_text() for name in FILES} == before


BROKEN = [
    "",
    "{",
    "[]",
    "{}",
    '{"format": 99}',
    '{"format": 2, "facts": {}, "ranks": [], "store": {}}',
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_is_refused(tmp_path, text, capsys):
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(NoProfile, match="take the"):
        results.load(str(tmp_path))
    assert main(["report", str(tmp_path)]) == 2
    assert "profile.json" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["report", "X"], ["merge", "X"], ["compare", "X", "X"]])
def test_a_folder_without_a_profile_is_told(tmp_path, command, capsys):
    assert main([part.replace("X", str(tmp_path / "none")) for part in command]) == 2
    told = capsys.readouterr().err
    assert "none" in told and told.count("\n") == 1


# ---- Compare -------------------------------------------------------------------------------------


def compared(arguments: Any, capsys: Any) -> Any:
    status = main(["compare", *map(str, arguments)])
    return status, capsys.readouterr().out


def test_what_changed_is_told_with_how_much(tmp_path, capsys):
    one, two = write(tmp_path / "1"), write(tmp_path / "2", send=3)
    status, text = compared([one, two, "--format", "json"], capsys)
    changes = {each["what"]: each for each in json.loads(text)["changes"]}
    assert status == 0
    send = changes["send, 1 MiB to 16 MiB"]
    assert (send["before"], send["after"], send["percent"]) == (close(2000), close(3000), close(50))
    assert changes["broadcast, up to 1 KiB"]["percent"] == close(0)
    assert changes["a step"]["percent"] == close(20)
    assert changes["layers.0.mlp"]["percent"] == close(25)
    status, text = compared([one, two], capsys)
    assert "+50.0 %" in text and "broadcast" not in text and "--all shows them" in text
    assert "broadcast" in compared([one, two, "--all"], capsys)[1]


@pytest.mark.parametrize("over, status", [("10%", 1), ("49.9", 1), ("50.1%", 0), ("1000%", 0)])
def test_what_got_slower_by_more_than_allowed_fails(tmp_path, capsys, over, status):
    one, two = write(tmp_path / "1"), write(tmp_path / "2", send=3)
    found, text = compared([one, two, "--fail-over", over], capsys)
    assert found == status and ("slower by more than" in text) == bool(status)
    assert compared([two, one, "--fail-over", over], capsys)[0] == 0


def test_what_is_new_or_gone_is_told_and_does_not_fail(tmp_path, capsys):
    one, two = write(tmp_path / "1"), tmp_path / "2"
    with profiled(two) as p:
        with p.operation("gather"):
            p.clock.passes(1)
        p.step()
    status, text = compared([one, two, "--fail-over", "0"], capsys)
    assert status == 0 and text.count("gone") == 3 and text.count(" new") == 1


@pytest.mark.parametrize("over", ["x", "-3", "nan%x"])
def test_a_threshold_that_is_none_is_refused(tmp_path, capsys, over):
    with pytest.raises(SystemExit) as raised:
        main(["compare", "a", "b", f"--fail-over={over}"])
    assert raised.value.code == 2 and "no number of per cent" in capsys.readouterr().err


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
        with profiled(tmp_path, pictures=True, warmup=3) as p:
            p.step()
    else:
        write(tmp_path, pictures=True)
    assert named(tmp_path) == FILES | PICTURES
    assert all(
        width > 400 and height > 200
        for width, height in (size_of(tmp_path / name) for name in PICTURES)
    )
    report = (tmp_path / "performance_report.md").read_text()
    assert all(f"({name})" in report for name in PICTURES) and "no pictures" not in report


def test_many_names_and_ranks_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    for rank in reversed(range(3)):
        with profiled(tmp_path, rank=rank, world=3, pictures=True) as p:
            for _ in range(3):
                for index in range(40):
                    with p.region(f"model.layers.{index}.{'a_very_long_name_of_a_part' * 2}"):
                        p.clock.passes(index + 1)
                        with p.operation(f"operation_{index}" * 4, bytes=4**index % (1 << 31)):
                            p.clock.passes(1)
                p.step()
    assert named(tmp_path) == FILES | PICTURES | {"rank0", "rank1", "rank2"}
    assert all(max(size_of(tmp_path / name)) < 3000 for name in PICTURES)


@pytest.mark.parametrize("why", ["missing", "old", "broken"])
def test_without_pictures_all_else_is_there_and_the_report_says_why(tmp_path, monkeypatch, why):
    if why == "missing":
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        says = "matplotlib is missing; after `python -m pip install matplotlib`"
    else:
        matplotlib = pytest.importorskip("matplotlib")
        if why == "old":
            monkeypatch.setattr(matplotlib, "__version_info__", (3, 9, 9))
            says = "is too old"
        else:
            monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: 1 / 0)
            says = "no bandwidth_analysis.png: ZeroDivisionError"
    write(tmp_path, pictures=True)
    assert named(tmp_path) == FILES and says in (tmp_path / "performance_report.md").read_text()


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
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert named(tmp_path) == FILES


# ---- Rating and advice ---------------------------------------------------------------------------


def ratings(**metrics: float) -> Any:
    with profiled() as p:
        with p.operation("send"):
            p.clock.passes(1)
        p.clock.passes(3)
        for name, value in metrics.items():
            p.metric(name, value)
        p.step()
        return {each["measure"]: each for each in p.stop()["analysis_report"]["rating"]}


@pytest.mark.parametrize(
    "measure, metric, excellent, good, below",
    [
        ("TP scaling efficiency", "tp_efficiency_percent", 75.1, (75, 50), 49.9),
        ("PP scaling efficiency", "pp_efficiency_percent", 60.1, (60, 40), 39.9),
        ("P2P bandwidth", "p2p_bandwidth_gbps", 200.1, (200, 100), 99.9),
        ("NVLink utilisation", "nvlink_utilisation_percent", 50.1, (50, 30), 29.9),
    ],
)
def test_the_thresholds_rate_each_measure(measure, metric, excellent, good, below):
    wanted = {excellent: "excellent", good[0]: "good", good[1]: "good", below: "to be improved"}
    assert {value: ratings(**{metric: value})[measure]["rating"] for value in wanted} == wanted


def test_what_was_not_measured_is_not_rated():
    found = ratings()
    assert [(found[name]["value"], found[name]["rating"]) for name in found] == [(None, None)] * 4
    assert "p.metric('pp_efficiency_percent'" in found["PP scaling efficiency"]["how"]


@pytest.mark.parametrize("reduces, at_most, rated", [(1.0, 90, None), (6.0, 40, "to be improved")])
def test_a_bound_of_the_efficiency_leaves_out_other_communication_and_rates_only_what_is_low(
    reduces, at_most, rated
):
    with profiled() as p:
        for name, milliseconds in (
            ("all_reduce", reduces),
            ("recv", 3.0),
            ("broadcast_object_list", 1.0),
        ):
            with p.operation(name):
                p.clock.passes(milliseconds)
        p.clock.passes(6.0 - reduces)
        p.step()
        told = p.stop()
    (found,) = (
        each
        for each in told["analysis_report"]["rating"]
        if each["measure"] == "TP scaling efficiency"
    )
    assert (found["value"], found["is_bound"], found["rating"]) == (close(at_most), True, rated)
    assert f"| at most {at_most:.1f} % | {rated or 'not rated'} |" in report.text(told)


def advice(*operations: Any, steps: int = 20, rest: float = 1.0) -> str:
    with profiled() as p:
        for _ in range(steps):
            for name, milliseconds, nbytes in operations:
                with p.operation(name, bytes=nbytes):
                    p.clock.passes(milliseconds)
            p.clock.passes(rest)
            p.step()
        return json.dumps(p.stop()["analysis_report"]["advice"])


@pytest.mark.parametrize(
    "operations, says",
    [
        ([], "nothing stands out"),
        ([("all_reduce", 1.0, 1000)], "start it earlier"),
        ([("all_reduce", 0.01, 1000)] * 30, "their latency counts"),
        ([("broadcast_object_list", 0.2, 1000)], "RINGCAST_VLLM=1"),
    ],
)
def test_advice_follows_what_was_found(operations, says):
    assert says in advice(*operations)
    assert operations == [] or says not in advice()


# ---- What nobody planned -------------------------------------------------------------------------

NAMES = [
    "a|b", "line\nline", "<script>alert(1)</script>", '"quoted", with=commas', "$\\frac{$", "\udc80", "a\0b", "`code`",
    "[text](http://there)", "=1+1", "ж" * 300, "x" * 500_000, "\x1b[31m", "*",
]  # fmt: skip


def write_under_names(folder):
    with profiled(folder, pictures=True) as p:
        for name in NAMES:
            with p.region(name), p.operation(name, bytes=5):
                p.clock.passes(1)
            p.metric(name, 1)
            p.step()


def test_no_name_breaks_a_file_or_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    write_under_names(tmp_path)
    assert named(tmp_path) == FILES | PICTURES
    report = (tmp_path / "performance_report.md").read_text()
    assert "<script" not in report and "\nline" not in report and "](http" not in report
    widths = [line.count("|") for line in report.splitlines() if line.startswith("| ")]
    assert set(widths) <= {6, 7, 8, 9, 10, 11}, "each cell of a row is within its table"
    with open(tmp_path / "detailed_timings.csv", encoding="utf-8", newline="") as file:
        assert {len(line) for line in csv.reader(file)} == {15}
    again = results.load(str(tmp_path))
    assert len(again.store.rows.kept) == 2 * len(NAMES) and all(
        len(name) <= 200 for name in again.store.regions
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_numbers_that_are_none_do_not_lose_the_results(tmp_path, bad):
    for rank in 1, 0:
        with profiled(tmp_path, rank=rank, world=2) as p:
            for number in (3, bad, 5) if rank else (bad,):
                p.metric("loss", number)
            p.step()
    metric = read(tmp_path, "analysis_report.json")["metrics"]["loss"]
    assert (
        metric["count"],
        metric["min"],
        metric["max"],
        metric["last"],
        metric["not_finite"],
    ) == (2, 3, 5, 5, 2)
    assert (
        "metric loss: 2 values were no finite numbers"
        in (tmp_path / "performance_report.md").read_text()
    )
    assert read(tmp_path / "rank0", "analysis_report.json")["metrics"]["loss"] == {
        "count": 0,
        "not_finite": 1,
    }


def test_everything_is_put_back_even_if_the_profile_cannot_end(monkeypatch):
    json.test_profile = lambda: "called"
    monkeypatch.setattr(json, "test_profile", json.test_profile)
    json.test_profile.__name__ = "test_profile"
    original = json.test_profile
    p = profiled(step_at="json:test_profile")
    with pytest.raises(ZeroDivisionError), p:
        assert json.test_profile is not original and json.test_profile() == "called"
        monkeypatch.setattr(p, "_flush", lambda: 1 / 0)
    assert json.test_profile is original and not p._recorder.on


def test_a_size_that_raises_does_not_end_the_call():
    class Odd:
        is_cuda = False

        @property
        def nbytes(self):
            raise RuntimeError("this tensor has no size")

    with profiled() as p:
        timed = p._interceptor.wrap(
            lambda tensor: "done", "send", "torch", lambda args, kwargs, _: args[0].nbytes
        )
        assert timed(Odd()) == "done"
        p.step()
        assert p.stop()["comm_analysis"]["by_operation_type"]["send"]["total_data"] == 0


# ---- What the figures leave out ------------------------------------------------------------------


def test_operations_in_flight_together_are_not_hidden_behind_each_other():
    from ringcast.profile.store import Operation

    with profiled() as p:
        now = p.clock()

        def at(milliseconds):
            return now + milliseconds * 1_000_000

        p.clock.passes(10)
        # Two handles from 0 to 8; computing from 1 to 5, then the waits of both.
        for wait, end in (5, 7), (7, 8):
            told = at(0), at(end), at(1), at(wait)
            p._recorder.buffer().items.append(Operation(*told, "broadcast", "torch", 8, None))
        p.step()
        summary = p.stop()["comm_analysis"]["summary"]
    assert summary["total_comm_time"] == close(0.015) and summary["exposed_comm_time"] == close(
        0.004
    )
    assert summary["overlapped_comm_time"] == close(0.004)


@pytest.mark.parametrize("after, told", [(1300, True), (1200, False)])
def test_memory_is_compared_with_the_end_of_the_warm_up(monkeypatch, after, told):
    now = [100]
    memory = "ringcast.profile.session.memory_of_process"
    monkeypatch.setattr(memory, lambda: {"rss": now[0] << 20, "peak": now[0] << 20})
    with profiled(warmup=2) as p:
        for now[0] in 500, 1000, 1000, after, after:
            p.clock.passes(200)
            p.step()
        found = p.stop()["analysis_report"]
    (memory,) = found["memory"]["by_rank"].values()
    assert (memory["rss_first"], memory["rss_last"]) == (1000 << 20, after << 20)
    assert ("memory grew by 300 MiB" in json.dumps(found["advice"])) == told
