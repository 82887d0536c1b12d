# SPDX-License-Identifier: Apache-2.0
"""What is unpacked is what was packed, in value and in type: as unpickling would have made it, but
without a pickle."""

import gc
import os
import pickle
import re
import subprocess
import sys
import types
import weakref

import identities
import natives
from prints import fields_of, print_of
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from needs import needs_msgspec

import ringcast

pytestmark = pytest.mark.alike
NO_DEADLINE = settings(deadline=None, suppress_health_check=list(HealthCheck))
EXAMPLES = int(os.environ.get("RINGCAST_TEST_EXAMPLES", 200))
# Of what natives.py makes, only these go by pickle.
PICKLED = r" is (of type numpy\.(datetime64|timedelta64|str_|bytes_|c?longdouble)|a numpy.ndarray of dtype \S+), which"


def unpickled(value):
    try:
        return pickle.loads(pickle.dumps(value, 5))
    except Exception:  # what torch can't pickle, above all
        return value


def check(value, allow_pickle=False):
    got = ringcast.unpack(
        ringcast.pack(value, allow_pickle=allow_pickle), allow_pickle=allow_pickle
    )
    assert print_of(got) == print_of(unpickled(value))
    return got


@settings(NO_DEADLINE, max_examples=EXAMPLES)
@given(natives.natives)
def test_any_value_arrives_as_a_pickle_of_it_would(value):
    try:
        check(value)
    except ringcast.PickleRefused as refused:
        assert re.search(PICKLED, str(refused)), refused
        check(value, allow_pickle=True)


@settings(NO_DEADLINE, max_examples=EXAMPLES)
@given(identities.shared())
def test_what_is_one_object_in_a_value_arrives_as_one(value):
    try:
        got = check(value)
    except (
        ringcast.PickleRefused
    ) as refused:  # between what is pickled and what is not, identity is not kept
        assert re.search(PICKLED, str(refused)), refused
        return
    assert identities.identities_of(got) == identities.identities_of(unpickled(value))


@settings(NO_DEADLINE, max_examples=EXAMPLES // 4)
@given(natives.natives)
def test_it_arrives_on_a_ring_too_and_does_so_again(lasting, value):
    writer, reader = lasting
    for sent in (value, {"key": value, "again": value}, [value, value]):
        for _ in range(2):  # the second time, all classes and keys are known
            writer.send(sent, 0)
            assert print_of(reader.recv(0)) == print_of(unpickled(sent))


@pytest.fixture(scope="module")
def lasting():
    with ringcast.Writer(1 << 22) as writer, ringcast.Reader(writer.handle) as reader:
        writer.send(0, 0)
        reader.recv(0)  # a first wait opens descriptors
        yield writer, reader


def test_every_border_of_every_width_arrives():
    for value in natives.BORDERS:
        check([value, [value], [value] * 3, (0, value, 1), (value, 1.5), {value: value}])
    check([float(value) for value in natives.BORDERS])
    for length in (0, 1, 5, 6, 63, 64, 65, 251, 252, 255, 256, 2048, 2049, 65536):
        for item in (
            "x" * length,
            "\xe9" * length,
            "\U0001f600" * length,
            "\ud800" * length,
            bytes(length),
        ):
            check([item, bytearray(3) + item if type(item) is bytes else {item: item}])
    for count in (0, 1, 2, 3, 251, 252, 253, 65536):
        numbers = range(count)
        for value in (
            [None] * count,
            (*numbers,),
            [float(number) for number in numbers],
            dict.fromkeys(numbers),
        ):
            got = ringcast.unpack(ringcast.pack(value))
            assert (
                got == value
                and type(got) is type(value)
                and type(next(iter(got), 1)) is type(next(iter(value), 1))
            )
        assert ringcast.unpack(ringcast.pack({*numbers})) == {*numbers}


TUPLES = [
    natives.Pair(1, "x"),
    natives.Typed((1, 2.5), None),
    natives.Nothing(),
    (1, natives.Pair("a", ())),
]


@pytest.mark.parametrize("value", TUPLES, ids=repr)
def test_a_tuple_of_any_kind_has_the_hash_of_the_one_that_was_sent(value):
    got = check(
        {"dict": {value: "found"}, "set": {value}, "frozenset": frozenset([value]), "itself": value}
    )
    assert hash(got["itself"]) == hash(value)
    assert got["dict"][value] == "found" and got["dict"][got["itself"]] == "found"
    assert value in got["set"] and value in got["frozenset"] and {value} & got["set"] == got["set"]


@needs_msgspec
@pytest.mark.parametrize("number", [5, 0], ids=["accepted", "refused"])
def test_a_struct_arrives_as_it_was_and_its_post_init_does_not_run(number):
    """Also with a value that __post_init__ would refuse, or change."""
    value = natives.StructPositive(5)
    value.a, value.checks = number, 7
    got = ringcast.unpack(ringcast.pack(value, allow_pickle=False), allow_pickle=False)
    assert type(got) is natives.StructPositive and (got.a, got.checks) == (number, 7)


@needs_msgspec
def test_a_struct_arrives_without_the_values_of_its_cached_properties():
    value = natives.StructWithDict(2)
    assert value.doubled == 4 and vars(value) == {"doubled": 4}
    got = check(value)
    assert vars(got) == {} and got.doubled == 4


@needs_msgspec
def test_attributes_that_post_init_gives_a_struct_are_not_lost():
    value = natives.StructWithDict(2, True)
    assert vars(value) == {"extra": [2]}
    with pytest.raises(
        ringcast.PickleRefused,
        match="StructWithDict .* that has attributes beside its fields, and a",
    ):
        ringcast.pack(value, allow_pickle=False)
    assert vars(check([value], allow_pickle=True)[0]) == {"extra": [2]}


@needs_msgspec
@pytest.mark.parametrize("field", [1, "text", (1, 2.5), (1, []), [], {}, None], ids=repr)
def test_the_collector_looks_at_a_struct_as_at_an_unpickled_one(field):
    for cls in natives.Struct, natives.StructFrozen, natives.StructLight, natives.StructWeakref:
        value = [cls(field)]
        (got,), (unpickled_one,) = ringcast.unpack(ringcast.pack(value)), unpickled(value)
        assert gc.is_tracked(got) == gc.is_tracked(unpickled_one), cls


@needs_msgspec
def test_a_struct_of_a_class_that_is_called_otherwise_is_pickled():
    value = natives.StructOfOne(5)
    assert value is natives.StructOfOne(5)
    with pytest.raises(ringcast.PickleRefused, match="StructOfOne"):
        ringcast.pack(value, allow_pickle=False)
    assert ringcast.unpack(ringcast.pack(value, allow_pickle=True), allow_pickle=True) is value


def test_one_str_many_times_is_one_str():
    text, other = "request-" + str(12345), "\xe9t\xe9-" + "x" * 300
    value = [
        [text, other] * 50,
        {text: other, other: text},
        (text,) * 3,
        natives.Plain(text, other),
    ]
    got = check(value)
    assert ringcast.pack(value).nbytes < 1500
    assert all(item is got[0][0] for item in got[0][::2]) and got[2][0] is got[3].a is got[0][0]


# ---- Depth, width, cycles ------------------------------------------------------------------------

NESTS = {
    "list": lambda value: [value],
    "tuple": lambda value: (value,),
    "dict": lambda value: {"x": value},
    "frozenset": lambda value: frozenset([value]),
    "slice": lambda value: slice(None, value, 1),
    "Plain": natives.Plain,
    "Pair": natives.Pair,
    "WithSlots": lambda value: natives.WithSlots(value, None),
    **({"Struct": natives.Struct} if natives.STRUCT_CLASSES else {}),
}


def nest(kind, levels, value=7):
    for _ in range(levels):
        value = NESTS[kind](value)
    return value


def levels_of(kind, value):
    inner = {"list": 0, "tuple": 0, "dict": "x", "Pair": 0}
    levels = 0
    while type(value) is not int:
        levels += 1
        if kind == "frozenset":
            (value,) = value
        elif kind in inner:
            value = value[inner[kind]]
        else:
            value = value.stop if kind == "slice" else value.a
    return levels


@pytest.mark.parametrize("kind", NESTS)
def test_a_nest_of_1024_goes_as_it_is_and_one_deeper_is_refused(kind):
    for levels in (1, 64, 65, 1000, 1024):
        packed = ringcast.pack([nest(kind, levels - 1)], allow_pickle=False)
        got = ringcast.unpack(packed, allow_pickle=False)
        assert type(got) is list and levels_of(kind, got[0]) == levels - 1
    with pytest.raises(
        ringcast.PickleRefused, match=r"\.\.\. \(1024 levels down\) is (a|of type) .* which only "
    ):
        ringcast.pack([nest(kind, 1024)], allow_pickle=False)
    # The rest by pickle.
    assert levels_of(kind, ringcast.unpack(ringcast.pack([nest(kind, 1100)]))[0]) == 1100


@pytest.mark.parametrize("levels", [1022, 1023, 1024, 1025])
def test_an_enums_member_at_the_bottom_of_a_nest_arrives(levels):
    got = ringcast.unpack(ringcast.pack(nest("list", levels, natives.Color.RED)))
    for _ in range(levels):
        (got,) = got
    assert got is natives.Color.RED


@pytest.mark.parametrize("kind", ["list", "dict", "Plain", "tuple"])
def test_a_nest_that_nothing_can_hold_is_an_error(kind):
    with pytest.raises(RecursionError):
        ringcast.pack(nest(kind, 100_000))
    with pytest.raises(ringcast.PickleRefused):
        ringcast.pack(nest(kind, 100_000), allow_pickle=False)


SMALL_STACK = """
import sys, threading
sys.modules["torch"] = None  # it takes seconds to import
sys.path[:0] = {paths!r}
import natives, ringcast, test_fidelity

def attempt(call, results):
    try:
        call()
        results.append("fine")
    except RecursionError as error:
        assert "of this thread's stack" in str(error), error
        results.append("refused")

threading.stack_size(256 << 10)
for kind in test_fidelity.NESTS:
    for levels, wanted in ((100, "fine"), (1000, "refused")):
        value = [test_fidelity.nest(kind, levels)]
        packed = ringcast.pack(value, allow_pickle=False)
        results = []
        for call in (lambda: ringcast.pack(value), lambda: ringcast.unpack(packed)):
            thread = threading.Thread(target=attempt, args=(call, results))
            thread.start()
            thread.join()
        # What takes little of the stack may fit in it.
        assert results == [wanted, wanted] or wanted == "refused" and "refused" in results, (kind, levels, results)
print("done")
"""


@pytest.mark.unwatched  # AddressSanitizer's frames are several times as large
def test_a_small_stack_is_no_crash():
    program = SMALL_STACK.format(paths=[os.path.dirname(__file__)])
    command = [sys.executable, "-c", program]
    variables = {**os.environ, "CI": ""}
    done = subprocess.run(
        command, capture_output=True, text=True, env=variables, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def cycles():
    rounds = {}
    rounds["list"] = []
    rounds["list"].append(rounds["list"])
    rounds["dict"] = {}
    rounds["dict"]["x"] = rounds["dict"]
    rounds["tuple"] = ([],)
    rounds["tuple"][0].append(rounds["tuple"])
    rounds["Plain"] = natives.Plain(1)
    rounds["Plain"].a = rounds["Plain"]
    rounds["WithSlots"] = natives.WithSlots(1, 2)
    rounds["WithSlots"].b = [rounds["WithSlots"]]
    rounds["Pair"] = natives.Pair([], {})
    rounds["Pair"].b["x"] = rounds["Pair"]
    rounds["Frozen"] = natives.Frozen([])
    rounds["Frozen"].a.append(rounds["Frozen"])
    rounds["slice"] = slice([], None)
    rounds["slice"].start.append(rounds["slice"])
    rounds["set"] = natives.Plain(set())
    rounds["set"].a.add(natives.Ordered(1, 2))
    next(iter(rounds["set"].a)).b = rounds["set"]
    rounds["frozenset"] = [frozenset([natives.Ordered(1, 2)])]
    next(iter(rounds["frozenset"][0])).b = rounds["frozenset"]
    if natives.STRUCT_CLASSES:
        rounds["Struct"] = natives.Struct(1)
        rounds["Struct"].b = rounds["Struct"]
    return rounds


def shape(value, seen=None):
    """The value with a number for each container, by which cycles show."""
    seen = {} if seen is None else seen
    if isinstance(value, (int, str, type(None))):
        return value
    if id(value) in seen:
        return f"again {seen[id(value)]}"
    seen[id(value)] = len(seen)
    if isinstance(value, slice):
        inner = [value.start, value.stop, value.step]
    elif isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        inner = list(value)
    else:
        inner = list(fields_of(value).values())
    return type(value).__name__, [shape(item, seen) for item in inner]


@pytest.mark.parametrize("kind", cycles())
def test_a_cycle_is_pickled_and_comes_back_as_one(kind):
    cycle = cycles()[kind]
    for value in (cycle, {"x": cycle, "y": 1}, [1, cycle, "text"]):
        try:
            wanted = shape(pickle.loads(pickle.dumps(value, 5)))
        except Exception as error:  # pickle can't either
            with pytest.raises(type(error)):
                ringcast.unpack(ringcast.pack(value))
            continue
        assert shape(ringcast.unpack(ringcast.pack(value))) == wanted
        with pytest.raises(ringcast.PickleRefused):
            ringcast.pack(value, allow_pickle=False)


HOLDERS = {
    "list": lambda leaf: [1, leaf],
    "dict": lambda leaf: {"x": 1, "leaf": leaf},
    "dict of ints": lambda leaf: {1: leaf},
    "tuple": lambda leaf: (leaf, 1),
    "set": lambda leaf: {leaf},
    "Plain": natives.Plain,
    "WithSlots": lambda leaf: natives.WithSlots(leaf, 2),
    "Pair": lambda leaf: natives.Pair(leaf, 2),
    "slice": lambda leaf: slice(leaf),
    "far away": lambda leaf: [{"x": natives.Plain((leaf, 1))}],
}


def leaf_of(value):
    while not isinstance(value, types.SimpleNamespace):
        if isinstance(value, slice):
            value = value.stop
        elif isinstance(value, (list, tuple, set, dict)):
            items = value.values() if isinstance(value, dict) else value
            value = next(item for item in items if not isinstance(item, int))
        else:
            value = value.a
    return value


class Hashed(types.SimpleNamespace):
    __hash__ = object.__hash__


@pytest.mark.parametrize("ballast", [0, 5000])  # it is looked for in another way in a long pickle
@pytest.mark.parametrize("kind", HOLDERS)
def test_a_cycle_by_way_of_what_only_pickle_can_send_comes_back_as_one(kind, ballast):
    leaf = Hashed(ballast="x" * ballast)
    leaf.holder = HOLDERS[kind](leaf)
    for value, find in (
        (leaf.holder, lambda got: got),
        ({"x": leaf.holder, "y": 1}, lambda got: got["x"]),
        ([1, leaf.holder, "text"], lambda got: got[1]),
    ):
        for got in (pickle.loads(pickle.dumps(value)), ringcast.unpack(ringcast.pack(value))):
            assert leaf_of(find(got)).holder is find(got)
        with pytest.raises(ringcast.PickleRefused):
            ringcast.pack(value, allow_pickle=False)


class Weakly(natives.Plain):
    """Refers to its holder only when it is pickled."""

    def __getstate__(self):
        return {"a": 1, "holder": self.a()}


@pytest.mark.parametrize("ballast", [0, 5000])
def test_a_leaf_that_knows_its_container_weakly_is_a_cycle_all_the_same(ballast):
    value = [natives.Plain(1, "x" * ballast)]
    value[0].a = Weakly(weakref.ref(value[0]))
    for got in (pickle.loads(pickle.dumps(value)), ringcast.unpack(ringcast.pack(value))):
        assert got[0].a.holder is got[0]


@pytest.mark.parametrize("ballast", [0, 5000])
def test_only_what_leads_back_to_its_container_is_pickled_as_a_whole(ballast):
    shared = [1, 2]
    value = {
        "x": np.arange(3),
        "y": [Hashed(a=shared)],
        "z": shared,
        "w": Hashed(b={}, c="x" * ballast),
    }
    assert list(ringcast.pack(value, hash="sha256").hashes) == ["x"]
    value["w"].b["back"] = value["y"]  # whose leaf is in the same pickle
    assert list(ringcast.pack(value, hash="sha256").hashes or ()) == []


def dag(make, levels, value):
    for _ in range(levels):
        value = make(value)
    return value


@pytest.mark.parametrize(
    "make",
    [
        lambda value: [value, value],
        lambda value: {"x": value, "y": value},
        lambda value: natives.Plain(value, value),
        lambda value: (value, [1, value]),
    ],
    ids=["list", "dict", "Plain", "mixed"],
)
def test_what_stands_in_a_value_2_to_the_40_times_is_sent_once(make):
    packed = ringcast.pack(dag(make, 40, [1, 2, 3, 4]), allow_pickle=False)
    assert packed.nbytes < 2000
    got, depth = ringcast.unpack(packed), 0
    while type(got) is not list or got != [1, 2, 3, 4]:
        got = (
            got[0]
            if isinstance(got, (list, tuple))
            else got["x"]
            if isinstance(got, dict)
            else got.a
        )
        depth += 1
        if depth == 40:
            break
    assert got == [1, 2, 3, 4]


def test_packed_numbers_that_stand_in_a_value_often_are_sent_once():
    for numbers in (list(range(1000)), tuple(float(number) for number in range(500))):
        value = [numbers] * 100_000
        packed = ringcast.pack(value, allow_pickle=False)
        assert packed.nbytes < 210_000
        got = ringcast.unpack(packed)
        assert len(got) == len(value) and got[0] is got[-1] and got[0] == numbers
