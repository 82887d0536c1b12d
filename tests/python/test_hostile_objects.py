# SPDX-License-Identifier: Apache-2.0
"""
Streams of nested values that no writer of ringcast's makes: refused one by one, with little memory,
and with nothing imported or run where pickles are turned off.
"""

import abc
import dataclasses
import importlib.util
import os
import random
import struct
import subprocess
import sys
import types

import natives
from prints import print_of
import numpy as np
import pytest
from needs import needs_msgspec, needs_torch, torch
from test_hostile_frames import BYTES, PICKLE, STR, VALUE, entry, frame_of

import ringcast

pytestmark = pytest.mark.alike

OBJECT = 12
NONE, TRUE, INT32, BIGINT, ASCII, UTF8, WTF8 = 0xC0, 0xC2, 0xC5, 0xC7, 0xCA, 0xCB, 0xCC
BYTEARRAY, LIST, TUPLE, SET, FROZENSET, DICT = 0xCE, 0xCF, 0xD0, 0xD1, 0xD2, 0xD3
PACKED_LIST, RANGE, SLICE, CLASS, INSTANCE, MEMBER, SCALAR = (
    0xD4,
    0xD6,
    0xD7,
    0xD8,
    0xD9,
    0xDA,
    0xDB,
)
DTYPE, DEVICE, SIZE, PART, PART_BYTEARRAY, LEAF, NAMED, AGAIN = (
    0xDC,
    0xDD,
    0xDE,
    0xDF,
    0xE0,
    0xE1,
    0xE2,
    0xE3,
)
MARK, BACK, ITEM, SHAPE, RECORD, ABSENT = 0xE4, 0xE5, 0xE6, 0xE7, 0xE8, 0xE9
DATACLASS, STRUCT, NAMEDTUPLE, ENUM, STATE = 1, 2, 3, 4, 5


def count(number):
    if number < 252:
        return bytes([number])
    size = 0 if number < 1 << 16 else 1 if number < 1 << 32 else 2
    return bytes([252 + size]) + number.to_bytes(2 << size, "little")


def frame(stream, parts=(), first=1, pickled=None):
    """A frame that is one nested value. Parts are kinds of entries, all of the same data."""
    stream = bytes(stream)
    entries = [entry(OBJECT, scalar=first | len(parts) << 32, size=len(stream))]
    entries += [entry(kind, size=min(3, len(stream))) for kind in parts]
    entries += [entry(PICKLE, size=len(pickled))] if pickled else []
    data = bytearray(frame_of(VALUE, entries, stream))
    data[4:6] = struct.pack("<H", 2)
    return bytes(data)


def class_token(kind, *words):
    text = "\0".join(words).encode()
    return bytes([CLASS, kind]) + count(len(text)) + text


# Of none of these does a frame make an instance, though it may name what is in them.
STRANGE = "os builtins enum collections pathlib types loads_itself turtle natives never_imported_by_anybody".split()


def unpack(stream, **more):
    return ringcast.unpack(
        frame(stream, **more), classes=[*STRANGE, "subprocess:Popen", "__main__"]
    )


def test_the_streams_by_hand_are_otherwise_good():
    plain = class_token(DATACLASS, "natives", "Plain", "a", "b")
    assert unpack([LIST, 2, 5, NONE]) == [5, None]
    assert unpack([*plain, INSTANCE, 0, 1, 2]) == natives.Plain(1, 2)
    assert (
        unpack([*class_token(ENUM, "natives", "Color"), MEMBER, 0, 0x83, *b"RED"])
        is natives.Color.RED
    )
    first, second = unpack([LIST, 2, MARK, LIST, 0, BACK, 0])
    assert first is second == []
    assert unpack([LIST, 2, SHAPE, 1, 0x81, 0x61, RECORD, 0, 7, RECORD, 0, 8]) == [
        {"a": 7},
        {"a": 8},
    ]
    assert unpack([LIST, 2, 0x81, 0x61, PART_BYTEARRAY], parts=[BYTES]) == [
        "a",
        bytearray([LIST, 2, 0x81]),
    ]


FREE = class_token(STATE, "natives", "Bare")
SLOTS = class_token(STATE, "natives", "SlotsAlone", "a", "b", "_SlotsAlone__private")

REFUSED = {
    "nothing": [],
    "a list that is cut off": [LIST, 2, 1],
    "a count that is cut off": [LIST, 253, 0, 0],
    "a count of no size": [LIST, 255, *bytes(8)],
    "more than its value": [1, 2],
    "a list longer than all": [LIST, 254, *b"\xff" * 7, 0x7F, 1],
    "a dict longer than all": [DICT, 254, *b"\xff" * 7, 0x7F, 1],
    "packed numbers longer than all": [PACKED_LIST, 0x18, 254, *b"\xff" * 7, 0x1F, 1],
    "packed numbers of no kind": [PACKED_LIST, 0x13, 1, 0, 0, 0],
    "a key without a hash": [DICT, 1, LIST, 0, 1],
    "a key with a key without a hash": [DICT, 1, TUPLE, 1, BYTEARRAY, 0, 1],
    "a member of a set without a hash": [SET, 1, DICT, 0],
    "a member of a frozenset without a hash": [FROZENSET, 1, SET, 0],
    "a text that is no ASCII": [0x82, 0xC3, 0xA9],
    "a long text that is no ASCII": [ASCII, 9, *b"abcdefgh\x80"],
    "a text that is no UTF-8": [UTF8, 2, 0xC3, 0xC3],
    "a surrogate in UTF-8": [UTF8, 3, 0xED, 0xA0, 0x80],
    "a text that is no WTF-8": [WTF8, 1, 0xFF],
    "a named text that is no UTF-8": [NAMED, 1, 0xFF],
    "a text that was not there": [LIST, 2, NAMED, 1, 0x61, AGAIN, 1],
    "a text that is yet to come": [LIST, 2, AGAIN, 0, NAMED, 1, 0x61],
    "a range of texts": [RANGE, 0x81, 0x61, 1, 1],
    "a range that stands still": [RANGE, 0, 1, 0],
    "an instance of no class": [INSTANCE, 0],
    "a member of no class": [MEMBER, 0, 0x81, 0x61],
    "an instance without its fields": [
        *class_token(DATACLASS, "natives", "Plain", "a", "b"),
        INSTANCE,
        0,
        1,
    ],
    "an instance of an enum": [*class_token(ENUM, "natives", "Color"), INSTANCE, 0, 1],
    "a member of a dataclass": [
        *class_token(DATACLASS, "natives", "Plain", "a", "b"),
        MEMBER,
        0,
        0x81,
        0x61,
    ],
    "a member that is not there": [*class_token(ENUM, "natives", "Color"), MEMBER, 0, 0x81, 0x61],
    "a member whose name is no text": [*class_token(ENUM, "natives", "Color"), MEMBER, 0, LIST, 0],
    "a member whose name is a number too long to be shown": [
        *class_token(ENUM, "natives", "Color"),
        MEMBER,
        0,
        BIGINT,
        *count(5000),
        *[1] * 5000,
    ],
    "a member whose name is too deep to be shown": [
        *class_token(ENUM, "natives", "Color"),
        MEMBER,
        0,
        *[LIST, 1] * 1000,
        5,
    ],
    "a class without a value": class_token(DATACLASS, "natives", "Plain", "a", "b"),
    "a class without a name": [*class_token(DATACLASS, "natives"), NONE],
    "a class of no kind": [*class_token(9, "natives", "Plain", "a", "b"), NONE],
    "a class that is no UTF-8": [CLASS, DATACLASS, 2, 0xFF, 0xFF, NONE],
    "too many classes": [*class_token(ENUM, "natives", "Color") * 257, NONE],
    "other fields": [*class_token(DATACLASS, "natives", "Plain", "a", "c"), INSTANCE, 0, 1, 2],
    "fewer fields": [*class_token(DATACLASS, "natives", "Plain", "a"), INSTANCE, 0, 1],
    "a field twice": [
        *class_token(DATACLASS, "natives", "Plain", "a", "b", "a"),
        INSTANCE,
        0,
        1,
        2,
        3,
    ],
    "a dataclass as a namedtuple": [
        *class_token(NAMEDTUPLE, "natives", "Plain", "a", "b"),
        INSTANCE,
        0,
        1,
        2,
    ],
    "a namedtuple as a dataclass": [
        *class_token(DATACLASS, "natives", "Pair", "a", "b"),
        INSTANCE,
        0,
        1,
        2,
    ],
    "an enum as a dataclass": [*class_token(DATACLASS, "natives", "Color"), INSTANCE, 0],
    "a scalar of no dtype": [SCALAR, 9, 64, 1, 0, *bytes(8)],
    "a scalar of no bits": [SCALAR, 0, 0, 1, 0],
    "a scalar of some bits": [SCALAR, 0, 4, 1, 0, 1],
    "a scalar of several": [SCALAR, 0, 8, 2, 0, 1, 1],
    "a scalar that NumPy lacks": [SCALAR, 4, 16, 1, 0, 1, 1],
    "a truth value that is neither": [SCALAR, 6, 8, 1, 0, 2],
    "a part that is not there": [PART],
    "a leaf without a pickle": [LEAF, 0],
    "a leaf far away": [LEAF, 254, *b"\xff" * 8],
    "a nest too deep": [LIST, 1] * 1025 + [1],
    "a nest of sets too deep": [FROZENSET, 1] * 1025 + [1],
    "a slice too deep": [LIST, 1] * 1024 + [SLICE, 1, 1, 1],
    "lists that claim all that follows": [LIST, 252, 0xE8, 3] * 300 + [1] * 1000,
    "what was marked, before any mark": [BACK, 0],
    "what was marked, further back than any": [LIST, 2, MARK, LIST, 0, BACK, 1],
    "what was marked, far away": [LIST, 2, MARK, 1, BACK, 254, *b"\xff" * 8],
    "a list that holds itself": [MARK, LIST, 1, BACK, 0],
    "a record that holds itself": [MARK, SHAPE, 1, 0x81, 0x61, RECORD, 0, BACK, 0],
    "an instance that holds itself": [
        *[MARK, *class_token(DATACLASS, "natives", "Plain", "a", "b"), INSTANCE, 0],
        *[1, BACK, 0],
    ],
    "a mark of a mark": [MARK, MARK, LIST, 0],
    "a mark of what was marked": [LIST, 2, MARK, LIST, 0, MARK, BACK, 0],
    "a mark of nothing": [MARK],
    "a marked list as a key": [LIST, 2, MARK, LIST, 0, DICT, 1, BACK, 0, 1],
    "an item of no dict": [ITEM, 0],
    "a shape of nothing": [SHAPE, 1, 0x81, 0x61],
    "a shape that is cut off": [SHAPE, 2, 0x81, 0x61],
    "a shape longer than all": [SHAPE, 254, *b"\xff" * 7, 0x7F, 0x81, 0x61],
    "a shape with a key twice": [SHAPE, 2, 0x81, 0x61, 0x81, 0x61, RECORD, 0, 1, 2],
    "a shape with a key twice, in other tokens": [
        SHAPE,
        2,
        0x81,
        0x61,
        UTF8,
        1,
        0x61,
        RECORD,
        0,
        1,
        2,
    ],
    "a shape with a key that is no str": [SHAPE, 1, 5, RECORD, 0, 1],
    "a shape with a key without a hash": [SHAPE, 1, LIST, 0, RECORD, 0, 1],
    "a shape with a marked key": [SHAPE, 1, MARK, 0x81, 0x61, RECORD, 0, 1],
    "a shape with a key that is no UTF-8": [SHAPE, 1, UTF8, 1, 0xFF, RECORD, 0, 1],
    "too many shapes": [*[SHAPE, 1, 0x81, 0x61] * 257, RECORD, 0, 1],
    "a record of no shape": [RECORD, 0],
    "a record of a shape that is yet to come": [
        LIST,
        2,
        RECORD,
        0,
        1,
        SHAPE,
        1,
        0x81,
        0x61,
        RECORD,
        0,
        1,
    ],
    "a record of a shape far away": [SHAPE, 1, 0x81, 0x61, RECORD, 254, *b"\xff" * 8],
    "a record that is short": [SHAPE, 2, 0x81, 0x61, 0x81, 0x62, RECORD, 0, 1],
    "a record too deep": [*[LIST, 1] * 1024, SHAPE, 0, RECORD, 0],
    "a size longer than all": [SIZE, 254, *b"\xff" * 7, 0x1F],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_stream_is_refused(name):
    with pytest.raises(ringcast.ProtocolError, match="the frame "):
        unpack(REFUSED[name])
    assert unpack([LIST, 1, 1]) == [1]


PARTS = {
    "too few": ([PART], [STR, STR]),
    "too many": ([LIST, 2, PART, PART], [STR]),
    "of another kind": ([PART_BYTEARRAY], [STR]),
    "no parts but pickles": ([PART], [PICKLE]),
    "no parts but values": ([PART], [1]),
    "no parts but errors": ([PART], [OBJECT]),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_do_not_fit_are_refused(name):
    stream, parts = PARTS[name]
    with pytest.raises((ringcast.ProtocolError, ringcast.PickleRefused)):
        unpack(stream, parts=parts)
    for first in (0, 2, 2**32 - 1):
        with pytest.raises((ringcast.ProtocolError, ringcast.PickleRefused)):
            unpack([PART], parts=[STR], first=first)


@pytest.mark.parametrize(
    "rest", [b"", b"\0", b"\1" * 40, b"\xff" * 40, b"\xfd" * 40, b"\xe1\0" * 40], ids=bytes.hex
)
def test_every_tag_before_anything_does_no_harm(rest):
    for tag in range(256):
        for stream in (
            bytes([tag]) + rest,
            bytes([LIST, 3, tag]) + rest,
            bytes([DICT, 1, tag]) + rest,
        ):
            attempt(frame(stream))


def attempt(data):
    """What it holds, or what it is refused by: nothing else may come of it."""
    try:
        return ringcast.unpack(data, allow_pickle=False)
    except (ringcast.Error, ImportError) as error:
        return error


# ---- Classes -------------------------------------------------------------------------------------

NOT_CLASSES = [
    ("os", "system"),
    ("builtins", "eval"),
    ("builtins", "int"),
    ("builtins", "dict"),
    ("io", "BytesIO"),
    ("threading", "Lock"),
    ("types", "FunctionType"),
    ("os", "path"),
    ("natives", "natives"),
    ("natives", "make"),
    ("natives", "T"),
    ("enum", "Enum"),
    ("collections", "OrderedDict"),
    ("collections", "namedtuple"),
    ("builtins", "tuple"),
    ("pathlib", "PosixPath"),
    ("struct", "Struct"),
]


@pytest.mark.parametrize("module, name", NOT_CLASSES)
@pytest.mark.parametrize("kind", [DATACLASS, STRUCT, NAMEDTUPLE, STATE])
def test_what_is_no_class_of_the_kind_is_refused(module, name, kind):
    for fields, values in (((), ()), (("a",), (0x84, *b"true"))):
        with pytest.raises((ringcast.ProtocolError, ringcast.PickleRefused, ImportError)):
            unpack(
                [
                    *class_token(kind, module, name, *fields),
                    INSTANCE,
                    0,
                    *values,
                    *[NONE] * (kind == STATE),
                ]
            )
    with pytest.raises((ringcast.ProtocolError, ringcast.PickleRefused, ImportError)):
        unpack([*class_token(ENUM, module, name), MEMBER, 0, 0x81, 0x61])


UNKNOWN = [
    "os.path.nothing",
    "",
    ".",
    "..",
    "natives.",
    ".natives",
    "\ufeff",
    "no module",
    "a" * 5000,
    "natives\n",
]


@pytest.mark.parametrize("module", [STRANGE[-1], *UNKNOWN], ids=lambda name: ascii(name)[:30])
def test_a_module_that_is_not_there_is_not_imported(module, tmp_path, monkeypatch):
    (tmp_path / "never_imported_by_anybody.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    with pytest.raises(
        (ImportError, ringcast.PickleRefused), match="is not (allowed|imported) here"
    ):
        unpack([*class_token(DATACLASS, module, "Plain", "a"), INSTANCE, 0, 1])
    assert set(sys.modules) == before
    with pytest.raises((ImportError, ringcast.ProtocolError, SystemExit)):
        data = frame([*class_token(DATACLASS, module, "Plain", "a"), INSTANCE, 0, 1])
        ringcast.unpack(data, allow_pickle=True)


def test_a_module_is_imported_where_pickles_may_be_loaded(tmp_path, monkeypatch):
    (tmp_path / "imported_by_a_frame.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Found:\n    a: object\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    data = frame([*class_token(DATACLASS, "imported_by_a_frame", "Found", "a"), INSTANCE, 0, 1])
    assert ringcast.unpack(data, allow_pickle=True).a == 1
    assert ringcast.unpack(data, classes=["imported_by_a_frame"]).a == 1  # it is there now
    del sys.modules["imported_by_a_frame"]


def test_what_is_looked_up_by_name_runs_no_code(monkeypatch):
    ran = []

    class Module(types.ModuleType):
        def __getattribute__(self, name):
            ran.append(name)
            return super().__getattribute__(name)

    class Holder:
        def __getattr__(self, name):
            ran.append(name)
            return natives.Plain

    module = Module("loads_itself")
    vars(module)["holder"] = Holder()
    spec = importlib.util.find_spec("turtle")
    if spec:
        lazy = importlib.util.LazyLoader(spec.loader)
        spec.loader = lazy
        loaded = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "turtle", loaded)
        lazy.exec_module(loaded)
    monkeypatch.setitem(sys.modules, "loads_itself", module)
    ran.clear()
    for name in ("Plain", "holder", "holder.Plain", "holder.__class__", "__dict__.Plain"):
        with pytest.raises((ringcast.ProtocolError, ringcast.PickleRefused, ImportError)):
            unpack([*class_token(DATACLASS, "loads_itself", name, "a", "b"), INSTANCE, 0, 1, 2])
    with pytest.raises(ImportError, match="has no such class here"):
        unpack([*class_token(DATACLASS, "turtle", "Plain"), INSTANCE, 0])
    assert ran == [] and "tkinter" not in sys.modules


def test_a_class_with_other_fields_is_told_by_its_name_and_both():
    with pytest.raises(ringcast.ProtocolError) as raised:
        unpack([*class_token(DATACLASS, "natives", "Plain", "a", "c"), INSTANCE, 0, 1, 2])
    assert str(raised.value) == (
        "the frame holds an instance of natives.Plain with the fields a, c; here they are a, b: "
        "both sides need the "
        "same version of it"
    )


def test_a_class_of_another_programs_main_is_told_where_to_go():
    with pytest.raises(
        ImportError, match="__main__.Nowhere, .*: keep it in a module that both sides import"
    ):
        unpack([*class_token(DATACLASS, "__main__", "Nowhere"), INSTANCE, 0])


@dataclasses.dataclass
class Abstract(abc.ABC):
    a: object = 1

    @abc.abstractmethod
    def method(self): ...


def test_an_abstract_dataclass_is_not_made():
    with pytest.raises(ringcast.ProtocolError, match="is its state and nothing else"):
        unpack([*class_token(DATACLASS, Abstract.__module__, "Abstract", "a"), INSTANCE, 0, 1])


@needs_msgspec
def test_no_code_of_a_struct_runs():
    token = class_token(STRUCT, "natives", "StructPositive", "a", "checks")
    assert unpack([*token, INSTANCE, 0, 0, 0]).checks == 0


@needs_torch
def test_names_that_torch_lacks_are_refused():
    for name in (b"nothing", b"Tensor", b"float32.x", b"nn", b"\xff", b"", b"load"):
        with pytest.raises(ringcast.ProtocolError):
            unpack([DTYPE, len(name), *name])
    for name in (b"nowhere", b"cuda:x", b"cpu:-7", b"\xff", b"", b"cuda:99999999999"):
        with pytest.raises(ringcast.ProtocolError):
            unpack([DEVICE, len(name), *name])
    assert unpack([SIZE, 1, *struct.pack("<q", -3)]) == torch.Size([-3])


@needs_torch
def test_a_dtype_of_a_torch_that_was_taken_out_is_an_import_error(monkeypatch):
    token = [DTYPE, 7, *b"float32"]
    assert unpack(token) is torch.float32
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(ImportError, match=r"sys\.modules"):
        unpack(token)


CLASSES_IN_A_ROW = """
import sys, threading
sys.modules["torch"] = None  # it takes seconds to import
sys.path[:0] = {paths!r}
import ringcast
from test_hostile_objects import ENUM, LIST, MEMBER, class_token, unpack

color = class_token(ENUM, "natives", "Color")
member = [MEMBER, 0, 0x83, *b"RED"]
unpack([*color, *member])

def attempt(data, results):
    try:
        unpack(data)
    except RecursionError as error:
        assert "of this thread's stack" in str(error), error
        results.append("refused")
    else:
        results.append("fine")

results = []
for stack in range(96, 512, 16):
    threading.stack_size(stack << 10)
    for levels in (100, 200, 400, 800):
        data = [*[LIST, 1] * levels, *color * 256, *member]
        thread = threading.Thread(target=attempt, args=(data, results))
        thread.start()
        thread.join()
assert "fine" in results and "refused" in results, results
print("done")
"""


# stacks from 96 KiB on: AddressSanitizer's frames are several times as large
@pytest.mark.unwatched
def test_many_classes_in_a_row_take_no_stack():
    program = CLASSES_IN_A_ROW.format(paths=[os.path.dirname(__file__)])
    command = [sys.executable, "-c", program]
    variables = {**os.environ, "CI": ""}
    done = subprocess.run(
        command, capture_output=True, text=True, env=variables, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


# ---- Any bytes changed ---------------------------------------------------------------------------


def rich():
    again, array = [1, {"x": 2.5}], np.arange(3)
    value = {
        "again": [again, (again, again), array, [array], again],
        "records": [{"key": index, "text": f"text {index}", "again": again} for index in range(9)],
        "ids": [f"request-{index}" for index in range(6)] * 2,
        "counts": [1, 2, 300, 70000],
        "floats": [0.5] * 4,
        "wide": [2**40, -1, 5],
        "big": [2**90, -(2**70)],
        "text": ["\xe9", "\ud800", "x" * 80, "a\0b"],
        "bytes": [b"abc", bytearray(b"abc"), b"z" * 3000],
        "sets": [{1, 2}, frozenset([3, (4, 5)])],
        "more": [range(3), slice(1, None), 1 + 2j, None, True, False, -0.0],
        "objects": [
            natives.Plain(1, natives.Frozen("x")),
            natives.Pair(1, [2]),
            natives.WithSlots(1, 2),
        ],
        "states": [
            natives.Bare(a=1),
            natives.Bare(**{str(i): i for i in range(250)}),
            natives.make(natives.SlotsMore, {"a": 1}),
        ],
        "members": [natives.Color.RED, natives.Bits.A, natives.Bits.A | natives.Bits.HIGH],
        "numpy": [np.arange(5), np.float32(1.5), np.True_, np.int8(3)],
        ("a", 1): {"nested": {"deep": [[[[natives.Typed(1)]]]]}},
    }
    if natives.STRUCT_CLASSES:
        value["structs"] = [natives.Struct(1, 2), natives.StructNamed(a=1), natives.StructArray(5)]
    if torch:
        value["torch"] = [torch.float32, torch.device("cpu"), torch.Size([2, 3]), torch.arange(4)]
    return value


def test_a_frame_with_bytes_cut_out_put_in_or_changed_does_no_harm():
    whole = bytes(ringcast.pack(rich(), allow_pickle=False))
    dice = random.Random(int(os.environ.get("RINGCAST_TEST_SEED", 7)))
    refused = 0
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(dice.choice((1, 1, 2, 5))):
            place, way = dice.randrange(len(damaged)), dice.randrange(5)
            if way == 0:
                del damaged[place : place + dice.randrange(9)]
            elif way == 1:
                damaged[place:place] = dice.randbytes(dice.randrange(9))
            elif way == 2:
                other = dice.randrange(len(damaged))
                damaged[place:place] = damaged[other : other + dice.randrange(40)]
            else:
                damaged[place] = dice.randrange(256)
        if dice.random() < 0.1:
            del damaged[dice.randrange(len(damaged)) :]
        refused += isinstance(attempt(damaged), Exception)
    assert refused > 1000
    assert print_of(attempt(whole)) == print_of(rich())


def test_the_names_of_attributes_do_not_live_for_ever():
    """As interned strs of Python 3.12 do; the count of references to such a str is huge."""
    for_ever = 0
    for number in range(300):
        names = [f"{number}_{index}_".ljust(350, "x") for index in range(20)]
        items = b"".join(
            bytes([ASCII, *count(351)]) + b"y" + name.encode() + bytes([NONE]) for name in names
        )
        told = unpack(
            [*class_token(DATACLASS, "natives", "Bare", *names), INSTANCE, 0, *[NONE] * 20]
        )
        held = unpack([*class_token(STATE, "natives", "Bare"), INSTANCE, 0, DICT, 20, *items])
        assert [*vars(told)] == names and len(vars(held)) == 20
        assert ringcast.unpack(ringcast.pack([told, held]))[1].read == held.read
        for_ever += sum(
            len(name)
            for value in (told, held)
            for name in vars(value)
            if sys.getrefcount(name) > 1 << 30
        )
    assert for_ever <= 1 << 20
