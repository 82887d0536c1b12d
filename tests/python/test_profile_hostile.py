# SPDX-License-Identifier: Apache-2.0
"""ringcast.profile under names, numbers and errors that nobody planned: the program goes on, the results are there."""

import csv
import json
import math

import pytest
from profiles import FILES, PICTURES, close, named, profiled, read

from ringcast.profile import results

pytestmark = pytest.mark.alike

NAMES = [
    "a|b", "line\nline", "<script>alert(1)</script>", '"quoted", with=commas', "$\\frac{$", "\udc80", "a\0b", "`code`",
    "[text](http://there)", "=1+1", "ж" * 300, "x" * 500_000, "\x1b[31m", "*",
]  # fmt: skip


def write(folder, name):
    with profiled(folder, pictures=True) as p:
        with p.region(name), p.operation(name, bytes=5):
            p.clock.passes(1)
        p.metric(name, 1)
        p.step(name)


@pytest.fixture(scope="module", autouse=True)
def fonts(tmp_path_factory):
    """matplotlib keeps the files of its fonts open."""
    for name in NAMES:
        write(tmp_path_factory.mktemp("fonts"), name)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_breaks_no_file_and_no_picture(tmp_path, name):
    pytest.importorskip("matplotlib")
    write(tmp_path, name)
    assert named(tmp_path) == FILES | PICTURES
    report = (tmp_path / "performance_report.md").read_text()
    assert "<script" not in report and "\nline" not in report and "](http" not in report
    tables = [line for line in report.splitlines() if line.startswith("| ")]
    widths = [line.count("|") for line in tables]
    assert all(widths[index] == widths[index - 1] for index, line in enumerate(tables) if line.startswith("| ---"))
    assert set(widths) <= {6, 7, 8, 9, 10, 11}, "each cell of a row is within its table"
    with open(tmp_path / "detailed_timings.csv", encoding="utf-8", newline="") as file:
        assert [len(line) for line in csv.reader(file)] == [15, 15, 15]
    again = results.load(str(tmp_path))
    assert len(again.store.rows.kept) == 2 and all(len(region) <= 200 for region in again.store.regions)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_numbers_that_are_none_do_not_lose_the_results(tmp_path, bad):
    for rank in 1, 0:
        with profiled(tmp_path, rank=rank, world=2) as p:
            for number in (3, bad, 5) if rank else (bad,):
                p.metric("loss", number)
            p.step()
    metric = read(tmp_path, "analysis_report.json")["metrics"]["loss"]
    assert (metric["count"], metric["min"], metric["max"], metric["last"], metric["not_finite"]) == (2, 3, 5, 5, 2)
    assert "metric loss: 2 values were no finite numbers" in (tmp_path / "performance_report.md").read_text()
    assert read(tmp_path / "rank0", "analysis_report.json")["metrics"]["loss"] == {"count": 0, "not_finite": 1}


def test_numbers_of_numpy_are_numbers(tmp_path):
    numpy = pytest.importorskip("numpy")
    with profiled(tmp_path, warmup=numpy.int64(0), rank=numpy.int64(0), rows=numpy.int64(9)) as p:
        with p.operation("send", bytes=numpy.prod((3, 4)) * 4):
            p.clock.passes(1)
        p.step()
    assert read(tmp_path, "comm_analysis.json")["summary"]["total_data"] == 48


def test_everything_is_put_back_even_if_the_profile_cannot_end(monkeypatch):
    json.test_profile = lambda: "called"
    monkeypatch.setattr(json, "test_profile", json.test_profile)
    json.test_profile.__name__ = "test_profile"
    original = json.test_profile
    p = profiled(step_at="json:test_profile")
    with pytest.raises(ZeroDivisionError), p:
        assert json.test_profile is not original and json.test_profile() == "called"
        monkeypatch.setattr(p, "_sum_up", lambda: 1 / 0)
    assert json.test_profile is original and not p._recorder.on and not p._subscribed


def test_a_size_that_raises_does_not_end_the_call():
    class Odd:
        is_cuda = False

        @property
        def nbytes(self):
            raise RuntimeError("this tensor has no size")

    with profiled() as p:
        timed = p._interceptor.wrap(lambda tensor: "done", "send", "torch", lambda args, kwargs, _: args[0].nbytes)
        assert timed(Odd()) == "done"
        p.step()
        assert p.stop()["comm_analysis"]["by_operation_type"]["send"]["total_data"] == 0


def test_a_report_of_nothing_at_all(tmp_path):
    with profiled(tmp_path, pictures=True):
        pass
    assert "No bottleneck" in (tmp_path / "performance_report.md").read_text()
    assert read(tmp_path, "comm_analysis.json")["summary"]["comm_percentage"] == 0


# ---- What the figures leave out --------------------------------------------------------------------------------------


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
    assert summary["total_comm_time"] == close(0.015) and summary["exposed_comm_time"] == close(0.004)
    assert summary["overlapped_comm_time"] == close(0.004)


def test_the_kinds_of_steps_are_apart(tmp_path):
    with profiled(tmp_path, pictures=True, warmup=1) as p:
        for number in range(221):
            with p.operation("all_reduce"):
                p.clock.passes(1)
            p.clock.passes(1 if number % 10 else 99)
            p.step("decode" if number % 10 else "prefill")
    report = read(tmp_path, "analysis_report.json")
    kinds = report["steps"]["by_label"]
    assert list(kinds) == ["prefill", "decode"], "the longest first"
    assert (kinds["decode"]["count"], kinds["prefill"]["count"]) == (198, 22)
    assert (kinds["decode"]["comm_percentage"], kinds["prefill"]["comm_percentage"]) == (close(50), close(1))
    assert "1 % of the" not in json.dumps(report["advice"]), "prefill is no outlier of decode"
    assert "| decode | 198 |" in (tmp_path / "performance_report.md").read_text()
    with pytest.raises(TypeError, match="kind of steps's name is a str"):
        with profiled() as p:
            p.step(7)


def test_steps_without_kinds_may_be_of_several():
    with profiled() as p:
        for number in range(200):
            p.clock.passes(1 if number % 10 else 99)
            p.step()
        advice = json.dumps(p.stop()["analysis_report"]["advice"])
    assert "1 % of the steps take 9" in advice and "p.step('prefill')" in advice


@pytest.mark.parametrize("after, told", [(1300, True), (1200, False)])
def test_memory_is_compared_with_the_end_of_the_warm_up(monkeypatch, after, told):
    now = [100]
    monkeypatch.setattr("ringcast.profile.memory.of_process", lambda: {"rss": now[0] << 20, "peak": now[0] << 20})
    with profiled(warmup=2) as p:
        for now[0] in 500, 1000, 1000, after, after:
            p.clock.passes(200)
            p.step()
        found = p.stop()["analysis_report"]
    (memory,) = found["memory"]["by_rank"].values()
    assert (memory["rss_first"], memory["rss_last"]) == (1000 << 20, after << 20)
    assert ("memory grew by 300 MiB" in json.dumps(found["advice"])) == told


def test_a_step_that_takes_long_has_several_samples_of_the_memory():
    with profiled() as p:
        for _ in range(50):
            with p.operation("send"):
                p.clock.passes(100)
        told = p.stop()
    (series,) = p._results().store.memory.values()
    assert len(series.kept) >= 8 and series.kept[-1][0] == close(5)
    assert told["comm_analysis"]["summary"]["total_comm_time"] == close(5)
