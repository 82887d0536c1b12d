# SPDX-License-Identifier: Apache-2.0
"""ringcast.profile: what a profile counts, with a clock that the tests move: sums, steps, nesting,
threads, bounds."""

import os
import threading

import pytest
from profiles import (
    FILES,
    close,
    lines,
    named,
    operations,
    profiled,
    read,
    span,
    summary,
    takes,
    told,
)

import ringcast
from ringcast.profile import current, profile, store
from ringcast.profile.store import Totals

pytestmark = pytest.mark.alike


# ---- Sums ----------------------------------------------------------------------------------------


def three_steps(p):
    """Each of 10 ms: 2 of computing, a region with 1 and a gather of 4, and a send of 3."""
    for _ in range(3):
        p.clock.passes(2)
        with p.region("layers.0.attn"):
            p.clock.passes(1)
            takes(p, 4, "gather", bytes=4000)
        takes(p, 3, "send", bytes=3 << 20)
        p.metric("tokens", 16)
        p.step()


@pytest.fixture
def folder(tmp_path):
    with profiled(tmp_path) as p:
        three_steps(p)
    return tmp_path


def test_the_communications_share_and_sums_are_exact(folder):
    found = read(folder, "comm_analysis.json")
    wanted = {"comm_percentage": 70, "total_comm_time": 0.021, "exposed_comm_time": 0.021}
    wanted |= {"total_time": 0.030, "compute_time": 0.009, "overlapped_comm_time": 0}
    wanted |= {"steps": 3, "total_operations": 6}
    assert {name: found["summary"][name] for name in wanted} == close(wanted)
    gather = {"count": 3, "total_time": 0.012, "avg_time": 0.004, "std_time": 0, "min_time": 0.004}
    gather |= {"max_time": 0.004, "total_data": 12000, "avg_bandwidth_gbps": 0.001}
    one = found["by_operation_type"]["gather"]
    assert {name: one[name] for name in gather} == close(gather)


@pytest.mark.parametrize(
    "group", ["by_operation_type", "by_operation_and_size", "by_size_range", "by_source"]
)
def test_each_grouping_adds_up_to_the_whole(folder, group):
    found = read(folder, "comm_analysis.json")
    groups = list((found.get(group) or found["bandwidth_analysis"][group]).values())
    if group == "by_operation_and_size":
        groups = [each for sizes in groups for each in sizes.values()]
    wholes = {"total_time": "total_comm_time", "count": "total_operations"}
    for figure, whole in (wholes | {"total_data": "total_data"}).items():
        assert sum(each[figure] for each in groups) == close(found["summary"][whole])


def test_the_latencies_are_by_size_and_have_a_base(folder):
    found = read(folder, "comm_analysis.json")["latency_analysis"]
    assert set(found["by_tensor_size"]) == {"1 KiB to 16 KiB", "1 MiB to 16 MiB"}
    assert found["by_tensor_size"]["1 MiB to 16 MiB"]["avg_latency_us"] == close(3000)
    assert (found["baseline_of"], found["baseline_latency_us"]) == ("1 KiB to 16 KiB", close(4000))


def test_a_region_is_its_own_time_and_its_parts(folder):
    report = read(folder, "analysis_report.json")
    region = report["layer_breakdown"]["layers.0.attn"]
    times = {"count": 3, "total_time": 0.015, "avg_time": 0.005, "self_time": 0.003}
    assert {name: region[name] for name in times} == close(times)
    assert region["operations"] == {"gather": close(0.012)}
    assert set(report["communication_analysis"]["by_operation_type"]) == {"gather", "send"}
    assert report["metrics"]["tokens"]["avg"] == 16 and report["metrics"]["tokens"]["count"] == 3
    assert report["steps"]["avg_time"] == close(0.010)


def test_the_bottlenecks_come_in_their_order_and_make_up_the_steps(folder):
    parts = read(folder, "analysis_report.json")["bottlenecks"]
    assert [part["what"] for part in parts[:2]] == ["gather", "send"]
    assert sum(part["seconds"] for part in parts) == close(0.030)
    assert sum(part["share_percent"] for part in parts) == close(100)
    first = (folder / "performance_report.md").read_text().splitlines()[2]
    assert first.startswith("**Bottleneck: gather**") and "40.0 %" in first and "4.00 ms" in first


def test_the_rows_are_the_records(folder):
    rows = lines(folder)
    assert [row["op_type"] for row in rows[:3]] == ["region", "gather", "send"] and len(rows) == 9
    gather = rows[1]
    assert (gather["tensor_size"], gather["region"]) == ("4000", "layers.0.attn")
    assert float(gather["duration"]) == 0.004 and {row["step"] for row in rows} == {"0", "1", "2"}
    whole = read(folder, "comprehensive_report.json")
    assert whole["detailed_timings"] == {"rows": 9, "of": 9, "every": 1}
    assert whole["comm_analysis"] == read(folder, "comm_analysis.json")
    assert whole["analysis_report"] == read(folder, "analysis_report.json")


# ---- Steps ---------------------------------------------------------------------------------------


def test_the_warm_up_and_what_comes_after_the_last_step_are_left_out(tmp_path):
    with profiled(tmp_path, warmup=2) as p:
        for number in range(5):
            takes(p, 1, "warm" if number < 2 else "send")
            p.metric("number", number)
            p.step()
        takes(p, 50, "late")
    found = read(tmp_path, "comm_analysis.json")
    assert set(found["by_operation_type"]) == {"send"} and found["summary"]["steps"] == 3
    assert found["summary"]["total_time"] == close(0.003)
    assert read(tmp_path, "analysis_report.json")["metrics"]["number"]["min"] == 2


def test_without_a_step_the_whole_is_one():
    with profiled(warmup=3) as p:
        takes(p, 3)
        p.clock.passes(1)
        found = p.stop()
    assert summary(found, "comm_percentage") == [close(75)]
    assert any("step() was never called" in note for note in found["notes"])


def test_nothing_but_warm_up_is_told():
    found = told(lambda p: takes(p, 3), warmup=3)
    assert operations(found) == {} and found["analysis_report"]["bottlenecks"] == []
    assert any("nothing was recorded" in note for note in found["notes"])


def test_a_sample_of_the_steps_is_recorded_and_nothing_else(tmp_path):
    with profiled(tmp_path, sample=0.25, warmup=1) as p:
        for _ in range(401):
            with p.region("r"):
                takes(p, 1)
            p.step()
    recorded = sorted({int(row["step"]) for row in lines(tmp_path)})
    found = read(tmp_path, "comm_analysis.json")
    assert 95 <= len(recorded) <= 105
    assert found["summary"]["steps"] == found["by_operation_type"]["send"]["count"] == len(recorded)
    assert read(tmp_path, "analysis_report.json")["steps"]["skipped"] == 400 - len(recorded)
    gaps = {after - before for before, after in zip(recorded, recorded[1:])}
    assert len(gaps) > 1 and max(gaps) <= 8, "spread evenly, and in step with no period"


def test_a_region_that_goes_on_over_steps_counts_where_it_ends():
    def script(p):
        with p.region("whole"):
            for _ in range(3):
                takes(p, 2)
                p.clock.passes(1)
                p.step()
            p.clock.passes(100)

    region = told(script)["analysis_report"]["layer_breakdown"]["whole"]
    times = {"total_time": 0.109, "min_time": 0.109, "max_time": 0.109, "std_time": 0, "count": 1}
    assert {name: region[name] for name in times} == close(times)
    assert region["operations"] == {"send": close(0.006)} and not region["within_another"]


def test_a_step_that_records_much_is_summed_up():
    def script(p):
        for index in range(12_000):
            with p.region(f"r{index % 2}"):
                takes(p, 1, bytes=1)

    found = told(script)
    assert operations(found)["send"]["count"] == 12_000
    assert summary(found, "comm_percentage") == [close(100)]
    assert found["analysis_report"]["layer_breakdown"]["r0"]["count"] == 6_000


# ---- ringcast's own operations -------------------------------------------------------------------


def test_spans_become_operations_with_their_waiting():
    thread = threading.get_native_id()
    spans = [
        ("encode", 0, 1, 0), ("wait_room", 1, 4, 0), ("copy", 4, 5, 0), ("publish", 5, 6, 0),
        ("send", 0, 6, 3000), ("wait_frame", 6, 7, 0), ("recv", 6, 8, 500),
        ("wait_room", 8.5, 9, 0), ("send", 9.5, 9.5, 1),
    ]  # fmt: skip

    def script(p):
        with p.region("r"):
            p._recorder.take_spans([span(p, *each[:3], thread, each[3]) for each in spans])
            p.clock.passes(10)

    found = told(script)
    send = operations(found)["ringcast.send"]
    times = {"count": 2, "total_time": 0.006, "waiting_time": 0.003}
    assert {name: send[name] for name in times} == close(times)
    assert send["avg_bandwidth_gbps"] == close(3001 / 3e6), "without the waiting"
    assert operations(found)["ringcast.recv"]["waiting_time"] == close(0.001)
    assert operations(found)["ringcast.reserve"]["waiting_time"] == close(0.0005)
    assert summary(found, "comm_percentage") == [close(85)]
    parts = found["analysis_report"]["layer_breakdown"]["r"]["operations"]
    assert parts["ringcast.send"] == close(0.006) and parts["ringcast.recv"] == close(0.002)


def test_a_call_that_has_not_ended_keeps_its_waiting():
    thread = threading.get_native_id()

    def script(p):
        p._recorder.take_spans([span(p, "wait_frame", 0, 2, thread)])
        p.step()
        p._recorder.take_spans([span(p, "recv", 0, 3, thread, 8)])
        p.clock.passes(5)

    assert operations(told(script))["ringcast.recv"]["waiting_time"] == close(0.002)


def test_a_ring_s_calls_are_recorded():
    with profile(None, warmup=0) as p, ringcast.Writer(1 << 20) as writer:
        with ringcast.Reader(writer.handle) as reader:
            for _ in range(5):
                with p.operation("step"):
                    writer.send({"a": 1})
                reader.recv()
        p.step()
        found = p.stop()
    recv = operations(found)["ringcast.recv"]
    assert recv["count"] == 5 and recv["total_data"] > 0
    assert found["comm_analysis"]["nested"]["ringcast.send (ringcast)"]["count"] == 5
    assert "ringcast.send" not in operations(found)


# ---- Use -----------------------------------------------------------------------------------------


def test_the_running_profile_can_be_found(tmp_path):
    with profile(tmp_path, warmup=0, pictures=False) as p:
        assert current() is p
    assert named(tmp_path) == FILES and current() is None


def test_what_is_there_can_be_saved_meanwhile(tmp_path):
    with profiled(tmp_path) as p:
        three_steps(p)
        p.save()
        before = read(tmp_path, "comm_analysis.json")["summary"]
        three_steps(p)
    assert before["steps"] == 3 and before["comm_percentage"] == close(70)
    assert read(tmp_path, "comm_analysis.json")["summary"]["steps"] == 6


@pytest.mark.parametrize(
    "options",
    [{"sample": 0}, {"sample": 1.5}, {"warmup": -1}, {"rows": -1}, {"dir": ""}, {"step_at": "x"}],
)
def test_bad_arguments_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ringcast.profile.profile(**options)


def test_a_folder_that_cannot_be_made_is_told_at_the_beginning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="folder"), profiled(tmp_path / "file" / "in"):
        raise AssertionError


def test_names_and_life_are_checked():
    p = profiled()
    with pytest.raises(RuntimeError, match="not running"):
        p.stop()
    with p:
        for bad in "", 7:
            for kind in p.region, p.operation:
                with pytest.raises(TypeError, match="name"):
                    kind(bad)
        with pytest.raises(ValueError, match="bytes of x"):
            p.operation("x", bytes=-1)
    with pytest.raises(RuntimeError, match="started before"):
        p.start()
    with p.region("after"), p.operation("after"):
        p.step()


def test_a_forked_child_writes_nothing(tmp_path):
    with profiled(tmp_path) as p:
        takes(p, 1)
        child = os.fork()
        if child == 0:
            try:
                p.__exit__(None, None, None)
                os._exit(1 if named(tmp_path) else 0)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        p.step()
    assert named(tmp_path) == FILES


# ---- What lies within what -----------------------------------------------------------------------


def test_an_operation_within_another_counts_once():
    def script(p):
        with p.operation("outer", bytes=10):
            p.clock.passes(1)
            takes(p, 2, "inner", bytes=10)
            takes(p, 2, "inner", bytes=10)

    found = told(script)
    assert set(operations(found)) == {"outer"}
    assert found["comm_analysis"]["nested"]["inner (own)"]["count"] == 2
    assert summary(found, "total_comm_time", "total_data") == [close(0.005), 10]


def test_an_exception_ends_a_region_and_an_operation_and_goes_on(tmp_path):
    with pytest.raises(KeyError), profiled(tmp_path) as p:
        with pytest.raises(ValueError), p.region("r"), p.operation("send", bytes=5):
            p.clock.passes(2)
            raise ValueError
        takes(p, 1)
        p.step()
        raise KeyError
    found = read(tmp_path, "comm_analysis.json")["by_operation_type"]["send"]
    assert (found["count"], found["failed"]) == (2, 1)
    assert [row["region"] for row in lines(tmp_path)] == ["r", "r", ""]


def test_regions_and_operations_decorate_functions():
    def script(p):
        @p.region("work")
        def work(depth):
            """Its text."""
            p.clock.passes(1)
            return work(depth - 1) if depth else "done"

        @p.operation("fetch", bytes=7)
        def fetch():
            p.clock.passes(2)

        fetch()
        assert work(2) == "done" and work.__doc__ == "Its text."
        fetch()

    found = told(script)
    assert found["analysis_report"]["layer_breakdown"]["work"]["count"] == 3
    assert operations(found)["fetch"]["total_data"] == 14


# ---- Threads -------------------------------------------------------------------------------------


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_regions_are_of_their_thread_and_time_of_two_threads_counts_once():
    meet = threading.Barrier(2)

    def script(p):
        def other():
            with p.region("theirs"), p.operation("send"):
                meet.wait()
                meet.wait()

        def mine():
            with p.region("mine"), p.operation("recv"):
                meet.wait()
                p.clock.passes(4)
                meet.wait()

        in_threads(mine, other)
        p.clock.passes(4)

    found = told(script)
    assert summary(found, "total_comm_time", "exposed_comm_time") == [close(0.008), close(0.004)]
    assert summary(found, "comm_percentage", "overlapped_comm_time") == [close(50), 0]
    layers = found["analysis_report"]["layer_breakdown"]
    assert layers["theirs"]["operations"] == {"send": close(0.004)}
    assert layers["mine"]["operations"] == {"recv": close(0.004)}


def test_no_record_of_many_threads_is_lost_while_steps_end():
    done = threading.Event()
    with profile(None, warmup=0) as p:

        def work():
            for _ in range(2000):
                with p.region("r"), p.operation("send", bytes=3):
                    pass

        def steps():
            while not done.is_set():
                p.step()

        stepping = threading.Thread(target=steps)
        stepping.start()
        in_threads(*[work] * 4)
        done.set()
        stepping.join()
        p.step()
        found = p.stop()
    assert operations(found)["send"]["count"] == 8000
    assert operations(found)["send"]["total_data"] == 24000
    assert found["analysis_report"]["layer_breakdown"]["r"]["count"] == 8000


def test_what_lies_in_an_operation_of_another_thread_waits_for_its_end():
    meet = threading.Barrier(2)

    def script(p):
        def other():
            with p.operation("outer"):
                takes(p, 1, "inner")
                meet.wait()
                meet.wait()

        thread = threading.Thread(target=other)
        thread.start()
        meet.wait()
        p.step()
        meet.wait()
        thread.join()

    found = told(script)
    assert set(operations(found)) == {"outer"} and "inner (own)" in found["comm_analysis"]["nested"]


# ---- Bounds --------------------------------------------------------------------------------------


def test_rows_are_bounded_and_spread_over_the_whole(tmp_path):
    with profiled(tmp_path, rows=100) as p:
        for _ in range(1000):
            takes(p, 1)
            p.step()
    steps = [int(row["step"]) for row in lines(tmp_path)]
    of = read(tmp_path, "comprehensive_report.json")["detailed_timings"]
    assert of == {"rows": len(steps), "of": 1000, "every": 16}
    assert steps == list(range(0, 1000, 16))
    assert read(tmp_path, "comm_analysis.json")["by_operation_type"]["send"]["count"] == 1000


def test_ever_new_names_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(store, "MOST_KEYS", 10)

    def script(p):
        for index in range(1000):
            with p.region(f"r{index}"):
                takes(p, 1, f"o{index}", bytes=index)
            p.metric(f"m{index}", 1)

    found = told(script)
    report = found["analysis_report"]
    kept = [len(each) for each in (operations(found), report["layer_breakdown"], report["metrics"])]
    assert max(kept) <= 11
    assert summary(found, "total_operations", "total_comm_time") == [1000, close(1.0)]
    assert any("(other)" in note for note in found["notes"])


def test_totals_know_their_spread():
    totals = Totals()
    for value in (1000, 2000, 3000, 10_000):
        totals.add(value)
    assert (totals.mean(), totals.least, totals.most) == (4000, 1000, 10_000)
    assert totals.deviation() == pytest.approx(3535.53, rel=1e-5)
    assert totals.quantile(0.5) == pytest.approx(2000, rel=0.13)
    assert totals.quantile(1) == pytest.approx(1e4, rel=0.13)
    again = Totals.of(totals.state())
    again.merge(totals)
    assert (again.count, again.mean(), again.deviation()) == (8, 4000, totals.deviation())
