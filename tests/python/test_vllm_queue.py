# SPDX-License-Identifier: Apache-2.0
"""
vLLM's MessageQueue over a ring: what arrives, what is waited for, and what is told when it goes on
for long.
"""

import contextlib
import gc
import logging
import os
import pickle
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
    with pytest.raises(ringcast.FrameTooLarge, match="RINGCAST_SPILL_BYTES"):
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


ATTACHES, MAKES = MessageQueue.create_from_handle, MessageQueue
# What the calls are given, what they raise, and the words that name the thing.
REFUSED = [
    (MAKES, (2, 2, [0]), AssertionError, "local_reader_ranks has 1"),
    (MAKES, (1, 2), ValueError, "n_local_reader"),
    (MAKES, (1, 1, None, 1 << 20, 0), ValueError, "max_chunks"),
    (MAKES, (2, 2, [1, 1]), ValueError, r"twice: \[1, 1\]"),
    (MAKES, (2, 2, ["1", 0]), TypeError, "local_reader_ranks .* str: '1'"),
    (MAKES, ("2", 2), TypeError, "n_reader .* str: '2'"),
    (MAKES, (2, 2.0), TypeError, "n_local_reader .* float: 2.0"),
    (MAKES, (1, 1, None, 1 << 20, None), TypeError, "max_chunks .* NoneType"),
    (ATTACHES, (Handle([5, 3], "a ring"), 4), ValueError, r"rank 4 .* \[5, 3\]"),
    (ATTACHES, (Handle([5, 3]), 3), ValueError, "no ring"),
    (ATTACHES, ("a ring", 0), TypeError, "handle .* str"),
    (ATTACHES, (Handle([0], "a ring"), "0"), TypeError, "rank .* str: '0'"),
    (pickle.dumps, (MessageQueue(0, 0),), TypeError, r"export_handle\(\)"),
]


@pytest.mark.parametrize("call, args, error, text", REFUSED)
def test_what_can_not_be_is_refused_by_name(call, args, error, text):
    with pytest.raises(error, match=text):
        call(*args)


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
    with pytest.raises(TimeoutError, match="rank 0.*pid"):
        writer.enqueue(bytes(1000), timeout=0.1)
    with pytest.raises(ValueError, match="timeout .* nan"):
        writer.enqueue(bytes(1000), timeout=float("nan"))
    assert [len(reader.dequeue(timeout=0)) for _ in range(number)] == [1000] * number
    writer.enqueue("goes on", timeout=0)
    assert reader.dequeue(timeout=0) == "goes on"
    with pytest.raises(ValueError, match="timeout .* nan"):
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


def test_messages_and_the_notice_that_all_are_there_come_in_any_order():
    """A reader need not wait until it is ready, and keeps what comes before the notice."""
    for first in "sent", "told":
        writer, (reader,) = make()
        if first == "told":
            writer.wait_until_ready()
        writer.enqueue("first")
        if first == "sent":
            reader.wait_until_ready()
        writer.wait_until_ready()
        writer.enqueue("second")
        assert [reader.dequeue(timeout=WATCHDOG) for _ in range(2)] == ["first", "second"]


# ---- Shutting down -------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, WATCHDOG])
@pytest.mark.parametrize("who", ["writer", "reader"])
def test_shutdown_ends_a_wait_and_loses_nothing(who, timeout):
    writer, reader = make_ready(**SMALL)
    ended, call = reader, lambda: reader.dequeue(timeout, indefinite=True)
    if who == "writer":
        fill(writer)
        ended, call = writer, lambda: writer.enqueue(bytes(1000), timeout)
    with contextlib.ExitStack() as stack:
        with once_it_waits(ended):
            outcome = stack.enter_context(meanwhile(call))
        for _ in range(3):
            ended.shutdown()
    assert repr(outcome) == "[RuntimeError('cancelled')]" and ended.shutting_down
    if who == "reader":
        writer.enqueue(bytes(1000))
        assert len(reader.dequeue()) == 1000
    with pytest.raises(RuntimeError, match="^cancelled$"):
        call()
    if who == "writer":
        assert len(reader.dequeue(timeout=0)) == 1000


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


# ---- Warnings ------------------------------------------------------------------------------------


def warnings_of(caplog):
    found = [record for record in caplog.records if record.name == "ringcast.vllm"]
    assert all(record.levelno == logging.WARNING for record in found)
    caplog.clear()
    return [record.getMessage() for record in found]


START = "No available shared memory broadcast block found in "


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
    text = warnings_of(caplog)[0]
    assert text.startswith(START) and f"(pid {os.getpid()}) is alive" in text
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
    assert texts[0].startswith(START)
    assert texts[-1].startswith("The shared memory broadcast goes on after ")


def test_a_writer_that_waits_says_for_whom(every_millisecond, caplog):
    writer, one, other = make_ready(2, **SMALL)
    number = fill(writer)
    for _ in range(number):
        other.dequeue(timeout=0)
    caplog.clear()
    with pytest.raises(TimeoutError):
        writer.enqueue(bytes(1000), timeout=0.1)
    text = warnings_of(caplog)[0]
    assert text.startswith(START) and "rank 0 (pid " in text and "rank 1" not in text
    assert f"{one._end.ring.lag} bytes ({number} messages) behind" in text


def test_who_waits_for_readers_says_who_is_missing(every_millisecond, caplog):
    writer = MessageQueue(3, 3)
    reader = MessageQueue.create_from_handle(writer.handle, 1)
    with meanwhile(writer.enqueue, 1):
        while not caplog.records:
            pass
        writer.shutdown()
    assert "missing: rank 0, rank 2" in warnings_of(caplog)[0]
    del reader


BUSY, INTERVAL = "VLLM_SHM_BROADCAST_BUSY_LOOP_S", "VLLM_RINGBUFFER_WARNING_INTERVAL"
SETTINGS = [(BUSY, "long"), *((INTERVAL, value) for value in ("0", "-1", "nan", "soon"))]


@pytest.mark.parametrize("name, value", SETTINGS)
def test_a_setting_that_is_none_is_refused(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} is '{value}'"):
        _, (reader,) = make()
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
