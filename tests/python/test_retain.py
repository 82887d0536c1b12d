# SPDX-License-Identifier: Apache-2.0
"""
Reader(retain=True): large arrays and tensors are not copied, and are the receiver's own all the
same: whatever looks at them, writes to them, dies, is closed or forks.

All results are the same where nothing can be kept, as with RINGCAST_DISABLE=retain.
"""

import asyncio
import contextlib
import copy
import decimal
import fractions
import gc
import os
import pickle
import queue
import random
import struct
import subprocess
import sys
import threading

import loops
import numpy as np
import pytest
import values
from hostile import BYTES, DICT, INT64, KEYED, NUMPY, TENSOR, entry, frame_of
from keeping import (
    KEEPS,
    LOOKS,
    MIB,
    TENSOR_LOOKS,
    address,
    check_look,
    is_free,
    is_kept,
    is_some,
    keeping,
    some,
    teach,
    tensor,
)
from needs import needs_torch, torch
from peers import WATCHDOG, Clock, forked, once_it_waits, ring_mappings, send_frame
from receiving import Receiving
from recycling import recycling

import ringcast


@pytest.fixture
def pair():
    with keeping() as both:
        yield both


@pytest.fixture
def link(pair):
    return link_of(*pair)


def link_of(writer, reader):
    return lambda value: (writer.send(value, 0), reader.recv(0))[1]


KINDS = [pytest.param(some, id="numpy")]
if torch:
    KINDS.append(pytest.param(tensor, id="torch"))
both_kinds = pytest.mark.parametrize("make", KINDS)

# ---- What is kept --------------------------------------------------------------------------------


class Boxed:
    """Only pickle can send it."""

    def __init__(self, *arrays):
        self.arrays = arrays

    def __reduce__(self):
        return Boxed, self.arrays


# How the array is sent, and how it is found in what arrives.
NESTS = {
    "value": (lambda value: value, lambda got: got),
    "item": (lambda value: {"x": value}, lambda got: got["x"]),
    "nested": (lambda value: ["in", {"x": value}], lambda got: got[1]["x"]),
    "pickled": (Boxed, lambda got: got.arrays[0]),
    "pickled in an item": (lambda value: {"x": [Boxed(value)]}, lambda got: got["x"][0].arrays[0]),
}


@both_kinds
@pytest.mark.parametrize("nest", NESTS)
def test_after_the_first_one_large_arrays_are_not_copied(link, make, nest):
    wrap, unwrap = NESTS[nest]
    for number in range(1, 10):
        got = unwrap(link(wrap(make(number))))
        assert is_kept(got) == KEEPS and is_some(got, number)
        assert "pickled" in nest or address(got) % 64 == 0
        got[0] = 7
        assert make(number)[0] != 7


def test_a_reader_that_was_not_asked_to_copies(pair):
    with ringcast.Reader(pair[0].handle) as reader:
        for number in range(3):
            pair[0].send(some(number), 0)
            got = reader.recv(0)
            assert not is_kept(got) and is_some(got, number)


BESIDE = {
    "arrays": (lambda number: some(number, 1)[1:], lambda got, number: is_small(got, number)),
    "boxed": (lambda number: Boxed(some(number, 1)[1:]), lambda got, n: is_small(got.arrays[0], n)),
}


def is_small(got, number):
    return not is_kept(got) and bool((got == some(number, 1)[1:]).all())


@pytest.mark.parametrize("make, is_right", BESIDE.values(), ids=BESIDE)
def test_what_is_small_is_copied_also_beside_what_is_large(link, make, is_right):
    held = []
    for number in range(1, 30):
        got = link({"x": some(number), "small": make(number), "y": some(-number, 1)})
        held.append((number, got["small"]))
        assert is_kept(got["x"]) == is_kept(got["y"]) == KEEPS
    assert all(is_right(small, number) for number, small in held)


OF_NUMBERS = [dtype for dtype in values.NUMPY_DTYPES if dtype[0] not in ">dl"]  # else pickled


@pytest.mark.parametrize("layout", ["plain", "transposed", "strided", "expanded"])
def test_arrays_of_every_dtype_and_layout_are_the_same(link, layout):
    for dtype in OF_NUMBERS:
        sent = {
            "x": values.cook_array(dtype, (5, 3, 60_000), layout, 5),
            "none": np.empty((3, 0), dtype),
        }
        if sent["x"].nbytes < MIB:
            sent["x"] = np.concatenate([sent["x"]] * 2)
        link(sent)
        got = link(sent)
        assert is_kept(got["x"]) == KEEPS and got["x"].flags.writeable, dtype
        values.assert_same(got, sent)


@needs_torch
@pytest.mark.parametrize("kind", ["plain", "requires_grad", "parameter"])
@pytest.mark.parametrize("layout", ["plain", "transposed"])
def test_tensors_of_every_dtype_are_the_same(link, kind, layout):
    for dtype in values.DLPACK_DTYPES:
        sent = {
            name: values.cook_tensor(dtype, shape, layout, kind, 5)
            for name, shape in (("x", (5, 4, 70_000)), ("none", (3, 0)), ("one", ()))
        }
        link(sent)
        got = link(sent)
        assert not got["x"]._is_view()
        values.assert_same(got, sent)
        if not dtype.startswith("float"):  # which an older torch can't have in memory of others
            assert is_kept(got["x"]) == KEEPS, dtype
    for dtype in values.BIT_DTYPES[::4]:  # which none can
        sent = values.cook_tensor(dtype, (3 * MIB,), "plain", "plain", 5)
        values.assert_same(link({"t": sent})["t"], sent)


def test_whatever_else_is_in_the_frame_arrives(link):
    read_only = some(5)
    read_only.flags.writeable = False
    sent = {
        "x": some(1),
        "leaf": decimal.Decimal("1.5"),
        "raw": b"r" * 9000,
        "text": "spät" * 900,
        "n": 2**80,
        "nested": [some(2), {"y": some(3), "more": (None, bytearray(b"b" * 5000))}],
        "set": {1, 2},
        "object": np.array([some(4), "object"], dtype=object),
        "boxed": Boxed(read_only, bytearray(b"b" * MIB)),
    }
    for _ in range(3):
        got = link(sent)
        array, data = got["boxed"].arrays
        assert is_some(array, 5) and not array.flags.writeable and data == b"b" * MIB
        values.assert_same({**got, "object": 0, "boxed": 0}, {**sent, "object": 0, "boxed": 0})
        assert is_some(got["object"][0], 4) and got["object"][1] == "object"
        assert is_kept(got["x"]) == is_kept(got["nested"][0]) == KEEPS


def test_recycling_does_not_count_it(link):
    before = recycling()
    held = [link(some(number)) for number in range(1, 4)]
    assert (recycling() == before) == KEEPS and len(held) == 3


def test_frames_and_views_are_as_without(pair):
    writer, reader = pair
    writer.send(some(1), 0)
    kept = reader.recv(0)
    for number in range(2, 5):
        writer.send({"x": some(number)}, 0)
        writer.send({"x": some(-number)}, 0)
        with reader.view(0) as one:  # what is kept is no lease
            assert is_some(one["x"], number)
            assert not is_kept(one["x"]) and not one["x"].flags.writeable
            with pytest.raises(ringcast.Error, match="held"):
                reader.next(0)
            del one
        with reader.next(0) as frame:
            got = frame["x"]
        assert is_some(got, -number) and not is_kept(got) and is_some(kept, 1)
    writer.send(some(9), 0)
    again = reader.recv(0)
    assert is_kept(again) == KEEPS and is_some(again, 9) and is_some(kept, 1)


# ---- It is one's own -----------------------------------------------------------------------------


@both_kinds
def test_what_one_reader_writes_nobody_else_sees(pair, make):
    writer, reader = pair
    with (
        ringcast.Reader(writer.handle, retain=True) as other,
        ringcast.Reader(writer.handle) as third,
    ):
        teach(writer, reader, other)
        third.recv(0)
        for number in range(1, 9):
            writer.send(make(number), 0)
            mine, theirs = reader.recv(0), other.recv(0)
            mine[1:] = 0
            mine[0] += 5
            theirs[-1] = 9
            assert int(mine[0]) == (number << 32) + 5 and int(mine[-1]) == 0
            assert int(theirs[0]) == number << 32 and int(theirs[-1]) == 9
            assert is_some(third.recv(0), number)


@both_kinds
def test_what_was_written_to_is_gone_when_its_place_is_used_again(link, make):
    places = []
    for number in range(1, 60):
        got = link(make(number))
        assert is_some(got, number)
        places.append(address(got))
        got[number * 1000 :: 5] = 17
        del got
    assert not KEEPS or len(set(places)) < len(places)


@both_kinds
def test_what_is_retained_stays_as_it_is_although_the_writer_always_has_room(make):
    held = []
    with keeping(16) as (writer, reader):
        for number in range(1, 120):
            writer.send({"x": make(number)}, 0)
            got = reader.recv(0)["x"]
            if number % 3 == 0:
                got[number] = 42
            held.append(got)
        kept = [is_kept(got) for got in held]
        assert any(kept) == KEEPS and not all(kept)
    for number, got in enumerate(held, 1):
        if number % 3 == 0:
            assert int(got[number]) == 42
            got[number] = (number << 32) + number
        assert is_some(got, number)


# ---- What looks at it ----------------------------------------------------------------------------

ALL_LOOKS = [pytest.param(np.asarray, look, id=name) for name, look in LOOKS.items()]
if torch:
    ALL_LOOKS += [
        pytest.param(torch.from_numpy, look, id=f"tensor: {name}")
        for name, look in TENSOR_LOOKS.items()
    ]


@pytest.mark.parametrize("make, look", ALL_LOOKS)
def test_whatever_looks_at_it_keeps_its_memory(make, look):
    with keeping(16) as (writer, reader):
        sevens, nines = (make(np.full(2 * MIB, number, np.uint8)) for number in (7, 9))
        check_look(link_of(writer, reader), look, sevens, nines)
        assert is_free(reader)


def test_one_of_several_holds_the_frame_until_it_goes(pair):
    writer, reader = pair
    writer.send({"x": some(1), "y": some(2)}, 0)
    got = reader.recv(0)
    del got["x"]
    assert is_free(reader) != KEEPS and is_some(got["y"], 2)
    got.clear()
    assert is_free(reader)


def test_copies_are_copies_and_an_array_can_not_grow(link):
    got = link(some(1))
    copies = [copy.deepcopy(got), got.copy(), pickle.loads(pickle.dumps(got))]
    got[:] = 0
    assert all(is_some(one, 1) and not is_kept(one) for one in copies)
    with pytest.raises(ValueError):
        link(some(1)).resize(3 * MIB)


@needs_torch
def test_a_tensor_can_shrink_not_grow_be_shared_and_have_gradients(link):
    got = link(tensor(1))
    got.resize_(5)
    assert got.tolist() == tensor(1)[:5].tolist()
    with pytest.raises(RuntimeError, match="resizable"):
        link(tensor(2)).resize_(1 << 20)
    got = link(tensor(3))
    got.share_memory_()
    assert got.is_shared() and is_some(got, 3) and not is_kept(got)
    got = link({"t": torch.ones(1 << 19, requires_grad=True)})["t"]
    (got * 2).sum().backward()
    assert got.is_leaf and float(got.grad.sum()) == 2 << 19
    with torch.no_grad():
        got -= got.grad
    assert float(got.detach().sum()) == -(1 << 19)


# ---- Frames that are refused ---------------------------------------------------------------------


class Unloadable:
    def __reduce__(self):
        return decimal.Decimal, ("no number",)


def damaged():
    frame = bytearray(ringcast.pack({"x": some(1), "y": "text"}))
    frame[48 + 64 + 8] = 99  # the kind of the second entry
    return frame


REFUSED = {
    "a pickle": (ringcast.PickleRefused, lambda: {"x": some(1), "leaf": fractions.Fraction(1)}),
    "a pickle, first": (
        ringcast.PickleRefused,
        lambda: {"leaf": fractions.Fraction(1), "x": some(1)},
    ),
    "a pickle that fails": (decimal.InvalidOperation, lambda: {"x": some(1), "leaf": Unloadable()}),
    "damage": (ringcast.ProtocolError, damaged),
}


@pytest.mark.parametrize("error, make", REFUSED.values(), ids=REFUSED)
def test_a_frame_that_is_refused_is_given_back(error, make):
    value = make()
    frame = ringcast.pack(value) if isinstance(value, dict) else value
    with keeping(16, allow_pickle=error is not ringcast.PickleRefused) as (writer, reader):
        for number in range(1, 20):
            send_frame(writer, frame)
            with pytest.raises(error):
                reader.recv(0)
            assert is_free(reader)
            writer.send(some(number), 0)
            assert is_some(reader.recv(0), number)


def test_a_frame_with_gaps_is_packed(pair):
    """One of no writer of ringcast's."""
    writer, reader = pair
    array = np.arange(1 << 18).reshape(512, 512)
    frame = bytes(ringcast.pack({"x": array, "y": some(1)}))
    for old, new in (
        (struct.pack("<4q", 512, 512, 512, 1), struct.pack("<4q", 512, 256, 1, 1024)),
        (struct.pack("<Q", 1 << 21), struct.pack("<Q", (255 * 1024 + 511 + 1) * 8)),
    ):
        assert old in frame
        frame = frame.replace(old, new, 1)
    send_frame(writer, frame)
    got = reader.recv(0)
    expected = np.lib.stride_tricks.as_strided(array, (512, 256), (8, 8192))
    assert (got["x"] == expected).all() and got["x"].flags.c_contiguous and not is_kept(got["x"])
    assert is_some(got["y"], 1) and is_kept(got["y"]) == KEEPS


def test_no_two_arrays_share_bytes_of_a_frame(pair):
    writer, reader = pair
    array = {"size": MIB, "dtype": INT64, "dims": (1, 8)}
    items = [entry(TENSOR, KEYED | NUMPY, key=(key, 1), **array) for key in (0, 1)]
    items.append(entry(BYTES, KEYED, size=MIB, key=(1, 1)))
    meta = b"ab" + bytes(6) + struct.pack("<qq", MIB // 8, 1)
    send_frame(writer, frame_of(DICT, items[:1], bytes(MIB), meta))
    assert not reader.recv(0)["a"].any()
    for other in items[1:]:
        send_frame(writer, frame_of(DICT, [items[0], other], bytes(MIB), meta))
        with pytest.raises(ringcast.ProtocolError):
            reader.recv(0)
    assert is_free(reader)


def test_frames_with_any_bytes_changed_do_no_harm(pair):
    writer, reader = pair
    order = random.Random(8)
    sent = {"x": some(1, 1), "leaf": {1, 2}, "y": some(2, 1)[:9], "z": "text" * 500}
    good = bytes(ringcast.pack(sent))
    outcomes = {True: 0, False: 0}
    for number in range(400):
        frame = bytearray(good)
        for _ in range(order.choice((1, 1, 3))):
            frame[order.randrange(48 + 64 * 5)] = order.choice((0, 1, 7, 64, 127, 128, 255))
        send_frame(writer, frame)
        try:
            got = reader.recv(0)
            values.scribble(list(got.values()) if isinstance(got, dict) else got)
            outcomes[True] += 1
        except Exception:
            outcomes[False] += 1
        got = None
        if number % 20 == 0:
            writer.send(some(number), 0)
            assert is_some(reader.recv(0), number)
    assert min(outcomes.values()) > 20 and is_free(reader)


# ---- Whoever waits is not held back --------------------------------------------------------------

# MiB, in spill memory of 16. No two of them have room. Those of 3 MiB are kept, and wait for nothing
# but a call of the reader's.
SIZES = (3, 14, 3, 14, 3, 14)
WAYS = {
    "recv": lambda reader: reader.recv(WATCHDOG),
    "recv_tagged": lambda reader: reader.recv_tagged(WATCHDOG)[0],
    "iteration": next,
    "next": lambda reader: ringcast.unpack(reader.next(WATCHDOG)),
}


def keep_one(writer, reader):
    writer.send(some(0, 3), 0)
    got = reader.recv(0)
    assert is_kept(got) == KEEPS
    return got


def send_others(writer):
    for number, mib in enumerate(SIZES[1:], 1):
        writer.send(some(number, mib), WATCHDOG)


def are_right(held):
    return len(held) == len(SIZES) and all(
        is_some(held[number], number, mib) for number, mib in enumerate(SIZES)
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("spin", [0, None])
def test_a_reader_that_waits_gives_the_writer_room(way, spin):
    with keeping(16, spin=spin) as (writer, reader):
        held = [keep_one(writer, reader)]
        with once_it_waits(writer.handle):
            receiving = Receiving(lambda: [held.append(WAYS[way](reader)) for _ in SIZES[1:]])
        send_others(writer)
        receiving.finish()
        assert are_right(held)


@pytest.mark.parametrize("kind", loops.LOOPS)
def test_a_task_that_waits_gives_the_writer_room(kind):
    with keeping(16) as (writer, reader):
        held = [keep_one(writer, reader)]

        async def receive():
            for _ in SIZES[1:]:
                held.append(await reader.arecv())

        async def both():
            task = asyncio.ensure_future(receive())
            await loops.waits(reader)
            sending = Receiving(lambda: send_others(writer))  # not by a task of this loop
            await task
            sending.finish()

        loops.run(kind, both())
        assert are_right(held)


PAGES = 15 * MIB // 4096


def copied(array):
    """How many of its pages, by one look at all, are its own by now and not the writer's."""
    pages = array.nbytes // 4096
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        words = np.frombuffer(
            os.pread(pagemap.fileno(), 8 * pages, address(array) // 4096 * 8), np.uint64
        )
    return int((words >> np.uint64(61) & np.uint64(5) == 4).sum())  # there, and not of a file


def counts_while_it_copies():
    """What another thread counts while the reader, which need not give the GIL away, copies what it
    retained."""
    counts, started, stop = set(), threading.Event(), threading.Event()

    def count():
        while not stop.is_set():
            counts.add(copied(held))
            started.set()

    with keeping(64) as (writer, reader):
        writer.send(some(1, 15), 0)
        held = reader.recv(0)
        with pytest.raises(TimeoutError, match="spill memory"):
            writer.send(some(2, 60), 0)  # asks for room
        counting, interval = Receiving(count), sys.getswitchinterval()
        assert started.wait(WATCHDOG)
        sys.setswitchinterval(WATCHDOG)
        try:
            with pytest.raises(TimeoutError):
                reader.recv(0)
        finally:
            sys.setswitchinterval(interval)
            stop.set()
            counting.finish()
        assert copied(held) == PAGES and is_some(held, 1, 15)
    return counts - {0, PAGES}


@pytest.mark.skipif(not KEEPS, reason="nothing can be kept here")
def test_other_threads_run_while_the_reader_copies_what_it_retained():
    clock = Clock()
    # One look needs no GIL: who was about to look may see some pages. A second one does. A machine
    # may let none run.
    while len(counts_while_it_copies()) < 2:
        assert clock.runs(), "the GIL is not given away while pages are copied"


# ---- It outlives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["reader", "writer"])
def test_it_outlives_both_ends(first):
    others = ring_mappings()
    with contextlib.ExitStack() as stack:
        writer, reader = stack.enter_context(keeping())
        held = []
        for number in range(1, 4):
            writer.send(some(number), 0)
            held.append(reader.recv(0))
        for end in (reader, writer) if first == "reader" else (writer, reader):
            end.close()
            assert all(is_some(got, number) for number, got in enumerate(held, 1))
    del end, reader, writer
    gc.collect()
    assert all(map(is_kept, held)) == KEEPS
    held[0][:] = 7
    assert is_some(held[1], 2) and (held[0] == 7).all()
    assert (ring_mappings() != others) == KEEPS
    held.clear()
    assert ring_mappings() == others


def make_sender(state):
    state["writer"] = ringcast.Writer(1 << 16, spill_bytes=64 * MIB)
    return state["writer"].handle


def send_some(state, numbers):
    for number in numbers:
        state["writer"].send({"x": some(number)}, 0)


def test_it_outlives_a_writer_that_is_killed(peer):
    with ringcast.Reader(peer.call(make_sender), retain=True) as reader:
        peer.call(send_some, range(4))
        held = [reader.recv(0)["x"] for _ in range(4)]
        peer.end("killed")
        with pytest.raises(ringcast.WriterGone):
            reader.recv(WATCHDOG)
        assert [is_kept(got) for got in held] == [False] + [KEEPS] * 3
        assert all(is_some(got, number) for number, got in enumerate(held))
    held[2][5] = 1
    assert is_some(held[1], 1) and int(held[2][5]) == 1 and is_some(held[3], 3)


def test_a_reader_is_closed_for_all_as_soon_as_it_closes():
    with keeping(512) as (writer, reader):
        held = []
        for number in range(16):
            writer.send(some(number, 4), 0)
            held.append(reader.recv(0))
        started = threading.Event()

        def cancel():
            started.set()
            while True:
                reader.cancel()

        thread = Receiving(cancel)
        started.wait(WATCHDOG)
        reader.close()  # which copies all that is kept, while others run
        with pytest.raises(ValueError, match="closed"):
            thread.finish()
        assert all(is_some(got, number, 4) for number, got in enumerate(held))


LIVES_ON = """
import MODULE, atexit, sys
import numpy as np, ringcast
class Late:
    def __del__(self): self.array = None
with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle, retain=RETAIN) as reader:
    for value in (MODULE.zeros(1 << 18), {'a': MODULE.zeros(1 << 19)}, [MODULE.ones(1 << 18)],
                  MODULE.ones(1 << 19)):
        writer.send(value)
        sys.late = late = Late()
        late.array = reader.recv()
        sys.modules["late" + str(id(late))] = late
        atexit.register(lambda late=late: late.array)
print("done")
"""


@pytest.mark.parametrize("retain", [True, False])  # else its memory is of what was received earlier
@pytest.mark.parametrize("module", ["numpy", pytest.param("torch", marks=needs_torch)])
def test_what_outlives_the_module_does_no_harm(module, retain):
    code = LIVES_ON.replace("MODULE", module).replace("RETAIN", str(retain))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_it_may_be_dropped_in_any_thread():
    held = queue.SimpleQueue()

    def drop():
        wrong = []
        for number, got in iter(held.get, None):
            if not is_some(got, number):
                wrong.append(number)
            got[:9] = 7
            del got
        return wrong

    with keeping(16) as (writer, reader):
        threads = [Receiving(drop) for _ in range(3)]
        try:
            for number in range(1, 250):
                writer.send((tensor if torch and number % 2 else some)(number), WATCHDOG)
                held.put((number, reader.recv(WATCHDOG)))
        finally:
            for _ in threads:
                held.put(None)
        assert [thread.finish() for thread in threads] == [[]] * 3 and is_free(reader)


def test_parent_and_child_of_a_fork_have_values_of_their_own():
    others = ring_mappings()
    with keeping() as (writer, reader):
        held = {}
        for number in range(1, 5):
            writer.send(some(number), 0)
            held[number] = reader.recv(0)
        held[2][0] = 99
        assert all(map(is_kept, held.values())) == KEEPS

        def child():
            """The parent has overwritten all, and its memory is others' by now."""
            same = [is_some(held[number], number) for number in (1, 3, 4)] + [int(held[2][0])]
            held[3][:] = 5
            del held[1]
            gc.collect()
            reader.close()
            writer.close()
            same += [int(held[3].max()), is_some(held[4], 4)]
            held.clear()
            return same, ring_mappings()

        with forked(child) as answers:
            held[4][:] = 17
            gone = [held.pop(number) for number in (1, 3)]
            del gone
            for number in range(5, 60):
                writer.send(some(number), 0)
                assert is_some(reader.recv(0), number)
        assert answers == [([True, True, True, 99, 5, True], others)]
        assert (held[4] == 17).all()
        assert int(held[2][0]) == 99 and (held[2][1:] == some(2)[1:]).all()
