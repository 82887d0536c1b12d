# SPDX-License-Identifier: Apache-2.0
"""
Unpacks arrays of structured dtypes made at random, nested, most of them with something hostile in
their text:

    tests/fuzz/dtypes.py --rounds 1000000
    cmake/python-asan.sh --run tests/fuzz/dtypes.py --rounds 100000

An honest dtype arrives as it was. Any other text is refused, or makes an array whose fields, at any
depth, lie within its elements, and of which every field is read and written.
"""

import faulthandler
import json
import sys

import numpy as np
import rounds

import ringcast
from ringcast import _arrays

SIMPLE = "b1 i1 <i2 >i4 <u8 <f2 >f8 <f16 <c8 S1 S7 <U1 >U3 V1 V5 M8[s] m8[25us] M8 S0".split()
HOSTILE_SIMPLE = "|O |O8 |T16 <U536870912 |V2147483647 |S2147483648 <U9999999999 i2,i4 <M8[0s] |V0 <i4 |V9".split()
NUMBERS = [
    -(2**63),
    -(2**31),
    -1,
    0,
    1,
    7,
    2**31 - 8,
    2**31 - 1,
    2**31,
    2**32 - 4,
    2**32,
    2**63 - 1,
    2**64,
    10**50,
]
OTHERS = [None, True, False, 1.0, "", "a", (), ((),), float("inf")]
text_of = _arrays.text_of
told = [""]
_arrays.text_of = lambda array: told[0]  # what the extension asks: a writer that says anything


def honest(chance, depth=0):
    """A dtype that NumPy has made."""
    kind = chance.random()
    if depth and (kind < 0.5 or depth > 3):
        return np.dtype(chance.choice(SIMPLE))
    if depth and kind < 0.65:
        base = honest(chance, depth + 1)
        shape = tuple(chance.choice([0, 1, 2, 3]) for _ in range(chance.randrange(1, 4)))
        return np.dtype((base, shape)) if base.itemsize else base
    count = chance.randrange(5)
    fields = {
        "names": [f"f{i}" for i in range(count)],
        "formats": [honest(chance, depth + 1) for _ in range(count)],
    }
    aligned = chance.random() < 0.3
    if not aligned and chance.random() < 0.7:
        fields["offsets"] = [chance.randrange(9) for _ in range(count)]
        ends = [
            start + field.itemsize for start, field in zip(fields["offsets"], fields["formats"])
        ]
        fields["itemsize"] = max([1, *ends]) + chance.randrange(3)
    if chance.random() < 0.2:
        fields["titles"] = [chance.choice([None, f"t{i}"]) for i in range(count)]
    dtype = np.dtype(fields, align=aligned)
    return np.dtype((np.record, dtype)) if dtype.itemsize and chance.random() < 0.2 else dtype


def nodes(state):
    """Each place of a state that has a value: (container, key)."""
    for key in state if isinstance(state, dict) else range(len(state)):
        yield state, key
        if isinstance(state[key], (dict, list)):
            yield from nodes(state[key])


def spoil(chance, state):
    container, key = chance.choice(list(nodes(state)))
    value = container[key]
    way = chance.randrange(8)
    if isinstance(value, int) and way < 5:
        container[key] = chance.choice(
            [value - 1, value + 1, *(each - value for each in NUMBERS), *NUMBERS]
        )
    elif isinstance(value, str) and way < 5:
        container[key] = chance.choice([*HOSTILE_SIMPLE, "f0", "t0"])
    elif isinstance(value, list) and way < 3:
        value.insert(chance.randrange(len(value) + 1), chance.choice([*NUMBERS, *OTHERS, *value]))
    elif isinstance(value, list) and value and way < 5:
        del value[chance.randrange(len(value))]
    elif isinstance(container, dict) and way == 5:
        del container[key]
    else:
        container[key] = chance.choice([*OTHERS, *NUMBERS])


def hostile(chance, text):
    """A text that is no longer that of an honest dtype, or is by chance, and the itemsize that it
    claims."""
    state = json.loads(text)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        if state:
            spoil(chance, state)
    itemsize = state.get("itemsize")
    text = json.dumps(state, separators=(",", ":"))
    if chance.random() < 0.1:
        at = chance.randrange(len(text))
        text = (
            text[:at] + chance.choice('0189-"[]{},:|<OSVU\\ \0') + text[at + chance.randrange(2) :]
        )
    return text, itemsize if type(itemsize) is int else 0


def all_of(dtype):
    if dtype.subdtype:
        return [all_of(dtype.subdtype[0]), dtype.subdtype[1]]
    fields = [
        (name, *map(str, dtype.fields[name][1:]), all_of(dtype[name])) for name in dtype.names or ()
    ]
    return dtype.str, dtype.type, dtype.isalignedstruct, dtype.itemsize, dtype.alignment, fields


def look_into(array, first, end):
    """Reads and writes all fields, which lie from `first` up to `end` in memory."""
    dtype = array.dtype
    assert not dtype.hasobject
    for field, offset, *_ in (dtype.fields or {}).values():
        assert 0 <= offset <= offset + field.itemsize <= dtype.itemsize, dtype
    start = array.__array_interface__["data"][0]
    steps = [stride * (length - 1) for length, stride in zip(array.shape, array.strides)]
    assert array.size == 0 or first <= start <= start + sum(steps) + dtype.itemsize <= end, dtype
    array[...] = array.copy()
    if array.size:  # else the lists alone may be many
        array.tolist()
    for name in dtype.names or ():
        look_into(array[name], first, end)


def run_round(chance):
    dtype = honest(chance)
    text = text_of(np.zeros(1, dtype))
    if text is None:
        return False, False
    itemsize, is_honest = dtype.itemsize, chance.random() < 0.2
    if not is_honest:
        text, claimed = hostile(chance, text)
        itemsize = claimed if 0 < claimed < 4096 and chance.random() < 0.9 else itemsize
    told[0] = text
    frame = bytes(ringcast.pack(np.zeros(3, f"V{itemsize}"), allow_pickle=False))
    try:
        array = ringcast.unpack(frame, allow_pickle=False)
    except ringcast.ProtocolError:
        assert not is_honest, text
        return False, False
    assert not is_honest or all_of(array.dtype) == all_of(dtype), text
    first = array.__array_interface__["data"][0]
    look_into(array, first, first + 3 * itemsize)
    return True, is_honest


def run_block(chance, _):
    """The number of rounds that made an array, and of those with an honest text."""
    try:
        results = [run_round(chance) for _ in range(rounds.BLOCK)]
    except BaseException:
        print(f"FAILED: {told[0]}", flush=True)
        raise
    return map(sum, zip(*results))


if __name__ == "__main__":
    faulthandler.enable()
    words = "hostile dtypes: {}, of which {} made arrays, {} with an honest text"
    sys.exit(rounds.main(__doc__, run_block, words))
