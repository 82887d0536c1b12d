# SPDX-License-Identifier: Apache-2.0
"""Types of the standard library that go without a pickle: they arrive as a pickle of them would."""

import array
import collections
import datetime
import decimal
import fractions
import pathlib
import pickle
import re
import subprocess
import sys
import uuid
import zoneinfo

import numpy as np
import pytest
from natives import FACTORIES, ZONES, Pair, Plain
from prints import print_of

import ringcast

pytestmark = pytest.mark.alike

# Lengths about the one from which on bytes lie beside the stream.
ARRAYS = [
    array.array(code, ("x" if code == "u" else [1]) * count)
    for code in "bBuhHiIlLqQfd"
    for count in (0, 1, 3, 255, 256, 257, 2048, 2049, 70000)
]
ARRAYS.append(array.array("d", [1.5, -0.0]) * (1 << 16))  # one of 1 MiB


def ident(value):
    return f"{type(value).__name__}-{str(value)[:40]}"


HOUR = datetime.timedelta(hours=1)
ALMOST = datetime.timedelta(days=1, microseconds=-1)
TIMEZONES = [
    datetime.timezone.utc,
    *(datetime.timezone(offset) for offset in (ALMOST, -ALMOST)),
    *(datetime.timezone(HOUR * hours, name) for hours, name in ((0, "UTC"), (-5, "été"))),
    *(zone for zone in ZONES if zone),
]
OF_TIME = datetime.datetime, datetime.date, datetime.time, datetime.timedelta
FOLDS = [{"fold": fold, "tzinfo": zone} for fold in (0, 1) for zone in [None, *TIMEZONES]]
TIMES = [
    *(most for kind in OF_TIME for most in (kind.min, kind.max)),
    datetime.timedelta(microseconds=-1),
    *(datetime.datetime(2024, 10, 27, 2, 30, **fold) for fold in FOLDS),
    *(datetime.time(2, 30, 1, 999999, **fold) for fold in FOLDS),
]
DECIMALS = "0 -0 1.50 1E+5 -1E-999999 NaN sNaN -NaN12 sNaN3 Infinity -Infinity".split()
NUMBERS = [
    *(uuid.UUID(int=number) for number in (0, 1, 2**63, 2**64 - 1, 2**64, 2**127 + 5, 2**128 - 1)),
    *(uuid.UUID(int=7 << 90, is_safe=is_safe) for is_safe in uuid.SafeUUID),
    *map(decimal.Decimal, [*DECIMALS, "1." + "123456789" * 500]),
]
POSIX = ["", ".", "/", "//a", "a/../b", "a\\b", "\ud800", "é" * 3000]
WINDOWS = ["", "C:", "C:x", "C:/x", "//host/share/x", "a/b", "./c:d"]
PATHS = [pathlib.Path("/tmp/x.y"), pathlib.PurePath("a", "b")]
PATHS += [*map(pathlib.PurePosixPath, POSIX), *map(pathlib.PureWindowsPath, WINDOWS)]
LETTERS = "? b i1 u2 >u4 <i8 f2 >f8 g c8 O S S5 U U17 V V9 M8 M8[D] <m8[25s]".split()
DTYPES = [np.dtype(letters) for letters in LETTERS]
LISTS, MOSTS = ([], [1, 2, 3], ["x", [1], None]), (None, 3, 2**62)
CONTAINERS = [
    *(collections.defaultdict(factory, {"a": 1}) for factory in FACTORIES),
    collections.defaultdict(list, {(1, "x"): [[]], None: {2: 3}}),
    collections.defaultdict(dict),
    collections.OrderedDict([("b", 1), ("a", {}), (3, [collections.OrderedDict()])]),
    collections.Counter("abracadabra"),
    collections.Counter({"x": -1, (1, 2): 2.5, "y": "any"}),
    *(collections.deque(items, most) for items in LISTS for most in MOSTS),
    collections.deque([], 0),
    collections.deque([collections.deque([1.5] * 5)]),
]
VALUES = [*ARRAYS, *TIMEZONES, *TIMES, *NUMBERS, *PATHS, *DTYPES, *CONTAINERS]


def check(value):
    got = ringcast.unpack(ringcast.pack(value, allow_pickle=False), allow_pickle=False)
    wanted = pickle.loads(pickle.dumps(value, 5))
    assert type(got) is type(wanted) and repr(got) == repr(wanted)
    assert print_of(got) == print_of(wanted)
    return got


@pytest.mark.parametrize("value", VALUES, ids=ident)
def test_it_arrives_as_its_pickle_would(value):
    check(value)
    check({"x": value, "y": [1, (value, {2: value})], "z": Plain(value, Pair(value))})
    if type(value).__hash__ and "sNaN" not in str(value):
        check({value: {value}, (value, 1): frozenset([value])})


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


# ---- What is kept --------------------------------------------------------------------------------


def test_a_container_that_arrives_goes_on_as_its_type_does():
    value = collections.OrderedDict(zip("abcd", range(4)))
    value.move_to_end("a")
    value.move_to_end("d", last=False)
    got = check(value)
    assert list(got) == list("dbca") and got.popitem() == ("a", 0)
    got.move_to_end("b")
    assert list(got) == list("dcb")
    got = check(collections.defaultdict(list, a=[1]))
    got["b"].append(2)
    assert got == {"a": [1], "b": [2]}
    got = check(collections.deque(range(3), 3))
    got.append(3)
    assert list(got) == [1, 2, 3]


def test_what_there_is_one_of_is_that_one():
    utc = datetime.timezone.utc
    assert check(utc) is utc and check(datetime.datetime(2020, 1, 1, tzinfo=utc)).tzinfo is utc
    assert check(np.dtype("f4")) is np.dtype("f4")
    for zone in ZONES:
        assert check(zone) is zone and check(datetime.time(1, tzinfo=zone)).tzinfo is zone


def test_a_key_is_found_by_what_was_sent():
    values = [value for value in (*TIMES, *NUMBERS, *PATHS, *DTYPES) if "NaN" not in str(value)]
    got = ringcast.unpack(ringcast.pack(dict.fromkeys(values, 1), allow_pickle=False))
    assert all(got[value] == 1 for value in pickle.loads(pickle.dumps(values, 5)))


# ---- What is not one of them ---------------------------------------------------------------------


class Deque(collections.deque):
    pass


class Time(datetime.datetime):
    pass


class Zone(datetime.tzinfo):
    def utcoffset(self, _):
        return HOUR


def with_attribute():
    value = collections.OrderedDict(a=1)
    value.more = 2
    return value


# Each with the type that the refusal names.
PICKLED = [
    (Deque([1]), "test_kinds.Deque"),
    (Time(2020, 1, 1), "test_kinds.Time"),
    (datetime.datetime(2020, 1, 1, tzinfo=Zone()), "datetime.datetime"),
    (datetime.time(1, tzinfo=Zone()), "datetime.time"),
    (collections.defaultdict(Deque), "collections.defaultdict"),
    (with_attribute(), "collections.OrderedDict"),
    (np.dtype("i4", metadata={"a": 1}), "Int32DType"),
]


@pytest.mark.parametrize("value, name", PICKLED, ids=[name for _, name in PICKLED])
def test_what_is_more_than_its_state_is_pickled(value, name):
    with pytest.raises(ringcast.PickleRefused, match=rf"^value\['x'\]\[1\] .*{name}\W"):
        ringcast.pack({"x": [1, value]}, allow_pickle=False)
    got = ringcast.unpack(ringcast.pack({"x": [1, value]}))["x"][1]
    looks = [re.sub("0x[0-9a-f]+", "", repr(each)) for each in (got, value)]
    assert type(got) is type(value) and looks[0] == looks[1]
    assert getattr(got, "__dict__", None) == getattr(value, "__dict__", None)


def test_a_counters_attributes_are_dropped_as_its_pickle_does():
    value = collections.Counter("aab")
    value.more = 1
    assert pickle.loads(pickle.dumps(value)).__dict__ == check(value).__dict__ == {}


@pytest.mark.skipif(not any(ZONES), reason="no time zones on this machine")
def test_a_time_zone_that_is_not_found_by_its_key_is_pickled():
    value = zoneinfo.ZoneInfo.no_cache("Etc/GMT+5")
    with pytest.raises(ringcast.PickleRefused, match=r"zoneinfo\.ZoneInfo"):
        ringcast.pack([value], allow_pickle=False)
    assert ringcast.unpack(ringcast.pack([value]))[0].key == "Etc/GMT+5"


# ---- Containers ----------------------------------------------------------------------------------

WRAPS = {
    "defaultdict": (lambda value: collections.defaultdict(list, {"k": value}), "['k']"),
    "OrderedDict": (lambda value: collections.OrderedDict(a=1, k=value), "['k']"),
    "Counter": (lambda value: collections.Counter({"k": value}), "['k']"),
    "deque": (lambda value: collections.deque([1, value], 2), "[1]"),
}


@pytest.mark.parametrize("name", WRAPS)
def test_what_can_not_be_sent_is_told_by_its_place(name):
    wrap, place = WRAPS[name]
    with pytest.raises(ringcast.PickleRefused) as refused:
        ringcast.pack([wrap({"x": wrap(fractions.Fraction(1))})], allow_pickle=False)
    assert str(refused.value).startswith(f"value[0]{place}['x']{place} ")


@pytest.mark.parametrize("name", WRAPS)
def test_they_nest_as_deep_as_tokens_do(name):
    wrap, _ = WRAPS[name]

    def nest(levels):
        value = 1
        for _ in range(levels):
            value = wrap(value)
        return value

    def depth(value):
        levels = 0
        while value != 1:
            value, levels = (value["k"] if isinstance(value, dict) else value[1]), levels + 1
        return levels

    for levels in (10, 300):
        assert depth(ringcast.unpack(ringcast.pack(nest(levels), allow_pickle=False))) == levels
    with pytest.raises(ringcast.PickleRefused):
        ringcast.pack(nest(1000), allow_pickle=False)


@pytest.mark.parametrize("name", WRAPS)
def test_one_that_holds_itself_arrives_so(name):
    inner = []
    value = WRAPS[name][0](inner)
    inner.append(value)
    got = ringcast.unpack(ringcast.pack([value]))[0]
    item = got["k"] if isinstance(got, dict) else got[1]
    assert type(got) is type(value) and item[0] is got


def elsewhere(code, value):
    """What this program, of a process of its own, prints of a frame of the value."""
    frame = bytes(ringcast.pack(value, allow_pickle=False)).hex()
    code = f"import sys, ringcast\nframe = bytes.fromhex(sys.stdin.read())\n{code}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=frame, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_module_that_the_receiver_lacks_is_imported_where_pickles_are_off():
    value = [uuid.UUID(int=1), decimal.Decimal(1), datetime.date(2020, 1, 1), array.array("b")]
    code = """
for name in ("uuid", "decimal", "_decimal", "pathlib", "zoneinfo"): sys.modules.pop(name, None)
print(ringcast.unpack(frame, allow_pickle=False))
"""
    assert elsewhere(code, value) == repr(value)


def test_numpy_is_imported_for_a_dtype_alone():
    code = """
ringcast.pack(ringcast.unpack(frame, allow_pickle=False), allow_pickle=False)
print("numpy" in sys.modules)
"""
    assert elsewhere(code, [*ARRAYS, *NUMBERS, *PATHS, *TIMES, *CONTAINERS]) == "False"
