# SPDX-License-Identifier: Apache-2.0
"""
Every wait, by blocking calls and by tasks of an event loop, and whatever ends it: a frame or room, a
close, cancel(), a death, a reader that is too slow, a signal.
"""

import asyncio
import contextlib
import errno
import os
import re
import select
import selectors
import signal
import threading

import pytest
from loops import LOOPS, is_out_of, run, waits
from peers import WATCHDOG, Peer, attach, detach, is_in_use, make_writer, receive, until
from receiving import Receiving

import ringcast

# ---- The waits: for a frame, and for room --------------------------------------------------------

BLOCKING = {
    "recv": lambda reader, *timeout: reader.recv(*timeout),
    "recv_tagged": lambda reader, *timeout: reader.recv_tagged(*timeout)[0],
    "recv_many": lambda reader, *timeout: reader.recv_many(*timeout)[0],
    "next": lambda reader, *timeout: ringcast.unpack(reader.next(*timeout)),
    "view": lambda reader, *timeout: reader.view(*timeout).__enter__(),
    "iteration": lambda reader, *timeout: next(reader),
    "send": lambda writer, *timeout: writer.send(b"last", *timeout),
    "send_bytes": lambda writer, *timeout: writer.send_bytes(b"last", *timeout),
    "send_many": lambda writer, *timeout: writer.send_many([b"last"], *timeout),
    "reserve": lambda writer, *timeout: writer.reserve(4, *timeout).commit(),
}
TASKS = {
    "arecv": lambda reader, *timeout: reader.arecv(*timeout),
    "arecv_tagged": lambda reader, *timeout: first(reader.arecv_tagged(*timeout)),
    "arecv_many": lambda reader, *timeout: first(reader.arecv_many(*timeout)),
    "async iteration": lambda reader, *timeout: reader.__anext__(),
    "asend": lambda writer, *timeout: writer.asend(b"last", *timeout),
    "asend_many": lambda writer, *timeout: writer.asend_many([b"last"], *timeout),
}
OF_READERS = ["recv", "recv_tagged", "recv_many", "next", "view", "iteration"]
OF_READERS += ["arecv", "arecv_tagged", "arecv_many", "async iteration"]
OF_WRITERS = ["send", "send_bytes", "send_many", "reserve", "asend", "asend_many"]


async def first(coroutine):
    return (await coroutine)[0]


def ways_of(names):
    """Each call, with the loop that it waits in."""
    return [way for name in names for way in each_loop(name)]


def each_loop(name):
    for loop in LOOPS if name in TASKS else [pytest.param(None)]:
        kind = getattr(loop, "values", (loop,))[0]
        marks = getattr(loop, "marks", ())
        yield pytest.param((name, kind), id=f"{name} {kind or ''}".strip(), marks=marks)


def begin(way, handle):
    """The call in a thread of its own, once it waits. The loop is left without the descriptor."""
    name, loop = way
    if loop is None:
        waiting = Receiving(lambda: BLOCKING[name](handle))
        until(lambda: is_in_use(handle) or not waiting.is_at_work())
        return waiting
    begun = threading.Event()

    async def call():
        task = asyncio.ensure_future(TASKS[name](handle))
        await waits(handle)
        fd = handle.fileno() if name in OF_READERS else handle.room_fileno()
        begun.set()
        try:
            return await task
        except BaseException:
            assert is_out_of(asyncio.get_running_loop(), fd)
            raise

    waiting = Receiving(lambda: run(loop, call()))
    until(lambda: begun.is_set() or not waiting.is_at_work())
    return waiting


def outcome(waiting):
    """What the call gave, or the type of the error."""
    try:
        return waiting.finish()
    except BaseException as error:
        return type(error)


@pytest.fixture
def other():
    with Peer(forked=True) as peer:
        yield peer


# ---- A reader waits ------------------------------------------------------------------------------


def send_last(state):
    state["writer"].send(b"last")


def close_writer(state):
    state.pop("writer").close()


END = {"iteration": StopIteration, "async iteration": StopAsyncIteration}
# What ends the wait, and what the call gives then. None: the end of the ring, or of the iteration.
FOR_A_FRAME = {
    "a frame": (lambda peer, reader: peer.call(send_last), b"last"),
    "a close": (lambda peer, reader: peer.call(close_writer), None),
    "a killed writer": (lambda peer, reader: peer.end("killed"), None),
    "a zombie": (lambda peer, reader: peer.end("zombie"), None),
    "cancel": (lambda peer, reader: reader.cancel(), ringcast.Cancelled),
}


@pytest.mark.parametrize("end", FOR_A_FRAME)
@pytest.mark.parametrize("way", ways_of(OF_READERS))
def test_a_wait_for_a_frame_ends(other, way, end):
    act, gives = FOR_A_FRAME[end]
    with ringcast.Reader(other.call(make_writer, 1 << 12), leases=2) as reader:
        waiting = begin(way, reader)
        act(other, reader)
        got = outcome(waiting)
        assert got == (END.get(way[0], ringcast.WriterGone) if gives is None else gives)
        if gives is ringcast.Cancelled:  # what is there can still be had
            with pytest.raises(ringcast.Cancelled):
                reader.recv()
            other.call(send_last)
            assert reader.recv(0) == b"last"


# ---- A writer waits ------------------------------------------------------------------------------


def fill(writer):
    with contextlib.suppress(TimeoutError):
        while True:
            writer.send_bytes(b"", 0)


def drain(state):
    with contextlib.suppress(TimeoutError):
        while True:
            state["reader"].recv(0)


FAILS, EVICTS = {}, {"on_death": "evict", "on_slow": "evict", "slow": 0.02}
# What ends the wait, of a Writer with these options, and what the call gives then.
FOR_ROOM = {
    "room": (FAILS, lambda peer, writer: peer.call(drain), None),
    "a reader that leaves": (FAILS, lambda peer, writer: peer.call(detach), None),
    "a killed reader": (FAILS, lambda peer, writer: peer.end("killed"), ringcast.ReaderDied),
    "a zombie": (FAILS, lambda peer, writer: peer.end("zombie"), ringcast.ReaderDied),
    "a killed one, evicted": ({"on_death": "evict"}, lambda peer, writer: peer.end("killed"), None),
    "a slow one": ({"slow": 0.02}, lambda peer, writer: None, TimeoutError),
    "a stopped one": ({"slow": 0.02}, lambda peer, writer: peer.end("stopped"), TimeoutError),
    "a slow one, evicted": (EVICTS, lambda peer, writer: None, None),
    "cancel": (FAILS, lambda peer, writer: writer.cancel(), ringcast.Cancelled),
}


@pytest.mark.parametrize("end", FOR_ROOM)
@pytest.mark.parametrize("way", ways_of(OF_WRITERS))
def test_a_wait_for_room_ends(other, way, end):
    options, act, gives = FOR_ROOM[end]
    # Those who are to be slow may be so before it waits.
    with ringcast.Writer(1 << 12, **options) as writer:
        other.call(attach, writer.handle, "the late one")
        fill(writer)
        if "slow" in options:
            act(other, writer)
            way_of = BLOCKING[way[0]] if way[1] is None else None
            waiting = Receiving(
                lambda: way_of(writer) if way_of else run(way[1], TASKS[way[0]](writer))
            )
        else:
            waiting = begin(way, writer)
            act(other, writer)
        assert outcome(waiting) == gives
        if end == "a killed one, evicted":
            assert writer.check().name == "the late one" and writer.peers() == []
        if gives is ringcast.Cancelled:
            with pytest.raises(ringcast.Cancelled):
                writer.send(b"no")


@pytest.mark.parametrize("way", ways_of(OF_WRITERS))
def test_a_timeout_names_who_is_in_the_way_and_what_can_be_done(way):
    name, loop = way
    for options, words in (({}, r"'rank 1'"), ({"slow": 0.01}, r"rank 1.*on_slow='evict'")):
        with (
            ringcast.Writer(1 << 12, **options) as writer,
            ringcast.Reader(writer.handle, name="rank 1"),
        ):
            fill(writer)
            timeout = 0.01 if not options else WATCHDOG
            with pytest.raises(TimeoutError, match=words):
                if loop is None:
                    BLOCKING[name](writer, timeout)
                else:
                    run(loop, TASKS[name](writer, timeout))


def test_a_wait_for_readers_ends_in_time_by_their_coming_and_by_cancel(ring):
    writer, _ = ring
    assert writer.wait_readers(1, 0) == 1
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match="1 of 2"):
            writer.wait_readers(2, timeout)
    for end in (lambda: ringcast.Reader(writer.handle), writer.cancel):
        waiting = Receiving(lambda: writer.wait_readers(2))
        until(lambda: is_in_use(writer))
        came = end()
        assert outcome(waiting) == (2 if came else ringcast.Cancelled)
        if came:
            came.close()


@pytest.mark.parametrize("timeout", [0, 0.0, 1e-12, 0.01])
def test_nothing_to_receive_times_out(ring, timeout):
    for name in OF_READERS:
        if "iteration" not in name:
            with pytest.raises(TimeoutError):
                call = (TASKS if name in TASKS else BLOCKING)[name](ring[1], timeout)
                asyncio.run(call)
    ring[0].send("late", 0)
    assert ring[1].recv(timeout) == "late"


# ---- Threads -------------------------------------------------------------------------------------


def test_a_waiting_thread_lets_the_others_run_but_not_into_its_handle(ring):
    writer, reader = ring
    waiting = begin(("recv", None), reader)
    for use in (reader.close, reader.recv, reader.next, lambda: reader.lag):
        with pytest.raises(RuntimeError, match="in use"):
            use()
    writer.send_bytes(b"x", 0)
    assert waiting.finish() == b"x"


class SendsItself:
    def __init__(self, writer):
        self.writer = writer

    def __reduce__(self):
        self.writer.send_bytes(b"inner")
        return int, ()


def test_a_writer_is_not_entered_twice(ring):
    writer, reader = ring
    with pytest.raises(RuntimeError, match="in use"):
        writer.send(SendsItself(writer))
    writer.send(1, 0)
    assert reader.recv(0) == 1


# ---- Signals -------------------------------------------------------------------------------------


def wait_for_interrupt(state, handle):
    """Waits in recv; then in send, with the ring full."""
    # What runs in the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with (
        ringcast.Reader(handle) as reader,
        ringcast.Writer(1 << 16) as writer,
        ringcast.Reader(writer.handle),
    ):
        for wait in (reader.recv, lambda: [writer.send_bytes(bytes(1000)) for _ in range(100)]):
            state["pipe"].send("waits")
            with contextlib.suppress(KeyboardInterrupt):
                wait()
                return "it was not interrupted"
    return "unharmed"


def test_ctrl_c_ends_a_wait(peer):
    with ringcast.Writer(1 << 16) as writer:
        peer.start(wait_for_interrupt, writer.handle)
        for _ in range(2):
            peer.reach("waits")
            peer.sleeps()
            os.kill(peer.pid, signal.SIGINT)
        assert peer.finish() == "unharmed"


def count_signals(state, handle):
    signals = []
    signal.signal(signal.SIGUSR1, lambda *_: (signals.append(1), state["pipe"].send("signal")))
    with ringcast.Reader(handle) as reader:
        state["pipe"].send("waits")
        return reader.recv(WATCHDOG), len(signals)


def test_a_signal_that_is_handled_does_not_end_a_wait(peer):
    with ringcast.Writer(1 << 16) as writer:
        peer.start(count_signals, writer.handle)
        peer.reach("waits")
        for _ in range(3):
            os.kill(peer.pid, signal.SIGUSR1)
            peer.reach("signal")
        writer.send("x")
        assert peer.finish() == ("x", 3)


# ---- Who is lost ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["killed", "zombie"])
@pytest.mark.parametrize("on_death", ["fail", "evict"])
def test_a_writer_names_the_dead_reader_and_goes_on_if_it_may(other, on_death, how):
    with (
        ringcast.Writer(1 << 12, on_death=on_death) as writer,
        ringcast.Reader(writer.handle) as reader,
        selectors.DefaultSelector() as selector,
    ):
        other.call(attach, writer.handle, "the late one")
        selector.register(writer, selectors.EVENT_READ)
        assert writer.fileno() == writer.fileno() and writer.check() is None
        other.end(how)
        until(lambda: selector.select(0.05) and writer.peers()[-1].state in ("dead", "active"))
        lost = until(writer.check)
        assert (lost.state, lost.name, lost.pid) == ("dead", "the late one", other.pid)
        if on_death == "evict":
            assert writer.check() is None and [each.pid for each in writer.peers()] == [os.getpid()]
            for number in range(100):
                writer.send_bytes(bytes(100), WATCHDOG)
                assert reader.recv(0) == bytes(100)
            return
        assert writer.check().pid == other.pid  # at each look
        with pytest.raises(ringcast.ReaderDied, match=f"'the late one'.*{other.pid}.*on_death="):
            while True:
                writer.send_bytes(bytes(100))
                reader.recv(0)


def test_a_stopped_reader_is_slow_and_not_dead(other):
    with ringcast.Writer(1 << 16) as writer:
        other.call(attach, writer.handle, "asleep")
        assert writer.peers()[0].state == "active"
        other.end("stopped")
        with pytest.raises(TimeoutError, match=f"'asleep'.*{other.pid}.*stopped"):
            while True:
                writer.send_bytes(bytes(1000), 0.05)
        (status,) = writer.peers()
        assert status.state == "stopped" and status.held > 0 and writer.check() is None
        other.end("continued")
        assert writer.peers()[0].state == "active"
        assert other.call(receive) == bytes(1000)


# ---- Descriptors ---------------------------------------------------------------------------------


def test_the_descriptor_of_a_reader_tells_when_to_look(ring):
    writer, reader = ring

    def took():
        got = []
        with contextlib.suppress(TimeoutError):
            while True:
                got.append(reader.recv(0))
        return got

    assert reader.fileno() == reader.fileno()
    for number in range(5):
        # A second later it is readable, in case a wake-up was lost.
        until(lambda: not took() and not select.select([reader], [], [], 0)[0])
        writer.send(number, 0)
        assert select.select([reader], [], [], WATCHDOG)[0]
        assert took() == [number]
    writer.close()
    assert select.select([reader], [], [], WATCHDOG)[0]
    with pytest.raises(ringcast.WriterGone) as raised:
        reader.recv(0)
    assert raised.value.errno == errno.EPIPE and re.search(str(os.getpid()), str(raised.value))


def test_the_descriptor_for_room_tells_when_to_send():
    with (
        ringcast.Writer(1 << 12) as writer,
        ringcast.Reader(writer.handle) as reader,
        selectors.DefaultSelector() as selector,
    ):
        selector.register(writer.room_fileno(), selectors.EVENT_READ)
        assert selector.select(WATCHDOG)  # it starts readable
        fill(writer)
        drain({"reader": reader})
        assert selector.select(WATCHDOG)
        writer.send("again", 0)
        assert reader.recv(0) == "again"
