# SPDX-License-Identifier: Apache-2.0
"""Types of the standard library that go without a pickle: they arrive as a pickle of them would."""

import array
import pickle

import pytest
from natives import print_of

import ringcast

pytestmark = pytest.mark.alike

# Lengths about the one from which on bytes lie beside the stream.
ARRAYS = [
    array.array(code, ("x" if code == "u" else [1]) * count)
    for code in "bBuhHiIlLqQfd"
    for count in (0, 1, 3, 255, 256, 257, 2048, 2049, 70000)
]


def ident(value):
    return f"{type(value).__name__}-{str(value)[:40]}"


VALUES = [*ARRAYS]


def check(value):
    got = ringcast.unpack(ringcast.pack(value, allow_pickle=False), allow_pickle=False)
    wanted = pickle.loads(pickle.dumps(value, 5))
    assert type(got) is type(wanted) and repr(got) == repr(wanted)
    assert print_of(got) == print_of(wanted)
    return got


@pytest.mark.parametrize("value", VALUES, ids=ident)
def test_it_arrives_as_its_pickle_would(value):
    check(value)
    assert check({"x": value, "y": [1, (value, {2: value})]})["y"][1][1][2] == value


def test_an_array_that_arrives_can_grow():
    for count in (3, 3000):
        got = check(array.array("q", range(count)))
        got.append(7)
        got.extend(range(5000))
        assert got[count] == 7 and len(got) == count + 5001


def test_an_array_is_as_it_was_when_it_was_sent():
    value = array.array("d", [1.5] * 1000)
    packed = ringcast.pack([value])
    value[0] = 2.5
    value.append(3.5)  # nothing looks at its memory any more
    assert ringcast.unpack(packed) == [array.array("d", [1.5] * 1000)]


def test_an_array_of_a_subclass_is_pickled():
    value = Numbers("i", [1, 2])
    with pytest.raises(ringcast.PickleRefused, match=r"^value\[0\] is of type test_kinds\.Numbers"):
        ringcast.pack([value], allow_pickle=False)
    got = ringcast.unpack(ringcast.pack([value]))[0]
    assert type(got) is Numbers and got == value


class Numbers(array.array):
    pass
