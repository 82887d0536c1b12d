# SPDX-License-Identifier: Apache-2.0
"""vLLM's MessageQueue when one of its processes dies: all others are told who, at once. One that
leaves is no death."""

import contextlib
import gc
import multiprocessing
import os
import signal
import threading

import pytest
from peers import WATCHDOG, Peer, in_a_fork
from queues import SMALL, fill, make, meanwhile, once_it_waits, the_watching_thread, watchdog  # noqa: F401

import ringcast
from ringcast import _watch
from ringcast._group import endpoint
from ringcast.vllm import MessageQueue, _endpoints

# ---- What peers do -------------------------------------------------------------------------------


def attach(state, handle, rank):
    state["queue"] = MessageQueue.create_from_handle(handle, rank)


def make_writer(state):
    state["queue"] = MessageQueue(1, 1)
    return state["queue"].export_handle()


def wait_until_ready(state):
    state["queue"].wait_until_ready()


def enqueue(state, value):
    state["queue"].enqueue(value)


def dequeue(state, timeout=WATCHDOG):
    return state["queue"].dequeue(timeout)


def drop(state):
    state.pop("queue", None)
    gc.collect()


# ---- Readers that die ----------------------------------------------------------------------------


def with_a_peer(peer, **options):
    """A writer and a reader, rank 0, here; rank 1 is the peer."""
    writer = MessageQueue(2, 2, **options)
    reader = MessageQueue.create_from_handle(writer.handle, 0)
    peer.call(attach, writer.handle, 1)
    writer.wait_until_ready()
    reader.wait_until_ready()
    peer.call(wait_until_ready)
    return writer, reader


def kill(peer):
    """Its number stays its own: nobody has waited for it."""
    os.kill(peer.pid, signal.SIGKILL)


def assert_told(peer, *calls):
    for call in calls * 2:
        with pytest.raises(ringcast.ReaderDied, match=rf"rank 1 \(pid {peer.pid}\).* has died"):
            call()


def test_what_was_sent_before_a_death_is_received_first(peer):
    writer, reader = with_a_peer(peer)
    for number in range(3):
        writer.enqueue(number)
    kill(peer)
    with pytest.raises(ringcast.ReaderDied):
        while True:
            writer.enqueue("as long as nobody knows", timeout=WATCHDOG)
            reader.dequeue()
    assert_told(peer, lambda: writer.enqueue(1))


@pytest.mark.parametrize("timeout", [None, WATCHDOG])
@pytest.mark.parametrize("taken_by", ["the dead", "another"])
def test_a_death_ends_the_wait_for_room(peer, taken_by, timeout):
    writer, reader = with_a_peer(peer, **SMALL)
    sent = fill(writer)
    for _ in range(sent):
        reader.dequeue() if taken_by == "the dead" else peer.call(dequeue)
    with contextlib.ExitStack() as stack:
        with once_it_waits(writer):
            outcome = stack.enter_context(meanwhile(writer.enqueue, bytes(10_000), timeout))
        kill(peer)
        if taken_by == "another":
            stack.close()
            for _ in range(sent):  # which makes room to tell this one
                assert len(reader.dequeue()) == 1000
        with pytest.raises(ringcast.ReaderDied):
            while True:
                reader.dequeue()
    # The dead one's room may be enough for this message.
    assert taken_by == "the dead" and outcome == [None] or type(outcome[0]) is ringcast.ReaderDied
    assert_told(peer, reader.dequeue, lambda: writer.enqueue(1))


def test_a_writer_that_nothing_wakes_tells_of_the_dead_reader_whose_room_it_took(peer, monkeypatch):
    monkeypatch.setattr(endpoint, "watch", lambda ring, notice: lambda: None)
    writer, reader = with_a_peer(peer, **SMALL)
    for _ in range(fill(writer)):
        reader.dequeue()
    kill(peer)
    writer.enqueue(1)  # the first try finds the room: no wait
    assert_told(peer, lambda: writer.enqueue(2))


def test_a_death_ends_waiting_until_ready(peer):
    writer = MessageQueue(3, 3)
    reader = MessageQueue.create_from_handle(writer.handle, 0)
    peer.call(attach, writer.handle, 1)
    with contextlib.ExitStack() as stack:
        with once_it_waits(reader):
            outcomes = [
                stack.enter_context(meanwhile(queue.wait_until_ready)) for queue in (writer, reader)
            ]
        kill(peer)
    assert [type(outcome[0]) for outcome in outcomes] == [ringcast.ReaderDied] * 2
    assert_told(peer, writer.wait_until_ready, reader.wait_until_ready, lambda: writer.enqueue(1))


def test_a_death_is_told_though_a_call_has_the_writer(peer, monkeypatch):
    writer, reader = with_a_peer(peer, **SMALL)
    sent = fill(writer)
    for _ in range(sent):
        peer.call(dequeue)
    lose, overtaken = writer._end._lose, threading.Event()

    def lose_and_be_overtaken(who, what):
        with once_it_waits(writer):
            stack.enter_context(meanwhile(writer._end.ring.send, bytes(10_000)))
        overtaken.set()
        lose(who, what)

    monkeypatch.setattr(writer._end, "_lose", lose_and_be_overtaken)
    with contextlib.ExitStack() as stack:
        kill(peer)
        assert overtaken.wait(WATCHDOG)
        for _ in range(sent + 1):
            reader.dequeue()
        assert_told(peer, reader.dequeue)


def test_several_deaths_are_told_once():
    peers = [Peer() for _ in range(2)]
    writer = MessageQueue(3, 3)
    reader = MessageQueue.create_from_handle(writer.handle, 0)
    for rank, peer in enumerate(peers, 1):
        peer.call(attach, writer.handle, rank)
    writer.wait_until_ready()
    for peer in peers:
        kill(peer)
    with pytest.raises(ringcast.ReaderDied, match="rank [12]"):
        reader.dequeue()
    for peer in peers:
        peer.stop()
    with pytest.raises(ringcast.ReaderDied, match="rank [12]"):
        writer.enqueue(1)


# ---- Writers that die ----------------------------------------------------------------------------


def test_the_death_of_the_writer_ends_waiting_until_ready(peer):
    reader = MessageQueue.create_from_handle(peer.call(make_writer), 0)
    with meanwhile(reader.wait_until_ready) as outcome:
        kill(peer)
    assert isinstance(outcome[0], ringcast.WriterGone) and f"pid {peer.pid}" in str(outcome[0])


# ---- Who leaves ----------------------------------------------------------------------------------


def goes_on(writer, reader):
    for _ in range(2):
        writer.enqueue("goes on")
        assert reader.dequeue() == "goes on"
    assert writer._end._notice()
    return True


def test_a_reader_that_is_collected_has_left(crew):
    peer = crew[0]
    writer, reader = with_a_peer(peer, **SMALL)
    peer.call(drop)
    assert goes_on(writer, reader)
    for _ in range(fill(writer)):  # nobody is in the way
        reader.dequeue()
    assert goes_on(writer, reader)


def attach_and_end(handle, rank, waiting):
    queue = MessageQueue.create_from_handle(handle, rank)
    queue.wait_until_ready()
    queue.cycle = queue  # nothing collects it
    gc.disable()
    if waiting:
        threading.excepthook = print  # "cancelled" is no news here
        _endpoints.AT_EXIT_SECONDS = WATCHDOG
        with once_it_waits(queue):
            threading.Thread(target=queue.dequeue, daemon=True).start()


@pytest.mark.parametrize("method, waiting", [("fork", False), ("spawn", False), ("spawn", True)])
def test_a_reader_whose_process_ends_has_left(method, waiting):
    writer = MessageQueue(2, 2)
    reader = MessageQueue.create_from_handle(writer.handle, 0)
    process = multiprocessing.get_context(method).Process(
        target=attach_and_end, args=(writer.handle, 1, waiting)
    )
    process.start()
    writer.wait_until_ready()
    process.join(WATCHDOG)
    assert process.exitcode == 0
    process.close()
    assert goes_on(writer, reader)


def test_a_child_leaves_its_parents_queue_alone():
    writer, (reader,) = make()
    writer.wait_until_ready()

    def child():
        nonlocal writer, reader
        with pytest.raises(ringcast.ForkedError):
            writer.enqueue("from the child")
        del writer, reader
        gc.collect()

    in_a_fork(child)
    assert goes_on(writer, reader)


def test_a_queue_may_be_collected_in_the_midst_of_the_watching_threads_work():
    def collect():
        writer, _ = make()
        writer.cycle = writer
        del writer
        with _watch._watcher._lock:
            gc.collect()

    with meanwhile(collect) as outcome:
        pass
    assert outcome == [None]
