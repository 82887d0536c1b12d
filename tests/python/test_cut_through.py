# SPDX-License-Identifier: Apache-2.0
"""Large frames are copied out while they are written: nothing is read too early, nothing lost if the writer stops."""

import asyncio
import contextlib
import ctypes
import decimal
import os
import random
import select
import signal
import struct
import threading

import loops
import numpy as np
import pytest
from peers import WATCHDOG
from pieces import PieceReader, PieceWriter, needs_library

import ringcast

pytestmark = [pytest.mark.alike, needs_library]


def numbers(count, seed=1, dtype=np.uint8):
    return np.random.default_rng(seed).integers(0, 100, count).astype(dtype)


LARGE = numbers(70_000)
VALUES = {
    "array": {"x": LARGE},
    "text behind arrays": {
        "x": LARGE, "text": "spät" * 900, "y": numbers(30_000, 2, np.float32).reshape(-1, 3), "n": 5,
        "raw": b"r" * 3000, "short": "é", "z": numbers(9_000, 3), "none": None,
    },
    "nested": {"a": [1, {"k": LARGE, "t": "t" * 5000}, (numbers(20_000, 4, np.int16), "u" * 2500)], "b": [b"b" * 4000]},
    "value": [LARGE, ["v" * 3000, numbers(300, 5)], 7],
    "stream": [[i, str(i)] for i in range(9_000)],
    "pickled": {"x": LARGE, "leaf": decimal.Decimal("1.5"), "y": numbers(300, 6)},
    "buffers": [LARGE, np.array([numbers(40_000, 7), "object"], dtype=object)],
    "text": "ö" * 50_000,
    "many entries": {f"key {i}": i for i in range(60)} | {"x": LARGE},
}


class Receiving:
    """What recv(), or another call, gives in a thread of its own."""

    def __init__(self, receive):
        self.outcome, self.error = None, None
        self.thread = threading.Thread(target=self.run, args=(receive,))
        self.thread.start()

    def run(self, receive):
        try:
            self.outcome = receive()
        except BaseException as error:
            self.error = error

    def is_at_work(self):
        return self.thread.is_alive()

    def finish(self):
        self.thread.join(WATCHDOG)
        assert not self.thread.is_alive(), "it waits for ever"
        if self.error:
            raise self.error
        return self.outcome


@pytest.fixture
def pair():
    """The reader sleeps whenever it waits."""
    with PieceWriter() as writer, ringcast.Reader(writer.handle, spin=0) as reader:
        yield writer, reader


def cuts_of(frame, seed=0):
    """Places to stop at: all over the entries, and where data begins and ends, more or less."""
    choose = random.Random(seed)
    early = {0, 1, 47, 48, 49, *range(100, 1000, 90)}
    return sorted(early | {choose.randrange(len(frame)) for _ in range(30)} | {len(frame) - 1})


def send_in_pieces(writer, receive, cuts):
    """The first piece is there before the reader is."""
    writer.publish(cuts[0])
    receiving = Receiving(receive)
    for cut in cuts:
        writer.publish(cut)
        writer.until_waited_for(receiving)
    writer.commit()
    return receiving.finish()


# ---- Nothing is read before it is there --------------------------------------------------------------------------


def entries_end(frame):
    count, meta = struct.unpack_from("<I8xQ", frame, 12)
    return 48 + 64 * count + meta


@pytest.mark.parametrize("begin", ["nothing", "header", "entries"])
@pytest.mark.parametrize("name", VALUES)
def test_what_is_received_in_pieces_is_what_was_sent(pair, name, begin):
    writer, reader = pair
    frame = bytes(ringcast.pack(VALUES[name]))
    first = {"nothing": 0, "header": 48, "entries": entries_end(frame)}[begin]
    writer.begin(frame)
    cuts = [first] + [cut for cut in cuts_of(frame, first) if cut > first]
    received = send_in_pieces(writer, reader.recv, cuts)
    same = bytes(ringcast.pack(received)) == frame
    assert same


def test_bytes_are_received_in_pieces(pair):
    writer, reader = pair
    writer.begin(LARGE, ringcast.KIND_BYTES)
    assert send_in_pieces(writer, reader.recv_tagged, cuts_of(LARGE)) == (LARGE.tobytes(), 0)


def test_a_tensor_with_strides_is_packed_when_it_is_there(pair):
    writer, reader = pair
    array = numbers(40_000, 8, np.int16).reshape(200, 200)
    frame = bytes(ringcast.pack({"x": array, "y": LARGE}))
    strided = frame.replace(struct.pack("<4q", 200, 200, 200, 1), struct.pack("<4q", 200, 200, 1, 200))
    assert strided != frame
    writer.begin(strided)
    received = send_in_pieces(writer, reader.recv, cuts_of(strided)[2:])
    assert np.array_equal(received["x"], array.T) and np.array_equal(received["y"], LARGE)


@pytest.mark.parametrize("kind", [ringcast.KIND_TENSORS, ringcast.KIND_BYTES])
def test_a_frame_that_needs_less_than_was_reserved_arrives(pair, kind):
    writer, reader = pair
    frame = bytes(ringcast.pack({"x": LARGE}))
    writer.begin(frame, kind, room=len(frame) + 50_000)
    received = send_in_pieces(writer, reader.recv, [0, 48, 1000, 60_000])
    assert (received if kind == ringcast.KIND_BYTES else bytes(ringcast.pack(received))) == frame


def test_a_frame_that_is_shorter_than_it_says_is_refused(pair):
    writer, reader = pair
    for size in (66_000, 60_000, 40_000):
        writer.begin(ringcast.pack({"x": LARGE, "text": "behind" * 50}))
        receiving = Receiving(reader.recv)
        writer.publish(size - 20_000)
        writer.until_waited_for(receiving)
        writer.publish(size)
        writer.commit(size)
        with pytest.raises(ringcast.ProtocolError):
            receiving.finish()
    frame = bytearray(ringcast.pack({"x": LARGE}))
    size = len(frame)
    frame[16:24] = struct.pack("<Q", size + 1000)  # as much as is reserved, with nothing in the last bytes
    writer.begin(frame, room=size + 1000)
    receiving = Receiving(reader.recv)
    writer.publish(size)
    writer.until_waited_for(receiving)
    writer.commit()
    with pytest.raises(ringcast.ProtocolError):
        receiving.finish()
    writer.begin(ringcast.pack({"x": LARGE}))
    writer.commit()
    assert np.array_equal(reader.recv(0)["x"], LARGE)


def test_a_damaged_frame_is_refused_in_its_middle_and_the_next_one_comes(pair):
    writer, reader = pair
    frame = bytearray(ringcast.pack({"x": LARGE, "y": "text"}))
    frame[48 + 64 + 8] = 99  # the kind of the second entry
    writer.begin(frame)
    receiving = Receiving(reader.recv)
    writer.publish(10_000)
    with pytest.raises(ringcast.ProtocolError):
        receiving.finish()
    writer.commit()
    writer.begin(ringcast.pack(LARGE))
    writer.commit()
    assert np.array_equal(reader.recv(0), LARGE)


def test_pickles_are_refused_and_errors_raised_of_what_is_there(pair):
    writer, reader = pair
    with ringcast.Reader(writer.handle, spin=0, allow_pickle=False) as careful:
        frame = bytes(ringcast.pack(VALUES["pickled"]))
        writer.begin(frame)
        receivings = [Receiving(careful.recv), Receiving(reader.recv)]
        for cut in cuts_of(frame):
            writer.publish(cut)
            writer.tell()
        writer.commit()
        with pytest.raises(ringcast.PickleRefused, match="Decimal"):
            receivings[0].finish()
        assert receivings[1].finish()["leaf"] == decimal.Decimal("1.5")


# ---- The writer stops ----------------------------------------------------------------------------------------------


def begin_half(writer, value=LARGE):
    writer.begin(ringcast.pack(value))
    writer.publish(len(writer.frame) // 2)


def receive_next(reader):
    with reader.next(WATCHDOG) as frame:
        return ringcast.unpack(frame)


def receive_view(reader):
    with reader.view(WATCHDOG) as value:
        return value.copy()


WAYS = {
    "recv": lambda reader: reader.recv(WATCHDOG),
    "iteration": next,
    "next": receive_next,
    "view": receive_view,
}
every_way = pytest.mark.parametrize("receive", WAYS.values(), ids=WAYS)


@every_way
def test_a_frame_that_is_taken_back_was_never_sent(pair, receive):
    writer, reader = pair
    begin_half(writer, numbers(70_000, 9))
    receiving = Receiving(lambda: receive(reader))
    writer.until_waited_for(receiving)
    writer.abort()
    begin_half(writer)
    writer.until_waited_for(receiving)
    writer.commit()
    assert np.array_equal(receiving.finish(), LARGE)


@every_way
def test_a_writer_that_is_gone_in_the_middle_is_told(pair, receive):
    writer, reader = pair
    begin_half(writer)
    receiving = Receiving(lambda: receive(reader))
    writer.until_waited_for(receiving)
    writer.close()
    with pytest.raises(StopIteration if receive is next else ringcast.WriterGone):
        receiving.finish()
    with pytest.raises(ringcast.WriterGone):
        reader.recv(0)


def stop_in_the_middle(state):
    state["writer"] = PieceWriter()
    return state["writer"].handle


def publish_half(state):
    begin_half(state["writer"])


@every_way
def test_a_writer_that_is_killed_in_the_middle_is_told(peer, receive):
    with ringcast.Reader(peer.call(stop_in_the_middle)) as reader:
        peer.call(publish_half)
        with pytest.raises(TimeoutError, match="of the frame"):
            reader.recv(0.001)
        receiving = Receiving(lambda: receive(reader))
        os.kill(peer.pid, signal.SIGKILL)
        with pytest.raises(StopIteration if receive is next else ringcast.WriterGone):
            receiving.finish()


@every_way
def test_a_call_that_gives_up_in_the_middle_loses_nothing(pair, receive):
    writer, reader = pair
    begin_half(writer)
    for timeout in (0.001, 0, 0.001):
        for call in (reader.recv, reader.next, reader.view, reader.recv_tagged):
            with pytest.raises(TimeoutError, match="of the frame"):
                call(timeout)
    receiving = Receiving(lambda: receive(reader))
    writer.until_waited_for(receiving)
    writer.commit()
    assert np.array_equal(receiving.finish(), LARGE)
    begin_half(writer)  # nothing is held
    writer.commit()
    assert np.array_equal(reader.recv(0), LARGE)
    with pytest.raises(TimeoutError, match="no new frame"):
        reader.recv(0)


@every_way
def test_what_was_given_up_can_be_taken_back(pair, receive):
    writer, reader = pair
    begin_half(writer, numbers(70_000, 9))
    with pytest.raises(TimeoutError):
        reader.recv(0.001)
    writer.abort()
    begin_half(writer)
    writer.commit()
    assert np.array_equal(receive(reader), LARGE)


@every_way
def test_cancel_ends_the_wait_for_the_rest(pair, receive):
    writer, reader = pair
    begin_half(writer)
    receiving = Receiving(lambda: receive(reader))
    writer.until_waited_for(receiving)
    reader.cancel()
    with pytest.raises(ringcast.Cancelled):
        receiving.finish()
    writer.commit()
    assert np.array_equal(reader.recv(0), LARGE)


class Rung(Exception):
    pass


def ring_the_bell(*_):
    raise Rung


@every_way
def test_a_signal_whose_handler_raises_ends_it_and_loses_nothing(pair, receive):
    writer, reader = pair
    before = signal.signal(signal.SIGUSR1, ring_the_bell)

    def interrupt():
        writer.until_waited_for()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    try:
        begin_half(writer)
        interrupting = Receiving(interrupt)
        with pytest.raises(Rung):
            receive(reader)
        interrupting.finish()
    finally:
        signal.signal(signal.SIGUSR1, before)
    writer.commit()
    assert np.array_equal(reader.recv(0), LARGE)


def test_a_reader_closes_in_the_middle(pair):
    writer, reader = pair
    begin_half(writer)
    with pytest.raises(TimeoutError):
        reader.recv(0.001)
    reader.close()
    writer.commit()
    begin_half(writer)
    writer.commit()


def test_frames_that_are_held_stay_as_they_are(pair):
    writer, _ = pair
    with ringcast.Reader(writer.handle, leases=2) as reader:
        writer.begin(ringcast.pack(VALUES["array"]))
        writer.commit()
        with reader.next(0) as held:
            begin_half(writer)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    reader.recv(0.001)
            writer.commit()
            assert np.array_equal(reader.recv(0), LARGE)
            assert np.array_equal(held["x"], LARGE)


# ---- asyncio -------------------------------------------------------------------------------------------------------


def is_readable(fd):
    return bool(select.select([fd], [], [], 0)[0])


@pytest.mark.parametrize("kind", loops.LOOPS)
def test_a_task_waits_for_the_rest_without_spinning(pair, kind):
    writer, reader = pair

    async def receive():
        begin_half(writer)
        task = asyncio.ensure_future(reader.arecv())
        for cut in (40_000, 50_000):
            await loops.waits(reader)
            while is_readable(reader.fileno()):  # for the piece before
                await asyncio.sleep(0)
            assert not task.done()
            writer.publish(cut)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        task = asyncio.ensure_future(reader.arecv())
        await loops.waits(reader)
        writer.commit()
        assert np.array_equal(await task, LARGE)
        begin_half(writer)
        task = asyncio.ensure_future(reader.arecv())
        await loops.waits(reader)
        writer.abort()
        await asyncio.sleep(0)
        begin_half(writer)
        writer.commit()
        assert np.array_equal(await task, LARGE)
        begin_half(writer)
        task = asyncio.ensure_future(reader.arecv())
        await loops.waits(reader)
        writer.close()
        with pytest.raises(ringcast.WriterGone):
            await task

    loops.run(kind, receive())


def test_a_task_s_time_is_up_in_the_middle(pair):
    writer, reader = pair

    async def receive():
        begin_half(writer)
        with pytest.raises(TimeoutError):
            await reader.arecv(0.001)
        with pytest.raises(TimeoutError):
            await reader.arecv(0)
        writer.commit()
        assert np.array_equal(await reader.arecv(), LARGE)

    loops.run("asyncio", receive())


# ---- Writers of Python ---------------------------------------------------------------------------------------------


PAGE = 4096
MIB = 1 << 20


def stop_where_the_file_ends(state, path, way):
    """Sends 8 MiB of a file that ends in its middle: there the writer stops, until it is told that the file is
    longer."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGBUS, ctypes.cast(libc.pause, ctypes.c_void_p))
    signal.signal(signal.SIGUSR1, lambda *_: None)
    source = np.asarray(np.memmap(path, np.uint8, "r", shape=8 * MIB))
    os.truncate(path, 4 * MIB + PAGE)
    with ringcast.Writer(1 << 16, spill_bytes=64 * MIB) as writer:
        state["pipe"].send(writer.handle)
        writer.wait_readers(1, WATCHDOG)
        send = {
            "send": lambda: writer.send({"before": LARGE, "x": source, "text": "behind", "n": 1, "y": LARGE}, tag=5),
            "send_bytes": lambda: writer.send_bytes(source),
        }
        send[way]()


@pytest.mark.parametrize("way", ["send", "send_bytes"])
def test_a_writer_publishes_what_it_has_written(peer, tmp_path, way):
    path = tmp_path / "source"
    data = numbers(8 * MIB, 10)
    path.write_bytes(data)
    whole = bytes(ringcast.pack({"before": LARGE, "x": data, "text": "behind", "n": 1, "y": LARGE}))
    whole = whole[:8] + struct.pack("<I", 5) + whole[12:] if way == "send" else data.tobytes()
    peer.start(stop_where_the_file_ends, str(path), way)
    try:
        with PieceReader(peer.message()) as reader:
            reader.next()
            there = reader.read(3 * MIB)
            same = there == whole[: len(there)]
            assert len(there) < len(whole) and same
            path.write_bytes(data)
            os.kill(peer.pid, signal.SIGUSR1)
            same = reader.read(2**64 - 1) == whole
            assert same
    except BaseException:
        peer.process.kill()  # it may be stopped
        raise
    peer.finish()


def test_writer_and_reader_are_threads_of_one_process():
    with ringcast.Writer(1 << 16, spill_bytes=64 * MIB) as writer, ringcast.Reader(writer.handle) as reader:
        receiving = Receiving(lambda: [reader.recv(WATCHDOG) for _ in range(40)])
        for seed in range(10):
            value = {"x": numbers(2 * MIB, seed), "text": "behind", "y": numbers(MIB, seed)[::-1], "z": LARGE}
            for sent in (value, ringcast.pack(value), [value, "nested"]):
                writer.send(sent, WATCHDOG)
            writer.send_bytes(value["x"], WATCHDOG)
        for seed, (value, packed, nested, raw) in enumerate(zip(*[iter(receiving.finish())] * 4)):
            x, y = numbers(2 * MIB, seed), numbers(MIB, seed)[::-1]
            assert raw == x.tobytes() and nested[1] == "nested"
            for received in (value, packed, nested[0]):
                assert np.array_equal(received["x"], x) and np.array_equal(received["y"], y)
                assert received["text"] == "behind" and np.array_equal(received["z"], LARGE)
