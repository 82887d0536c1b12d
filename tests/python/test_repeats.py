# SPDX-License-Identifier: Apache-2.0
"""What comes again in a value: one object at several places, and dicts with the same keys."""

import array
import collections
import datetime
import decimal
import pathlib
import struct
import uuid

import natives
import numpy as np
import pytest
from hostile import BYTES, DICT, KEYED, NONE, OBJECT, T, entry, frame_of
from needs import torch
from prints import print_of

import ringcast

pytestmark = pytest.mark.alike


def arrived(value):
    return ringcast.unpack(ringcast.pack(value, allow_pickle=False), allow_pickle=False)


# ---- One object ----------------------------------------------------------------------------------

MAKE = {
    "list": lambda: [1, "x"],
    "packed list": lambda: [1, 2, 3],
    "tuple": lambda: (1, [2]),
    "dict": lambda: {"x": 1},
    "set": lambda: {1, 2},
    "frozenset": lambda: frozenset([1, 2]),
    "slice": lambda: slice(1, [2], None),
    "bytearray": lambda: bytearray(b"x"),
    "long bytearray": lambda: bytearray(5000),
    "long text": lambda: "x" * 5000,
    "long bytes": lambda: bytes(5000),
    "array.array": lambda: array.array("i", range(5)),
    "long array.array": lambda: array.array("i", range(5000)),
    "deque": lambda: collections.deque([1, [2]], 5),
    "defaultdict": lambda: collections.defaultdict(list, x=[1]),
    "OrderedDict": lambda: collections.OrderedDict(x=[1]),
    "datetime": lambda: datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc),
    "UUID": lambda: uuid.UUID(int=7),
    "Decimal": lambda: decimal.Decimal("1.5"),
    "path": lambda: pathlib.PurePosixPath("/a/b"),
    "array": lambda: np.arange(5),
    "dataclass": lambda: natives.Plain(1, [2]),
    "namedtuple": lambda: natives.Pair(1, [2]),
}
if natives.STRUCT_CLASSES:
    MAKE["Struct"] = lambda: natives.Struct(1, [2])
if torch:
    MAKE["tensor"] = lambda: torch.arange(5)
PLACES = {  # a value with `x` in it, and where
    "items": (lambda x: {"a": x, "b": x}, lambda got: [got["a"], got["b"]]),
    "an item, and in an item": (lambda x: {"a": [x], "b": x}, lambda got: [got["a"][0], got["b"]]),
    "in items": (lambda x: {"a": [0, x], "b": (x, 1)}, lambda got: [got["a"][1], got["b"][0]]),
    "a list": (lambda x: [x, x, x], lambda got: got),
    "keys of any kind": (lambda x: {1: x, "b": x}, lambda got: [got[1], got["b"]]),
    "fields": (lambda x: natives.Plain(x, natives.Pair(0, x)), lambda got: [got.a, got.b[1]]),
    "records": (
        lambda x: [{"k": x, "n": n} for n in range(4)],
        lambda got: [item["k"] for item in got],
    ),
}


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("place", PLACES)
def test_one_object_at_several_places_is_sent_once_and_arrives_as_one(place, kind):
    around, find = PLACES[place]
    value, other = MAKE[kind](), MAKE[kind]()
    first, *rest = find(arrived(around(value)))
    assert all(item is first for item in rest)
    assert print_of(first) == print_of(value)
    once = ringcast.pack(around(value)).nbytes
    pair = [value, value], [value, other]
    one, two = (arrived(items) for items in pair)
    assert one[0] is one[1] and two[0] is not two[1]
    if "long" in kind:
        assert once < 2 * 5000 * (4 if "array." in kind else 1)


def test_what_holds_itself_is_sent_by_pickle_and_what_is_only_deep_is_not():
    holds, queue = [1], collections.deque()
    holds.append({"back": holds})
    queue.append([queue])
    for value in ({"x": holds}, [queue]):
        with pytest.raises(ringcast.PickleRefused, match="holds itself"):
            ringcast.pack(value, allow_pickle=False)
    assert (got := ringcast.unpack(ringcast.pack([queue])))[0][0][0] is got[0]
    got = ringcast.unpack(ringcast.pack({"x": holds, "y": holds}))
    assert got["x"][1]["back"] is got["x"] is got["y"]
    inner = [1]
    assert arrived([inner, [inner, [inner]]]) == [[1], [[1], [[1]]]]


def test_an_empty_value_that_others_hold_is_marked_but_not_the_empty_tuple():
    empty, nothing = [], ()
    got = arrived([empty, empty, nothing, nothing, None, None])
    assert got[0] is got[1] and got == [[], [], (), (), None, None]


# ---- Dicts with the same keys --------------------------------------------------------------------


def keyed(*keys):
    return dict.fromkeys(keys, 0)


RECORDS = {
    "the same": [{"a": n, "b": str(n)} for n in range(5)],
    "one": [{"a": 1}],
    "two": [{"a": 1}, {"a": 2}],
    "of other order": [keyed("a", "b", "c"), keyed("a", "c", "b"), keyed("c", "b", "a")] * 3,
    "more and fewer": [keyed("a"), keyed("a", "b"), keyed("a", "b", "c")] * 3,
    "more kinds with the same first key than are kept": [keyed("a", f"b{n}") for n in range(9)] * 2,
    "more kinds than are kept": [keyed(f"a{n}", "b") for n in range(600)] * 2,
    "none": [{}, {}, {}],
    "with numbers as keys": [{1: 2, "a": 3}] * 2 + [{"a": 3, 1: n} for n in range(3)],
    "with wide keys": [keyed("\xe9", "\u4e00", "\ud800") for _ in range(3)],
    "with long keys": [keyed("x" * 400, "y") for _ in range(3)],
    "with very long keys": [keyed("x" * 4000, "y") for _ in range(3)],
    "with many keys": [{f"key{n}": n for n in range(100)} for _ in range(3)],
    "in each other": [
        {"a": {"a": n, "b": [{"a": 1, "b": 2}]}, "b": {"a": {}, "b": n}} for n in range(4)
    ],
    "made apart": [{"".join(["ke", "y"]): n, "".join(["num", "ber"]): n} for n in range(4)],
}


@pytest.mark.parametrize("name", RECORDS)
def test_dicts_arrive_with_their_keys_in_order_and_as_dicts_of_their_own(name):
    value = RECORDS[name]
    got = arrived([value, {"in a dict": value}])[0]
    assert print_of(got) == print_of(value)
    assert [list(item) for item in got] == [list(item) for item in value]
    apart = arrived([dict(item) for item in value])
    apart[0]["new"] = 1
    assert apart[1:] == value[1:]


def test_the_keys_of_records_are_sent_once():
    # The shape that the second dict defines refers to the key in the first one. Two texts may share
    # a place in the table of texts, which then has the later one only (one pair in 900): not two of
    # these pairs do.
    others = [f"another long key, the {number}th" for number in range(4)]
    frames = [
        (key, bytes(ringcast.pack([{"a long key": n, key: n} for n in range(100)])))
        for key in others
    ]
    assert [data.count(key.encode()) for key, data in frames].count(1) >= 3
    assert all(len(data) < 100 * 4 + 300 for _, data in frames)


PLAIN_RECORD = {"value": 1, "text": "short", "none": None, "float": 0.5}
LAYOUTS = {  # the value of each key, and whether the dict is one nested value
    "records": (lambda n: {**PLAIN_RECORD, "value": n}, True),
    "records, of which later ones have more in them": (
        lambda n: {**PLAIN_RECORD, "value": n if n < 5 else [n]},
        True,
    ),
    "dicts with lists": (lambda n: {**PLAIN_RECORD, "value": [n]}, False),
    "dicts with long text": (lambda n: {**PLAIN_RECORD, "text": "x" * 1000}, False),
    "dicts with arrays": (lambda n: {"pixels": np.full(3, n)}, False),
    "dicts with other keys": (lambda n: {f"key{n}": n}, False),
    "dicts of other sizes": (lambda n: {f"key{i}": n for i in range(n)}, False),
    "empty dicts": (lambda n: {}, False),
    "a dict and others": (lambda n: PLAIN_RECORD if n == 0 else n, False),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("count", [7, 8, 64])
def test_a_dict_of_records_is_one_nested_value(count, name):
    make, is_one = LAYOUTS[name]
    value = {f"item{n}": make(n) for n in range(count)}
    packed = ringcast.pack(value, allow_pickle=False)
    entries = struct.unpack_from("<I", bytes(packed), 12)[0]
    assert (entries == 1) == (is_one and count >= 8)
    assert print_of(ringcast.unpack(packed)) == print_of(value)
    assert packed.keys() == list(value)
    assert all(print_of(packed[key]) == print_of(value[key]) for key in value)


# ---- Looking into a frame ------------------------------------------------------------------------


def test_an_item_that_refers_to_others_is_read_with_them():
    shared, array_ = [1, {"x": 2}], np.arange(9)
    packed = ringcast.pack(
        {"a": shared, "b": [shared, array_], "c": array_, "d": array_, "alone": [[5], [5]]}
    )
    assert packed["b"][0] == shared and packed["b"][1].tolist() == packed["d"].tolist() == list(
        range(9)
    )
    assert packed["a"] == shared and packed["alone"] == [[5], [5]]
    whole = ringcast.unpack(packed)
    assert whole["b"][0] is whole["a"] and whole["b"][1] is whole["c"] is whole["d"]


def dict_frame(stream):
    """{"a": bytes, "b": None, "c": the stream's value}"""
    entries = [
        entry(BYTES, KEYED, size=1, key=(0, 1)),
        entry(NONE, KEYED, key=(1, 1)),
        entry(OBJECT, KEYED, 1, len(stream), key=(2, 1)),
    ]
    return frame_of(DICT, entries, bytes(stream), b"abc", version=2)


def test_an_item_by_its_number():
    got = ringcast.unpack(dict_frame([T.ITEM, 0]))
    assert got == {"a": bytes([T.ITEM]), "b": None, "c": bytes([T.ITEM])} and got["a"] is got["c"]


REFUSED = {
    "None": [T.ITEM, 1],
    "itself": [T.ITEM, 2],
    "itself, in a list": [T.LIST, 1, T.ITEM, 2],
    "none": [T.ITEM, 3],
    "far away": [T.ITEM, 254, *b"\xff" * 8],
    "what an earlier stream marked, which is none": [T.BACK, 0],
    "further back than all marks": [T.LIST, 2, T.MARK, T.LIST, 0, T.BACK, 5],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_item_and_no_marked_value_is_refused(name):
    with pytest.raises(ringcast.ProtocolError, match="the frame "):
        ringcast.unpack(dict_frame(REFUSED[name]))
