# SPDX-License-Identifier: Apache-2.0
"""
Traces: one valid file of all processes, whatever happens to them, with an arrow from each commit to
each receipt.
"""

import collections
import fcntl
import os
import signal
import warnings

import pytest
from _dist import join_group, meet
from needs import needs_torch
from peers import WATCHDOG, in_a_fork
from traces import TO_ITSELF, Events, run, start_patiently

import ringcast
from ringcast import _ringcast, _spans, trace

pytestmark = pytest.mark.alike


@pytest.fixture
def file(tmp_path):
    yield tmp_path / "trace.json"
    trace.stop()


# ---- A process -----------------------------------------------------------------------------------


def test_the_variable_traces_a_process_to_its_end(file):
    result = run(file, TO_ITSELF)
    assert result.stderr == ""
    events = Events(file)
    names = collections.Counter(event["name"] for event in events.slices())
    assert names == {
        "send": 3,
        "encode": 6,
        "wait_room": 3,
        "copy": 3,
        "publish": 3,
        "recv": 3,
        "wait_frame": 3,
    } | {"decode": 3}
    assert list(events.flows().values()) == [1, 1, 1]
    assert list(events.names().values())[-1] == "of the test"
    assert list(events.names("thread_name").values()) == ["MainThread"]
    first = events.slices("send")[-1]
    assert set(first["args"]) == {"ring", "position", "bytes"} and first["args"]["position"] == 0


def test_a_call_stands_before_its_phases_and_they_lie_in_it(file):
    run(file, TO_ITSELF)
    whole = None
    for event in Events(file).slices():
        if event["name"] in ("send", "recv"):
            whole = event
        assert whole["ts"] <= event["ts"]
        # The text has whole nanoseconds.
        assert event["ts"] + event["dur"] <= whole["ts"] + whole["dur"] + 0.0005
        assert event["args"]["position"] == whole["args"]["position"]


def test_by_hand(file, ring):
    writer, reader = ring
    trace.start(file)
    with pytest.raises(ValueError, match="already: call ringcast.trace.stop"):
        trace.start(file)
    writer.send(1)
    trace.flush()
    assert len(Events(file).slices()) == 6
    reader.recv()
    trace.stop()
    assert len(Events(file).slices()) == 9
    writer.send(2)
    trace.stop()
    trace.flush()
    assert len(Events(file).slices()) == 9


def test_names_of_ranks_and_rings_need_no_escaping_by_hand(file, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(_ringcast, "_spans_names", lambda: {ring: ('a "ring"', "")})
    with ringcast.Writer(1 << 16) as writer:
        ring = int(writer.handle[-32:-16], 16)
        trace.start(file)
        writer.send(1)
        trace.flush()
        monkeypatch.delenv("RANK")  # as a program that leaves its group
        writer.send(2)
        trace.stop()
    events = Events(file)
    assert events.names() == {os.getpid(): "rank 3"}
    assert [event["args"] for event in events if event["name"] == "process_sort_index"] == [
        {"sort_index": 3}
    ]
    assert {event["args"]["ring"] for event in events.slices()} == {'a "ring"'}


def broadcast_in_a_group_of_its_own(file, store):
    import torch.distributed as dist

    import ringcast.torch as rt

    rank, world = dist.get_rank(), dist.get_world_size()
    meet()
    dist.destroy_process_group()
    start_patiently(file)
    join_group(store, rank, world)
    rt.broadcast_object("of the test")
    rt.close()
    meet()
    dist.destroy_process_group()
    trace.stop()
    return os.getpid(), f"rank {rank}"


@needs_torch
def test_a_rank_that_leaves_its_group_before_the_first_flush_is_named(file, ranks):
    wanted = dict(ranks.run(2, broadcast_in_a_group_of_its_own, file, f"{file}.store"))
    names = Events(file).names()
    assert {pid: names[pid].split(",")[0] for pid in wanted} == wanted


def test_a_ring_has_its_name_in_each_process(file, peer):
    trace.start(file)
    with ringcast.Writer(1 << 16, name="test.trace.0") as writer:
        peer.start(receive, file, writer.handle, 1)
        assert peer.message() == "attached"
        writer.send(1)
        peer.finish()
    trace.stop()
    events = Events(file)
    assert {event["args"]["ring"] for event in events.slices()} == {"test.trace.0"}
    assert events.names()[os.getpid()] == "test.trace.0"


def test_a_ring_without_a_name_is_its_number(file, ring):
    writer, _ = ring
    trace.start(file)
    writer.send(1)
    trace.stop()
    assert {event["args"]["ring"] for event in Events(file).slices()} == {writer.handle[-32:-16]}


# ---- Processes -----------------------------------------------------------------------------------


def receive(state, file, handle, count):
    start_patiently(file)
    with ringcast.Reader(handle, name=f"reader of {count}") as reader:
        state["pipe"].send("attached")
        for _ in range(count):
            reader.recv(WATCHDOG)
    trace.stop()


def test_a_flow_goes_from_each_commit_to_each_receipt(file, crew):
    trace.start(file)
    with ringcast.Writer(1 << 20) as writer:
        for peer in crew:
            peer.start(receive, file, writer.handle, 30)
        for peer in crew:
            assert peer.message() == "attached"
        for step in range(10):
            writer.send({"step": step})
            writer.send_bytes(b"x")
        writer.send_many([b"a" * size for size in range(10)])
        for peer in crew:
            peer.finish()
    trace.stop()
    events = Events(file)
    assert list(events.flows().values()) == [len(crew)] * 21  # of the batch: to the first message
    assert len(events.slices("recv")) == 30 * len(crew)
    assert {events.names()[peer.pid].split(",")[0] for peer in crew} == {"reader of 30"}
    starts = {event["id"]: event["ts"] for event in events if event["ph"] == "s"}
    assert all(event["ts"] >= starts[event["id"]] for event in events if event["ph"] == "f")


def trace_and_flush(state, file):
    trace.start(file)
    with ringcast.Writer(1 << 20) as writer:
        for _ in range(100):
            writer.send({"a": 1})
        trace.flush()
        writer.send("lost")
        state["pipe"].send("flushed")
        state["pipe"].recv()


def test_a_killed_process_leaves_a_whole_file_with_what_it_flushed(file, ring, peer):
    writer, _ = ring
    trace.start(file)
    writer.send(1)
    peer.start(trace_and_flush, file)
    assert peer.message() == "flushed"
    os.kill(peer.pid, signal.SIGKILL)
    peer.process.join(WATCHDOG)
    sends = collections.Counter(event["pid"] for event in Events(file).slices("send"))
    assert sends == {peer.pid: 100}
    trace.stop()
    sends = collections.Counter(event["pid"] for event in Events(file).slices("send"))
    assert sends == {peer.pid: 100, os.getpid(): 1}


@pytest.mark.parametrize(
    "torn",
    [b",", b",{", b',{"cat":"ring', b',{"ph":"x"}\n,{"cat":"ringcast","ph', b',{"ph":"x"}\n]'],
)
def test_the_torn_end_of_a_process_that_died_in_a_flush_is_cut_off(file, ring, torn):
    writer, reader = ring
    trace.start(file)
    for number in range(2000 if torn == b"," else 1):  # the longer file is more than one look
        writer.send(number)
        reader.recv()
    trace.flush()
    before = Events(file)
    with open(file, "r+b") as it:
        it.seek(-len(b"]}\n"), os.SEEK_END)
        it.write(torn)
    with pytest.raises(ValueError):
        Events(file)
    writer.send(2)
    trace.stop()
    after = Events(file)
    assert after[: len(before)] == before
    assert len(after.slices("send")) == len(before.slices("send")) + 1


def test_children_of_multiprocessing_write_theirs(file):
    program = """
        import multiprocessing, sys, ringcast
        sys.path.insert(0, PATH)
        import traces
        with ringcast.Writer(1 << 16) as writer:
            for method in ("fork", "spawn", "forkserver"):
                context = multiprocessing.get_context(method)
                child = context.Process(target=traces.receive_as_child, args=(writer.handle,), name=method)
                child.start()
                writer.wait_readers(1, 60)
                writer.send([method])
                child.join()
                assert child.exitcode == 0
        """.replace("PATH", repr(os.path.dirname(__file__)))
    result = run(file, program)
    assert result.stderr == ""
    events = Events(file)
    assert set(events.flows().values()) == {1}
    assert len({event["pid"] for event in events.slices("recv")}) == 3
    assert len({event["pid"] for event in events.slices("send")}) == 1
    names = events.names()
    assert {names[event["pid"]] for event in events.slices("recv")} == {
        f"child, {m}" for m in ("fork", "spawn")
    } | {"child, forkserver"}


def test_a_forked_child_and_its_parent_write_at_the_same_time(file, ring):
    writer, _ = ring
    trace.start(file)
    writer.send("of the parent")

    def child():
        with ringcast.Writer(1 << 20) as mine:
            for _ in range(50):
                mine.send(1)
                trace.flush()
        return os.getpid()

    pid = in_a_fork(child)
    trace.stop()
    assert collections.Counter(event["pid"] for event in Events(file).slices("send")) == {
        pid: 50,
        os.getpid(): 1,
    }


def test_the_file_of_an_earlier_run_is_replaced_and_that_of_this_run_is_not(file, ring, peer):
    writer, _ = ring
    run(file, TO_ITSELF)
    run(file, TO_ITSELF)
    assert len(Events(file).slices("send")) == 3
    trace.start(file)
    writer.send(1)
    trace.flush()
    run(file, TO_ITSELF)
    peer.start(trace_and_flush, file)
    assert peer.message() == "flushed"
    trace.stop()  # the peer goes on
    run(file, TO_ITSELF)
    assert len(Events(file).slices("send")) == 107
    peer.pipe.send(None)
    peer.finish()
    peer.call(stop)
    run(file, TO_ITSELF)
    assert len(Events(file).slices("send")) == 3


def stop(state):
    trace.stop()


def test_a_file_deleted_in_between_is_made_anew(file, ring):
    writer, _ = ring
    trace.start(file)
    writer.send(1)
    trace.flush()
    file.unlink()
    writer.send(2)
    trace.stop()
    assert len(Events(file).slices("send")) == 1


# ---- What goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, text",
    [
        ("nowhere/trace.json", "No such file or directory"),
        (".", "Is a directory"),
        ("other.txt", "no trace of ringcast"),
    ],
)
def test_a_file_that_can_not_be_written_is_one_warning_and_the_program_goes_on(
    tmp_path, name, text
):
    (tmp_path / "other.txt").write_text("precious")
    result = run(tmp_path / name, TO_ITSELF + "    print('done')\n")
    assert result.stdout == "done\n"
    assert result.stderr.count("RuntimeWarning") == 1 and text in result.stderr, result.stderr
    assert (tmp_path / "other.txt").read_text() == "precious"


@pytest.mark.parametrize("limit", [-1, 10])
def test_a_limit_that_makes_no_sense(file, limit):
    with pytest.raises(ValueError, match="limit"):
        trace.start(file, limit)
    assert not file.exists()


def test_the_file_is_bounded(file, ring):
    writer, reader = ring
    trace.start(file, limit=20000)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(100):
            writer.send(1)
            reader.recv()
            trace.flush()
    assert [str(each.message).count("limit of 20000 bytes") for each in told] == [1]
    assert 15000 < file.stat().st_size <= 20000 and Events(file).slices("send")
    assert _spans._subscribers == ()


def test_a_file_that_another_program_breaks_ends_the_trace(file, ring):
    writer, _ = ring
    trace.start(file)
    file.write_text("broken")
    writer.send(1)
    with pytest.warns(RuntimeWarning, match="another program has written"):
        trace.flush()
    assert _spans._subscribers == () and file.read_text() == "broken"


def hold(state, file):
    """As a process that is stopped in a flush, or that makes the file anew."""
    state["held"] = trace.TraceFile(file, 1 << 20, b'{"cat":"ringcast","ph":"M","name":""}\n')
    assert state["held"]._lock(trace._FLUSH, fcntl.F_WRLCK)


def let_go(state):
    state.pop("held").close()


def test_a_process_that_was_stopped_in_a_flush_stops_no_other(file, ring, peer):
    writer, _ = ring
    trace.start(file)
    writer.send(1)
    peer.call(hold, str(file))
    trace.flush()
    writer.send(2)
    trace.flush()
    assert Events(file).slices() == []
    peer.call(let_go)
    trace.stop()
    writer.send(3)
    assert len(Events(file).slices("send")) == 2


def test_nor_does_one_that_makes_a_deleted_file_anew(file, ring, peer, monkeypatch):
    writer, _ = ring
    trace.start(file)
    monkeypatch.setattr(trace, "_PATIENCE", None)  # for the beginning of a trace alone
    file.unlink()
    peer.call(hold, str(file))
    for _ in range(2):
        writer.send(1)
        trace.flush()
    peer.call(let_go)
    trace.stop()
    assert len(Events(file).slices("send")) == 2


def test_events_that_are_not_kept_are_told_and_the_next_ones_have_their_names(
    file, ring, peer, monkeypatch
):
    writer, _ = ring
    trace.start(file)
    monkeypatch.setattr(trace, "_MOST_KEPT", 1000)
    peer.call(hold, str(file))
    writer.send(1)
    with pytest.warns(RuntimeWarning, match=r"lacks 9 events of process \d+: .* is locked"):
        trace.flush()  # 6 slices, an arrow, two names
    peer.call(let_go)
    writer.send(2)
    trace.stop()
    events = Events(file)
    assert len(events.slices("send")) == 1 and list(events.names("thread_name").values()) == [
        "MainThread"
    ]


def test_a_signals_handler_may_stop_the_trace_within_a_flush(file):
    program = """
        import os, signal, ringcast
        from ringcast import trace
        signal.signal(signal.SIGUSR1, lambda *_: trace.stop())
        append = trace.TraceFile.append

        def interrupted(*arguments):
            os.kill(os.getpid(), signal.SIGUSR1)
            append(*arguments)

        trace.TraceFile.append = interrupted
        with ringcast.Writer(1 << 16) as writer:
            writer.send(1)
            trace.flush()
            writer.send(2)
        assert trace._trace is None
        """
    assert run(file, program).stderr == ""
    assert len(Events(file).slices("send")) == 1
