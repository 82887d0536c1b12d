# SPDX-License-Identifier: Apache-2.0
"""
Errors of the user's own code while a value is received: they arrive as pickle raises them, and only
the end of the ring ends an iteration.
"""

import asyncio
import dataclasses
import enum
import pickle
import sys
import zoneinfo

import pytest
from hostile import nested

import ringcast

pytestmark = pytest.mark.alike

to_raise = None


def fail():
    global to_raise
    error, to_raise = to_raise, None
    if error is not None:
        raise error


class Hashed:
    def __hash__(self):
        fail()
        return 1


class Equal:
    def __hash__(self):
        return 1

    def __eq__(self, other):
        fail()
        return self is other


@dataclasses.dataclass(frozen=True)
class Frozen:
    inner: object


class Stateful:
    def __init__(self):
        self.state = 1

    def __setstate__(self, state):
        fail()


class Meta(enum.EnumMeta):
    def __getattribute__(cls, name):
        if name == "_member_map_":
            fail()
        return super().__getattribute__(name)

    def __call__(cls, *arguments):
        fail()
        return super().__call__(*arguments)


class Flags(enum.Flag, metaclass=Meta):
    ONE = 1
    TWO = 2


PLACES = {
    "hash of a key": lambda: {Hashed(): 1, "x": 2},
    "hash in a set": lambda: {Hashed()},
    "hash inside a tuple": lambda: {(1, Hashed()): 1},
    "hash of a frozen dataclass": lambda: {Frozen(Hashed()): 1},
    "comparison of keys": lambda: {Equal(): 1, Equal(): 2},
    "comparison in a set": lambda: {Equal(), Equal()},
    "__setstate__": lambda: [Stateful()],
    "__call__ of a metaclass": lambda: [Flags.ONE | Flags.TWO],
}
ERRORS = [
    *(
        kind("mine")
        for kind in (RuntimeError, TypeError, ValueError, KeyError, OverflowError, AttributeError)
    ),
    *(
        kind("mine")
        for kind in (ZeroDivisionError, TimeoutError, RecursionError, MemoryError, ImportError)
    ),
    *(
        kind("mine")
        for kind in (StopIteration, StopAsyncIteration, NotImplementedError, KeyboardInterrupt)
    ),
    UnicodeDecodeError("utf8", b"", 0, 1, "mine"),
    ringcast.WriterGone(32, "mine"),
    ringcast.ProtocolError(71, "mine"),
]


@pytest.fixture(autouse=True)
def nothing_to_raise():
    global to_raise
    to_raise = None
    yield
    to_raise = None


@pytest.mark.parametrize("place", PLACES)
def test_an_error_of_the_users_code_arrives_as_it_is(ring, place):
    global to_raise
    writer, reader = ring
    for error in ERRORS:
        to_raise = None
        value = PLACES[place]()
        data = pickle.dumps(value)
        writer.send(value)
        writer.send("next")
        for load in (lambda: pickle.loads(data)), (lambda: reader.recv(0)):  # noqa: B023
            to_raise = error
            with pytest.raises(type(error)) as raised:
                load()
            assert raised.value is error
        assert reader.recv(0) == "next"


@pytest.mark.parametrize("kind", [TypeError, ValueError, OSError])
def test_an_error_of_an_imported_module_arrives_as_it_is(tmp_path, monkeypatch, kind):
    (tmp_path / "module_that_fails.py").write_text(f"raise {kind.__name__}('mine')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(kind, match="^mine$") as raised:
        ringcast.unpack(nested("dataclass/module_that_fails/Class/a INSTANCE 0 NONE"))
    assert type(raised.value) is kind


def test_an_error_of_a_signals_handler_is_no_missing_time_zone(monkeypatch):
    packed = ringcast.pack(zoneinfo.ZoneInfo("UTC"))
    monkeypatch.setattr(
        sys.modules["zoneinfo._common"], "load_data", lambda file: {}["of a handler"]
    )
    zoneinfo.ZoneInfo.clear_cache()
    with pytest.raises(KeyError, match="of a handler"):
        ringcast.unpack(packed)


# ---- Iteration -----------------------------------------------------------------------------------


async def each(reader):
    return [value async for value in reader]


@pytest.mark.parametrize("error", [StopIteration("mine"), StopAsyncIteration("mine")], ids=repr)
@pytest.mark.parametrize("way", ["for", "async for", "tap"])
def test_only_the_end_of_the_ring_ends_an_iteration(ring, way, error):
    global to_raise
    writer, reader = ring
    with ringcast.Tap(writer.handle) as tap:
        source = tap if way == "tap" else reader
        writer.send([Stateful()])
        writer.send("next")
        to_raise = error
        with pytest.raises((RuntimeError, StopAsyncIteration)) as raised:
            asyncio.run(each(reader)) if way == "async for" else list(source)
        assert error in (raised.value, raised.value.__cause__)
        assert source.recv(0) == "next"


# ---- Sending -------------------------------------------------------------------------------------


class Unsendable:
    def __init__(self):
        self.asked = 0

    def __reduce__(self):
        self.asked += 1
        raise TimeoutError("mine")


def test_a_timeout_of_a_sent_values_code_is_no_full_ring(ring):
    writer, reader = ring
    value, again = Unsendable(), Unsendable()
    with pytest.raises(TimeoutError, match="mine"):
        writer.send(value)
    with pytest.raises(TimeoutError, match="mine") as raised:
        asyncio.run(writer.asend_many([1, again, 2], 0.5))
    assert raised.value.sent == 1 and reader.recv(0) == 1
    assert again.asked == value.asked
