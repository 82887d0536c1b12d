# SPDX-License-Identifier: Apache-2.0
"""
Instances whose state is a __dict__ and slots go without a pickle, and arrive as a pickle would have
them.
"""

import collections
import dataclasses
import functools
import pickle
import sys
import types
import weakref

import natives
import pytest
from prints import print_of
from needs import msgspec

import ringcast

pytestmark = pytest.mark.alike


class Doubling:
    """A field's descriptor that does something with what is set."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        if instance is None:
            raise AttributeError(self.name)
        return instance.__dict__[self.name]

    def __set__(self, instance, value):
        instance.__dict__[self.name] = [value, value]


@dataclasses.dataclass
class Described:
    a: object = Doubling()


@dataclasses.dataclass
class MoreSlots(natives.Plain):
    __slots__ = ("more",)


class SetsByCode:
    """Sets its attributes by code that unpickling does not run."""

    def __setattr__(self, name, value):
        object.__setattr__(self, name, ("set", value))

    def __delattr__(self, name):
        raise AttributeError(name)


class Named(natives.Bare):
    pass


class SubDict(collections.UserDict):
    pass


@dataclasses.dataclass
class Unset:
    """Of a field that only the class has."""

    a: object
    b: object = dataclasses.field(default=3, init=False)


class Shadowed(natives.SlotsAlone):
    """Has the slot of its parent once more."""

    __slots__ = ("a",)


class SlotsOfAnyOrder:
    __slots__ = {"one", "two", "three", "four"}


def with_a_key_that_is_no_text():
    value = natives.Bare(a=1)
    vars(value)[5] = vars(value)[("t", 1)] = 6
    return value


def with_a_key_of_its_own():
    value = natives.Bare()
    vars(value)["".join(["un", "interned"])] = [1]
    return value


def without(value, name):
    delattr(value, name)
    return value


def with_more(value, **more):
    for name, item in more.items():
        setattr(value, name, item)
    return value


def read(value):
    value.read  # noqa: B018
    return value


VALUES = {
    "plain": natives.Bare(a=1, b=[2.5]),
    "empty": natives.Bare(),
    "a cached property": read(natives.Bare(b=1, a=2)),
    "many": natives.Bare(**{f"name{number}": number for number in range(300)}),
    "a number as a name": with_a_key_that_is_no_text(),
    "a name made at run time": with_a_key_of_its_own(),
    "a name that can't be told": natives.Bare(**{"a\0b": 1, "\ud800": 2}),
    "a name of the class's": natives.Bare(**{"__class__x": 1, "__orig_class__": 2, "__init__": 3}),
    "one more": with_more(natives.Plain(1, [2]), more=3),
    "one less": without(natives.Plain(1, 2), "b"),
    "one slot less": without(natives.WithSlots(1, 2), "a"),
    "a field that the class has": Unset(1),
    "no dataclass itself": natives.PlainMore(1, [2]),
    "slots and a dict": with_more(MoreSlots(1, 2), more=3, other=4),
    "slots and a dict, none set": natives.SlotsMore(),
    "slots": natives.make(natives.SlotsAlone, {"b": 1}),
    "slots, none set": natives.SlotsAlone(),
    "slots, all set": natives.make(natives.SlotsAlone, {"a": 1, "b": 2, "_SlotsAlone__private": 3}),
    "slots of any order": natives.make(SlotsOfAnyOrder, {"one": 1, "four": 4}),
    "a slot twice": natives.make(Shadowed, {"a": 1, "b": 2}),
    "a descriptor": Described(1),
    "set by code": with_more(SetsByCode(), a=1),
    "a generic's": natives.OfType[int](1),
    "SimpleNamespace": types.SimpleNamespace(b=1, a=[2]),
    "UserDict": collections.UserDict({1: 2, "a": "b"}),
    "UserList": collections.UserList([1, "a"]),
    "a subclass of UserDict": SubDict(a=1),
}
if msgspec:

    class StructDict(msgspec.Struct, dict=True):
        a: object
        b: int = 3

        @functools.cached_property
        def read(self):
            return 7

    VALUES["a struct"] = StructDict(1)
    VALUES["a struct with more"] = read(StructDict([1]))
PICKLES_CLASSES = ("a generic's",)  # its __orig_class__ is a leaf

WAYS = [
    (lambda value: value, lambda got: got),
    (lambda value: [1, {2: (3, value)}, value], lambda got: got[1][2][1]),
    (lambda value: natives.Bare(x=value, y=[natives.Bare(a=0)]), lambda got: got.x),
    (lambda value: {"x": natives.Pair([value], 0)}, lambda got: got["x"].a[0]),
]


@pytest.mark.parametrize("name", VALUES)
def test_an_instance_arrives_as_its_pickle_has_it(name):
    value = VALUES[name]
    wanted = print_of(pickle.loads(pickle.dumps(value, 5)))
    for _ in range(2):  # the second time its shape is known
        for wrap, unwrap in WAYS:
            packed = ringcast.pack(wrap(value), allow_pickle=name in PICKLES_CLASSES)
            assert (
                print_of(unwrap(ringcast.unpack(packed, allow_pickle=name in PICKLES_CLASSES)))
                == wanted
            )


def test_instances_of_many_shapes_arrive():
    values = [
        natives.Bare(**{name: number for name in names})
        for number, names in enumerate(["ab", "ba", *"abcdefg"])
    ]
    values += [with_more(natives.SlotsMore(), **{name: 1}) for name in "abcdefg"]
    for _ in range(3):
        got = ringcast.unpack(ringcast.pack(values, allow_pickle=False), allow_pickle=False)
        assert print_of(got) == print_of(values)
        values.reverse()


def test_attributes_that_come_again_and_again_take_no_room_for_their_names():
    values = [Named(a_rather_long_name=number, another_rather_long_name=0) for number in range(100)]
    assert ringcast.pack(values).nbytes < 100 * 4 + 400
    assert (
        len({id(name) for value in ringcast.unpack(ringcast.pack(values)) for name in vars(value)})
        == 2
    )


def test_names_of_attributes_are_interned_as_pickles_are():
    for value in (
        natives.Bare(one_name=1),
        natives.Bare(**{"un" + str(number): 1 for number in range(300)}),
    ):
        for name in vars(ringcast.unpack(ringcast.pack(value))):
            assert sys.intern(name) is name


def test_an_object_that_stands_for_itself_arrives_as_one_of_its_class():
    packed = ringcast.pack(object(), allow_pickle=False)
    assert type(ringcast.unpack(packed, allow_pickle=False, classes=[object])) is object


def test_an_instance_made_from_a_frame_can_be_referred_to_weakly_and_sent_on():
    value = natives.make(natives.SlotsMore, {"a": 1, "d": 2})
    got = ringcast.unpack(ringcast.pack(value))
    assert weakref.ref(got)() is got
    assert print_of(ringcast.unpack(ringcast.pack(got))) == print_of(value)


# ---- What is looked at, and when -----------------------------------------------------------------


def test_an_error_while_a_class_is_first_looked_at_is_not_remembered(monkeypatch):
    late = type("bound_later", (), {"__module__": __name__})
    for _ in range(2):
        with pytest.raises(ringcast.PickleRefused, match="not to be found by this name"):
            ringcast.pack(late(), allow_pickle=False)
    monkeypatch.setitem(globals(), "bound_later", late)
    assert type(ringcast.unpack(ringcast.pack(late(), allow_pickle=False))) is late


@pytest.mark.parametrize("error", [RecursionError, ImportError, ValueError])
def test_whatever_is_raised_while_a_class_is_looked_at_is_asked_again(monkeypatch, error):
    cls = type("Made" + error.__name__, (), {"__module__": __name__})
    monkeypatch.setitem(globals(), cls.__name__, cls)

    class Raises:
        def get(self, name):
            raise error(name)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("copyreg._slotnames", Raises().get)
        with pytest.raises((ringcast.PickleRefused, error)):
            ringcast.pack(cls(), allow_pickle=False)
    assert (
        type(ringcast.unpack(ringcast.pack(cls(), allow_pickle=False), allow_pickle=False)) is cls
    )
