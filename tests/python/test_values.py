# SPDX-License-Identifier: Apache-2.0
"""Values × ways to send × ways to receive: what arrives is equal in value, type and order, writable
and the receiver's own."""

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import threading

import natives
import numpy as np
import pytest
import values
from hypothesis import HealthCheck, given, settings
from keeping import KEEPS, is_kept, keeping
from needs import needs_torch, torch
from peers import attach, call_all, detach
from prints import print_of
from test_views import is_in_a_ring

import ringcast

NO_DEADLINE = settings(deadline=None, suppress_health_check=list(HealthCheck))

# ---- Values --------------------------------------------------------------------------------------

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
    "recarray": lambda array: array.view(np.recarray),
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


def pattern(mib, seed):
    """Words that are all different, within a seed and between two."""
    return np.arange(mib << 17, dtype=np.uint64) * 0x9E3779B97F4A7C15 + np.uint64(seed)


VALUES = {
    "leaves": lambda: [None, True, 7, 2**80, -0.0, 1j, "text", "\ud800", "", b"", b"bytes"],
    "long leaves": lambda: ["x" * 5000, "\xe9" * 5000, b"y" * 5000, bytearray(b"z" * 5000)],
    "containers": lambda: [(1, {"a": {3}}), frozenset([4]), {6: [], "b": {}}, range(9), slice(3)],
    "many numbers": lambda: [list(range(1000)), (0.5,) * 1000, [300, 2, 1], [9, -(1 << 40)]],
    "a dict of bytes": lambda: {"a": b"x", "b": bytearray(b"y"), "c": "z"},
    "classes": lambda: [cls(a=1, b=[2.5]) for cls in natives.PLAIN_CLASSES],
    "structs": lambda: [cls(a=1, b=[2.5]) for cls in natives.STRUCT_CLASSES],
    "members of enums": lambda: [*natives.MEMBERS, *natives.COMPOSITES],
    "a field of a packed struct": lambda: np.zeros(3, [("a", "i1"), ("b", "f8")])["b"],
    "a misaligned array": lambda: np.frombuffer(b"x" * 17, "u1")[1:].view("f8"),
    "a read-only array": lambda: np.frombuffer(b"x" * 16, "f8"),
    "large arrays": lambda: {"a": pattern(5, 1).reshape(4, -1), "in": [pattern(2, 2)[::-1]]},
    "large leaves": lambda: [bytes(pattern(5, 3)), "x" * (5 << 20), bytearray(pattern(2, 4))],
    "many items": lambda: {f"key{n}": np.full(3, n) for n in range(100)},
}
VALUES |= {
    f"{name}, {order}": lambda dtype=dtype, turn=turn: [turn(filled(dtype, s)) for s in SHAPES]
    for (name, dtype), (order, turn) in itertools.product(DTYPES.items(), ORDERS.items())
}
if torch:
    VALUES |= {
        "a parameter": lambda: torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).T),
        "large tensors": lambda: {
            "t": torch.from_numpy(pattern(5, 5).view(np.int64)).reshape(1024, -1).T,
            "bits": [torch.from_numpy(pattern(2, 6).view(np.uint8)).view(torch.uint4)],
        },
        "channels last": lambda: [
            torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
            torch.ones(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d),
        ],
        "names of torch": lambda: [torch.bfloat16, torch.device("cuda:3"), torch.Size([1, 2**62])],
    }
BY_PICKLE = {
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
    "an attribute": lambda: with_attribute(np.zeros(2, DTYPES["record"]).view(np.recarray)),
    "dims": lambda: np.zeros((1,) * 32, "S3"),
}


class Odd(np.ndarray):
    pass


class Element(np.void):
    pass


def with_attribute(array):
    array.note = "x"
    return array


# ---- Ways ----------------------------------------------------------------------------------------


async def sent_by_a_task(writer, value):
    await writer.asend(value, 0)


async def received_by_a_task(reader):
    return await reader.arecv(0)


@contextlib.contextmanager
def by_items(reader):
    with reader.next(0) as frame:
        whole = ringcast.unpack(frame)
        yield {key: frame[key] for key in frame.keys()} if type(whole) is dict else whole


@contextlib.contextmanager
def of_a_frame(reader):
    with reader.next(0) as frame:
        yield ringcast.unpack(frame)


def given_by(receive):
    return lambda end: contextlib.nullcontext(receive(end))


SENDS = {
    "send": lambda writer, value: writer.send(value, 0),
    "send_many": lambda writer, value: writer.send_many([value], 0),
    "packed": lambda writer, value: writer.send(ringcast.pack(value), 0),
    "asend": lambda writer, value: asyncio.run(sent_by_a_task(writer, value)),
}
RECEIVES = {
    "recv": (ringcast.Reader, {}, given_by(lambda end: end.recv(0))),
    "recv_tagged": (ringcast.Reader, {}, given_by(lambda end: end.recv_tagged(0)[0])),
    "recv_many": (ringcast.Reader, {}, given_by(lambda end: end.recv_many(0)[0])),
    "arecv": (ringcast.Reader, {}, given_by(lambda end: asyncio.run(received_by_a_task(end)))),
    "retain": (ringcast.Reader, {"retain": True}, given_by(lambda end: end.recv(0))),
    "view": (ringcast.Reader, {}, lambda end: end.view(0)),
    "unpack": (ringcast.Reader, {}, of_a_frame),
    "items": (ringcast.Reader, {}, by_items),
    "tap": (ringcast.Tap, {}, given_by(lambda end: end.recv(0))),
}


@pytest.fixture
def ends():
    """A writer, and for each way to receive an end of its own."""
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(ringcast.Writer(1 << 20, 16, spill_bytes=256 << 20))
        received = {
            way: (stack.enter_context(make(writer.handle, **options)), receive)
            for way, (make, options, receive) in RECEIVES.items()
        }
        yield writer, received


def check(got, sent, way):
    assert print_of(got) == print_of(sent), way
    for one, other in itertools.zip_longest(values.each_memory(got), values.each_memory(sent)):
        if isinstance(other, bytearray):
            continue
        values.assert_same_order(one, other)
        if isinstance(other, np.ndarray):
            assert (one.dtype, one.dtype.str) == (other.dtype, other.dtype.str), way
            assert one.flags.writeable or way.endswith("view"), way


@pytest.mark.parametrize("name", VALUES)
def test_a_value_arrives_by_every_way_without_a_pickle(ends, name):
    writer, received = ends
    make = VALUES[name]
    for send, wrap in itertools.product(SENDS, (lambda it: it, lambda it: {"x": it, "y": [it]})):
        sent = wrap(make())
        SENDS[send](writer, sent)
        values.scribble(sent)  # which what was sent does not follow
        for way, (end, receive) in received.items():
            with receive(end) as got:
                check(got, wrap(make()), f"{send}, {way}")
                if way != "view":
                    values.scribble(got)  # which no other receiver sees
    packed = ringcast.pack(make(), allow_pickle=False)
    check(ringcast.unpack(packed, allow_pickle=False), make(), "unpack")


@pytest.mark.parametrize("make", BY_PICKLE.values(), ids=BY_PICKLE)
def test_an_array_that_is_more_than_its_bytes_goes_by_pickle(make):
    sent = make()
    with pytest.raises(ringcast.PickleRefused):
        ringcast.pack([sent], allow_pickle=False)
    (got,) = ringcast.unpack(ringcast.pack([sent]))
    assert (type(got), got.dtype, got.dtype.type) == (type(sent), sent.dtype, sent.dtype.type)
    assert repr(got.tolist()) == repr(sent.tolist()) and got.dtype.metadata == sent.dtype.metadata


@pytest.mark.parametrize("dtype", ["u1", "f8", ">i4", "S3", "O", STRUCT, "M8[s]"], ids=str)
def test_an_array_in_a_pickle_keeps_its_order(dtype):
    plain = filled("S2", (2, 3, 4)).astype("O") if dtype == "O" else filled(dtype, (2, 3, 4)).copy()
    for axes in itertools.permutations(range(3)):
        for part in (plain, plain[:1], plain[::2, ::-1]):
            sent = part.transpose(axes)
            got = ringcast.unpack(ringcast.pack(ValueError(sent))).args[0]
            # NumPy may change it.
            assert got.dtype.newbyteorder("=") == sent.dtype.newbyteorder("=")
            assert got.shape == sent.shape and repr(got.tolist()) == repr(sent.tolist())
            assert got.flags.writeable
            assert sent.base.size != sent.size or got.strides == sent.strides


@needs_torch
@pytest.mark.parametrize("name", ["float32", "bool", "complex64", "bfloat16", "uint4", "bits8"])
def test_a_tensor_in_a_pickle_keeps_its_order(name):
    for shape in ((2, 3, 4, 5), (1, 3, 4, 5), (64, 64, 4, 5)):
        plain = values.cook_tensor(name, shape, "plain", "plain", 1)
        for axes in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)):
            sent = plain.permute(axes)
            got = ringcast.unpack(ringcast.pack(ValueError(sent))).args[0]
            values.assert_same(got, sent)
            assert got.stride() == sent.stride()


def test_names_of_fields_that_change_between_two_frames_arrive():
    """Neither side goes on with the names of an earlier frame."""
    sent = np.zeros(3, [("a", "<i4"), ("b", "S2")])
    first = ringcast.unpack(ringcast.pack(sent))
    sent.dtype.names = first.dtype.names = ("c", "b")
    check(ringcast.unpack(ringcast.pack(sent)), sent, "unpack")
    again = ringcast.unpack(ringcast.pack(np.zeros(3, [("a", "<i4"), ("b", "S2")])))
    assert again.dtype.names == ("a", "b")


# ---- Without a copy ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["S5", "U2", "M8[s]", STRUCT, DTYPES["record"]], ids=str)
def test_an_array_of_any_elements_is_viewed_and_kept_where_it_lies(dtype):
    count = (2 << 20) // np.dtype(dtype).itemsize
    sent = np.asfortranarray(np.full((count // 4, 4), filled(dtype, (1,))[0], dtype))
    with keeping(1 << 5) as (writer, reader):
        writer.send({"x": sent, "y": [sent[:1]]}, 0)
        with reader.view(0) as seen:
            assert is_in_a_ring(seen["x"]) and not seen["x"].flags.writeable
            check(seen["y"][0], sent[:1], "view")
        writer.send([sent], 0)
        (got,) = reader.recv(0)
        assert is_kept(got) == KEEPS and got.flags.writeable and got.flags.f_contiguous
        assert (got == sent).all() and got.dtype == sent.dtype
        got[0] = got[1]


# ---- Between processes ---------------------------------------------------------------------------


def check_twice(state, recipe):
    """The same value two times; the first is written all over before the second is looked at."""
    for _ in range(2):
        got = state["reader"].recv(60)
        values.assert_same(got, values.cook(recipe))
        values.scribble(got)
    return os.getpid()


@settings(NO_DEADLINE, max_examples=int(os.environ.get("RINGCAST_TEST_EXAMPLES", 150)))
@given(recipe=values.dicts)
def test_nested_dicts_arrive_in_three_processes(crew, recipe):
    with ringcast.Writer(8 << 20) as writer:
        call_all(crew, attach, writer.handle)
        writer.wait_readers(3, 60)
        sent = values.cook(recipe)
        writer.send(sent, 60)
        writer.send(sent, 60)
        assert call_all(crew, check_twice, recipe) == [peer.pid for peer in crew]
        call_all(crew, detach)


@needs_torch
def test_a_reader_without_torch_says_so_and_goes_on():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import ringcast\n"
        "reader = ringcast.Reader(sys.argv[1]); print('attached', flush=True)\n"
        "for _ in range(3):\n"
        "    try: print(reader.recv(60))\n"
        "    except ImportError as error: print(error)\n"
    )
    with ringcast.Writer(1 << 20) as writer:
        command = [sys.executable, "-c", program, writer.handle]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "attached\n"
            for value in ({"t": torch.arange(3)}, [torch.arange(3)], {"n": 7}):
                writer.send(value, 60)
            first, second, third = process.communicate(timeout=120)[0].splitlines()
    assert "torch" in first and "torch" in second and third == "{'n': 7}"


# ---- What does not arrive, and what does not stay ------------------------------------------------


def test_readonly_buffers_of_a_pickle_stay_readonly(ring):
    writer, reader = ring
    writable, readonly = np.arange(3), np.arange(3)
    readonly.flags.writeable = False
    writer.send([values.Holder(writable), values.Holder(readonly)], 0)
    assert [holder.tensor.flags.writeable for holder in reader.recv(0)] == [True, False]


@needs_torch
def test_what_tensors_share_and_carry_does_not_arrive(ring):
    writer, reader = ring
    tensor = torch.arange(3.0, requires_grad=True)
    tensor.sum().backward()
    tensor.note = "mine"
    base = torch.arange(6).reshape(2, 3)
    writer.send({"a": tensor, "views": [base, base[0]]}, 0)
    got = reader.recv(0)
    assert got["a"].requires_grad and got["a"].grad is None and not hasattr(got["a"], "note")
    got["views"][0][:] = 9
    assert got["views"][1].tolist() == [0, 1, 2]


def test_tags_arrive(ring):
    writer, reader = ring
    writer.send({"a": 1}, 0, tag=2**32 - 1)
    writer.send("b", 0)
    writer.send(ringcast.pack("c"), 0, tag=3)
    writer.send_bytes(b"d", 0)
    assert [reader.recv_tagged(0) for _ in range(4)] == [
        ({"a": 1}, 2**32 - 1),
        ("b", 0),
        ("c", 3),
        (b"d", 0),
    ]


def test_nothing_that_was_sent_is_kept():
    kept = [np.arange(5), "a key nobody else has", b"bytes" * 100, [1, 2]]
    kept += [torch.arange(4)] if torch else []
    counts = [sys.getrefcount(item) for item in kept]
    with (
        ringcast.Writer(1 << 20, spill_bytes=0) as writer,
        ringcast.Reader(writer.handle) as reader,
    ):
        for _ in range(50):
            writer.send({kept[1]: kept, "a": kept[0], "b": kept[2], "t": kept[-1]}, 0)
            reader.recv(0)
            with pytest.raises(Exception, match="local object"):
                writer.send({"x": kept, "y": lambda: None}, 0)
            with pytest.raises(ringcast.FrameTooLarge):
                writer.send({"x": kept[0], "y": np.zeros(1 << 20), kept[1]: kept[-1]}, 0)
    assert [sys.getrefcount(item) for item in kept] == counts


def ran_meanwhile(action):
    """Whether another thread ran while `action` did, with the GIL never taken away from it."""
    gate, ran = threading.Lock(), []
    gate.acquire()
    thread = threading.Thread(target=lambda: (gate.acquire(), ran.append(True)))
    interval = sys.getswitchinterval()
    thread.start()
    sys.setswitchinterval(1000)
    try:
        gate.release()
        action()
        return bool(ran)
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_large_copies_are_made_without_the_gil():
    array = np.ones(32 << 20, np.uint8)
    with ringcast.Writer(128 << 20) as writer, ringcast.Reader(writer.handle) as reader:
        for value in ({"a": array}, [array]):
            sends, receives = [], []
            while not (any(sends) and any(receives)) and len(sends) < 200:  # up to the scheduler
                sends.append(ran_meanwhile(lambda value=value: writer.send(value, 0)))
                receives.append(ran_meanwhile(lambda: reader.recv(0)))
            assert any(sends) and any(receives)
