# SPDX-License-Identifier: Apache-2.0
"""
Values of every type that a frame has a form of its own for: classes to be found by their name, and
strategies.
"""

import array
import collections
import dataclasses
import datetime
import enum
import functools
import pathlib
import struct
import sys
import types
import typing
import uuid
import zoneinfo

import numpy as np
import values
from hypothesis import strategies as st
from needs import msgspec, torch

# ---- Classes -------------------------------------------------------------------------------------

T = typing.TypeVar("T")


@dataclasses.dataclass
class Plain:
    a: object
    b: object = None
    kind: typing.ClassVar[str] = "plain"

    def _repr_pretty_(self, printer, cycle):
        """For hypothesis, which would ask for fields that an instance may lack."""
        printer.text(type(self).__name__)
        printer.pretty({} if cycle else vars(self))


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object
    b: object = None


@dataclasses.dataclass(eq=False)
class ByIdentity:
    a: object
    b: object = None


@dataclasses.dataclass
class Inherited(Plain):
    c: object = 3


@dataclasses.dataclass
class Empty:
    pass


@dataclasses.dataclass
class Made:
    """Of fields that no caller gives."""

    a: object
    given: dataclasses.InitVar[object] = None
    made: object = dataclasses.field(init=False)
    items: list = dataclasses.field(default_factory=list, repr=False, compare=False)

    def __post_init__(self, given):
        self.made = given


@dataclasses.dataclass(order=True, unsafe_hash=True)
class Ordered:
    a: object
    b: object = None


@dataclasses.dataclass
class OfType(typing.Generic[T]):
    a: T


@dataclasses.dataclass
class WithSlots:
    """By hand, as before Python 3.10."""

    __slots__ = ("a", "b")
    a: object
    b: object


class Outer:
    @dataclasses.dataclass
    class Inner:
        a: object
        b: object = None


class Bare:
    """Of whatever attributes it is given."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    @functools.cached_property
    def read(self):
        return sorted(vars(self))


class SlotsAlone:
    __slots__ = ("a", "b", "__private")


class SlotsMore(SlotsAlone):
    """Has a __dict__ beside its slots."""

    __slots__ = ("c", "__dict__", "__weakref__")


class PlainMore(Plain):
    """No dataclass itself."""


PLAIN_CLASSES = [Plain, Frozen, Inherited, Ordered, WithSlots, Outer.Inner]
# Hashable if what is in them is.
HASHABLE_CLASSES = [Frozen, Ordered]

if sys.version_info >= (3, 10):

    @dataclasses.dataclass(slots=True)
    class Slotted:
        a: object
        b: object = None

    @dataclasses.dataclass(slots=True)
    class SlottedMore(Slotted):
        c: object = 3

    @dataclasses.dataclass(slots=True, frozen=True)
    class FrozenSlots:
        a: object
        b: object = None

    @dataclasses.dataclass(kw_only=True, frozen=True)
    class KeywordOnly:
        b: object = None
        c: int = 4
        a: object

    PLAIN_CLASSES += [Slotted, SlottedMore, FrozenSlots, KeywordOnly]
    HASHABLE_CLASSES += [FrozenSlots, KeywordOnly]

if sys.version_info >= (3, 11):

    @dataclasses.dataclass(slots=True, weakref_slot=True)
    class WithWeakref:
        a: object
        b: object = None

    PLAIN_CLASSES.append(WithWeakref)

STRUCT_CLASSES = []
if msgspec:

    class Struct(msgspec.Struct):
        a: object
        b: object = None

    class StructFrozen(msgspec.Struct, frozen=True):
        a: object
        b: object = None

    class StructNamed(
        msgspec.Struct, kw_only=True, rename="camel", tag="other", forbid_unknown_fields=True
    ):
        b: object = None
        a: object

    class StructArray(msgspec.Struct, array_like=True, tag=7, order=True):
        a: object
        b: list = msgspec.field(default_factory=list)

    class StructLight(msgspec.Struct, gc=False, omit_defaults=True):
        a: object
        b: object = msgspec.UNSET

    class StructWeakref(Struct, weakref=True):
        c: object = 3

    class StructOfType(msgspec.Struct, typing.Generic[T]):
        a: T
        b: object = None

    class StructChecked(msgspec.Struct):
        a: object
        b: object = None
        checked: bool = False

        def __post_init__(self):
            self.checked = True

    class StructPositive(msgspec.Struct):
        a: int
        checks: int = 0

        def __post_init__(self):
            self.checks += 1
            if self.a <= 0:
                raise LookupError(f"a is {self.a}")

    class StructWithDict(msgspec.Struct, dict=True):
        a: int
        more: bool = False

        def __post_init__(self):
            if self.more:
                self.extra = [self.a]

        @functools.cached_property
        def doubled(self):
            return 2 * self.a

    class One(type(msgspec.Struct)):
        """One instance of each class."""

        made = {}

        def __call__(cls, *arguments):
            return One.made.setdefault(cls, super().__call__(*arguments))

    class StructOfOne(msgspec.Struct, metaclass=One):
        a: int

    STRUCT_CLASSES = [
        Struct,
        StructFrozen,
        StructNamed,
        StructArray,
        StructLight,
        StructWeakref,
        StructOfType,
    ]
    STRUCT_CLASSES.append(StructChecked)
    HASHABLE_CLASSES.append(StructFrozen)

Pair = collections.namedtuple("Pair", "a b", defaults=[None])
Nothing = collections.namedtuple("Nothing", "")


class Typed(typing.NamedTuple):
    a: object
    b: object = None

    def both(self):
        return self.a, self.b


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    ALSO_RED = 1
    ODD = ("a", None)
    LIST = [1, 2]  # no hash


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Word(str, enum.Enum):
    YES = "yes"
    ASTRAL = "\U0001f600"


class Permission(enum.Flag):
    R = enum.auto()
    W = enum.auto()
    RW = R | W


class Bits(enum.IntFlag):
    A = 1
    B = 2
    HIGH = 1 << 40


class Shape(Pair, enum.Enum):
    SQUARE = (1, 1)


MEMBERS = [member for cls in (Color, Number, Word, Permission, Bits, Shape) for member in cls]
MEMBERS += [Color.ALSO_RED, Permission.RW]
# Made of others, or of no member.
COMPOSITES = [Permission(0), Bits(0), Bits.A | Bits.B, Bits.A | Bits.HIGH]
if sys.version_info >= (3, 11):

    class Name(enum.StrEnum):
        FIRST = enum.auto()

    MEMBERS.append(Name.FIRST)

# ---- Strategies ----------------------------------------------------------------------------------

BORDERS = [
    sign * (1 << bits) + more
    for bits in (7, 8, 15, 16, 31, 32, 62, 63, 64, 127, 128)
    for more in (-1, 0, 1)
    for sign in (1, -1)
]
NUMBER_TYPES = [
    np.dtype(name).type
    for name in (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 "
        "complex128 "
        "longlong ulonglong longdouble clongdouble intp"
    ).split()
]


def float_of(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


FACTORIES = [
    None,
    list,
    dict,
    set,
    int,
    float,
    str,
    tuple,
    bool,
    bytes,
    bytearray,
    complex,
    frozenset,
]
# None of them, where the machine has no time zones.
ZONES = [
    zoneinfo.ZoneInfo(key)
    for key in ("Europe/Berlin", "Etc/GMT+5")
    if key in zoneinfo.available_timezones()
] or [None]
ints = st.one_of(
    st.integers(),
    st.sampled_from(BORDERS),
    st.integers(0, 130),
    st.integers(-(1 << 3000), 1 << 3000),
)
odd_floats = [
    0.0,
    -0.0,
    float_of(0x7FF8 << 48 | 1),
    float_of(0xFFF8 << 48 | 7),
]  # NaNs that say more
floats = st.one_of(
    st.floats(), st.integers(0, 2**64 - 1).map(float_of), st.sampled_from(odd_floats)
)
texts = st.one_of(
    st.text(max_size=12),
    st.text(st.characters(codec=None), max_size=12),  # lone surrogates, too
    st.text("ab", min_size=60, max_size=70),
    st.sampled_from(
        [
            "",
            "\0",
            "a\0b",
            "key",
            "request-17",
            "é",
            "\U0001f600" * 9,
            "\ud800",
            "z" * 252,
            "z" * 3000,
        ]
    ),
)
bytes_ = st.binary(max_size=40) | st.integers(0, 3000).map(bytes)
numbers = st.one_of(
    *(
        st.binary(min_size=np.dtype(kind).itemsize, max_size=np.dtype(kind).itemsize).map(
            lambda data, kind=kind: kind(np.frombuffer(data, kind)[0])
        )
        for kind in NUMBER_TYPES
        if kind is not np.bool_ and kind not in (np.longdouble, np.clongdouble)
    ),
    st.sampled_from(
        [np.True_, np.False_, np.longdouble(1.5), np.clongdouble(1j), np.str_("x"), np.bytes_(b"x")]
    ),
    st.sampled_from(
        [np.datetime64("2020-01-01"), np.timedelta64(3, "s"), np.float64("nan"), np.float32(-0.0)]
    ),
)
arrays = st.tuples(
    st.sampled_from(values.NUMPY_DTYPES),
    values.shapes,
    st.sampled_from(values.LAYOUTS),
    values.seeds,
).map(lambda recipe: values.cook_array(*recipe))
tensors = st.nothing()
torch_names = st.nothing()
if torch:
    tensors = st.tuples(
        st.sampled_from(values.TORCH_DTYPES),
        values.shapes,
        st.sampled_from(values.LAYOUTS),
        st.sampled_from(("plain", "requires_grad", "parameter")),
        values.seeds,
    ).map(lambda recipe: values.cook_tensor(*recipe))
    torch_names = st.one_of(
        st.sampled_from([getattr(torch, name) for name in values.TORCH_DTYPES]),
        st.sampled_from(
            [torch.device("cpu"), torch.device("cuda", 1), torch.device("meta"), torch.quint8]
        ),
        st.lists(st.integers(0, 2**62), max_size=4).map(torch.Size),
    )

zones = st.one_of(
    st.none(),
    st.just(datetime.timezone.utc),
    st.builds(
        datetime.timezone,
        st.timedeltas(-datetime.timedelta(hours=23), datetime.timedelta(hours=23)),
        st.text(max_size=4),
    ),
    st.timedeltas(-datetime.timedelta(hours=23), datetime.timedelta(hours=23)).map(
        datetime.timezone
    ),
    st.sampled_from(ZONES),
)


def folded(value, zone, fold):
    return value.replace(tzinfo=zone, fold=fold)


folds = st.integers(0, 1)
standard = st.one_of(
    st.uuids(),
    st.builds(uuid.UUID, int=st.integers(0, 2**128 - 1), is_safe=st.sampled_from(uuid.SafeUUID)),
    st.decimals().filter(lambda number: not number.is_snan()),  # which has no hash
    st.builds(folded, st.datetimes(), zones, folds),
    st.builds(folded, st.times(), zones, folds),
    st.dates(),
    st.timedeltas(),
    zones,
    st.builds(pathlib.PurePosixPath, texts),
    st.builds(pathlib.PosixPath, texts),
    st.lists(texts, max_size=3).map(lambda parts: pathlib.PureWindowsPath(*parts)),
    st.sampled_from(
        [np.dtype(text) for text in "? i1 >u2 <i4 f8 >c16 O S3 U5 V7 M8[D] m8[25s]".split()]
    ),
)

atoms = st.one_of(
    st.none(),
    st.booleans(),
    ints,
    floats,
    st.complex_numbers(),
    texts,
    bytes_,
    numbers,
    standard,
    st.sampled_from(MEMBERS + COMPOSITES),
    torch_names,
)
bounds = st.integers(-(1 << 70), 1 << 70)
ranges = st.builds(range, bounds, bounds, bounds.filter(bool))


def make(cls, attributes):
    made = cls.__new__(cls)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def stateful(children):
    """
    Instances of which some attributes are not set, or that have more than others of the class.
    """
    names = st.sampled_from(
        ["a", "b", "c", "\xe9", "more", "__orig_class__", "_SlotsAlone__private"]
    )
    slots = st.sampled_from(["a", "b", "_SlotsAlone__private"])
    free = [Bare, SlotsMore, types.SimpleNamespace, PlainMore, Plain]
    return st.one_of(
        st.builds(make, st.sampled_from(free), st.dictionaries(names, children, max_size=4)),
        st.builds(make, st.just(SlotsAlone), st.dictionaries(slots, children)),
        st.builds(collections.UserDict, st.dictionaries(keys, children, max_size=3)),
        st.builds(collections.UserList, st.lists(children, max_size=3)),
    )


def instances(classes, children):
    return st.builds(lambda cls, a, b: cls(a=a, b=b), st.sampled_from(classes), children, children)


keys = st.recursive(
    atoms | ranges,
    lambda children: st.one_of(
        st.lists(children, max_size=3).map(tuple),
        st.frozensets(children, max_size=3),
        st.builds(Pair, children, children),
        instances(HASHABLE_CLASSES, children),
    ),
    max_leaves=4,
)


def containers(children):
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(keys, children, max_size=4),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
        st.builds(slice, children, children, children),
        st.builds(Pair, children, children),
        st.builds(Typed, children, children),
        instances(PLAIN_CLASSES, children),
        *([instances(STRUCT_CLASSES, children)] if STRUCT_CLASSES else []),
        stateful(children),
        st.builds(OfType, children),
        st.builds(Made, children, children),
        st.tuples(children, st.integers(2, 5)).map(
            lambda pair: [pair[0]] * pair[1]
        ),  # the same one, several times
        st.lists(ints, min_size=3, max_size=300),
        st.lists(st.sampled_from(BORDERS), min_size=3, max_size=6),
        st.lists(floats, min_size=3, max_size=20).map(tuple),
        st.builds(
            collections.deque,
            st.lists(children, max_size=4) | st.lists(ints, max_size=9),
            st.sampled_from([None, 0, 2, 2**40]),
        ),
        st.dictionaries(keys, children, max_size=4).map(collections.OrderedDict),
        st.dictionaries(keys, children, max_size=4).map(collections.Counter),
        st.builds(
            collections.defaultdict,
            st.sampled_from(FACTORIES),
            st.dictionaries(keys, children, max_size=4),
        ),
    )


typed_arrays = st.builds(
    lambda code, data, times: array.array(code, data * times),
    st.sampled_from("bBhHiIlLqQfd"),
    st.binary(max_size=3).map(lambda data: data * 8),
    st.sampled_from([1, 1, 1, 100]),
)

natives = st.recursive(
    st.one_of(
        atoms,
        ranges,
        bytes_.map(bytearray),
        typed_arrays,
        arrays,
        tensors,
        st.builds(Empty),
        st.just(Nothing()),
    ),
    containers,
    max_leaves=12,
)
