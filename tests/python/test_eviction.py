# SPDX-License-Identifier: Apache-2.0
"""Readers that die, stop or are too slow: the writer says who it is, or goes on without them, as it
was told to."""

import asyncio
import contextlib
import errno
import os

import numpy as np
import pytest
from needs import needs_torch, torch
from peers import WATCHDOG, Runs, is_in_use, still_works, until
from receiving import Receiving

import ringcast

SLOW = 0.01


def fill(writer, reader=None):
    """Sends until the whole ring was overwritten; `reader` receives all of it."""
    for _ in range(2 * writer.capacity // 1000):
        writer.send_bytes(bytes(1000), WATCHDOG)
        if reader:
            reader.recv(WATCHDOG)


def evict(writer):
    """Sends until the only reader was evicted, and overwrites nothing."""
    while True:
        with writer.reserve(1000, WATCHDOG) as span:
            if writer.peers()[0].state == "evicted":
                return span.abort()


@contextlib.contextmanager
def evicting_ring(**options):
    """A ring and a reader that is evicted as soon as it is in the way."""
    with ringcast.Writer(1 << 16, on_slow="evict", slow=SLOW) as writer:
        with ringcast.Reader(writer.handle, name="the slow one", **options) as reader:
            yield writer, reader


# ---- Slow ----------------------------------------------------------------------------------------


def test_a_reader_that_is_too_slow_is_evicted_and_told():
    with evicting_ring() as (writer, reader):
        fill(writer)
        calls = reader.recv, reader.next, reader.recv_tagged, reader.recv_many, reader.check
        for call in (*calls, reader.view, reader.__next__, lambda: asyncio.run(reader.arecv())):
            with pytest.raises(ringcast.Evicted, match="attach a new one") as raised:
                call()
            assert raised.value.errno == errno.ESTALE
        (status,) = writer.peers()
        assert (status.state, status.name) == ("evicted", "the slow one")
        lost = writer.check()
        assert (lost.state, lost.name, lost.pid) == ("evicted", "the slow one", os.getpid())
        assert lost.held >= SLOW and writer.check() is None
        reader.close()
        assert writer.peers() == []
        with ringcast.Reader(writer.handle) as again:
            assert still_works(writer, again)


# ---- Frames that were held -----------------------------------------------------------------------


OVER_A_FRAME = {
    "memoryview": lambda frame: memoryview(memoryview(frame)),
    "array": np.asarray,
    "frombuffer": lambda frame: np.frombuffer(frame, np.uint8)[:],
    "array of a memoryview": lambda frame: np.asarray(memoryview(frame)),
    "memoryview of an array": lambda frame: memoryview(np.asarray(frame)),
}


@pytest.mark.parametrize("over", OVER_A_FRAME.values(), ids=OVER_A_FRAME)
def test_no_code_of_what_lies_over_a_frame_is_loaded_after_the_eviction(over):
    loaded = []
    loads = Runs(lambda: loaded.append(1))
    with evicting_ring(leases=3) as (writer, reader):
        writer.send(loads)
        frame = reader.next(0)
        view = over(frame)
        ringcast.unpack(view)
        assert loaded == [1]
        # Which overwrites nothing: without a look at the eviction the code would be loaded.
        evict(writer)
        with pytest.raises(ringcast.Evicted):
            ringcast.unpack(view)
        del view
        with pytest.raises(ringcast.Evicted):
            frame.release()
    assert loaded == [1]


def test_a_release_during_another_call_says_so_too():
    """The call loads a pickle here; a thread that waits in recv() is another."""
    told = []

    def lose_and_release():
        good.release()
        fill(writer)
        for end in first.release, first.release, second.__enter__().__exit__:
            try:
                told.append(end())
            except ringcast.Evicted:
                told.append(ringcast.Evicted)

    runs = Runs(lose_and_release)
    with evicting_ring(leases=4) as (writer, reader):
        writer.send_many([b"whole"] * 3)
        writer.send(runs)
        good, first, second = (reader.next(0) for _ in range(3))
        with pytest.raises(ringcast.Evicted):
            reader.recv(0)
        assert told == [ringcast.Evicted, None, ringcast.Evicted]


def test_what_was_read_in_place_is_good_only_if_the_release_says_so():
    with evicting_ring(leases=3) as (writer, reader):
        for _ in range(3):
            writer.send_bytes(b"whole")
        first, second, third = (reader.next(0) for _ in range(3))
        reader.check()
        with memoryview(first) as view:
            fill(writer)
            assert bytes(view) == bytes(5)  # the writer has gone on
        with pytest.raises(ringcast.Evicted):
            first.release()
        first.release()  # is released now
        with pytest.raises(ringcast.Evicted):
            with second:
                pass
        with pytest.raises(ringcast.Evicted):
            with third, memoryview(third) as view:
                raise ValueError("made of what was overwritten")


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # again, when the array goes
@pytest.mark.parametrize(
    "error, told", [(ValueError, ringcast.Evicted), (KeyboardInterrupt, KeyboardInterrupt)]
)
def test_an_error_made_of_what_was_overwritten_is_not_told_even_if_an_array_is_left(error, told):
    with evicting_ring() as (writer, reader):
        writer.send_bytes(b"whole")
        with pytest.raises(told):
            with reader.next(0) as frame:
                array = np.asarray(frame)
                fill(writer)
                raise error("made of what was overwritten")
        del array


def test_a_frame_that_is_dropped_during_a_call_does_not_hide_the_eviction():
    # The reader may give the frame back in time.
    assert any(is_evicted_while_it_waits() for _ in range(20))


def is_evicted_while_it_waits():
    with evicting_ring(leases=64) as (writer, reader):
        writer.send_bytes(b"whole")
        frame = reader.next(0)
        with contextlib.suppress(TimeoutError):
            while True:  # what is received after it is held with it, until the ring is full
                writer.send_bytes(bytes(4000), 0)
                reader.recv(0)
        waiting = Receiving(lambda: reader.recv(WATCHDOG))
        until(lambda: is_in_use(reader) or not waiting.is_at_work())
        del frame  # to be given back by that call
        writer.reserve(4000, WATCHDOG).abort()
        is_evicted = writer.peers()[0].state == "evicted"
        if not is_evicted:
            reader.cancel()
        with pytest.raises(ringcast.Evicted if is_evicted else ringcast.Cancelled):
            waiting.finish()
        return is_evicted


@needs_torch
@pytest.mark.parametrize("lose", [evict, fill], ids=["untouched", "overwritten"])
@pytest.mark.parametrize("more", ["nothing", "pickle", "text"])
def test_nothing_is_made_of_a_frame_whose_reader_was_evicted_while_it_was_decoded(
    monkeypatch, more, lose
):
    loaded = []
    trap = Runs(lambda: loaded.append(1))
    with evicting_ring() as (writer, reader):
        make = torch.nn.Parameter.__new__

        def lose_and_make(cls, *args, **keywords):  # in the middle of recv()
            monkeypatch.setattr(torch.nn.Parameter, "__new__", make)
            lose(writer)
            return make(cls, *args, **keywords)

        value = {"nothing": {}, "pickle": {"x": trap}, "text": {"x": "x" * 100}}[more]
        writer.send({"p": torch.nn.Parameter(torch.ones(3)), **value})
        monkeypatch.setattr(torch.nn.Parameter, "__new__", lose_and_make)
        with pytest.raises(ringcast.Evicted):
            reader.recv(0)
        assert torch.nn.Parameter.__new__ is make and loaded == []
