# SPDX-License-Identifier: Apache-2.0
"""
NumPy arrays of strings, times and structs go as their bytes, without a pickle, and arrive as they
were.
"""

import itertools

import numpy as np
import pytest
import values
from keeping import KEEPS, is_kept, keeping
from links import linked
from needs import needs_torch, torch
from test_views import is_in_a_ring

import ringcast

pytestmark = pytest.mark.alike

# ---- What goes -----------------------------------------------------------------------------------

STRUCT = [("a", "i1"), ("b", "<f8"), ("c", "U3", (2, 2))]
GAPS = {
    "names": ["x", "y"],
    "formats": ["<i2", ">u4"],
    "offsets": [3, 3],
    "titles": ["first", None],
    "itemsize": 11,
}
DTYPES = {
    **{
        text: text
        for text in "S1 S5 U1 U17 V1 V7 >U3 M8[D] <m8[25us] >M8[ns] M8 >i4 <u2 >f8 >c16 g G".split()
    },
    "struct": STRUCT,
    "aligned": np.dtype(STRUCT, align=True),
    "packed": np.dtype(STRUCT, align=False),
    "offsets and a title": GAPS,
    "titles": [(("a title", "été"), "i4"), (("\ud800", "b"), "S2")],
    "nested": [("outer", [("inner", [("x", ">i2"), ("y", "M8[s]")], (3,))]), ("tail", "?")],
    "record": np.dtype((np.record, STRUCT)),
    "record of gaps": np.dtype((np.record, np.dtype(GAPS))),
    "record in a struct": [("r", np.dtype((np.record, [("x", "i4")])))],
}
SHAPES = [(), (0,), (1,), (5,), (2, 3, 4), (3, 0, 2), (1, 7, 1)]
ORDERS = {
    "plain": lambda array: array,
    "fortran": np.asfortranarray,
    "turned": lambda array: array.transpose((1, 0, 2)) if array.ndim == 3 else array,
    "slice": lambda array: array[..., ::2] if array.ndim else array,
    "backwards": lambda array: array[::-1] if array.ndim else array,
    "wide": lambda array: np.broadcast_to(array, (2, *array.shape)),
}


def filled(dtype, shape):
    """Of bytes that stand for something in any dtype."""
    array = np.zeros(shape, dtype)
    if array.dtype.str == "<M8":
        array.view(np.int64)[...] = np.iinfo(np.int64).min  # NaT: the only one without a unit
        return array
    raw = np.frombuffer(
        bytes(itertools.islice(itertools.cycle(range(32, 127)), array.nbytes)), np.uint8
    )
    if (
        array.dtype.names is None
        and array.dtype.kind in "SMmiufcV"
        and array.dtype.char not in "gG"
    ):
        return raw.view(array.dtype).reshape(shape) if array.size else array
    for index, place in enumerate(np.ndindex(*shape)):
        if array.dtype.kind == "U":
            array[place] = chr(0x1F600 + index)
        elif array.dtype.names is None:
            array[place] = index + 0.5
        else:
            for name in array.dtype.names:
                array[name][place] = (
                    np.ones((), array[name].dtype) if array[name].dtype.names is None else 0
                )
    return array


def told(dtype):
    """All that a dtype is."""
    if dtype.subdtype:
        return [told(dtype.subdtype[0]), dtype.subdtype[1]]
    fields = dtype.names and [
        (name, *map(str, dtype.fields[name][1:]), told(dtype[name])) for name in dtype.names
    ]
    return (
        dtype,
        dtype.str,
        dtype.type,
        dtype.isalignedstruct,
        dtype.itemsize,
        dtype.alignment,
        dtype.byteorder,
        fields,
    )


def assert_same_array(got, sent):
    assert (
        type(got) is type(sent) and told(got.dtype) == told(sent.dtype) and got.shape == sent.shape
    )
    assert repr(got.tolist()) == repr(sent.tolist())
    # The others have gaps.
    assert sent.dtype.names or sent.dtype.char in "gG" or got.tobytes() == sent.tobytes()
    for flag in ("C_CONTIGUOUS", "F_CONTIGUOUS"):
        if sent.flags.forc or 0 in sent.shape:
            assert got.flags[flag] == sent.flags[flag], flag


def through(value, **options):
    return ringcast.unpack(ringcast.pack(value, allow_pickle=False, **options), allow_pickle=False)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_an_array_arrives_as_it_was(dtype, order):
    for shape in SHAPES:
        sent = ORDERS[order](filled(dtype, shape))
        for got in (
            through(sent),
            through({"a": sent})["a"],
            *through([sent, (sent.copy(order="K"),)])[1],
        ):
            assert_same_array(got, sent)
            assert got.flags.writeable and (got.size == 0 or not np.shares_memory(got, sent))


@pytest.mark.parametrize("dtype", ["i4", "S3", STRUCT, DTYPES["record"]], ids=str)
def test_a_recarray_arrives_as_one(dtype):
    for shape in SHAPES:
        sent = filled(dtype, shape).view(np.recarray)
        got = through([sent])[0]
        assert_same_array(got, sent)
        if got.dtype.names:
            got.a = 7
            assert (got["a"] == 7).all()


@pytest.mark.parametrize("name", ["sha256", None])
def test_an_array_that_stands_twice_is_one_and_has_a_hash(name):
    sent = filled("M8[s]", (3, 4))
    packed = ringcast.pack({"x": [sent, sent], "y": sent}, hash=name)
    got = ringcast.unpack(packed)
    assert got["x"][0] is got["x"][1] and got["x"][0] is got["y"]
    assert (packed.hashes or {}).keys() == ({"x"} if name else set())
    got["y"][0, 0] = "NaT"
    assert np.isnat(got["x"][0][0, 0])


@pytest.mark.parametrize("inner", ["<i4", [("x", "<i2"), ("y", "<i2")]], ids=["flat", "nested"])
def test_names_that_change_between_two_frames_arrive(inner):
    """Neither side goes on with the names of an earlier frame."""
    sent = np.zeros(3, [("a", inner), ("b", "S2")])
    first = through(sent)
    if sent.dtype["a"].names:
        sent.dtype["a"].names = first.dtype["a"].names = ("z", "y")
    else:
        sent.dtype.names = first.dtype.names = ("c", "b")
    assert_same_array(through(sent), sent)
    again = through(np.zeros(3, [("a", inner), ("b", "S2")]))
    assert again.dtype == np.dtype([("a", inner), ("b", "S2")])


class Odd(np.ndarray):
    pass


def with_attribute():
    array = np.zeros(2, DTYPES["record"]).view(np.recarray)
    array.note = "x"
    return array


class Element(np.void):
    pass


PICKLED = {
    "objects": lambda: np.array(["a", None], object),
    "a field of objects": lambda: np.zeros(2, [("a", "i4"), ("b", "O")]),
    "a nested field of objects": lambda: np.zeros(2, [("a", [("b", "O", (2,))])]),
    "metadata": lambda: np.zeros(2, np.dtype("S3", metadata={"x": 1})),
    "metadata of numbers": lambda: np.zeros(2, np.dtype("f4", metadata={"x": 1})),
    "metadata of a field": lambda: np.zeros(2, [("a", np.dtype("i4", metadata={"x": 1}))]),
    "a title that is no str": lambda: np.zeros(2, [(((5,), "a"), "i4")]),
    "numbers with fields": lambda: np.zeros(2, np.dtype(("i4", [("a", "i2"), ("b", "i2")]))),
    "elements of a class": lambda: np.zeros(2, np.dtype((Element, 8))),
    "structs of a class": lambda: np.zeros(2, np.dtype((Element, [("a", "i4")]))),
    "a text that is too long": lambda: np.zeros(2, [(f"field{i}", "i1") for i in range(5000)]),
    "elements of no bytes": lambda: np.zeros(2, "V0"),
    "a subclass": lambda: np.zeros(2, "S3").view(Odd),
    "masked": lambda: np.ma.masked_array(["a", "b"], [True, False]),
    "an attribute": with_attribute,
    "dims": lambda: np.zeros((1,) * 32, "S3"),
}


@pytest.mark.parametrize("make", PICKLED.values(), ids=PICKLED)
def test_what_is_more_than_its_bytes_is_pickled(make):
    sent = make()
    with pytest.raises(ringcast.PickleRefused):
        ringcast.pack([sent], allow_pickle=False)
    got = ringcast.unpack(ringcast.pack([sent]))[0]
    assert (
        type(got) is type(sent)
        and got.dtype == sent.dtype
        and repr(got.tolist()) == repr(sent.tolist())
    )
    assert got.dtype.type is sent.dtype.type and got.dtype.metadata == sent.dtype.metadata


@pytest.mark.parametrize("dtype", ["u1", "f8", ">i4", "S3", "O", STRUCT, "M8[s]"], ids=str)
def test_an_array_in_a_pickle_keeps_its_order(dtype):
    plain = (
        np.arange(24).astype("S2").astype("O").reshape(2, 3, 4)
        if dtype == "O"
        else filled(dtype, (2, 3, 4)).copy()
    )
    for axes in itertools.permutations(range(3)):
        for sent in (
            plain.transpose(axes),
            plain[:1].transpose(axes),
            plain[::2, ::-1].transpose(axes),
        ):
            got = ringcast.unpack(ringcast.pack(ValueError(sent))).args[0]
            # NumPy may change it.
            assert got.dtype.newbyteorder("=") == sent.dtype.newbyteorder("=")
            assert got.shape == sent.shape and repr(got.tolist()) == repr(sent.tolist())
            assert got.flags.writeable and (
                sent.base.size != sent.size or got.strides == sent.strides
            )


@needs_torch
@pytest.mark.parametrize(
    "name", ["float32", "bool", "complex64", "bfloat16", "float8_e5m2", "uint4", "bits8"]
)
def test_a_tensor_in_a_pickle_keeps_its_order(name):
    dtype = getattr(torch, name)
    for shape in ((2, 3, 4, 5), (1, 3, 4, 5), (64, 64, 4, 5)):
        raw = torch.ones(shape, dtype=torch.uint8)
        plain = raw.view(dtype) if name in ("uint4", "bits8") else raw.to(dtype)
        for axes in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)):
            sent = plain.permute(axes)
            got = ringcast.unpack(ringcast.pack(ValueError(sent))).args[0]
            values.assert_same(got, sent)
            assert got.stride() == sent.stride()
        got = ringcast.unpack(ringcast.pack(ValueError(plain[:, :2]))).args[0]
        assert got.is_contiguous() and got.shape == plain[:, :2].shape


# ---- Without a copy ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["S5", "U2", "M8[s]", STRUCT, DTYPES["record"]], ids=str)
def test_an_array_is_viewed_and_kept_where_it_lies(dtype):
    count = (5 << 20) // np.dtype(dtype).itemsize
    sent = np.asfortranarray(np.full((count // 4, 4), filled(dtype, (1,))[0], dtype))
    with keeping(1 << 5) as (writer, reader):
        writer.send({"x": sent, "y": [sent[:1]]}, 0)
        with reader.view(0) as seen:
            assert is_in_a_ring(seen["x"]) and not seen["x"].flags.writeable
            assert_same_array(seen["y"][0], sent[:1])
        writer.send([sent], 0)
        (got,) = reader.recv(0)
        assert is_kept(got) == KEEPS and got.flags.writeable and got.flags.f_contiguous
        assert (got == sent).all() and got.dtype == sent.dtype
        got[0] = got[1]


@needs_torch
@pytest.mark.parametrize("form", ["channels_last", "channels_last_3d"])
def test_channels_last_is_kept(form):
    shape = (2, 3, 4, 5) if form == "channels_last" else (2, 3, 4, 5, 6)
    sent = (
        torch.arange(float(np.prod(shape)))
        .reshape(shape)
        .contiguous(memory_format=getattr(torch, form))
    )
    large = torch.ones(64, 64, *shape[2:]).contiguous(memory_format=getattr(torch, form))
    with linked() as link:
        for got in (through({"t": sent})["t"], link([sent])[0], through(sent[:1])):
            assert got.is_contiguous(memory_format=getattr(torch, form)) and torch.equal(
                got, sent[: len(got)]
            )
        got = link(large)
        assert got.stride() == large.stride() and torch.equal(got, large)
        link.writer.send(large, 0)
        with link.reader.view(0) as seen:
            assert seen.stride() == large.stride() and torch.equal(seen, large)
