# SPDX-License-Identifier: Apache-2.0
"""What has no form of its own in a frame: within values that have, it goes by pickle and arrives as
pickle makes it; where pickles are turned off it is refused, by its place and type."""

import collections
import copyreg
import dataclasses
import enum
import pickle

import natives
import numpy as np
import pytest
from prints import print_of
from needs import msgspec

import ringcast

pytestmark = pytest.mark.alike

# ---- Subclasses ----------------------------------------------------------------------------------


# A value of the parent of each.
PARENTS = {
    "Int": 3,
    "Float": 0.5,
    "Complex": 1j,
    "Str": "x",
    "Bytes": b"x",
    "ByteArray": bytearray(b"x"),
    "List": [1],
    "Tuple": (1,),
    "Dict": {"a": 1},
    "Set": {1},
    "FrozenSet": frozenset([1]),
    "Scalar": np.float64(1.5),
    "Ordered": collections.OrderedDict(a=1),
    "Counts": collections.Counter("ab"),
    "Deque": collections.deque([1]),
}


def subclass(name, parent):
    return type(name, (parent,), {"__module__": __name__})


CHILDREN = {name: subclass(name, type(value)) for name, value in PARENTS.items()}
globals().update(CHILDREN)  # where pickle finds them
Array, PairMore = subclass("Array", np.ndarray), subclass("PairMore", natives.Pair)
SUBCLASSES = [CHILDREN[name](value) for name, value in PARENTS.items()]
SUBCLASSES += [np.arange(3).view(Array), PairMore(1, 2)]

# ---- Classes that have a say ---------------------------------------------------------------------


@dataclasses.dataclass
class Reduces:
    a: object

    def __reduce__(self):
        return Reduces, (("reduced", self.a),)


@dataclasses.dataclass
class ReducesEx(natives.Plain):
    def __reduce_ex__(self, protocol):
        return ReducesEx, (self.a, "reduced")


@dataclasses.dataclass
class GetsState:
    a: object

    def __getstate__(self):
        return {"a": ("state", self.a)}


@dataclasses.dataclass
class SetsState:
    a: object

    def __setstate__(self, state):
        self.__dict__.update({name: ("set", value) for name, value in state.items()})


@dataclasses.dataclass
class InheritsState(SetsState):
    b: object = 0


@dataclasses.dataclass
class MadeByNew:
    a: object

    def __new__(cls, *_):
        made = super().__new__(cls)
        made.a = "new"
        return made


@dataclasses.dataclass
class ReadByCode:
    a: object

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        return {"a": "other"} if name == "__dict__" else found


@dataclasses.dataclass
class SlotsByCode:
    __slots__ = ("a",)
    a: object

    def __setattr__(self, name, value):
        object.__setattr__(self, name, ("set", value))


@dataclasses.dataclass
class Registered:
    a: object


copyreg.pickle(Registered, lambda value: (Registered, (("registered", value.a),)))


class RegisteredNumber(enum.Enum):
    ONE = 1


copyreg.pickle(RegisteredNumber, lambda value: (str, (value.name,)))


class ReducingEnum(enum.Enum):
    ONE = 1

    def __reduce_ex__(self, protocol):
        return str, (self.name,)


class ByHand(tuple):
    """Looks like a namedtuple, and is none."""

    __slots__ = ()
    _fields = ("a", "b")

    def __new__(cls, items):
        return super().__new__(cls, (*items, "made")[:3])


Given = collections.namedtuple("Given", "a b")
Given.__getnewargs__ = lambda self: (self.a, "given")


nowhere = dataclasses.make_dataclass("not_there", ["a"], namespace={"__module__": __name__})
replaced = dataclasses.make_dataclass("Replaced", ["a"], namespace={"__module__": __name__})


@dataclasses.dataclass
class Replaced:  # noqa: F811
    a: object


local_pair = collections.namedtuple("local_pair", "a b")
local_pair.__qualname__ = "elsewhere"


def with_other_dict():
    value = natives.Plain(1, 2)
    value.__dict__ = CHILDREN["Dict"](a=1, b=2)
    return value


def with_a_way_of_its_own():
    value = natives.Bare(a=1)
    vars(value)["__reduce_ex__"] = Ways()
    return value


class Ways:
    def __call__(self, protocol):
        return Ways, ()


class AnswersAll:
    """Pickle asks it for __setstate__, and gets an answer."""

    def __getattr__(self, name):
        if name in ("__getnewargs__", "__getnewargs_ex__", "__getstate__"):
            raise AttributeError(name)
        return lambda state: vars(self).update(state or {}, answered=name)


class ReadsItsDict:
    __slots__ = ("a", "__dict__")

    @property
    def __dict__(self):
        return {"b": 1}


HAVE_A_SAY = [
    Reduces(1),
    ReducesEx(1),
    GetsState(1),
    SetsState(1),
    InheritsState(1),
    MadeByNew(1),
    ReadByCode(1),
    SlotsByCode(1),
    Registered(1),
    RegisteredNumber.ONE,
    ReducingEnum.ONE,
    ByHand((1, 2)),
    Given(1, 2),
    ReadsItsDict(),
    AnswersAll(),
    with_a_way_of_its_own(),
    with_other_dict(),
]
if msgspec:

    class StructState(msgspec.Struct):
        a: object

        def __reduce__(self):
            return StructState, (("reduced", self.a),)

    HAVE_A_SAY += [StructState(1)]

SENT = SUBCLASSES + HAVE_A_SAY


@pytest.mark.parametrize("value", SENT, ids=lambda value: type(value).__name__)
def test_it_arrives_as_its_pickle_has_it(value):
    wanted = print_of(pickle.loads(pickle.dumps(value, 5)))
    for wrap, unwrap in WAYS:
        if wrap(0) != {0} or type(value).__hash__:
            assert print_of(unwrap(ringcast.unpack(ringcast.pack(wrap(value))))) == wanted


WAYS = [
    (lambda value: value, lambda got: got),
    (lambda value: {"x": value}, lambda got: got["x"]),
    (lambda value: [1, {2: (3, value)}], lambda got: got[1][2][1]),
    (lambda value: natives.Plain(value), lambda got: got.a),
    (lambda value: natives.Pair([value], 0), lambda got: got.a[0]),
    (lambda value: slice(0, value), lambda got: got.stop),
]


def place_of(value):
    with pytest.raises(ringcast.PickleRefused) as refused:
        ringcast.pack(value, allow_pickle=False)
    what = str(refused.value).partition(
        ", which only pickle can send, and pickles are turned off here"
    )[0]
    return what.partition(" (")[0]  # the reason is another test's


@pytest.mark.parametrize(
    "value",
    [*SENT, replaced(1), nowhere(1), local_pair(1, 2)],
    ids=lambda value: type(value).__name__,
)
def test_without_pickles_it_is_refused_by_place_and_type(value):
    cls = type(value)
    named = f" is of type {cls.__module__}.{cls.__qualname__}"
    assert place_of(value) == "value" + named
    assert place_of({"x": [3, (value,)]}) == "value['x'][1][0]" + named
    assert place_of({1: natives.Plain(0, {"k": value})}) == "value[1].b['k']" + named
    assert place_of([slice(None, value)]) == "value[0].stop" + named
    if cls.__hash__ and isinstance(value, (str, tuple, enum.Enum)):
        assert place_of([{value: 1}]) == "a key of value[0]" + named
        assert place_of({"s": {value}}) == "value['s']{...}" + named


def holds_itself():
    value = natives.Plain([], 0)
    value.a.append(value)
    return value


OWN = "that says itself how it is pickled, made or read"
REASONS = [
    (
        holds_itself(),
        "an instance that holds itself, lacks a field, is nested too deep or is of one class too "
        "many",
    ),
    (GetsState(1), f"an instance of a class {OWN}"),
    (ReducingEnum.ONE, f"an Enum of a class {OWN}"),
    (PairMore(1, 2), f"a namedtuple of a class {OWN}"),
    (local_pair(1, 2), "a namedtuple that is not to be found by this name"),
]
if msgspec:
    REASONS.append((StructState(1), f"a msgspec.Struct of a class {OWN}"))


@pytest.mark.parametrize("value, why", REASONS, ids=[type(value).__name__ for value, _ in REASONS])
def test_without_pickles_the_error_says_why_a_class_that_looks_right_does_not_do(value, why):
    with pytest.raises(ringcast.PickleRefused) as refused:
        ringcast.pack(value, allow_pickle=False)
    assert f"{type(value).__qualname__} ({why}" in str(refused.value)


@pytest.mark.parametrize(
    "value", [replaced(1), nowhere(1), local_pair(1, 2)], ids=lambda value: type(value).__name__
)
def test_a_class_that_is_not_found_by_its_name_is_pickles_own_error(value):
    with pytest.raises(Exception) as own:
        pickle.dumps([value], 5)
    with pytest.raises(type(own.value), match=r"^value\[0\]: "):
        ringcast.pack([value])


def test_classes_of_a_function_and_lambdas_are_refused_and_located():
    @dataclasses.dataclass
    class Local:
        a: object

    for value in (Local(1), lambda: None):
        with pytest.raises((AttributeError, pickle.PicklingError), match=r"^value\['x'\]\[1\]: "):
            ringcast.pack({"x": [0, value]})
    assert place_of([Local(1)]).endswith(
        "_function_and_lambdas_are_refused_and_located.<locals>.Local"
    )


class Equal(type):
    """Says of two classes that they are one."""

    def __eq__(cls, other):
        return isinstance(other, Equal)

    def __hash__(cls):
        return 1


@dataclasses.dataclass
class One(metaclass=Equal):
    a: object


@dataclasses.dataclass
class Other(metaclass=Equal):
    b: object


class NoHash(type):
    __hash__ = None


@dataclasses.dataclass
class OfNoHash(metaclass=NoHash):
    a: object


def test_classes_of_odd_metaclasses_arrive_as_themselves():
    for value in (One(1), Other(2), [Other(4), One(5)]):
        got = ringcast.unpack(ringcast.pack([value]))[0]
        assert print_of(got) == print_of(value)
    with pytest.raises(TypeError, match=r"^value\[0\]: .*unhashable type: 'NoHash'"):  # pickle's
        ringcast.pack([OfNoHash(3)])
