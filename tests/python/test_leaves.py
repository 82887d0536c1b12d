# SPDX-License-Identifier: Apache-2.0
"""
What only pickle can send, within values that need none: one pickle for a frame, and one pickler for
all.
"""

import copyreg
import sys

import natives
import numpy as np
import pytest
from needs import needs_torch, torch

import ringcast


class Str(str):
    pass


class Leaf:
    def __init__(self, *items):
        self.items = items

    def __getstate__(self):
        return vars(self)

    def __eq__(self, other):
        return type(other) is Leaf and self.items == other.items

    def __hash__(self):
        return hash(self.items)


class Ways:
    def __call__(self, protocol):
        return Ways, ()


def test_leaves_stay_one_where_they_are_one():
    leaf, other = Leaf(1), Leaf(1)
    got = ringcast.unpack(
        ringcast.pack({"a": [leaf, {"x": leaf}, other], "b": leaf, "c": Leaf(leaf, other)})
    )
    assert got == {"a": [leaf, {"x": leaf}, other], "b": leaf, "c": Leaf(leaf, other)}
    assert got["a"][0] is got["a"][1]["x"] is got["b"] is got["c"].items[0]
    assert got["a"][2] is got["c"].items[1] is not got["b"]


def test_what_stands_on_both_sides_of_a_leaf_arrives_as_one():
    """The leaf is found to be one only when its class has been looked at."""
    shared, leaf = [1, "x"], natives.Bare(a=1)
    vars(leaf)["__reduce_ex__"] = Ways()
    got = ringcast.unpack(ringcast.pack([shared, leaf, shared, [shared]]))
    assert got[0] == shared and got[0] is got[2] is got[3][0]


def test_leaves_are_keys_and_members_too():
    value = [{Leaf(1): Leaf(2), (Leaf(3), 4): {Leaf(5)}}, frozenset([Leaf(6), 7]), {Str("a"): 1}]
    got = ringcast.unpack(ringcast.pack(value))
    assert got == value and type(next(iter(got[2]))) is Str


def test_a_thousand_leaves_arrive():
    value = [[Leaf(number), number] for number in range(1000)]
    assert ringcast.unpack(ringcast.pack(value)) == value
    same = Leaf(0)
    got = ringcast.unpack(ringcast.pack([same] * 1000))
    assert len(got) == 1000 and all(item is got[0] for item in got)


def test_buffers_of_leaves_lie_beside_the_pickle():
    array = np.arange(10_000)
    value = {
        "x": [Leaf(array), bytearray(b"b" * 5000)],
        "y": {"z": Leaf(array[::-1].copy(), array)},
    }
    packed = ringcast.pack(value)
    assert packed.nbytes < 2 * array.nbytes + 5000 + 2000
    got = ringcast.unpack(packed)
    first_array, (second, again) = got["x"][0].items[0], got["y"]["z"].items
    assert first_array is again and again.flags.writeable
    assert (
        (first_array == array).all()
        and (second == array[::-1]).all()
        and got["x"][1] == b"b" * 5000
    )


@needs_torch
def test_tensors_within_leaves_arrive():
    tensor = torch.arange(5000.0)
    got = ringcast.unpack(ringcast.pack({"x": [Leaf(tensor), tensor], "size": torch.Size([2])}))
    assert torch.equal(got["x"][0].items[0], tensor) and torch.equal(got["x"][1], tensor)


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "uint8", "bfloat16", "bool"])
@pytest.mark.parametrize("bytes", [4, 65_532, 65_536])
def test_small_tensors_within_leaves_can_grow_in_place(dtype, bytes):
    sent = torch.zeros(bytes, dtype=torch.uint8).view(getattr(torch, dtype)).reshape(1, -1)
    got = ringcast.unpack(
        ringcast.pack([Leaf(sent, torch.nn.Parameter(sent, requires_grad=False))])
    )[0].items
    for tensor in got:
        assert torch.equal(tensor, sent) and tensor.dtype is sent.dtype
        assert tensor.untyped_storage().resizable() == (bytes < 65_536)
        if bytes < 65_536:
            tensor.detach().resize_(1 << 20).fill_(1)


# ---- One pickler for many frames -----------------------------------------------------------------


class Late:
    def __init__(self, word):
        self.word = word

    def __reduce__(self):
        return Late, (self.word,)


def test_copyregs_table_is_heeded_as_it_is_at_each_call():
    def word_of(word):
        return ringcast.unpack(ringcast.pack([Late(word)]))[0].word

    assert word_of("own") == "own"
    try:
        for turn in range(3):
            copyreg.pickle(
                Late, lambda value, turn=turn: (Late, (f"{value.word} by copyreg {turn}",))
            )
            assert word_of("sent") == f"sent by copyreg {turn}"
    finally:
        del copyreg.dispatch_table[Late]
    assert word_of("own") == "own"


class Packs:
    """What is packed while it is pickled has a pickler of its own."""

    def __reduce__(self):
        return bytes, (bytes(ringcast.pack([Late("inner"), self.more()])),)

    def more(self):
        return Late("more")


class Fails(Packs):
    def more(self):
        raise LookupError("in the middle")


def test_a_value_that_packs_while_it_is_pickled():
    for _ in range(2):  # the second time with the pickler of the first
        got = ringcast.unpack(ringcast.pack([Packs(), Late("outer")]))
        assert [late.word for late in ringcast.unpack(got[0])] == ["inner", "more"] and got[
            1
        ].word == "outer"
    with pytest.raises(LookupError, match=r"^value\[0\]: in the middle"):
        ringcast.pack([Fails(), Late("outer")])
    assert ringcast.unpack(ringcast.pack([Late("after")]))[0].word == "after"


def test_what_was_pickled_is_not_kept():
    late = Late([bytearray(10)])
    before = sys.getrefcount(late), sys.getrefcount(late.word)
    for _ in range(5):
        ringcast.pack([late])
    assert (sys.getrefcount(late), sys.getrefcount(late.word)) == before


@pytest.mark.parametrize("extra", [0, 40, 20_000])
@pytest.mark.parametrize(
    "kind", [list, lambda item: {1: item}, lambda item: natives.Plain(item, [])]
)
def test_a_leaf_that_leads_back_to_what_holds_it(kind, extra):
    """Deep in other containers too, and with much else in the pickle."""
    late = Late(None)
    holder = kind([late]) if kind is list else kind(late)
    for _ in range(30 if extra == 40 else 0):
        holder = [holder]
    late.word = (list(map(str, range(extra))), holder)
    got = ringcast.unpack(ringcast.pack(holder))
    inner = got
    while type(inner) is not Late:
        inner = inner.a if type(inner) is natives.Plain else inner[1 if type(inner) is dict else 0]
    assert inner.word[1] is got and len(inner.word[0]) == extra
