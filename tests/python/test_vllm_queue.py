# SPDX-License-Identifier: Apache-2.0
"""
vLLM's MessageQueue over a ring: what arrives, what is waited for, and what is told when it goes on
for long.
"""

import contextlib
import dataclasses
import gc
import logging
import pickle
import re
import sys
import threading
import types
import weakref

import pytest
from peers import WATCHDOG, in_a_fork, names_of_rings
from queues import (
    SMALL,
    fill,
    make,
    make_ready,
    meanwhile,
    once_it_waits,
    the_watching_thread,  # noqa: F401
    watchdog,  # noqa: F401
)

import ringcast
from ringcast.vllm import Handle, MessageQueue, _endpoints

pytestmark = pytest.mark.alike

PEER = "vllm.distributed.device_communicators.shm_broadcast"


# ---- What arrives --------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [0, 4 << 20])
def test_the_budget_only_makes_the_ring_smaller(monkeypatch, least):
    monkeypatch.setattr("ringcast.vllm.queue._LEAST_DEFAULT", least)
    default = ringcast.Writer().capacity
    for bytes_, chunks, capacity in (
        (24 << 20, 10, default),
        (1 << 20, 1, 1 << 20),
        (40 << 10, 2, 128 << 10),
    ):
        writer = MessageQueue(1, 1, max_chunk_bytes=bytes_, max_chunks=chunks)
        assert ringcast.Tap(writer.handle.buffer_handle).info().capacity == min(default, capacity)


def test_what_is_too_large_names_the_setting(monkeypatch):
    monkeypatch.setenv("RINGCAST_SPILL_BYTES", "0")
    writer, reader = make_ready(**SMALL)
    with pytest.raises(
        ringcast.FrameTooLarge, match="set RINGCAST_SPILL_BYTES in the writer's process to at "
    ):
        writer.enqueue(bytes(1 << 20))
    writer.enqueue("goes on")
    assert reader.dequeue(timeout=0) == "goes on"


# ---- The contract --------------------------------------------------------------------------------


def test_the_ends_know_what_they_are():
    writer, (reader,) = make()
    assert (writer.n_local_reader, writer.n_remote_reader) == (1, 0)
    for queue, is_writer in ((writer, True), (reader, False)):
        assert (queue._is_writer, queue._is_local_reader, queue._is_remote_reader) == (
            is_writer,
            not is_writer,
            False,
        )
        assert queue.local_reader_rank == (-1 if is_writer else 0)
        assert queue.shutting_down is False and queue.remote_socket is None
    with pytest.raises(RuntimeError, match="Only readers can dequeue"):
        writer.dequeue()
    with pytest.raises(AssertionError, match="Only writers can enqueue"):
        reader.enqueue(1)


def test_ranks_are_those_that_the_handle_says():
    writer = MessageQueue(2, 2, local_reader_ranks=[5, 3], enable_shm_tensor_arena=True)
    readers = [MessageQueue.create_from_handle(writer.handle, rank) for rank in (3, 5)]
    assert [reader.local_reader_rank for reader in readers] == [1, 0]
    with pytest.raises(
        ValueError, match=r"rank 4 is no reader of this queue: its local_reader_ranks are \[5, 3\]"
    ):
        MessageQueue.create_from_handle(writer.handle, 4)
    broken = dataclasses.replace(writer.handle, buffer_handle=None)
    with pytest.raises(ValueError, match=r"the handle has local readers, \[5, 3\], but no ring"):
        MessageQueue.create_from_handle(broken, 3)


@pytest.mark.parametrize(
    "args, options, error, text",
    [
        (
            (2, 2, [0]),
            {},
            AssertionError,
            "local_reader_ranks has 1 ranks, and n_local_reader is 2",
        ),
        ((1, 2), {}, ValueError, "n_local_reader must be from 0 to n_reader, 1, not 2"),
        ((1, 1), {"max_chunks": 0}, ValueError, "must be above 0, not 25165824 and 0"),
        ((2, 2, [1, 1]), {}, ValueError, r"local_reader_ranks has a rank twice: \[1, 1\]"),
        (
            (2, 2, ["1", 0]),
            {},
            TypeError,
            "each of local_reader_ranks must be an int, not str: '1'",
        ),
        (("2", 2), {}, TypeError, "n_reader must be an int, not str: '2'"),
        ((2, 2.0), {}, TypeError, "n_local_reader must be an int, not float: 2.0"),
        ((1, 1), {"max_chunks": None}, TypeError, "max_chunks must be an int, not NoneType"),
    ],
)
def test_arguments_that_make_no_queue(args, options, error, text):
    with pytest.raises(error, match=text):
        MessageQueue(*args, **options)


def test_a_ring_has_the_name_of_the_queue_that_vllm_makes():
    """
    A worker attaches to the queue of calls before making the queue of answers; the executor is the
    other way.
    """
    writer = MessageQueue(4, 4)
    assert ringcast.Tap(writer.handle.buffer_handle).info().name == "vllm.mq.calls"

    def work():
        calls = MessageQueue.create_from_handle(writer.handle, 3)
        answers = MessageQueue(1, 1)
        return names_of_rings(), calls is answers

    assert in_a_fork(work) == (["vllm.mq.answers.3"], False)
    assert "vllm.mq.calls" in names_of_rings()


def test_a_rank_that_attaches_twice_is_told():
    writer = MessageQueue(2, 2)
    readers = [MessageQueue.create_from_handle(writer.handle, 0) for _ in range(2)]
    with pytest.raises(RuntimeError, match=r"not by rank 1: another rank has attached twice"):
        writer.enqueue(1)
    assert len(readers) == 2


def test_what_is_no_handle_and_what_can_not_go_is_told():
    writer = MessageQueue(1, 1)
    with pytest.raises(TypeError, match=r"handle must be what export_handle\(\) gives, not str"):
        MessageQueue.create_from_handle(writer.handle.buffer_handle, 0)
    with pytest.raises(TypeError, match="rank must be an int, not str: '0'"):
        MessageQueue.create_from_handle(writer.handle, "0")
    with pytest.raises(TypeError, match=r"pass export_handle\(\)"):
        pickle.dumps(writer)


def test_a_handle_can_be_pickled_and_has_the_fields_of_vllm():
    writer = MessageQueue(1, 1)
    handle = pickle.loads(pickle.dumps(writer.export_handle()))
    assert handle == writer.handle and handle.local_reader_ranks == [0]
    assert Handle() == Handle([], None, None, None, None, False, None)
    reader = MessageQueue.create_from_handle(handle, 0)
    writer.enqueue("here")
    assert reader.dequeue(timeout=0) == "here"


def test_without_readers_what_is_sent_is_only_looked_at():
    queue = MessageQueue(0, 0)
    queue.wait_until_ready()
    queue.enqueue({"x": 1})
    with pytest.raises(TypeError, match="pickle"):
        queue.enqueue(threading.Lock())
    with pytest.raises(RuntimeError, match="Only readers"):
        queue.dequeue()
    queue.shutdown()
    assert queue.handle == Handle()


def test_time_outs():
    writer, reader = make_ready(**SMALL)
    for timeout in (-1, 0, 0.01, 0.1):
        with pytest.raises(TimeoutError):
            reader.dequeue(timeout=timeout)
    number = fill(writer)
    with pytest.raises(TimeoutError, match="rank 0, pid|rank 0.*pid"):
        writer.enqueue(bytes(1000), timeout=0.1)
    assert [len(reader.dequeue(timeout=0)) for _ in range(number)] == [1000] * number
    writer.enqueue("goes on", timeout=0)
    assert reader.dequeue(timeout=0) == "goes on"


def test_a_time_out_that_is_no_number_of_seconds_is_refused():
    writer, reader = make_ready(**SMALL)
    fill(writer)
    with pytest.raises(ValueError, match="timeout must be a number of seconds, or None, not nan"):
        writer.enqueue(bytes(1000), timeout=float("nan"))
    other, reader = make_ready()
    with pytest.raises(ValueError, match="timeout must be a number of seconds, or None, not nan"):
        reader.dequeue(timeout=float("nan"))


def test_a_frame_that_is_no_message_takes_no_time_from_a_wait(monkeypatch):
    writer, (reader,) = make()
    writer.wait_until_ready()
    over = []

    class Seen(_endpoints.Wait):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            over.append(self.over())

    monkeypatch.setattr(_endpoints, "Wait", Seen)
    monkeypatch.setattr(_endpoints, "_FIRST", WATCHDOG)
    reader.shutdown()
    with pytest.raises(RuntimeError, match="cancelled"):
        reader.dequeue(timeout=WATCHDOG)
    assert over == [False]


class LateMessage:
    def __reduce__(self):
        return give_up, ()


def give_up():
    raise TimeoutError("what a message waited for")


def test_a_time_out_of_a_message_itself_is_no_wait():
    writer, reader = make_ready()
    for timeout in (None, 0, WATCHDOG):
        writer.enqueue(LateMessage())
        with pytest.raises(TimeoutError, match="what a message waited for"):
            reader.dequeue(timeout)
    with contextlib.ExitStack() as stack:
        with once_it_waits(reader):
            outcome = stack.enter_context(meanwhile(reader.dequeue))
        writer.enqueue(LateMessage())
    assert repr(outcome) == "[TimeoutError('what a message waited for')]"


def test_a_queue_in_a_cycle_is_collected():
    writer, (reader,) = make()
    for queue in (writer, reader):
        queue.cycle = queue
    weak = [weakref.ref(writer), weakref.ref(reader), weakref.ref(writer._end)]
    del queue, writer, reader
    gc.collect()
    assert [reference() for reference in weak] == [
        None
    ] * 3  # and conftest looks for memory and descriptors


# ---- Being ready ---------------------------------------------------------------------------------


def test_nobody_is_ready_before_all_are_there():
    writer, (reader,) = make()
    late = MessageQueue(2, 2)
    first = MessageQueue.create_from_handle(late.handle, 0)
    with contextlib.ExitStack() as stack:
        with once_it_waits(first):
            outcome = stack.enter_context(meanwhile(late.wait_until_ready))
            heard = stack.enter_context(meanwhile(first.wait_until_ready))
        assert not outcome and not heard
        second = MessageQueue.create_from_handle(late.handle, 1)
    assert outcome == heard == [None]
    second.wait_until_ready()
    for queue in (late, first, second):
        queue.wait_until_ready()  # again
    late.enqueue("for both")
    assert first.dequeue(timeout=0) == second.dequeue(timeout=0) == "for both"


def test_what_is_sent_before_all_are_ready_waits_for_them():
    writer = MessageQueue(1, 1)
    with pytest.raises(TimeoutError, match="0 of 1 readers are attached; missing: rank 0"):
        writer.enqueue("lost?", timeout=0.01)
    with meanwhile(writer.enqueue, "first") as outcome:
        reader = MessageQueue.create_from_handle(writer.handle, 0)
    assert outcome == [None]
    writer.enqueue("second")
    assert reader.dequeue(timeout=0) == "first"
    writer.wait_until_ready()
    writer.enqueue("third")
    reader.wait_until_ready()
    assert [reader.dequeue(timeout=0) for _ in range(2)] == ["second", "third"]


def test_who_does_not_wait_until_ready_is_not_told():
    writer, (reader,) = make()
    writer.wait_until_ready()
    writer.enqueue("message")
    assert reader.dequeue(timeout=WATCHDOG) == "message"


# ---- Shutting down -------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, WATCHDOG])
def test_shutdown_ends_the_wait_of_a_reader(timeout):
    writer, reader = make_ready()
    with contextlib.ExitStack() as stack:
        with once_it_waits(reader):
            outcome = stack.enter_context(
                meanwhile(lambda: reader.dequeue(timeout, indefinite=True))
            )
        for _ in range(3):
            reader.shutdown()
    assert repr(outcome) == "[RuntimeError('cancelled')]" and reader.shutting_down
    writer.enqueue("still here")
    assert reader.dequeue() == "still here"
    with pytest.raises(RuntimeError, match="^cancelled$"):
        reader.dequeue(timeout=0)


@pytest.mark.parametrize("timeout", [None, WATCHDOG])
def test_shutdown_ends_the_wait_of_a_writer(timeout):
    writer, reader = make_ready(**SMALL)
    fill(writer)
    with contextlib.ExitStack() as stack:
        with once_it_waits(writer):
            outcome = stack.enter_context(meanwhile(writer.enqueue, bytes(1000), timeout))
        writer.shutdown()
        writer.shutdown()
    assert repr(outcome) == "[RuntimeError('cancelled')]" and writer.shutting_down
    with pytest.raises(RuntimeError, match="^cancelled$"):
        writer.enqueue(bytes(1000))
    assert len(reader.dequeue(timeout=0)) == 1000  # what was sent is there


def test_shutdown_ends_waiting_until_ready():
    writer, (reader,) = make()
    other = MessageQueue(1, 1)
    with meanwhile(reader.wait_until_ready) as heard, meanwhile(other.wait_until_ready) as outcome:
        reader.shutdown()
        other.shutdown()
    assert repr(outcome) == repr(heard) == "[RuntimeError('cancelled')]"


@pytest.mark.parametrize(
    "busy, ours, spin", [("0.002", "", 2_000_000), ("0", "", 0), ("0.002", "7", 7000)]
)
def test_vllms_busy_loop_is_the_spin_time(monkeypatch, busy, ours, spin):
    monkeypatch.setenv("VLLM_SHM_BROADCAST_BUSY_LOOP_S", busy)
    monkeypatch.setenv("RINGCAST_SPIN_US", ours)
    assert [queue._end.ring.info().spin_ns for queue in make_ready()] == [spin] * 2


def test_a_busy_loop_that_is_no_time_is_refused(monkeypatch):
    monkeypatch.setenv("VLLM_SHM_BROADCAST_BUSY_LOOP_S", "long")
    with pytest.raises(
        ValueError, match="VLLM_SHM_BROADCAST_BUSY_LOOP_S is 'long': it must be seconds"
    ):
        MessageQueue(1, 1)


# ---- Warnings ------------------------------------------------------------------------------------


def warnings_of(caplog):
    found = [record for record in caplog.records if record.name == "ringcast.vllm"]
    assert all(record.levelno == logging.WARNING for record in found)
    caplog.clear()
    return [
        re.sub(r"found in \d+ seconds", "found in some seconds", record.getMessage())
        for record in found
    ]


@pytest.fixture(params=["environment", "vllm"])
def every_millisecond(request, monkeypatch):
    if request.param == "vllm":
        monkeypatch.setenv("VLLM_RINGBUFFER_WARNING_INTERVAL", "1000")
        module = types.SimpleNamespace(VLLM_RINGBUFFER_WARNING_INTERVAL=0.001)
        monkeypatch.setitem(sys.modules, PEER, module)
    else:
        monkeypatch.setenv("VLLM_RINGBUFFER_WARNING_INTERVAL", "0.001")


def test_a_reader_that_waits_warns_unless_it_is_told_not_to(every_millisecond, caplog):
    writer, reader = make_ready()
    caplog.clear()
    with pytest.raises(TimeoutError):
        reader.dequeue(timeout=0.01)
    pid = reader._end.ring.writer_pid
    assert warnings_of(caplog)[0] == (
        f"No available shared memory broadcast block found in some seconds: the writer (pid "
        f"{pid}) is alive, and all "
        "that it has sent was received"
    )
    with pytest.raises(TimeoutError):
        reader.dequeue(timeout=0.1, indefinite=True)
    assert warnings_of(caplog) == []


def test_vllms_logger_has_the_warning_and_that_the_call_goes_on(
    every_millisecond, caplog, monkeypatch
):
    module = types.SimpleNamespace(init_logger=logging.getLogger)
    monkeypatch.setitem(sys.modules, "vllm.logger", module)
    writer, reader = make_ready()
    caplog.clear()
    with meanwhile(reader.dequeue) as outcome:
        while not caplog.records:
            pass
        writer.enqueue("on")
    assert outcome == ["on"]
    texts = [record.getMessage() for record in caplog.records if record.name == "vllm.ringcast"]
    assert texts[0].startswith("No available shared memory broadcast block found in ")
    assert texts[-1].startswith("The shared memory broadcast goes on after ")


def test_a_writer_that_waits_says_for_whom(every_millisecond, caplog):
    writer, one, other = make_ready(2, **SMALL)
    number = fill(writer)
    for _ in range(number):
        other.dequeue(timeout=0)
    caplog.clear()
    with pytest.raises(TimeoutError):
        writer.enqueue(bytes(1000), timeout=0.1)
    texts = warnings_of(caplog)
    start = "No available shared memory broadcast block found in some seconds: rank 0 (pid "
    assert texts and texts[0].startswith(start)
    assert (
        f") is alive, {one._end.ring.lag} bytes ({number} messages) behind, and has held the writer"
        in texts[0]
    )
    assert "rank 1" not in texts[0]


def test_who_waits_for_readers_says_who_is_missing(every_millisecond, caplog):
    writer = MessageQueue(3, 3)
    reader = MessageQueue.create_from_handle(writer.handle, 1)
    with meanwhile(writer.enqueue, 1):
        while not caplog.records:
            pass
        writer.shutdown()
    assert (
        "some seconds: 1 of 3 readers are attached; missing: rank 0, rank 2"
        in warnings_of(caplog)[0]
    )
    del reader


@pytest.mark.parametrize("value", ["0", "-1", "nan", "soon"])
def test_an_interval_that_is_none_is_refused(monkeypatch, value):
    writer, reader = make_ready()
    monkeypatch.setenv("VLLM_RINGBUFFER_WARNING_INTERVAL", value)
    with pytest.raises(
        ValueError,
        match=f"VLLM_RINGBUFFER_WARNING_INTERVAL is '{value}': it must be a number of sec",
    ):
        reader.dequeue(timeout=0.01)


@pytest.mark.parametrize(
    "engine, name",
    [(None, "ringcast.vllm"), ("sglang", "sglang.ringcast"), ("vllm.logger", "its own")],
)
def test_the_logger_is_of_the_engine(monkeypatch, engine, name):
    for module in "sglang", "vllm.logger":
        monkeypatch.delitem(sys.modules, module, raising=False)
    if engine is not None:
        module = types.SimpleNamespace(init_logger=lambda _: logging.getLogger("its own"))
        monkeypatch.setitem(sys.modules, engine, module)
    assert _endpoints.engine_logger().name == name


def test_a_message_that_comes_before_the_notice_of_all_is_kept():
    writer, (reader,) = make()
    writer.enqueue("first")
    reader.wait_until_ready()
    writer.wait_until_ready()
    writer.enqueue("second")
    assert [reader.dequeue(timeout=0) for _ in range(2)] == ["first", "second"]
