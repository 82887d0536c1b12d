# SPDX-License-Identifier: Apache-2.0
"""ringcast.profile: regions and operations within others and in several threads, and what bounds their number."""

import asyncio
import threading

import pytest
from profiles import close, lines, profiled, read

import ringcast.profile
from ringcast.profile import recorder, session, store
from ringcast.profile.totals import Thinned, Totals

pytestmark = pytest.mark.alike


# ---- What lies within what -------------------------------------------------------------------------------------------


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
    assert found["summary"]["total_comm_time"] == close(0.005) and found["summary"]["total_data"] == 10


def test_regions_lie_within_regions():
    with profiled() as p:
        for _ in range(2):
            with p.region("layer"):
                p.clock.passes(1)
                with p.region("attn"):
                    p.clock.passes(2)
                with p.region("layer"):
                    p.clock.passes(4)
        p.step()
        layers = p.stop()["analysis_report"]["layer_breakdown"]
    assert layers["layer"]["operations"] == {"attn": close(0.004), "layer": close(0.008)}
    assert layers["attn"]["within_another"] and layers["attn"]["self_time"] == close(0.004)


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
        async def fetch():
            p.clock.passes(2)
            await asyncio.sleep(0)
            return "fetched"

        async def two():
            return await asyncio.gather(fetch(), fetch())

        assert work(2) == "done" and work.__doc__ == "Its text."
        assert asyncio.run(two()) == ["fetched"] * 2
        p.step()
        told = p.stop()
    assert told["analysis_report"]["layer_breakdown"]["work"]["count"] == 3
    assert told["comm_analysis"]["by_operation_type"]["fetch"]["total_data"] == 7
    assert told["comm_analysis"]["summary"]["exposed_comm_time"] == close(0.004)


# ---- Threads ---------------------------------------------------------------------------------------------------------


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
    assert summary["total_comm_time"] == close(0.008) and summary["exposed_comm_time"] == close(0.004)
    assert summary["comm_percentage"] == close(50) and summary["overlapped_comm_time"] == 0
    layers = told["analysis_report"]["layer_breakdown"]
    assert layers["theirs"]["operations"] == {"send": close(0.004)}
    assert layers["mine"]["operations"] == {"recv": close(0.004)}


def test_no_record_of_many_threads_is_lost_while_steps_end():
    with ringcast.profile(None, warmup=0) as p:
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


def test_what_a_thread_records_while_its_records_are_taken_stays():
    class Growing(list):
        def __getitem__(self, key):
            taken = super().__getitem__(key)
            self.append("later")
            return taken

    items = Growing(["first"])
    assert (recorder._take(items), list(items)) == (["first"], ["later"])


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


# ---- Bounds ----------------------------------------------------------------------------------------------------------


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


def test_series_are_bounded(monkeypatch):
    monkeypatch.setattr(session, "MOST_STEPS", 8)
    with profiled() as p:
        for _ in range(100):
            p.clock.passes(1)
            p.step()
        p.stop()
    (series,) = p._store.series.values()
    assert [row[0] for row in series.kept] == list(range(0, 100, 16))


def test_ever_new_names_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(store, "MOST_KEYS", 10)
    with profiled() as p:
        for index in range(1000):
            with p.region(f"r{index}"), p.operation(f"o{index}", bytes=index):
                p.clock.passes(1)
            p.metric(f"m{index}", 1)
        p.step()
        told = p.stop()
    assert len(p._store.operations) <= 100 and len(p._store.regions) <= 11 and len(p._store.metrics) <= 11
    assert told["comm_analysis"]["summary"]["total_operations"] == 1000
    assert told["comm_analysis"]["summary"]["total_comm_time"] == close(1.0)
    assert any("(other)" in note for note in told["notes"])


def test_thinned_keeps_none_of_none():
    thinned = Thinned(0)
    for index in range(10):
        thinned.offer(index)
    assert thinned.kept == [] and thinned.seen == 10


def test_totals_know_their_spread():
    totals = Totals()
    for value in (1000, 2000, 3000, 10_000):
        totals.add(value)
    assert (totals.mean(), totals.least, totals.most) == (4000, 1000, 10_000)
    assert totals.deviation() == pytest.approx(3535.53, rel=1e-5)
    assert totals.quantile(0.5) == pytest.approx(2000, rel=0.13) and totals.quantile(1) == pytest.approx(1e4, rel=0.13)
    again = Totals.of(totals.state())
    again.merge(totals)
    assert (again.count, again.mean(), again.deviation()) == (8, 4000, totals.deviation())
