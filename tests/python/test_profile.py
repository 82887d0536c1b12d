# SPDX-License-Identifier: Apache-2.0
"""ringcast.profile: what a profile counts, with a clock that the tests move: sums, steps, nesting,
threads, bounds."""

import os
import threading

import pytest
from profiles import FILES, close, lines, named, profiled, read, span

import ringcast
from ringcast.profile import current, profile, recorder, store
from ringcast.profile.store import Totals

pytestmark = pytest.mark.alike


# ---- Sums ----------------------------------------------------------------------------------------


def three_steps(p):
    """
    Each of 10 ms: 2 of computing, a region with 1 of its own and a gather of 4, and a send of 3.
    """
    for _ in range(3):
        p.clock.passes(2)
        with p.region("layers.0.attn"):
            p.clock.passes(1)
            with p.operation("gather", bytes=4000):
                p.clock.passes(4)
        with p.operation("send", bytes=3 << 20):
            p.clock.passes(3)
        p.metric("tokens", 16)
        p.step()


@pytest.fixture
def folder(tmp_path):
    with profiled(tmp_path) as p:
        three_steps(p)
    return tmp_path


def test_the_communications_share_and_sums_are_exact(folder):
    found = read(folder, "comm_analysis.json")
    summary = found["summary"]
    assert summary["comm_percentage"] == close(70)
    assert summary["total_comm_time"] == close(0.021) == close(summary["exposed_comm_time"])
    assert summary["total_time"] == close(0.030) and summary["compute_time"] == close(0.009)
    assert (summary["steps"], summary["total_operations"], summary["overlapped_comm_time"]) == (
        3,
        6,
        0,
    )
    gather = found["by_operation_type"]["gather"]
    for name, value in {
        "count": 3,
        "total_time": 0.012,
        "avg_time": 0.004,
        "std_time": 0,
        "min_time": 0.004,
        # fmt: skip
        "max_time": 0.004,
        "total_data": 12000,
        "avg_bandwidth_gbps": 0.001,
    }.items():
        assert gather[name] == close(value), name


@pytest.mark.parametrize(
    "group", ["by_operation_type", "by_operation_and_size", "by_size_range", "by_source"]
)
def test_each_grouping_adds_up_to_the_whole(folder, group):
    found = read(folder, "comm_analysis.json")
    groups = found.get(group) or found["bandwidth_analysis"][group]
    if group == "by_operation_and_size":
        groups = {
            (name, size): each for name, sizes in groups.items() for size, each in sizes.items()
        }
    for figure, whole in (
        ("total_time", "total_comm_time"),
        ("count", "total_operations"),
        ("total_data", "total_data"),
    ):
        assert sum(each[figure] for each in groups.values()) == close(found["summary"][whole])


def test_the_latencies_are_by_size_and_have_a_base(folder):
    found = read(folder, "comm_analysis.json")["latency_analysis"]
    assert set(found["by_tensor_size"]) == {"1 KiB to 16 KiB", "1 MiB to 16 MiB"}
    assert found["by_tensor_size"]["1 MiB to 16 MiB"]["avg_latency_us"] == close(3000)
    assert (found["baseline_of"], found["baseline_latency_us"]) == ("1 KiB to 16 KiB", close(4000))


def test_a_region_is_its_own_time_and_its_parts(folder):
    report = read(folder, "analysis_report.json")
    region = report["layer_breakdown"]["layers.0.attn"]
    assert (region["count"], region["total_time"], region["avg_time"]) == (
        3,
        close(0.015),
        close(0.005),
    )
    assert region["operations"] == {"gather": close(0.012)} and region["self_time"] == close(0.003)
    communication = report["communication_analysis"]
    assert communication["comm_percentage"] == close(70)
    assert set(communication["by_operation_type"]) == {"gather", "send"}
    assert report["metrics"]["tokens"]["avg"] == 16 and report["metrics"]["tokens"]["count"] == 3
    assert report["steps"]["avg_time"] == close(0.010)


def test_the_bottlenecks_come_in_their_order_and_make_up_the_steps(folder):
    parts = read(folder, "analysis_report.json")["bottlenecks"]
    assert [part["what"] for part in parts[:2]] == ["gather", "send"]
    assert sum(part["seconds"] for part in parts) == close(0.030)
    assert sum(part["share_percent"] for part in parts) == close(100)
    first = (folder / "performance_report.md").read_text().splitlines()[2]
    assert first.startswith(
        "**Bottleneck: gather** (communication), 40.0 % of the steps' time, 4.00 ms a step."
    )


def test_the_rows_are_the_records(folder):
    rows = lines(folder)
    assert [row["op_type"] for row in rows[:3]] == ["region", "gather", "send"] and len(rows) == 9
    assert (rows[1]["tensor_size"], float(rows[1]["duration"]), rows[1]["region"]) == (
        "4000",
        0.004,
        "layers.0.attn",
    )
    assert {row["step"] for row in rows} == {"0", "1", "2"}
    whole = read(folder, "comprehensive_report.json")
    assert whole["detailed_timings"] == {"rows": 9, "of": 9, "every": 1}
    assert whole["comm_analysis"] == read(folder, "comm_analysis.json")
    assert whole["analysis_report"] == read(folder, "analysis_report.json")


# ---- Steps ---------------------------------------------------------------------------------------


def test_the_warm_up_and_what_comes_after_the_last_step_are_left_out(tmp_path):
    with profiled(tmp_path, warmup=2) as p:
        for number in range(5):
            with p.operation("warm" if number < 2 else "send"):
                p.clock.passes(1)
            p.metric("number", number)
            p.step()
        with p.operation("late"):
            p.clock.passes(50)
    found = read(tmp_path, "comm_analysis.json")
    assert set(found["by_operation_type"]) == {"send"} and found["summary"]["steps"] == 3
    assert found["summary"]["total_time"] == close(0.003)
    assert read(tmp_path, "analysis_report.json")["metrics"]["number"]["min"] == 2


def test_without_a_step_the_whole_is_one():
    with profiled(warmup=3) as p:
        with p.operation("send"):
            p.clock.passes(3)
        p.clock.passes(1)
        told = p.stop()
    assert told["comm_analysis"]["summary"]["comm_percentage"] == close(75)
    assert any("step() was never called" in note for note in told["notes"])


def test_nothing_but_warm_up_is_told():
    with profiled(warmup=3) as p:
        with p.operation("send"):
            p.clock.passes(3)
        p.step()
        told = p.stop()
    assert (
        told["comm_analysis"]["by_operation_type"] == {}
        and told["analysis_report"]["bottlenecks"] == []
    )
    assert "nothing was recorded: 1 steps, of which 3 are warm-up" in told["notes"]


def test_a_sample_of_the_steps_is_recorded_and_nothing_else(tmp_path):
    recorded = []
    with profiled(tmp_path, sample=0.25, warmup=1) as p:
        for number in range(401):
            recorded += [number] if p._recorder.on and number else []
            with p.operation("send"), p.region("r"):
                p.clock.passes(1)
            p.step()
    found = read(tmp_path, "comm_analysis.json")
    assert 95 <= len(recorded) <= 105 == pytest.approx(100, abs=5)
    assert found["summary"]["steps"] == found["by_operation_type"]["send"]["count"] == len(recorded)
    assert read(tmp_path, "analysis_report.json")["steps"]["skipped"] == 400 - len(recorded)
    assert {int(row["step"]) for row in lines(tmp_path)} == set(recorded)
    gaps = {after - before for before, after in zip(recorded, recorded[1:])}
    assert len(gaps) > 1 and max(gaps) <= 8, "spread evenly, and in step with no period"


def test_a_region_that_goes_on_over_steps_counts_where_it_ends():
    with profiled() as p:
        with p.region("whole"):
            for _ in range(3):
                with p.operation("send"):
                    p.clock.passes(2)
                p.clock.passes(1)
                p.step()
            p.clock.passes(100)
        p.step()
        told = p.stop()
    region = told["analysis_report"]["layer_breakdown"]["whole"]
    assert region["total_time"] == close(0.109) and region["count"] == 1
    assert region["min_time"] == region["max_time"] == close(0.109) and region["std_time"] == 0
    assert region["operations"] == {"send": close(0.006)} and not region["within_another"]


def test_a_step_that_records_much_is_summed_up_meanwhile(monkeypatch):
    monkeypatch.setattr(recorder, "MOST_WAITING", 100)
    most = 0
    with profiled() as p:
        for index in range(1000):
            with p.region(f"r{index % 2}"), p.operation("send", bytes=1):
                p.clock.passes(1)
            most = max(most, *(len(buffer.items) for buffer in p._recorder._buffers.values()))
        p.step()
        told = p.stop()
    assert most <= 100
    assert told["comm_analysis"]["by_operation_type"]["send"]["count"] == 1000
    assert told["comm_analysis"]["summary"]["comm_percentage"] == close(100)
    assert told["analysis_report"]["layer_breakdown"]["r0"]["count"] == 500


# ---- ringcast's own operations -------------------------------------------------------------------


def test_spans_become_operations_with_their_waiting():
    with profiled() as p:
        thread = threading.get_native_id()
        with p.region("r"):
            spans = [
                span("encode", 0, 1, thread, 0, p.clock), span("wait_room", 1, 4, thread, 0, p.clock),
                span("copy", 4, 5, thread, 0, p.clock), span("publish", 5, 6, thread, 0, p.clock),
                span("send", 0, 6, thread, 3000, p.clock),
                span("wait_frame", 6, 7, thread, 0, p.clock), span("recv", 6, 8, thread, 500, p.clock),
                span("wait_room", 8.5, 9, thread, 0, p.clock), span("send", 9.5, 9.5, thread, 1, p.clock),
            ]  # fmt: skip
            p._recorder.take_spans(spans)
            p.clock.passes(10)
        p.step()
        told = p.stop()
    found = told["comm_analysis"]["by_operation_type"]
    send = found["ringcast.send"]
    assert (send["count"], send["total_time"], send["waiting_time"]) == (
        2,
        close(0.006),
        close(0.003),
    )
    assert send["avg_bandwidth_gbps"] == close(3001 / 3e6), "without the waiting"
    assert found["ringcast.recv"]["waiting_time"] == close(0.001)
    assert found["ringcast.reserve"]["waiting_time"] == close(0.0005)
    assert told["comm_analysis"]["summary"]["comm_percentage"] == close(85)
    parts = told["analysis_report"]["layer_breakdown"]["r"]["operations"]
    assert parts["ringcast.send"] == close(0.006) and parts["ringcast.recv"] == close(0.002)


def test_a_call_that_has_not_ended_keeps_its_waiting():
    with profiled() as p:
        thread = threading.get_native_id()
        p._recorder.take_spans([span("wait_frame", 0, 2, thread, 0, p.clock)])
        p.step()
        p._recorder.take_spans([span("recv", 0, 3, thread, 8, p.clock)])
        p.clock.passes(5)
        p.step()
        found = p.stop()["comm_analysis"]["by_operation_type"]
    assert found["ringcast.recv"]["waiting_time"] == close(0.002)


def test_a_ring_s_calls_are_recorded():
    with profile(None, warmup=0) as p, ringcast.Writer(1 << 20) as writer:
        with ringcast.Reader(writer.handle) as reader:
            for _ in range(5):
                with p.operation("step"):
                    writer.send({"a": 1})
                reader.recv()
        p.step()
        found = p.stop()["comm_analysis"]
    assert found["by_operation_type"]["ringcast.recv"]["count"] == 5
    assert found["by_operation_type"]["ringcast.recv"]["total_data"] > 0
    assert found["nested"]["ringcast.send (ringcast)"]["count"] == 5
    assert "ringcast.send" not in found["by_operation_type"]


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
    "options, says",
    [
        ({"sample": 0}, "sample is the share"),
        ({"sample": 1.5}, "sample is the share"),
        ({"warmup": -1}, "warmup is a number of steps"),
        ({"rows": -1}, "rows is the most lines"),
        ({"dir": ""}, "dir is empty"),
        ({"step_at": "step"}, "step_at is module:function"),
    ],
)
def test_bad_arguments_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        ringcast.profile.profile(**options)


def test_a_folder_that_cannot_be_made_is_told_at_the_beginning(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OSError, match="can't be made.*name another one"),
        profiled(tmp_path / "file" / "in"),
    ):
        raise AssertionError


def test_names_and_life_are_checked():
    p = profiled()
    with pytest.raises(RuntimeError, match="not running"):
        p.stop()
    with p:
        for bad in "", 7:
            with pytest.raises(TypeError, match="name is a str"):
                p.region(bad)
            with pytest.raises(TypeError, match="name is a str"):
                p.operation(bad)
        with pytest.raises(ValueError, match="bytes of x are 0 or more"):
            p.operation("x", bytes=-1)
    with pytest.raises(RuntimeError, match="started before"):
        p.start()
    with p.region("after"), p.operation("after"):
        p.step()


def test_a_forked_child_writes_nothing(tmp_path):
    with profiled(tmp_path) as p:
        with p.operation("send"):
            p.clock.passes(1)
        child = os.fork()
        if child == 0:
            try:
                p.__exit__(None, None, None)
                os._exit(1 if named(tmp_path) or p._recorder.on else 0)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        p.step()
    assert named(tmp_path) == FILES


# ---- What lies within what -----------------------------------------------------------------------


def test_an_operation_within_another_counts_once():
    with profiled() as p:
        with p.operation("outer", bytes=10):
            p.clock.passes(1)
            with p.operation("inner", bytes=10):
                p.clock.passes(2)
            with p.operation("inner", bytes=10):
                p.clock.passes(2)
        p.step()
        found = p.stop()["comm_analysis"]
    assert set(found["by_operation_type"]) == {"outer"}
    assert found["nested"]["inner (own)"]["count"] == 2
    assert (
        found["summary"]["total_comm_time"] == close(0.005) and found["summary"]["total_data"] == 10
    )


def test_an_exception_ends_a_region_and_an_operation_and_goes_on(tmp_path):
    with pytest.raises(KeyError), profiled(tmp_path) as p:
        with pytest.raises(ValueError), p.region("r"), p.operation("send", bytes=5):
            p.clock.passes(2)
            raise ValueError
        with p.operation("send"):
            p.clock.passes(1)
        p.step()
        raise KeyError
    found = read(tmp_path, "comm_analysis.json")["by_operation_type"]["send"]
    assert (found["count"], found["failed"]) == (2, 1)
    assert [row["region"] for row in lines(tmp_path)] == ["r", "r", ""]


def test_regions_and_operations_decorate_functions():
    with profiled() as p:

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
        p.step()
        told = p.stop()
    assert told["analysis_report"]["layer_breakdown"]["work"]["count"] == 3
    assert told["comm_analysis"]["by_operation_type"]["fetch"]["total_data"] == 14


# ---- Threads -------------------------------------------------------------------------------------


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_regions_are_of_their_thread_and_time_of_two_threads_counts_once():
    with profiled() as p:
        meet = threading.Barrier(2)

        def other():
            with p.region("theirs"):
                with p.operation("send"):
                    meet.wait()
                    meet.wait()

        def mine():
            with p.region("mine"):
                with p.operation("recv"):
                    meet.wait()
                    p.clock.passes(4)
                    meet.wait()
            p.clock.passes(0)

        in_threads(mine, other)
        p.clock.passes(4)
        p.step()
        told = p.stop()
    summary = told["comm_analysis"]["summary"]
    assert summary["total_comm_time"] == close(0.008) and summary["exposed_comm_time"] == close(
        0.004
    )
    assert summary["comm_percentage"] == close(50) and summary["overlapped_comm_time"] == 0
    layers = told["analysis_report"]["layer_breakdown"]
    assert layers["theirs"]["operations"] == {"send": close(0.004)}
    assert layers["mine"]["operations"] == {"recv": close(0.004)}


def test_no_record_of_many_threads_is_lost_while_steps_end():
    with profile(None, warmup=0) as p:
        done = threading.Event()

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
        buffers = len(p._recorder._buffers)
        told = p.stop()
    assert told["comm_analysis"]["by_operation_type"]["send"]["count"] == 8000
    assert told["comm_analysis"]["by_operation_type"]["send"]["total_data"] == 24000
    assert told["analysis_report"]["layer_breakdown"]["r"]["count"] == 8000
    assert buffers <= 1, "the buffers of threads that ended are gone"


def test_what_lies_in_an_operation_of_another_thread_waits_for_its_end():
    with profiled() as p:
        meet = threading.Barrier(2)

        def other():
            with p.operation("outer"):
                with p.operation("inner"):
                    p.clock.passes(1)
                meet.wait()
                meet.wait()

        thread = threading.Thread(target=other)
        thread.start()
        meet.wait()
        p.step()
        meet.wait()
        thread.join()
        p.step()
        found = p.stop()["comm_analysis"]
    assert set(found["by_operation_type"]) == {"outer"} and "inner (own)" in found["nested"]


# ---- Bounds --------------------------------------------------------------------------------------


def test_rows_are_bounded_and_spread_over_the_whole(tmp_path):
    with profiled(tmp_path, rows=100) as p:
        for _ in range(1000):
            with p.operation("send"):
                p.clock.passes(1)
            p.step()
    steps = [int(row["step"]) for row in lines(tmp_path)]
    told = read(tmp_path, "comprehensive_report.json")["detailed_timings"]
    assert told == {"rows": len(steps), "of": 1000, "every": 16}
    assert steps == list(range(0, 1000, 16))
    assert read(tmp_path, "comm_analysis.json")["by_operation_type"]["send"]["count"] == 1000


def test_ever_new_names_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(store, "MOST_KEYS", 10)
    with profiled() as p:
        for index in range(1000):
            with p.region(f"r{index}"), p.operation(f"o{index}", bytes=index):
                p.clock.passes(1)
            p.metric(f"m{index}", 1)
        p.step()
        told = p.stop()
    assert (
        len(p._store.operations) <= 100
        and len(p._store.regions) <= 11
        and len(p._store.metrics) <= 11
    )
    assert told["comm_analysis"]["summary"]["total_operations"] == 1000
    assert told["comm_analysis"]["summary"]["total_comm_time"] == close(1.0)
    assert any("(other)" in note for note in told["notes"])


def test_totals_know_their_spread():
    totals = Totals()
    for value in (1000, 2000, 3000, 10_000):
        totals.add(value)
    assert (totals.mean(), totals.least, totals.most) == (4000, 1000, 10_000)
    assert totals.deviation() == pytest.approx(3535.53, rel=1e-5)
    assert totals.quantile(0.5) == pytest.approx(2000, rel=0.13) and totals.quantile(
        1
    ) == pytest.approx(1e4, rel=0.13)
    again = Totals.of(totals.state())
    again.merge(totals)
    assert (again.count, again.mean(), again.deviation()) == (8, 4000, totals.deviation())
