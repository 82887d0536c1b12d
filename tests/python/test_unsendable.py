# SPDX-License-Identifier: Apache-2.0
"""Values that can't be sent: what pickle raises, with the place in the value; the ring goes on."""

import pickle
import threading

import numpy as np
import pytest
import values
from needs import needs_torch, torch
from peers import still_works


pytestmark = pytest.mark.alike


class WithLock:
    def __init__(self):
        self.fine, self.lock = 1, threading.Lock()


class Quiet:
    """Has a lock, but not in its pickle."""

    def __init__(self, other=None):
        self.lock, self.other = threading.Lock(), other

    def __getstate__(self):
        return {"other": self.other}


class Slotted:
    __slots__ = ("lock",)

    def __init__(self, lock):
        self.lock = lock


class NoPickle:
    def __reduce__(self):
        raise pickle.PicklingError("not this one")


def own_cycle():
    cycle = [1]
    cycle.append(cycle)
    cycle.append(threading.Lock())
    return cycle


def deep(levels, value):
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value, place, error",
    [
        (threading.Lock(), "value", TypeError),
        ({"a": np.arange(3), "c": {"x": threading.Lock()}}, "value['c']['x']", TypeError),
        ({"a": [1, 2], "b": [1, (2, threading.Lock())]}, "value['b'][1][1]", TypeError),
        ([WithLock()], "value[0].lock", TypeError),
        ({"q": Quiet(), "r": Quiet([threading.Lock()])}, "value['r'].other[0]", TypeError),
        ([Slotted(threading.Lock())], "value[0].lock", TypeError),
        ({"e": LookupError(1, [threading.Lock()])}, "value['e'][0]", TypeError),
        ({"q": {"k": NoPickle()}}, "value['q']['k']", pickle.PicklingError),
        ({1: "no text", "c": [own_cycle()]}, "value['c'][0][2]", TypeError),
        ({"s": {1, 2}, "k": {threading.Lock(): 1}}, "a key of value['k']", TypeError),
        ([{3, (threading.Lock(),)}, slice(1)], "value[0]{...}[0]", TypeError),
        ({"s": slice(1, [threading.Lock()])}, "value['s'].stop[0]", TypeError),
        ([*range(30_000), threading.Lock()], "value[30000]", TypeError),
        ({1: [{2: (threading.Lock(),)}]}, "value[1][0][2][0]", TypeError),
        (deep(50, threading.Lock()), "value" + "[0]" * 16, TypeError),
        ({"k" * 1000: [threading.Lock()]}, "value['" + "k" * 25, TypeError),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_not_be_pickled_is_located(ring, value, place, error):
    writer, reader = ring
    with pytest.raises(error) as raised:
        writer.send(value, 0)
    text = str(raised.value)
    assert type(raised.value) is error and text.startswith(place) and len(text) < 200, text
    if len(place) < 28:
        assert text.startswith(place + ": "), text
    assert still_works(writer, reader)


def test_a_memoryview_is_sent_another_way(ring):
    writer, reader = ring
    with pytest.raises(TypeError, match=r"^value\['m'\]: .*memoryview.*send_bytes\(\)"):
        writer.send({"m": memoryview(b"abc")}, 0)
    writer.send_bytes(memoryview(b"abc"), 0)
    assert reader.recv(0) == b"abc"


def test_a_local_function_that_can_not_be_pickled_is_located(ring):
    writer, reader = ring
    with pytest.raises((AttributeError, pickle.PicklingError)) as raised:
        writer.send({"a": 1, "f": {"g": lambda: None}}, 0)
    assert str(raised.value).startswith("value['f']['g']: ")


def test_an_error_of_another_shape_stays_as_it_was(ring):
    writer, reader = ring
    with pytest.raises(RecursionError) as raised:
        writer.send(deep(100_000, 1), 0)
    assert not str(raised.value).startswith("value")
    error = KeyError("k", 7)

    class Raises:
        def __reduce__(self):
            raise error

    with pytest.raises(KeyError) as raised:
        writer.send([Raises()], 0)
    assert raised.value is error and error.args == ("k", 7)


class Unloadable:
    def __reduce__(self):
        return int, ("no number",)


def test_what_can_not_be_unpickled_is_an_error_of_one_frame(ring):
    writer, reader = ring
    for value in (Unloadable(), {"a": Unloadable()}):
        writer.send(value, 0)
        with pytest.raises(ValueError, match="no number"):
            reader.recv(0)
    assert reader.lag == 0 and still_works(writer, reader)


@needs_torch
def test_a_tensor_without_data_is_named(ring):
    writer, reader = ring
    there = torch.ones(2, device="meta")
    for value, place in (
        (there, "value"),
        ({"x": there}, r"value\['x'\]"),
        ({"a": 1, "x": [0, {"y": (there,)}]}, r"value\['x'\]\[1\]\['y'\]\[0\]"),
        ([torch.nn.Parameter(there)], r"value\[0\]"),
        ({"m": values.Holder(there)}, r"value\['m'\]\.tensor"),
    ):
        with pytest.raises(TypeError, match=f"^{place} is a tensor on device 'meta'"):
            writer.send(value, 0)
    assert still_works(writer, reader)


class Odd:
    """What is looked at to find the place fails in its own ways."""

    def __init__(self, reduced):
        self.reduced = reduced
        self.calls = 0

    def __reduce_ex__(self, protocol):
        self.calls += 1
        if self.calls == 1:
            raise TypeError("the first")
        return self.reduced() if callable(self.reduced) else self.reduced


@pytest.mark.parametrize(
    "reduced", [None, 7, (1,), (int, 5), (int, None), (int, (), 5), lambda: 1 / 0], ids=repr
)
def test_the_error_survives_the_search_for_its_place(ring, reduced):
    writer, reader = ring
    with pytest.raises(TypeError, match="the first$"):
        writer.send({"a": [Odd(reduced)]}, 0)
    assert still_works(writer, reader)
