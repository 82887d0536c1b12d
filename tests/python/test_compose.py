# SPDX-License-Identifier: Apache-2.0
"""Frames filled in place: Writer.compose(), ringcast.empty()."""

import dataclasses
import gc
import re

import numpy as np
import pytest
import ringcast
import values
from needs import needs_torch, torch

NUMPY = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
TORCH = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "bfloat16", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip
SHAPES = [(), (1,), (7,), (3, 5), (2, 1, 4), (0,), (2, 0, 3)]


@dataclasses.dataclass
class Item:
    name: str
    pixels: object


def numbers(shape, dtype):
    some = np.random.default_rng(1).integers(0, 2, (*shape, np.dtype(dtype).itemsize), np.uint8)
    return some.view(dtype).reshape(shape)


def tensor(shape, dtype):
    some = torch.empty(shape, dtype=dtype)
    some.flatten()[:] = torch.randint(0, 2, (some.numel(),)).to(dtype)
    return some


def compose(writer, composed, filled, **options):
    """filled: (path of keys, array) of each placeholder."""
    with writer.compose(composed, 0, **options) as frame:
        for path, array in filled:
            there = frame
            for key in path:
                there = there[key]
            there[...] = array
            del there


def check_as_sent(ring, value, composed, filled):
    """The frame is to the byte what send() writes. filled: as compose() takes it."""
    writer, reader = ring
    compose(writer, composed, filled, tag=3)
    with reader.next(0) as came:
        got, tag, kind = bytes(came), came.tag, came.kind
    writer.send(value, 0, tag=3)
    with reader.next(0) as came:
        assert (got, tag, kind) == (bytes(came), 3, ringcast.KIND_TENSORS)
    compose(writer, composed, filled)
    values.assert_same(reader.recv(0), value)


@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_arrays_arrive_as_if_sent(ring, dtype):
    arrays = {f"a{at}": numbers(shape, dtype) for at, shape in enumerate(SHAPES)}
    placeholders = {key: ringcast.empty(array.shape, dtype) for key, array in arrays.items()}
    check_as_sent(ring, arrays, placeholders, [((key,), array) for key, array in arrays.items()])


@needs_torch
@pytest.mark.parametrize("dtype", TORCH)
def test_torch_tensors_arrive_as_if_sent(ring, dtype):
    dtype = getattr(torch, dtype)
    tensors = {f"a{at}": tensor(shape, dtype) for at, shape in enumerate(SHAPES)}
    placeholders = {key: ringcast.empty(each.shape, dtype) for key, each in tensors.items()}
    check_as_sent(ring, tensors, placeholders, [((key,), each) for key, each in tensors.items()])


def test_anything_that_is_sent_may_stand_beside_a_placeholder(ring):
    x, y, ids = numbers((3, 4), "f4"), numbers((70_000,), "u1"), np.arange(9)
    rest = {
        "step": 7,
        "text": "t" * 5000,
        "ids": ids,
        "deep": [{"a": 1}, (2.5, None)],
        "item": Item("i", 5),
        3: {1},
    }
    value = {"x": x, "in": [{"y": y}, (x, 1)], **rest}
    px, py = ringcast.empty((3, 4), "f4"), ringcast.empty(70_000, np.uint8)
    composed = {"x": px, "in": [{"y": py}, (px, 1)], **rest}
    check_as_sent(ring, value, composed, [(("x",), x), (("in", 0, "y"), y)])
    with ring[0].compose(composed) as frame:
        assert frame["step"] == 7 and frame["deep"] is rest["deep"] and frame[3] == {1}
        assert isinstance(frame["in"], tuple) and dict(frame["in"][0]).keys() == {"y"}
        with pytest.raises(TypeError):
            frame["in"][0]["y"] = y
        with pytest.raises(KeyError):
            frame["other"]


def test_a_placeholder_in_an_instance_is_found_by_itself(ring):
    writer, reader = ring
    pixels = ringcast.empty((2, 2), "int16")
    with writer.compose({"item": Item("cat", pixels)}) as frame:
        frame[pixels] = 5
    got = reader.recv(0)["item"]
    assert got.name == "cat" and got.pixels.tolist() == [[5, 5], [5, 5]]


def test_one_placeholder_at_two_places_is_one_array(ring):
    writer, reader = ring
    both = ringcast.empty(5, "i8")
    with writer.compose({"a": [both], "b": both}) as frame:
        frame["a"][0][:] = 1
        frame["b"][0] = 9
    got = reader.recv(0)
    assert got["a"][0] is got["b"] and got["b"].tolist() == [9, 1, 1, 1, 1]


def test_arrays_can_be_written_by_assignment_and_in_place(ring):
    writer, reader = ring
    with writer.compose({"x": ringcast.empty(4, "f4"), "n": 1}) as frame:
        frame["x"] = 2
        frame["x"] += 1
        frame["x"][3] = -1
        with pytest.raises(TypeError, match=r"frame\['n'\] is in the frame already"):
            frame["n"] = 2
    assert reader.recv(0)["x"].tolist() == [3, 3, 3, -1]


@needs_torch
def test_kernels_of_numpy_and_torch_write_into_the_frame(ring):
    writer, reader = ring
    a, b = np.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3)
    composed = {"np": ringcast.empty((2, 3), "f8"), "pt": ringcast.empty((2, 3), torch.float32)}
    with writer.compose(composed) as frame:
        np.multiply(a, 2, out=frame["np"])
        torch.mm(b, torch.ones(3, 3), out=frame["pt"])
        np.from_dlpack(frame["pt"])[0, 0] = 77
        torch.from_dlpack(frame["np"])[1, 2] = 78
    got = reader.recv(0)
    assert got["np"].tolist() == [[0, 2, 4], [6, 8, 78]]
    assert got["pt"].tolist() == [[77, 3, 3], [12, 12, 12]]


def mapping_of(address):
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(each, 16) for each in line.split()[0].split("-"))
            if first <= address < last:
                return line


@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_nothing_is_copied_in_and_from_retained_frames_nothing_out(size):
    with ringcast.Writer(1 << 20) as writer, ringcast.Reader(writer.handle, retain=True) as reader:
        for step in range(3):
            with writer.compose({"x": ringcast.empty(size, "u1")}) as frame:
                assert "memfd:ringcast" in mapping_of(frame["x"].ctypes.data)
                frame["x"] = step
            got = reader.recv(0)["x"]
            assert (got == step).all()
    if size > 1 << 20 and reader_retains():
        assert "memfd:ringcast" in mapping_of(got.ctypes.data)


def reader_retains():
    from keeping import KEEPS

    return KEEPS


# ---- The end -------------------------------------------------------------------------------------


def test_an_exception_aborts(ring):
    writer, reader = ring
    with pytest.raises(ZeroDivisionError):
        with writer.compose({"x": ringcast.empty(4, "f4")}) as frame:
            frame["x"] = 1
            raise ZeroDivisionError
    with pytest.raises(TimeoutError):
        reader.recv(0)
    with pytest.raises(ValueError, match="not open"):
        frame["x"]
    writer.send(5, 0)
    assert reader.recv(0) == 5


def test_an_exception_aborts_as_soon_as_the_last_array_is_gone(ring):
    writer, reader = ring
    held = []
    with pytest.raises(ZeroDivisionError):
        with writer.compose({"x": ringcast.empty(4, "f4")}) as frame:
            held.append(frame["x"][1:])
            raise ZeroDivisionError
    with pytest.raises(ringcast.Error, match="reservation is open"):
        writer.send(5, 0)
    held[0][:] = 3  # its memory is there still
    held.clear()
    writer.send(5, 0)
    assert reader.recv(0) == 5


class Clears:
    def __init__(self, held):
        self.held = held

    def __reduce__(self):
        self.held.clear()
        return int, (7,)


def test_an_array_that_goes_while_the_writer_is_in_use_leaves_no_reservation(ring):
    writer, reader = ring
    held = []
    with pytest.raises(ZeroDivisionError):
        with writer.compose({"x": ringcast.empty(4, "f4")}) as frame:
            held.append(frame["x"])
            raise ZeroDivisionError
    with pytest.raises(ringcast.Error, match="reservation is open"):
        writer.send(Clears(held), 0)
    writer.send(5, 0)
    assert reader.recv(0) == 5


LOOKS = {
    "itself": lambda array: array,
    "slice": lambda array: array[1:],
    "slice of a slice": lambda array: array[1:][1:].T,
    "memoryview": memoryview,
    "iterator": lambda array: iter(array.reshape(2, 2)),
}
if torch:
    LOOKS["dlpack"] = torch.from_dlpack
    LOOKS["torch"] = torch.from_numpy
TENSOR_LOOKS = {
    "itself": lambda tensor: tensor,
    "slice": lambda tensor: tensor[1:],
    "detached": lambda tensor: tensor.view(2, 2).detach().T,
    "numpy": lambda tensor: tensor.numpy(),
    "storage": lambda tensor: tensor.untyped_storage(),
    "dlpack": np.from_dlpack,
}


def check_in_use(ring, dtype, look):
    writer, reader = ring
    composed = {"free": ringcast.empty(4, dtype), "in": [1, {"x": ringcast.empty(4, dtype)}]}
    frame = writer.compose(composed)
    frame["free"][:] = 1
    frame["in"][1]["x"][:] = 2
    held = look(frame["in"][1]["x"])
    for end in frame.commit, frame.abort, lambda: frame.__exit__(None, None, None):
        with pytest.raises(
            BufferError, match=re.escape("frame['in'][1]['x'] is still in use")
        ) as raised:
            end()
        assert "free" not in str(raised.value)
    for end in writer.commit, writer.abort, writer.close:
        with pytest.raises(BufferError, match="in use"):
            end()
    with pytest.raises(TimeoutError):
        reader.recv(0)
    other = frame["free"]
    with pytest.raises(
        BufferError, match=re.escape("frame['free'], frame['in'][1]['x'] are still in use")
    ):
        frame.commit()
    del held, other
    gc.collect()
    frame.commit()
    got = reader.recv(0)
    assert got["free"].tolist() == [1] * 4 and got["in"][1]["x"].tolist() == [2] * 4


@pytest.mark.parametrize("look", LOOKS)
def test_an_array_in_use_at_the_end_is_named(ring, look):
    check_in_use(ring, "f4", LOOKS[look])


@needs_torch
@pytest.mark.parametrize("look", TENSOR_LOOKS)
def test_a_tensor_in_use_at_the_end_is_named(ring, look):
    check_in_use(ring, torch.float32, TENSOR_LOOKS[look])


def test_a_block_whose_array_is_in_use_leaves_the_frame_open(ring):
    writer, reader = ring
    with pytest.raises(BufferError, match=r"frame\['x'\] is still in use"):
        with writer.compose({"x": ringcast.empty(4, "f4")}) as frame:
            x = frame["x"]
            x[:] = 4
    del x
    frame.commit()
    assert reader.recv(0)["x"].tolist() == [4] * 4


def test_the_writers_own_end_of_the_reservation_ends_the_frame(ring):
    writer, reader = ring
    frame = writer.compose({"x": ringcast.empty(4, "f4")})
    writer.abort()
    for use in (lambda: frame["x"], frame.commit, frame.abort):
        with pytest.raises(ValueError, match="committed or aborted already"):
            use()


def test_a_closed_writer_ends_the_frame():
    with ringcast.Writer(1 << 20) as writer:
        frame = writer.compose({"x": ringcast.empty(4, "f4")})
    with pytest.raises(ValueError, match="the Writer was closed"):
        frame["x"]


def test_an_ended_frame_is_not_open_again(ring):
    writer, reader = ring
    frame = writer.compose({"x": ringcast.empty(2, "i4")})
    frame["x"] = 1
    frame.commit()
    with pytest.raises(ValueError, match="not open"), frame:
        pass
    assert reader.recv(0)["x"][0] == 1
    with pytest.raises(TimeoutError):
        reader.recv(0)


# ---- What is refused -----------------------------------------------------------------------------


NO_DTYPES = ["flot32", "bfloat16", None, 5, "O", "U5", "M8[s]", ">f4", "f16", "i4,i4", object()]
NO_PLACEHOLDERS = [
    *[(4, dtype, TypeError, "dtype") for dtype in NO_DTYPES],
    *[(shape, "f4", TypeError, "shape") for shape in (1.5, "ab", None, (2, "3"))],
    (-1, "f4", ValueError, "-1"),
    ((3, -2), "f4", ValueError, "-2"),
    ((2**40, 2**40), "f4", ValueError, "address space"),
]
if torch:
    NO_PLACEHOLDERS += [(4, torch.qint8, TypeError, "qint8")]


@pytest.mark.parametrize("shape, dtype, error, word", NO_PLACEHOLDERS)
def test_a_placeholder_of_no_dtype_or_shape_is_refused(shape, dtype, error, word):
    with pytest.raises(error, match=word):
        ringcast.empty(shape, dtype)


def test_a_placeholder_says_what_it_is():
    assert repr(ringcast.empty([2, 3], np.float32)) == "ringcast.empty((2, 3), 'float32')"
    if torch:
        assert repr(ringcast.empty(4, torch.float16)) == "ringcast.empty((4,), torch.float16)"


def test_a_frame_that_does_not_fit_is_refused(ring):
    with ringcast.Writer(1 << 16, spill_bytes=0) as writer:
        with pytest.raises(ringcast.FrameTooLarge) as raised:
            writer.compose({"x": ringcast.empty(1 << 20, "u1")})
        assert raised.value.spill_bytes >= 1 << 20
        writer.send(1, 0)
    for size in (1 << 45, 1 << 60):
        with pytest.raises(ringcast.FrameTooLarge):
            ring[0].compose({"x": ringcast.empty(size, "u1")})
    ring[0].send(1, 0)


EMPTY = ringcast.empty(4, "f4")
MISUSE = {
    "a list": (lambda writer: writer.compose([EMPTY]), TypeError, "list"),
    "a placeholder": (lambda writer: writer.compose(EMPTY), TypeError, "Empty"),
    "a number": (lambda writer: writer.compose(5), TypeError, "int"),
    "a tag below 0": (lambda writer: writer.compose({"x": EMPTY}, tag=-1), ValueError, "tag"),
    "a tag of text": (lambda writer: writer.compose({"x": EMPTY}, tag="a"), TypeError, "tag"),
    "a timeout below 0": (lambda writer: writer.compose({"x": EMPTY}, -1), ValueError, "timeout"),
    "a generator": (
        lambda writer: writer.compose({"x": EMPTY, "y": (i for i in ())}),
        TypeError,
        r"value\['y'\]",
    ),
    "send": (lambda writer: writer.send(EMPTY), TypeError, "no values"),
    "send of an item": (lambda writer: writer.send({"x": EMPTY}), TypeError, "no values"),
    "pack": (lambda writer: ringcast.pack({"x": [EMPTY]}), TypeError, "no values"),
}


@pytest.mark.parametrize("call, error, word", MISUSE.values(), ids=MISUSE)
def test_misuse_is_named_and_the_writer_goes_on(ring, call, error, word):
    writer, reader = ring
    with pytest.raises(error, match=word):
        call(writer)
    writer.send(1, 0)
    assert reader.recv(0) == 1


def test_one_reservation_at_a_time(ring):
    with ring[0].reserve(8):
        with pytest.raises(ringcast.Error, match="reservation"):
            ring[0].compose({"x": EMPTY})


def test_without_pickles_the_rest_of_the_dict_is_refused_by_name():
    with ringcast.Writer(1 << 20, allow_pickle=False) as writer:
        with pytest.raises(ringcast.PickleRefused, match=r"value\['y'\]"):
            writer.compose({"x": ringcast.empty(4, "f4"), "y": 1 + np.ma.masked_array([1])})
        with writer.compose({"x": ringcast.empty(4, "f4")}):
            pass


def test_a_full_ring_is_a_timeout():
    with (
        ringcast.Writer(1 << 16, spill_bytes=0) as writer,
        ringcast.Reader(writer.handle, name="slow") as reader,
    ):
        value = {"x": ringcast.empty(10_000, "u1")}
        with pytest.raises(TimeoutError, match="slow"):
            while True:
                with writer.compose(value, 0.01) as frame:
                    frame["x"] = 1
        reader.recv(0), reader.recv(0), reader.recv(0), reader.recv(0)
        with writer.compose(value, 0.01) as frame:
            frame["x"] = 1
