# SPDX-License-Identifier: Apache-2.0
"""The C library by ctypes, for tests that must stop a writer in the middle of a large frame, or look at the part of one
that is there. The library is the one that is built beside the extension, in build/."""

import ctypes
import os
import pathlib
import time

import pytest
from peers import WATCHDOG

import ringcast

BUILD = pathlib.Path(__file__).parents[2] / "build"
CUT_THROUGH = 1


def load():
    for folder in ("python", "release", "dev"):
        path = os.environ.get("RINGCAST_LIBRARY") or BUILD / folder / "libringcast.so"
        if os.path.exists(path):
            return ctypes.CDLL(str(path))
    return None


LIBRARY = load()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="build/ has no libringcast.so (RINGCAST_LIBRARY names one)")


class WriterOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32), ("readers", ctypes.c_uint32), ("capacity", ctypes.c_uint64),
        ("memory", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("spin_ns", ctypes.c_int64),
        ("numa", ctypes.c_uint32), ("numa_node", ctypes.c_uint32), ("spill_bytes", ctypes.c_uint64),
        ("on_death", ctypes.c_uint32), ("on_slow", ctypes.c_uint32), ("slow_ns", ctypes.c_int64),
    ]


class ReaderOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("spin_ns", ctypes.c_int64), ("name", ctypes.c_char_p),
        ("leases", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
    ]


class Span(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class Frame(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("position", ctypes.c_uint64), ("kind", ctypes.c_uint16)
    ]


class Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("frames", "bytes", "waits", "sleeps", "wakes", "waited_ns")]
    _fields_ += [("histogram", ctypes.c_uint32 * 16)]


def call(name, *args):
    result = getattr(LIBRARY, "ringcast_" + name)(*args)
    if result < 0:
        raise OSError(-result, f"ringcast_{name}: {os.strerror(-result)}")
    return result


class PieceWriter:
    """A ring of 64 KiB, whose large frames are published as far as the test says."""

    def __init__(self):
        options = WriterOptions(size=ctypes.sizeof(WriterOptions), capacity=1 << 16, spill_bytes=64 << 20)
        self.writer = ctypes.c_void_p()
        call("writer_create_ex", ctypes.byref(options), ctypes.byref(self.writer))
        LIBRARY.ringcast_writer_handle.restype = ctypes.c_char_p
        self.handle = LIBRARY.ringcast_writer_handle(self.writer).decode()

    def begin(self, frame, kind=ringcast.KIND_TENSORS, room=0):
        """Reserves memory for a frame, or for `room` bytes, and makes all of it dirty."""
        self.frame, self.kind, self.span = bytes(frame), kind, Span()
        self.room = max(room, len(self.frame))
        call("writer_reserve", self.writer, ctypes.c_size_t(self.room), ctypes.c_int64(0), ctypes.byref(self.span))
        ctypes.memset(self.span.data, 0xA5, self.room)
        self.there = 0

    def publish(self, upto):
        ctypes.memmove(self.span.data + self.there, self.frame[self.there : upto], upto - self.there)
        self.there = upto
        self.tell()

    def tell(self):
        call("writer_publish", self.writer, ctypes.c_size_t(self.there), ctypes.c_uint16(self.kind))

    def wakes(self):
        stats = Stats()
        call("writer_stats", self.writer, ctypes.byref(stats))
        return stats.wakes

    def until_waited_for(self, receiving=None):
        """Until a reader has seen all that was published, and sleeps. The first wake-up may be for one that was about
        to sleep before that. It may sleep no more, as `receiving` knows."""
        enough, end = self.wakes() + 2, time.monotonic() + WATCHDOG
        while self.wakes() < enough:
            assert receiving is None or receiving.is_at_work(), "it has not waited for the rest"
            assert time.monotonic() < end, "nobody waits"
            self.tell()

    def commit(self, size=None):
        if size is None:
            self.publish(len(self.frame))
            size = len(self.frame)
        call("writer_commit", self.writer, ctypes.c_size_t(size), ctypes.c_uint16(self.kind))

    def abort(self):
        call("writer_abort", self.writer)

    def close(self):
        if self.writer:
            LIBRARY.ringcast_writer_close(self.writer)
            self.writer = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class PieceReader:
    """Looks at the part of a frame that is there."""

    def __init__(self, handle):
        options = ReaderOptions(size=ctypes.sizeof(ReaderOptions), flags=CUT_THROUGH)
        self.reader, self.frame, self.there = ctypes.c_void_p(), Frame(), ctypes.c_size_t()
        call("reader_attach_ex", handle.encode(), ctypes.byref(options), ctypes.byref(self.reader))

    def next(self):
        call("reader_next", self.reader, ctypes.c_int64(WATCHDOG * 10**9), ctypes.byref(self.frame))

    def read(self, upto):
        """The bytes that are there, at least `upto` of them."""
        timeout = ctypes.c_int64(WATCHDOG * 10**9)
        frame, there = ctypes.byref(self.frame), ctypes.byref(self.there)
        call("reader_await", self.reader, frame, ctypes.c_size_t(upto), timeout, there)
        return ctypes.string_at(self.frame.data, self.there.value)

    def close(self):
        LIBRARY.ringcast_reader_close(self.reader)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
