# SPDX-License-Identifier: Apache-2.0
"""
Views: arrays that lie in the ring, lent for a block, and what becomes of those that outlive it.
"""

import ctypes
import errno
import faulthandler
import gc
import os
import re
import resource
import signal
import struct
import threading

import numpy as np
import pytest
import values
from hostile import INT64, NUMPY, TENSOR, VALUE, entry, frame_of
from looks import resident
from needs import needs_torch, torch
from peers import WATCHDOG, in_a_fork, send_frame, still_works
from prints import print_of

import ringcast


def mappings(kind="r--s"):
    """Where rings are mapped: (start, end, offset in the file, which one)."""
    with open("/proc/self/maps") as maps:
        rows = [line.split() for line in maps if "memfd:ringcast" in line and "control" not in line]
    ends = [
        (*(int(end, 16) for end in row[0].split("-")), int(row[2], 16), row[4])
        for row in rows
        if row[1] == kind
    ]
    return sorted(ends)


def address(array):
    return array.data_ptr() if torch and isinstance(array, torch.Tensor) else array.ctypes.data


def is_in_a_ring(array):
    return any(start <= address(array) < end for start, end, *_ in mappings())


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def fill(writer):
    """Overwrites the whole ring; nobody may be in the way."""
    for _ in range(2 * writer.capacity // 1000 + 2):
        writer.send_bytes(b"\xff" * 1000, 0)


@pytest.fixture
def pair():
    """A small ring, and a reader that may hold three frames."""
    with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle, leases=3) as reader:
        yield writer, reader


# ---- In the block --------------------------------------------------------------------------------


def test_arrays_lie_in_the_ring_and_all_else_is_copied(pair):
    writer, reader = pair
    inner = np.arange(6).reshape(2, 3)
    sent = {
        "a": np.arange(100),
        "n": [inner.T, {"b": b"x" * 2000}],
        "s": "text",
        "e": np.zeros((0, 3)),
        "raw": b"y",
    }
    writer.send(sent, 0, tag=5)
    view = reader.view(0)
    assert view.tag == 5
    with view as obj:
        for array in obj["a"], obj["n"][0]:
            assert is_in_a_ring(array) and not array.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
            with pytest.raises(ValueError):
                array.flags.writeable = True
        assert print_of(obj) == print_of(sent)
        assert reader.lag > 0 and "ringcast.View of" in repr(view)
        obj["s"] = "one's own"
    assert reader.lag == 0 and repr(view) == "<ringcast.View, ended>"
    with pytest.raises(ValueError, match="this View has ended"), view:
        pass


@needs_torch
def test_tensors_lie_there_too(pair):
    writer, reader = pair
    sent = {
        "t": torch.arange(12).reshape(3, 4).t(),
        "half": [torch.ones(5, dtype=torch.bfloat16), torch.ones(3).to(torch.float8_e4m3fn)],
        "grad": torch.ones(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "conj": torch.ones(4, dtype=torch.complex64).conj(),
        "empty": torch.empty(0, 2),
        "flag": torch.tensor([True, False]),
        "scalar": torch.tensor(7),
    }
    writer.send(sent, 0)
    with reader.view(0) as obj:
        for tensor in (*obj.values(), *obj["half"]):
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                assert is_in_a_ring(tensor)
        values.assert_same(obj, sent)
        assert (obj["grad"] * 2).sum().item() == 6
        (obj["parameter"] * 3).sum().backward()
        assert obj["parameter"].grad.tolist() == [[3, 3], [3, 3]]
    assert reader.lag == 0


class Boxed:
    """Only pickle can send it."""

    def __init__(self, array):
        self.array = array

    def __reduce__(self):
        return Boxed, (self.array,)


def test_arrays_in_what_was_pickled_lie_in_the_ring_too(pair):
    writer, reader = pair
    for wrap, unwrap in (
        (lambda it: it, lambda got: got),
        (lambda it: {"k": [it]}, lambda got: got["k"][0]),
    ):
        writer.send(wrap(Boxed(np.arange(5000).reshape(50, 100))), 0)
        with reader.view(0) as obj:
            array = unwrap(obj).array
            assert is_in_a_ring(array) and not array.flags.writeable and array[49, 99] == 4999
        writer.send(wrap(Boxed(bytearray(b"x" * 5000))), 0)
        with reader.view(0) as obj:
            assert unwrap(obj).array == b"x" * 5000
        if torch:
            writer.send(wrap(Boxed(torch.arange(5000))), 0)
            with reader.view(0) as obj:
                unwrap(obj).array[0] = 7  # a copy: torch has no tensors that can't be written to
    assert reader.lag == 0


def test_views_are_nested_as_leases_allow(pair):
    writer, reader = pair
    for number in range(4):
        writer.send(np.full(10, number), 0)
    with reader.view(0) as one, reader.view(0) as two, reader.next(0):
        assert (one.sum(), two.sum()) == (0, 10)
        with pytest.raises(ringcast.Error, match="3 frames are held") as raised:
            reader.view(0)
        assert raised.value.errno == errno.EBUSY
    assert reader.recv(0).sum() == 30 and reader.lag == 0


def test_other_frames_and_what_may_go_wrong(pair):
    writer, reader = pair
    with pytest.raises(TimeoutError):
        reader.view(0)
    with pytest.raises(TypeError, match="view"):
        reader.view(0, 1)
    writer.send_bytes(b"abc", 0)
    with reader.view(0) as obj:
        assert obj == b"abc"
    writer.send_error("none", 0)
    with pytest.raises(ringcast.SendError, match="none"):
        reader.view(0)
    send_frame(writer, b"abc", 77)
    with pytest.raises(ringcast.ProtocolError, match="77"):
        reader.view(0)
    assert reader.lag == 0 and still_works(writer, reader)
    with ringcast.Reader(writer.handle, allow_pickle=False) as strict:
        writer.send(re.compile("x"), 0)
        with pytest.raises(ringcast.PickleRefused):
            strict.view(0)
        assert strict.lag == 0
    reader.recv(0)
    writer.close()
    with pytest.raises(ringcast.WriterGone):
        reader.view(0)
    reader.close()
    with pytest.raises(ValueError, match="the Reader is closed"):
        reader.view(0)


# ---- Its end -------------------------------------------------------------------------------------


def test_an_exception_passes_and_the_frame_goes_back(pair):
    writer, reader = pair
    writer.send(np.arange(10), 0)
    with pytest.raises(ZeroDivisionError), reader.view(0) as obj:
        1 // int(obj[0])
    assert reader.lag == 0 and still_works(writer, reader)


def test_a_view_that_is_dropped_gives_its_frame_back(pair):
    writer, reader = pair
    for _ in range(3):
        writer.send({"a": np.arange(10)}, 0)
    reader.view(0)
    view = reader.view(0)
    obj = view.__enter__()
    obj["me"] = view  # a cycle
    assert gc.is_tracked(view) and reader.lag > 0
    del obj, view
    gc.collect()
    reader.recv(0)
    assert reader.lag == 0


def test_what_outlives_the_block_can_be_looked_at_and_holds_nobody_back(pair):
    writer, reader = pair
    writer.send([np.zeros(100, np.uint8)] * 2, 0)
    with reader.view(0) as obj:
        kept = obj[0][10:]
        memory = memoryview(obj[1])
    for _ in range(3):
        fill_and_receive(writer, reader)
    assert set(kept.tolist()) != {0} and len(bytes(memory)) == 100  # overwritten, and no harm done
    assert still_works(writer, reader)


def fill_and_receive(writer, reader):
    for _ in range(writer.capacity // 1000 + 2):
        writer.send_bytes(b"\xff" * 1000, 0)
        reader.recv(0)


@pytest.mark.parametrize("bytes_", [1000, 5 << 20], ids=["ring", "spill"])
@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_reader_is_closed_under_a_view_and_the_memory_stays(bytes_, how):
    before = mappings("r--s"), mappings("rw-s")
    writer = ringcast.Writer(1 << 16)
    reader = ringcast.Reader(writer.handle)
    sent = [np.arange(bytes_, dtype=np.uint8)] + ([torch.arange(bytes_)] if torch else [])
    writer.send(sent, 0)
    with reader.view(0) as obj:
        kept = [array[1:] for array in obj]
        assert all(is_in_a_ring(array) for array in kept)
        if how == "close":
            reader.close()
            assert writer.peers() == []
            assert np.array_equal(kept[0], sent[0][1:])
    del reader, obj
    assert writer.peers() == []
    fill(writer)
    writer.close()
    sums = [int(array.sum()) for array in kept]
    assert len(sums) == len(sent) and mappings() != before[0]
    while kept:
        assert is_in_a_ring(kept[0])
        kept.pop()
    assert (mappings("r--s"), mappings("rw-s")) == before


def test_the_block_of_a_reader_that_was_closed_in_it_ends_quietly(pair):
    writer, reader = pair
    writer.send(np.arange(10), 0)
    with reader:
        with reader.view(0) as obj:
            reader.close()
            assert reader.closed and obj.sum() == 45
    with pytest.raises(ValueError, match="the Reader is closed"):
        reader.recv(0)


@pytest.mark.parametrize("ending", [None, ZeroDivisionError, KeyboardInterrupt])
def test_who_is_evicted_in_the_block_is_told_at_its_end(ending):
    with ringcast.Writer(1 << 16, on_slow="evict", slow=0.01) as writer:
        with ringcast.Reader(writer.handle) as reader:
            writer.send({"a": np.zeros(100, np.uint8)}, 0)
            expected = KeyboardInterrupt if ending is KeyboardInterrupt else ringcast.Evicted
            view = reader.view(0)
            with pytest.raises(expected), view as obj:
                for _ in range(2 * writer.capacity // 1000):
                    writer.send_bytes(b"\xff" * 1000, WATCHDOG)
                assert obj["a"].shape == (100,) and obj["a"].any()
                with pytest.raises(ringcast.Evicted):
                    view.hashes  # noqa: B018
                if ending:
                    raise ending
            with pytest.raises(ringcast.Evicted):
                reader.view(0)
        assert obj["a"].sum() == 100 * 255


# ---- Processes, threads, numbers -----------------------------------------------------------------


def exit_status(function):
    """How a child made by fork ends that calls it."""
    pid = os.fork()
    if pid == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            faulthandler.disable()
            signal.alarm(WATCHDOG)
            function()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_in_a_forked_child_the_arrays_are_there_and_the_frame_is_the_parents(pair):
    writer, reader = pair
    writer.send(np.arange(1000), 0)
    view = reader.view(0)

    def child():
        with pytest.raises(ringcast.ForkedError), view as obj:
            assert obj.sum() == 499500
        assert obj.sum() == 499500
        reader.close()
        assert obj.sum() == 499500
        with pytest.raises(ringcast.ForkedError):
            ringcast.Reader.view(other, 0)

    with ringcast.Reader(writer.handle) as other:
        in_a_fork(child)
        assert len(writer.peers()) == 2
    with view as obj:
        assert obj.sum() == 499500 and reader.lag > 0
    assert reader.lag == 0 and still_works(writer, reader)


@needs_torch
def test_to_write_to_a_tensor_of_a_view_ends_the_process_as_is_said(pair):
    writer, reader = pair
    writer.send(torch.zeros(10), 0)
    with reader.view(0) as tensor:
        assert exit_status(lambda: tensor.add_(1)) == -signal.SIGSEGV
        assert exit_status(lambda: tensor.clone().add_(1)) == 0


def test_the_last_array_may_die_in_another_thread():
    before = mappings()
    threads = []
    for _ in range(20):
        with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle) as reader:
            writer.send([np.arange(100), *([torch.ones(100)] if torch else [])], 0)
            with reader.view(0) as obj:
                pass
            for array in obj:
                threads.append(threading.Thread(target=array.sum, daemon=True))
            del array, obj
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG)
        assert not thread.is_alive()
    threads.clear()
    del thread
    assert mappings() == before


@pytest.mark.unwatched  # AddressSanitizer keeps what is freed for a while
def test_ten_thousand_views_leave_nothing(pair):
    writer, reader = pair
    sent = {
        "a": np.arange(100),
        "n": [np.ones(3), {"x": 1}],
        **({"t": torch.ones(10)} if torch else {}),
    }

    def look(times):
        for _ in range(times):
            writer.send(sent, 0)
            with reader.view(0) as obj:
                assert obj["a"][99] == 99

    look(1000)
    gc.collect()
    before = descriptors(), len(mappings()), resident()
    look(10000)
    gc.collect()
    assert (descriptors(), len(mappings())) == before[:2]
    assert resident() - before[2] < 2 << 20


# ---- Writers that mean harm ----------------------------------------------------------------------


def write_before(array, bytes_, data):
    """Writes to the ring, as its writer can, from `bytes_` before the array on."""
    here = address(array) - bytes_
    start, _, at, file = next(mapping for mapping in mappings() if mapping[0] <= here < mapping[1])
    place = here - start + at
    to = next(
        start + place - at
        for start, end, at, other in mappings("rw-s")
        if other == file and place >= at
    )
    ctypes.memmove(to, data, len(data))


def test_what_is_changed_under_a_view_changes_values_alone():
    before = mappings("rw-s")
    with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle) as reader:
        assert len(mappings("rw-s")) > len(before)
        writer.send({"a": np.zeros((4, 8), np.int64)}, 0)
        with reader.view(0) as obj:
            array = obj["a"]
            write_before(array, 112, b"\xff" * 112)  # dims, entry, and most of the header
            assert array.shape == (4, 8) and array.strides == (64, 8) and not array.any()
            write_before(array, 0, struct.pack("<q", 7))
            assert array[0, 0] == 7 and array.sum() == 7
        assert reader.lag == 0 and still_works(writer, reader)


def test_an_array_with_gaps_is_copied(pair):
    writer, reader = pair
    for elements, strides in (4, (2, 1)), (4, (1, 2)), (5, (3, 1)):
        dims = struct.pack("<4q", 2, 2, *strides)
        array = [entry(TENSOR, NUMPY, size=8 * elements, dtype=INT64, dims=(2, 0))]
        send_frame(
            writer,
            frame_of(VALUE, array, struct.pack(f"<{elements}q", *range(1, elements + 1)), dims),
        )
    with reader.view(0) as one:
        assert is_in_a_ring(one) and not one.flags.writeable and one.tolist() == [[1, 2], [3, 4]]
    with reader.view(0) as turned:
        assert (
            is_in_a_ring(turned)
            and not turned.flags.writeable
            and turned.tolist() == [[1, 3], [2, 4]]
        )
    with reader.view(0) as gaps:
        assert not is_in_a_ring(gaps) and gaps.flags.writeable and gaps.tolist() == [[1, 2], [4, 5]]
