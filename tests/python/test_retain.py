# SPDX-License-Identifier: Apache-2.0
"""Reader(retain=True): large arrays and tensors are not copied, and are the receiver's own all the
same.

All results are the same where nothing can be kept, as with RINGCAST_DISABLE=retain."""

import copy
import decimal
import fractions
import os
import pickle
import random
import struct
import sys
import threading
import time

import numpy as np
import pytest
import ringcast
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
from peers import WATCHDOG, send_frame
from recycling import recycling


@pytest.fixture
def pair():
    with keeping() as both:
        yield both


@pytest.fixture
def link(pair):
    writer, reader = pair
    return lambda value: (writer.send(value, 0), reader.recv(0))[1]


KINDS = [pytest.param(some, id="numpy")]
if torch:
    KINDS.append(pytest.param(tensor, id="torch"))
both_kinds = pytest.mark.parametrize("make", KINDS)

# ---- What is kept --------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize("nest", ["value", "item", "nested"])
def test_after_the_first_one_large_arrays_are_not_copied(link, make, nest):
    wrap, unwrap = {
        "value": (lambda value: value, lambda got: got),
        "item": (lambda value: {"x": value}, lambda got: got["x"]),
        "nested": (lambda value: ["in", {"x": value}], lambda got: got[1]["x"]),
    }[nest]
    for number in range(1, 20):
        got = unwrap(link(wrap(make(number))))
        assert is_kept(got) == KEEPS and is_some(got, number) and address(got) % 64 == 0


class Boxed:
    """Only pickle can send it."""

    def __init__(self, *arrays):
        self.arrays = arrays

    def __reduce__(self):
        return Boxed, self.arrays


@both_kinds
@pytest.mark.parametrize(
    "nest", [lambda value: value, lambda value: {"x": [value]}], ids=["value", "item"]
)
def test_arrays_in_what_was_pickled_are_not_copied_either(link, make, nest):
    held = []
    for number in range(1, 10):
        value = nest(Boxed(make(number), make(number)[:9], bytearray(b"b" * MIB)))
        got = link(value)
        array, small, data = (got["x"][0] if type(got) is dict else got).arrays
        assert is_kept(array) == KEEPS and is_some(array, number) and not is_kept(small)
        assert type(data) is bytearray and len(data) == MIB
        array[0] = small[1] = 7
        assert make(number)[0] != 7
        held.append(small)
    assert all(small[0] != 7 == small[1] for small in held)


def test_what_was_read_only_arrives_so_from_a_pickle(link):
    array = some(1)
    array.flags.writeable = False
    for _ in range(2):
        (got,) = link(Boxed(array)).arrays
        assert is_kept(got) == KEEPS and is_some(got, 1) and not got.flags.writeable


def test_a_reader_that_was_not_asked_to_copies(pair):
    writer, _ = pair
    with ringcast.Reader(writer.handle) as reader:
        for number in range(3):
            writer.send(some(number), 0)
            got = reader.recv(0)
            assert not is_kept(got) and is_some(got, number)


def test_what_is_small_is_copied_also_beside_what_is_large(link):
    held = []
    for number in range(1, 30):
        got = link({"x": some(number), "small": some(number, 1)[1:], "y": some(-number, 1)})
        held.append((number, got["small"]))
        assert is_kept(got["x"]) == is_kept(got["y"]) == KEEPS and not is_kept(got["small"])
    assert all((small == some(number, 1)[1:]).all() for number, small in held)


OF_NUMBERS = [
    dtype for dtype in values.NUMPY_DTYPES if dtype[0] not in ">dl"
]  # the others are pickled


@pytest.mark.parametrize("dtype", OF_NUMBERS)
@pytest.mark.parametrize("layout", ["plain", "transposed", "strided", "expanded"])
def test_arrays_of_every_dtype_and_layout_are_the_same(link, dtype, layout):
    sent = {
        "x": values.cook_array(dtype, (5, 3, 60_000), layout, 5),
        "none": np.empty((3, 0), dtype),
    }
    if sent["x"].nbytes < MIB:
        sent["x"] = np.concatenate([sent["x"]] * 2)
    got = link(sent)
    assert is_kept(got["x"]) == KEEPS and got["x"].flags.writeable
    values.assert_same(got, sent)


@needs_torch
@pytest.mark.parametrize("dtype", values.DLPACK_DTYPES)
@pytest.mark.parametrize("kind", ["plain", "requires_grad", "parameter"])
@pytest.mark.parametrize("layout", ["plain", "transposed"])
def test_tensors_of_every_dtype_are_the_same(link, dtype, kind, layout):
    def make(*shape):
        return values.cook_tensor(dtype, shape, layout, kind, 5)

    sent = {"x": make(5, 4, 70_000), "none": make(3, 0), "one": make()}
    got = link(sent)
    assert not got["x"]._is_view()
    values.assert_same(got, sent)
    if not dtype.startswith("float"):  # which an older torch can't have in memory of others
        assert is_kept(got["x"]) == KEEPS


@needs_torch
def test_what_torch_can_not_have_in_memory_of_others_is_copied(link):
    for name in values.BIT_DTYPES[::4]:
        sent = values.cook_tensor(name, (3 * MIB,), "plain", "plain", 5)
        for _ in range(2):
            values.assert_same(link({"t": sent})["t"], sent)


def test_a_frame_with_gaps_is_packed(pair):
    """One of no writer of ringcast's."""
    writer, reader = pair
    array = np.arange(1 << 18).reshape(512, 512)
    frame = bytes(ringcast.pack({"x": array, "y": some(1)}))
    strided = frame.replace(
        struct.pack("<4q", 512, 512, 512, 1), struct.pack("<4q", 512, 256, 1, 1024)
    )
    assert strided != frame
    strided = strided.replace(
        struct.pack("<Q", 1 << 21), struct.pack("<Q", (255 * 1024 + 511 + 1) * 8), 1
    )
    send_frame(writer, strided)
    got = reader.recv(0)
    expected = np.lib.stride_tricks.as_strided(array, (512, 256), (8, 8192))
    assert (got["x"] == expected).all() and got["x"].flags.c_contiguous and not is_kept(got["x"])
    assert is_some(got["y"], 1) and is_kept(got["y"]) == KEEPS


def test_whatever_else_is_in_the_frame_arrives(link):
    sent = {
        "x": some(1),
        "leaf": decimal.Decimal("1.5"),
        "raw": b"r" * 9000,
        "text": "spät" * 900,
        "n": 2**80,
        "nested": [some(2), {"y": some(3), "more": (None, bytearray(b"b" * 5000))}],
        "set": {1, 2},
        "object": np.array([some(4), "object"], dtype=object),
    }
    for _ in range(3):
        got = link(sent)
        values.assert_same({**got, "object": 0}, {**sent, "object": 0})
        assert is_some(got["object"][0], 4) and got["object"][1] == "object"
        assert is_kept(got["x"]) == is_kept(got["nested"][0]) == KEEPS


def test_recycling_does_not_count_it(link):
    before = recycling()
    held = [link(some(number)) for number in range(1, 4)]
    after = recycling()
    assert (after == before) == KEEPS and len(held) == 3


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
def test_what_is_retained_stays_as_it_is(make):
    held = []
    with keeping(16) as (writer, reader):
        for number in range(1, 120):
            writer.send({"x": make(number)}, 0)  # there is always room
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


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_whatever_looks_at_an_array_keeps_its_memory(look):
    with keeping(16) as (writer, reader):
        link = lambda value: (writer.send(value, 0), reader.recv(0))[1]  # noqa: E731
        check_look(link, look, np.full(2 * MIB, 7, np.uint8), np.full(2 * MIB, 9, np.uint8))
        assert is_free(reader)


@needs_torch
@pytest.mark.parametrize("look", TENSOR_LOOKS.values(), ids=TENSOR_LOOKS)
def test_whatever_looks_at_a_tensor_keeps_its_memory(look):
    with keeping(16) as (writer, reader):
        link = lambda value: (writer.send(value, 0), reader.recv(0))[1]  # noqa: E731
        check_look(
            link,
            look,
            torch.full((2 * MIB,), 7, dtype=torch.uint8),
            torch.full((2 * MIB,), 9).byte(),
        )
        assert is_free(reader)


def test_one_of_several_holds_the_frame_until_it_goes(pair):
    writer, reader = pair
    writer.send({"x": some(1), "y": some(2)}, 0)
    got = reader.recv(0)
    del got["x"]
    assert is_free(reader) != KEEPS and is_some(got["y"], 2)
    got.clear()
    assert is_free(reader)


def copied(array):
    """How many of its pages, by one look at all, are its own by now and not the writer's."""
    pages = array.nbytes // 4096
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        words = np.frombuffer(
            os.pread(pagemap.fileno(), 8 * pages, address(array) // 4096 * 8), np.uint64
        )
    return int((words >> np.uint64(61) & np.uint64(5) == 4).sum())  # there, and not of a file


PAGES = 15 * MIB // 4096


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
        thread, interval = threading.Thread(target=count), sys.getswitchinterval()
        thread.start()
        assert started.wait(WATCHDOG)
        sys.setswitchinterval(WATCHDOG)
        try:
            with pytest.raises(TimeoutError):
                reader.recv(0)
        finally:
            sys.setswitchinterval(interval)
            stop.set()
            thread.join()
        assert copied(held) == PAGES and is_some(held, 1, 15)
    return counts - {0, PAGES}


@pytest.mark.skipif(not KEEPS, reason="nothing can be kept here")
def test_other_threads_run_while_the_reader_copies_what_it_retained():
    deadline = time.monotonic() + WATCHDOG
    # One look needs no GIL: who was about to look may see some pages. A second one does. A machine
    # may let none run.
    while len(counts_while_it_copies()) < 2:
        assert time.monotonic() < deadline, "the GIL is not given away while pages are copied"


def test_copies_are_copies(link):
    got = link(some(1))
    copies = [copy.deepcopy(got), got.copy(), pickle.loads(pickle.dumps(got))]
    got[:] = 0
    assert all(is_some(one, 1) and not is_kept(one) for one in copies)


def test_an_array_can_not_grow(link):
    with pytest.raises(ValueError):
        link(some(1)).resize(3 * MIB)


@needs_torch
def test_a_tensor_can_shrink_and_not_grow_and_move_to_shared_memory(link):
    got = link(tensor(1))
    got.resize_(5)
    assert got.tolist() == tensor(1)[:5].tolist()
    with pytest.raises(RuntimeError, match="not resizable"):
        link(tensor(2)).resize_(1 << 20)
    got = link(tensor(3))
    got.share_memory_()
    assert got.is_shared() and is_some(got, 3) and not is_kept(got)


@needs_torch
def test_gradients_flow_through_it(link):
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
    "a pickle": (
        ringcast.PickleRefused,
        lambda: ringcast.pack({"x": some(1), "leaf": fractions.Fraction(1)}),
    ),
    "a pickle, first": (
        ringcast.PickleRefused,
        lambda: ringcast.pack({"leaf": fractions.Fraction(1), "x": some(1)}),
    ),
    "a pickle that fails": (
        decimal.InvalidOperation,
        lambda: ringcast.pack({"x": some(1), "leaf": Unloadable()}),
    ),
    "damage": (ringcast.ProtocolError, damaged),
}


@pytest.mark.parametrize("error, make", REFUSED.values(), ids=REFUSED)
def test_a_frame_that_is_refused_is_given_back(error, make):
    frame = make()
    with keeping(16, allow_pickle=error is not ringcast.PickleRefused) as (writer, reader):
        for number in range(1, 20):
            send_frame(writer, frame)
            with pytest.raises(error):
                reader.recv(0)
            assert is_free(reader)
            writer.send(some(number), 0)
            assert is_some(reader.recv(0), number)


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
    good = bytes(
        ringcast.pack({"x": some(1, 1), "leaf": {1, 2}, "y": some(2, 1)[:9], "z": "text" * 500})
    )
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
            teach(writer, reader) if not KEEPS else (writer.send(some(3), 0), reader.recv(0))
            writer.send(some(number), 0)
            assert is_some(reader.recv(0), number)
    assert min(outcomes.values()) > 20 and is_free(reader)


def test_retain_is_true_or_false():
    with (
        ringcast.Writer(1 << 16) as writer,
        pytest.raises(TypeError, match="retain must be True or False, not str"),
    ):
        ringcast.Reader(writer.handle, retain="no")
