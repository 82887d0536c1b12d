# SPDX-License-Identifier: Apache-2.0
"""Closing, forking, dropping: nothing is used after its end, and nothing is left."""

import gc
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from conftest import descriptors, ring_mappings
from needs import needs_torch, torch
from peers import WATCHDOG, in_a_fork

import ringcast
import ringcast.exceptions

WRITER_CALLS = [
    lambda writer: writer.send(1),
    lambda writer: writer.send_bytes(b""),
    lambda writer: writer.send_many([1]),
    lambda writer: writer.send_error(""),
    lambda writer: writer.reserve(1),
    lambda writer: writer.reserve(),
    lambda writer: writer.commit(),
    lambda writer: writer.abort(),
    lambda writer: writer.wait_readers(0),
    lambda writer: writer.peers(),
    lambda writer: writer.info(),
    lambda writer: writer.stats(),
    lambda writer: writer.cancel(),
    lambda writer: writer.check(),
    lambda writer: writer.fileno(),
    lambda writer: writer.room_fileno(),
]
READER_CALLS = [
    lambda reader: reader.recv(),
    lambda reader: reader.recv_tagged(),
    lambda reader: reader.recv_many(),
    lambda reader: reader.next(),
    lambda reader: reader.view(),
    lambda reader: reader.lag,
    lambda reader: reader.info(),
    lambda reader: reader.stats(),
    lambda reader: reader.cancel(),
    lambda reader: reader.fileno(),
    lambda reader: reader.check(),
    next,
]
TAP_CALLS = [
    lambda tap: tap.recv(),
    lambda tap: tap.recv_tagged(),
    lambda tap: tap.next(),
    lambda tap: tap.lost(),
    lambda tap: tap.info(),
    lambda tap: tap.stats(),
    lambda tap: tap.peers(),
    next,
]


@pytest.fixture
def handles(ring):
    """A Tap, a Reader and a Writer of one ring, each with its calls."""
    writer, reader = ring
    with ringcast.Tap(writer.handle) as tap:
        yield (tap, TAP_CALLS), (reader, READER_CALLS), (writer, WRITER_CALLS)


def test_what_is_closed_is_closed(handles):
    for handle, calls in handles:
        handle.close()
        handle.close()
        assert handle.closed and "closed" in repr(handle)
        for call in [*calls, lambda handle: handle.__enter__()]:
            with pytest.raises(ValueError, match=f"{type(handle).__name__} is closed"):
                call(handle)
    assert all(handle.capacity == 1 << 20 for handle, _ in handles[1:])


# What a Writer is made with; the error, and what it names.
WRONG_WRITERS = [
    ({"numa": "near"}, ValueError, "numa"),
    ({"numa": -1}, ValueError, "numa"),
    ({"numa": 1.5}, TypeError, "numa"),
    ({"numa": 1 << 40}, ValueError, "numa"),
    ({"numa": 4000}, ValueError, ""),
    ({"on_death": "ignore"}, ValueError, "on_death.*'fail' or 'evict'"),
    ({"on_death": 1}, TypeError, "on_death"),
    ({"on_death": None}, TypeError, "on_death"),
    ({"on_slow": ""}, ValueError, "on_slow.*'fail' or 'evict'"),
    ({"on_slow": True}, TypeError, "on_slow"),
    ({"on_slow": "evict"}, ValueError, "needs slow"),
    ({"slow": 0}, ValueError, "slow"),
    ({"slow": -1}, ValueError, "slow"),
    ({"slow": float("inf")}, ValueError, "slow"),
    ({"slow": float("nan")}, ValueError, "slow"),
    ({"slow": "1"}, TypeError, "slow"),
    ({"ahead": 0}, ValueError, "ahead"),
    ({"ahead": -1}, ValueError, "ahead"),
    ({"ahead": 1 << 32}, ValueError, "ahead"),
    ({"name": ""}, ValueError, "name"),
    ({"name": "a b"}, ValueError, "name"),
    ({"name": "a@1"}, ValueError, "name"),
    ({"name": "x" * 48}, ValueError, "name"),
    ({"name": "ä"}, ValueError, "name"),
    ({"name": "a/b"}, ValueError, "name"),
    ({"name": "a\0b"}, ValueError, ""),
    ({"name": 1}, TypeError, "name"),
]
WRONG_READERS = [
    ({"leases": 0}, ValueError, "leases"),
    ({"leases": 65}, ValueError, "leases"),
    ({"leases": -1}, ValueError, "leases"),
    ({"leases": 1 << 70}, ValueError, "leases"),
    ({"leases": "4"}, TypeError, "leases"),
    ({"leases": 2.0}, TypeError, "leases"),
    ({"start": "newest"}, ValueError, "start.*'next' or 'latest'"),
    ({"start": None}, TypeError, "start"),
    ({"tag": 7}, ValueError, "tag needs start"),
    ({"start": "latest", "tag": 0}, ValueError, "tag"),
    ({"start": "latest", "tag": "7"}, TypeError, "tag"),
    ({"retain": "no"}, TypeError, "retain"),
]


def test_wrong_options_are_refused_by_their_name():
    for options, error, word in WRONG_WRITERS:
        with pytest.raises(error, match=word or None):
            ringcast.Writer(1 << 16, **options)
    with ringcast.Writer(1 << 16) as writer:
        for options, error, word in WRONG_READERS:
            with pytest.raises(error, match=word or None):
                ringcast.Reader(writer.handle, **options)


def test_what_is_no_handle_is_refused(handles):
    (tap, _), (reader, _), (writer, _) = handles
    with ringcast.Writer(1 << 16) as other:
        gone = other.handle
    for handle, error, word in (
        (writer, TypeError, "writer.handle"),
        (reader, TypeError, "reader.handle"),
        (tap, TypeError, "str"),
        (7, TypeError, "str"),
        ("nonsense", ValueError, "handle"),
        (writer.handle + " ", ValueError, "before or after"),
        (writer.handle + "\0", ValueError, "null"),
        (gone, ringcast.RingNotFound, ""),
    ):
        for attach in ringcast.Tap, ringcast.Reader:
            with pytest.raises(error, match=word or None):
                attach(handle)
    for handle in (tap, reader, writer):
        with pytest.raises(TypeError, match="another process"):
            pickle.dumps(handle)
    with pytest.raises(TypeError, match="str"):
        ringcast.find(1)
    for each in (tap, reader):
        with pytest.raises(TypeError, match="timeout"):
            each.recv("soon")


def test_dropping_them_lets_go_of_the_ring():
    before = descriptors(), ring_mappings()
    writer = ringcast.Writer(1 << 16)
    reader = ringcast.Reader(writer.handle)
    assert (descriptors(), ring_mappings()) != before
    del writer, reader
    assert (descriptors(), ring_mappings()) == before


def test_a_view_keeps_its_ring():
    writer = ringcast.Writer(1 << 16)
    reader = ringcast.Reader(writer.handle)
    writer.send_bytes(b"abc", 0)
    view, span = memoryview(reader.next(0)), memoryview(writer.reserve(3))
    del writer, reader
    span[:] = b"xyz"
    assert view == b"abc"


def test_a_failed_writer_or_reader_leaves_nothing():
    before = descriptors(), ring_mappings()
    with ringcast.Writer(1 << 16, readers=1) as writer, ringcast.Reader(writer.handle):
        inside = descriptors(), ring_mappings()
        for _ in range(3):
            with pytest.raises(ringcast.NoFreeSlot, match="all 1 reader slots"):
                ringcast.Reader(writer.handle)
            with pytest.raises((ringcast.Error, ValueError)):
                ringcast.Writer(1 << 60)
        assert (descriptors(), ring_mappings()) == inside
    assert (descriptors(), ring_mappings()) == before


def test_a_cycle_through_a_span_or_a_frame_is_collected(ring):
    writer, reader = ring
    writer.send_bytes(b"x", 0)
    assert gc.is_tracked(writer.reserve(1)) and gc.is_tracked(reader.next(0))


@needs_torch
def test_what_arrived_is_freed_with_its_last_reference(ring):
    writer, reader = ring
    writer.send({"t": torch.arange(1000), "n": np.arange(1000), "in": [torch.arange(1000)]}, 0)
    got = reader.recv(0)
    watched = [weakref.ref(item) for item in (got["t"], got["n"], got["in"][0])]
    del got
    assert [reference() for reference in watched] == [None] * 3


class Taker:
    """A watch of the event loop that takes a memoryview when it is closed."""

    def __init__(self, of):
        self.of, self.taken = of, None

    def close(self):
        self.taken = memoryview(self.of)


@pytest.mark.parametrize("side", [0, 1])
def test_a_memoryview_that_is_taken_during_close_keeps_it_open(ring, side):
    writer, reader = ring
    writer.send_bytes(b"seen", 0)
    ends = (writer, writer.reserve(4)), (reader, reader.next(0))
    handle, lent = ends[side]
    handle._watch = watch = Taker(lent)
    with pytest.raises(BufferError):
        handle.close()
    assert not handle.closed and len(bytes(watch.taken)) == 4
    watch.taken.release()
    handle.close()


# ---- Interpreters --------------------------------------------------------------------------------

WITHOUT_GIL = """
import sys
sys._is_gil_enabled = lambda: False
import ringcast
"""
SUB_INTERPRETERS = """
try:
    from _interpreters import create, run_string
    kinds = create("isolated"), create("legacy")
except ImportError:
    from _xxsubinterpreters import create, run_string
    kinds = create(isolated=True), create(isolated=False)
for kind in kinds:
    run_string(kind, "try:\\n import ringcast\\nexcept ImportError as error: print(error, flush=True)")
"""
LEFT_BEHIND = """
import gc, sys
import ringcast
writer = ringcast.Writer(1 << 16, on_slow="evict", slow=0.001)
reader = ringcast.Reader(writer.handle)
writer.send_bytes(b"", 0)
frame = reader.next(0)
for _ in range(100):
    writer.send_bytes(bytes(2000))
for name in [name for name in sys.modules if name.startswith("ringcast")]:
    del sys.modules[name]
cycle = [frame]
cycle.append(cycle)
del ringcast, writer, reader, frame, cycle
gc.collect()
print("alive")
"""


def run(script, status=0):
    """Its output; it must end with that status, so a crash at the exit fails the test."""
    told = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert told.returncode == status, told.stderr
    return told


def test_the_import_is_refused_where_the_gil_stays_off():
    assert "ImportError: ringcast relies on the GIL" in run(WITHOUT_GIL, 1).stderr


def test_the_import_is_refused_in_a_sub_interpreter_with_a_gil_of_its_own_or_not():
    told = run(SUB_INTERPRETERS)
    assert told.stdout.count("ringcast can't be imported in a sub-interpreter") == 2, (
        told.stdout + told.stderr
    )


def test_what_goes_with_its_module_may_fail_then():
    told = run(LEFT_BEHIND)
    assert told.stdout == "alive\n", told.stderr


# ---- Fork ----------------------------------------------------------------------------------------


def outcomes(calls, handle):
    results = []
    for call in calls:
        try:
            results.append(call(handle))
        except Exception as error:
            results.append(type(error))
    return results


def test_a_forked_child_is_told_so(handles):
    def child():
        found = [set(outcomes(calls, handle)) for handle, calls in handles]
        for handle, _ in handles:
            handle.close()
        return found, all(handle.closed for handle, _ in handles)

    found, closed = in_a_fork(child)
    assert found == [{ringcast.ForkedError}] * 3 and closed
    (tap, _), (reader, _), (writer, _) = handles
    writer.send({"a": 1}, 0)
    assert reader.recv(0) == tap.recv(0) == {"a": 1} and len(writer.peers()) == 1


def test_a_frame_that_a_forked_child_drops_stays_the_parents(ring, monkeypatch):
    writer, reader = ring
    writer.send({"a": 1}, 0)
    frames, told = [reader.next(0)], []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(repr(args.exc_value)))

    def child():
        frames.clear()
        gc.collect()
        return told

    assert in_a_fork(child) == []
    assert frames[0]["a"] == 1


def test_a_child_forked_while_a_thread_waits_is_told_so(ring):
    writer, reader = ring
    thread = threading.Thread(target=reader.recv)
    thread.start()
    with pytest.raises(RuntimeError):
        while thread.is_alive():
            assert reader.lag == 0

    def child():
        found = outcomes(READER_CALLS, reader)
        reader.close()
        return found

    try:
        assert set(in_a_fork(child)) == {ringcast.ForkedError}
    finally:
        writer.send(1, 0)
        thread.join()


# ---- Errors --------------------------------------------------------------------------------------


def test_errors_tell_their_errno_and_their_sentence():
    for number, kind in ringcast.exceptions._BY_ERRNO.items():
        error = kind(number, "what went wrong")
        assert (error.errno, str(error)) == (number, "what went wrong")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.errno, str(again)) == (kind, number, "what went wrong")
        assert issubclass(kind, ringcast.Error) and issubclass(kind, OSError)
    assert issubclass(ringcast.AccessDenied, PermissionError)
    assert str(ringcast.Error("only text")) == "only text"


def test_everything_public_is_documented():
    for name in ringcast.__all__:
        item = getattr(ringcast, name)
        if callable(item):
            assert item.__doc__, name
        if not isinstance(item, type):
            continue
        for attribute, value in vars(item).items():
            if not attribute.startswith("_") and value is not None:
                assert value.__doc__, f"{name}.{attribute}"
    assert all(getattr(ringcast, name) is not None for name in ringcast.__all__)
    assert sys.modules["ringcast"].__doc__
