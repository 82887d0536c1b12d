# SPDX-License-Identifier: Apache-2.0
"""
Code that runs while a value is packed or made: it may change the value, pack others, and drop what
is looked at.
"""

import collections
import ctypes
import dataclasses
import enum
import functools
import gc
import pickle
import signal
import sys
import threading
import typing
import weakref

import natives
import pytest

import ringcast

pytestmark = pytest.mark.alike


class Leaf:
    def __init__(self, *items):
        self.items = items


class Key:
    """Equal to the name of a field, and drops the field's value when it is compared."""

    armed = False

    def __init__(self, instance):
        self.instance = instance

    def __hash__(self):
        return hash("b")

    def __eq__(self, other):
        if Key.armed:
            self.instance.__dict__["a"] = None
            gc.collect()
        return Key.armed and other == "b"


def test_a_key_that_changes_the_instance_while_it_is_read_does_no_harm():
    for _ in range(20):
        value = natives.Plain([object()])
        value.__dict__ = {"a": [Leaf("held by the instance alone")], Key(value): 1}
        Key.armed = True
        try:
            ringcast.pack([value])
        except (AttributeError, TypeError, ringcast.Error, pickle.PicklingError):
            pass
        finally:
            Key.armed = False


class Sends:
    """Packs other values while it is pickled itself."""

    def __reduce__(self):
        inner = ringcast.pack(
            [natives.Plain(1), {"request": [1, 2, 3], "again": "request"}, natives.Color.RED]
        )
        return ringcast.unpack, (bytes(inner),)


class SendsLate:
    """Packs other values when it is gone."""

    def __del__(self):
        ringcast.pack(
            [natives.Plain("a text of some length"), natives.Frozen(2), {"key": [1] * 5000}]
        )


def test_packing_while_something_is_packed_mixes_nothing_up():
    text = "a text of some length" + str(1)
    value = [
        natives.Plain(text),
        Sends(),
        natives.Frozen(text),
        {text: Sends()},
        natives.Color.GREEN,
        text,
    ]
    got = ringcast.unpack(ringcast.pack(value))
    inner = [natives.Plain(1), {"request": [1, 2, 3], "again": "request"}, natives.Color.RED]
    assert got == [
        natives.Plain(text),
        inner,
        natives.Frozen(text),
        {text: inner},
        natives.Color.GREEN,
        text,
    ]


class Strange:
    """A key that is found in the place of a member's name, and raises."""

    def __hash__(self):
        return hash("ONE")

    def __eq__(self, other):
        raise KeyError("strange")


class Lost(enum.Enum):
    ONE = 1


def test_an_enum_whose_members_can_not_be_looked_up_is_pickled():
    members, one = dict(Lost._member_map_), Lost.ONE
    Lost._member_map_.clear()
    Lost._member_map_[Strange()] = one
    try:
        with pytest.raises(ringcast.PickleRefused, match="Lost"):
            ringcast.pack([one], allow_pickle=False)
    finally:
        Lost._member_map_.clear()
        Lost._member_map_.update(members)


@dataclasses.dataclass
class MadeAnew:
    __slots__ = ("a", "b", "c")
    a: object
    b: object
    c: object


def test_a_class_that_is_given_another_new_later_is_made_as_ever():
    packed = ringcast.pack([MadeAnew(1, [2], "three")], allow_pickle=False)
    assert ringcast.unpack(packed) == [MadeAnew(1, [2], "three")]
    MadeAnew.__new__ = staticmethod(lambda cls: object())
    try:
        got = ringcast.unpack(packed)[0]
        assert (type(got), got.a, got.b, got.c) == (MadeAnew, 1, [2], "three")
    finally:
        del MadeAnew.__new__


class Listing(type):
    """Changes what is being sent when its instances' class is looked at, which is once."""

    changes: typing.ClassVar[list] = []
    passes: typing.ClassVar[list] = []

    @property
    def __flags__(cls):
        for change in Listing.changes:
            change()
        return type.__dict__["__flags__"].__get__(cls)


def fresh(number):
    """A class that was not met yet."""
    cls = Listing(
        f"Fresh{number}",
        (),
        {"__module__": __name__, "__annotations__": {"a": object, "b": object}, "b": 0},
    )
    cls = dataclasses.dataclass(cls)
    setattr(sys.modules[__name__], cls.__name__, cls)
    return cls(number)


@pytest.mark.parametrize("change", ["clear", "pop", "grow", "replace", "pack"])
def test_a_value_that_changes_under_the_encoder_is_refused_or_sent_but_no_crash(change):
    for number, make in enumerate((list, dict, set)):
        held = [Leaf(index, "held by the container alone") for index in range(50)]
        if make is list:
            value = [fresh(f"{change}{number}"), *held]
        elif make is dict:
            value = {
                0: fresh(f"{change}{number}"),
                **{index: item for index, item in enumerate(held, 1)},
            }
        else:
            odd = fresh(f"{change}{number}")
            type(odd).__hash__ = lambda self: 0
            value = {odd, *held}
        del held

        def act(value=value, make=make):
            if change == "clear":
                value.clear()
            elif change == "pop":
                value.popitem() if make is dict else value.pop()
            elif change == "grow":
                value.append(1) if make is list else value.add(
                    1
                ) if make is set else value.setdefault("new", 1)
            elif change == "replace" and make is not set:
                for index in range(len(value)):
                    value[index] = None
            elif change == "pack":
                ringcast.pack([natives.Plain(1), natives.Color.RED, "text" * 100])
            gc.collect()

        Listing.changes.append(act)
        try:
            ringcast.pack({"x": value})
        except RuntimeError as error:
            assert "changed" in str(error)
        else:
            assert change in ("replace", "pack") or make is set
        finally:
            Listing.changes.clear()


def test_a_class_that_is_met_while_it_is_looked_at_stays_for_who_uses_it():
    """
    One thread looks at the class, another is in the middle of an instance when the first is done.
    """
    value, inner = fresh("met"), fresh("inside")
    value.a = [inner]
    looked, inside, done = threading.Event(), threading.Event(), threading.Event()
    first = threading.Thread(target=lambda: (ringcast.pack(value), done.set()))

    def meet():
        if threading.current_thread() is first:
            looked.set()
            inside.wait()
        elif looked.is_set() and not inside.is_set() and not Listing.passes.pop():
            inside.set()
            done.wait()
            gc.collect()

    # Of this thread's looks: at the class itself, and then at that of what is in it.
    Listing.passes = [False, True]
    Listing.changes.append(meet)
    try:
        first.start()
        looked.wait()
        packed = ringcast.pack([value, value, {"x": value}])
        first.join()
    finally:
        Listing.changes.clear()
    assert ringcast.unpack(packed)[2]["x"].a == [inner]


def test_threads_that_change_what_is_sent_and_objects_that_send_when_they_go():
    shared = {"list": [], "dict": {}, "rest": [natives.Plain([1], {"a": SendsLate()})]}
    stop = threading.Event()
    seen = collections.Counter()

    def change():
        number = 0
        while not stop.is_set():
            number += 1
            shared["list"].append(natives.Plain(number, SendsLate()))
            shared["dict"][f"key-{number % 50}"] = [str(number) * 10, weakref.ref(change)]
            if number % 7 == 0:
                shared["list"].clear()
            if number % 11 == 0:
                shared["dict"].clear()
            shared["rest"][0].a = ["text " + str(number)] * 3

    def pack():
        while not stop.is_set():
            try:
                ringcast.unpack(ringcast.pack([shared["list"], shared["rest"]]))
                ringcast.pack(shared)
                seen["fine"] += 1
            except RuntimeError:
                seen["changed"] += 1
            except TypeError:
                seen["weakref"] += 1

    interval = sys.getswitchinterval()
    threads = [threading.Thread(target=target) for target in (change, pack, pack)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        while sum(seen.values()) < 300:
            gc.collect(0)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    got = [natives.Plain(1), {"a": "a"}]
    assert ringcast.unpack(ringcast.pack(got)) == got


# ---- Ctrl-C --------------------------------------------------------------------------------------


class Interrupts:
    """
    Its hash is a function of C, which leaves a SIGINT to be looked at: no code of Python's runs.
    """

    __hash__ = staticmethod(functools.partial(ctypes.pythonapi.PyErr_SetInterruptEx, signal.SIGINT))


class Watches:
    def __hash__(self):
        return 1 << 20


@pytest.mark.parametrize("make", [set, frozenset, dict.fromkeys])
@pytest.mark.parametrize(
    "wrap", [lambda value: value, lambda value: {"x": value}, lambda value: [{1: [value]}]]
)
def test_ctrl_c_ends_the_making_of_a_large_set_or_dict(ring, make, wrap):
    """Colliding members of a hostile one take quadratic time."""
    writer, reader = ring
    frames = []

    def handler(number, frame):
        frames.append(frame.f_code.co_name)
        if armed:
            raise KeyboardInterrupt

    armed = False
    before = signal.signal(signal.SIGINT, handler)
    try:
        packed = ringcast.pack(wrap(make([Interrupts(), *range(1, 1000), Watches()])))
        writer.send(packed, 0)
        writer.send("next", 0)
        frames.clear()
        armed = True
        with pytest.raises(KeyboardInterrupt):
            reader.recv(0)
        armed = False
        assert frames == [
            "test_ctrl_c_ends_the_making_of_a_large_set_or_dict"
        ]  # no later code of Python's
        assert reader.recv(0) == "next"
    finally:
        signal.signal(signal.SIGINT, before)
