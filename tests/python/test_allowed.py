# SPDX-License-Identifier: Apache-2.0
"""Where pickles are turned off a frame names only classes that are allowed: any other is refused by
its name, before anything is built or run."""

import collections
import fractions
import dataclasses
import enum
import errno
import pathlib
import subprocess
import sys
import types
from http import HTTPStatus

import numpy as np
import pytest
from needs import msgspec, needs_msgspec
from peers import still_works

import ringcast
from ringcast import _allowed

pytestmark = pytest.mark.alike
HERE = "allowed_here"


def define(module, name, base=None, **namespace):
    """
    A dataclass of one field that a frame finds in a module of that name, which conftest.py has not
    allowed.
    """
    made = sys.modules.setdefault(module, types.ModuleType(module))
    fields = {
        "__annotations__": {"path": str},
        "__module__": module,
        "__qualname__": name,
        **namespace,
    }
    made_class = dataclasses.dataclass(
        type(name.rpartition(".")[2], (base,) if base else (), fields)
    )
    owner = made if "." not in name else getattr(made, name.partition(".")[0])
    setattr(owner, name.rpartition(".")[2], made_class)
    return made_class


def leave_a_mark(self):
    pathlib.Path(self.path).touch()


Plain = define(HERE, "Plain")
Inner = define(HERE, "Plain.Inner")
Other = define(HERE, "Other")
Below = define(HERE + ".package.module", "Below")
Beside = define(HERE + "_not", "Beside")
Marks = define(HERE, "Marks", __del__=leave_a_mark)
MarksToo = define(HERE, "MarksToo", Marks)
Hashed = define(
    HERE, "Hashed", __hash__=lambda self: leave_a_mark(self) or 1, __eq__=lambda self, other: True
)
Pair = collections.namedtuple("Pair", "path", module=HERE)
Colour = enum.Enum("Colour", "RED", module=HERE)
Bits = enum.Flag("Bits", "A B", module=HERE)
Bare = type(
    "Bare", (), {"__module__": HERE, "__eq__": lambda self, other: vars(self) == vars(other)}
)
Slots = type("Slots", (Bare,), {"__module__": HERE, "__slots__": ("path", "unset")})
Deletes = type("Deletes", (), {"__module__": HERE, "__del__": leave_a_mark})
DeletesSlots = type("DeletesSlots", (Deletes,), {"__module__": HERE, "__slots__": ("unset",)})
for found in (Pair, Colour, Bits, Bare, Slots, Deletes, DeletesSlots):
    setattr(sys.modules[HERE], found.__name__, found)


def refused(frame, name, **more):
    with pytest.raises(ringcast.PickleRefused) as raised:
        ringcast.unpack(frame, **{"allow_pickle": False, **more})
    assert raised.value.errno == errno.EOPNOTSUPP
    assert str(raised.value).startswith(
        f"the frame names the class {name}, which is not allowed here: "
    )
    return str(raised.value)


# ---- What allows a class -------------------------------------------------------------------------

MODULE = sys.modules[HERE]
WHOLE = "Plain Inner Other Below Pair Colour Bits Bare Slots"
ALLOWS = [
    ([Plain], "Plain"),
    ([HERE + ":Plain"], "Plain"),
    ([HERE + ".Plain"], "Plain"),
    ([HERE + ":Plain.Inner"], "Inner"),
    ([Inner, Other], "Inner Other"),
    ([HERE], WHOLE),
    ([MODULE], WHOLE),
    ([HERE + ".package"], "Below"),
    ([HERE + "_not"], "Beside"),
    ([Marks], "Marks"),
    ([HERE, HERE + ":MarksToo"], WHOLE + " MarksToo"),
    ([Pair, Colour], "Pair Colour"),
    ([Bits, HERE + ":Slots"], "Bits Slots"),
    ([], ""),
    ((name for name in [HERE + "_not"]), "Beside"),
]
VALUES = {
    "Plain": Plain("x"),
    "Inner": Inner("x"),
    "Other": Other("x"),
    "Below": Below("x"),
    "Beside": Beside("x"),
    "Pair": Pair("x"),
    "Colour": Colour.RED,
    "Bits": Bits.A | Bits.B,
    "Bare": Bare(),  # by its attributes' names
    "Slots": Slots(),  # by its slots and a dict
}
VALUES["Bare"].path = VALUES["Slots"].path = VALUES["Slots"].more = "x"


@pytest.mark.parametrize("classes, names", ALLOWS, ids=[repr(names) for _, names in ALLOWS])
def test_a_class_is_allowed_by_itself_by_name_and_by_its_module(classes, names, tmp_path):
    marks = {"Marks": Marks(str(tmp_path / "a")), "MarksToo": MarksToo(str(tmp_path / "b"))}
    classes = list(classes)
    for name, value in {**VALUES, **marks}.items():
        frame = ringcast.pack([1, {"key": value}], allow_pickle=False)
        if name in names.split():
            assert ringcast.unpack(frame, classes=iter(classes)) == [1, {"key": value}]
        else:
            cls = type(value)
            refused(frame, f"{cls.__module__}.{cls.__qualname__}", classes=classes)
    del value, marks


def test_what_the_codec_has_natively_is_always_allowed():
    value = {
        "n": np.float32(1),
        "a": np.arange(3),
        "r": range(3),
        "s": {1, (2,)},
        "b": bytearray(b"x"),
        "c": 1j,
    }
    value["l"] = [types.SimpleNamespace(a=1), collections.UserDict(a=1), collections.UserList([1])]
    assert repr(ringcast.unpack(ringcast.pack([value]), classes=())) == repr([value])


def test_an_instance_of_any_state_is_refused_by_name_and_built_if_it_is_allowed(tmp_path):
    """By the names of its attributes, with a dict of them, and with a slot that is not set."""
    ways = [("path",), ("path", 5), ("path", *(f"name{number}" for number in range(300)))]
    for cls, names in [(Deletes, names) for names in ways] + [(DeletesSlots, ("path",))]:
        value = cls()
        for name in names:
            vars(value)[name] = str(tmp_path / "mark")
        frame = bytes(ringcast.pack([value], allow_pickle=False))
        del value
        (tmp_path / "mark").unlink()
        refused(frame, f"{HERE}.{cls.__name__}", classes=[HERE])
        assert list(tmp_path.iterdir()) == []
        assert list(vars(ringcast.unpack(frame, classes=[cls])[0])) == [*names]
        (tmp_path / "mark").unlink()


def test_a_class_is_of_the_module_that_defines_it():
    sys.modules["http_"] = types.ModuleType("http_")
    sys.modules["http_"].HTTPStatu = HTTPStatus
    frame = bytes(ringcast.pack([HTTPStatus.OK])).replace(b"http\0HTTPStatus", b"http_\0HTTPStatu")
    refused(frame, "http.HTTPStatus", classes=["http_"])
    assert ringcast.unpack(frame, classes=["http"]) == [HTTPStatus.OK]
    del sys.modules["http_"]


# ---- Nothing is built, nothing runs --------------------------------------------------------------


def test_nothing_is_built_of_a_frame_that_is_refused(tmp_path):
    """An allowed class with a __del__ stands before the class that is not allowed, in the same item
    and in another."""
    mark, other = tmp_path / "mark", Other("x")
    first = Marks(str(mark))
    frames = [
        bytes(ringcast.pack(value))
        for value in ([first, other], {"a": [first], "b": [other]}, {first.path: [other]})
    ]
    object.__setattr__(first, "path", str(tmp_path / "ours"))
    del first
    (tmp_path / "ours").unlink()
    for frame in frames:
        refused(frame, HERE + ".Other", classes=[Marks])
        assert list(tmp_path.iterdir()) == []
    assert ringcast.unpack(frames[0], classes=[Marks, Other])[1] == other
    assert list(tmp_path.iterdir()) == [mark]  # this one was built, and dropped


def test_a_class_with_a_del_in_its_line_is_allowed_only_by_its_name(tmp_path):
    value = MarksToo(str(tmp_path / "ours"))
    frame = bytes(ringcast.pack([value]))
    for classes in ([HERE], [MODULE], [Marks], [HERE + ":Marks", Plain]):
        assert (
            "it has a __del__" in refused(frame, HERE + ".MarksToo", classes=classes)
            or Marks in classes
        )
        assert list(tmp_path.iterdir()) == []
    assert ringcast.unpack(frame, classes=[MarksToo]) == [value]


def test_no_hash_of_a_key_runs(tmp_path):
    frame = bytes(ringcast.pack([{Hashed(str(tmp_path / "mark")): 1}]))
    for path in tmp_path.iterdir():
        path.unlink()
    refused(frame, HERE + ".Hashed")
    assert list(tmp_path.iterdir()) == []


def test_a_frame_learns_nothing_of_what_is_imported_here():
    frame = bytes(ringcast.pack([Plain("x")]))
    for name in (b"allowed_h_re", b"allowed_here"):
        damaged = frame.replace(HERE.encode(), name)
        refused(damaged, name.decode() + ".Plain")
    with pytest.raises(
        ImportError, match="allowed_h_re.Plain, and that module is not imported here"
    ):
        ringcast.unpack(frame.replace(HERE.encode(), b"allowed_h_re"), classes=["allowed_h_re"])
    many = ringcast.pack([Beside("x")])
    shown = bytes(many).replace(b"Beside", b"B\n\xc3\xa9de")
    refused(shown, HERE + r"_not.B\x0aéde")


class RunsClass:
    @property
    def __class__(self):
        RAN.append("__class__")
        return type


class RunsDict:
    @property
    def __dict__(self):
        RAN.append("__dict__")
        return {}


class Meta(type):
    """Asked for anything of a class, tells so."""

    def __getattribute__(cls, name):
        RAN.append(name)
        return type.__getattribute__(cls, name)

    __module__ = __mro__ = property(lambda cls: RAN.append("a property") or HERE)


class Lazy(types.ModuleType):
    def __getattribute__(self, name):
        RAN.append(name)
        return types.ModuleType.__getattribute__(self, name)


RAN = []
RUNS = types.ModuleType("runs_here")
RUNS.__dict__.update(
    runs_class=RunsClass(),
    runs_dict=RunsDict(),
    Meta=Meta("Meta", (), {"__module__": "runs_here"}),
    lazy=Lazy("lazy"),
)
RUNS.__dict__.update(Below=type("Below", (RUNS.Meta,), {"__module__": "runs_here"}))


@pytest.mark.parametrize(
    "name", ["runs_class", "runs_dict", "runs_dict.x", "Meta", "Meta.x", "Below", "lazy", "lazy.x"]
)
def test_nothing_that_a_frame_names_runs_before_it_is_refused(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "runs_here", RUNS)
    monkeypatch.setitem(sys.modules, "runs_lazily", RUNS.lazy)
    good = ringcast.pack([Plain("x")])
    module = b"runs_lazily" if name == "lazy.x" else b"runs_here"
    before = HERE.encode() + b"\0Plain\0path"
    text = module + b"\0" + name.encode()
    frame = bytes(good).replace(before, text + b"\0" + b"p" * (len(before) - len(text) - 1))
    RAN.clear()
    with pytest.raises(ringcast.PickleRefused):
        ringcast.unpack(frame, classes=[])
    assert RAN == []


def test_what_a_frame_names_is_not_kept_for_good():
    """Any names may follow a class that is always allowed: what is known of them starts anew."""
    good = ringcast.pack([types.SimpleNamespace(aaaa=1)])
    for number in range(2000):
        ringcast.unpack(bytes(good).replace(b"aaaa", b"%04d" % number), allow_pickle=False)
    assert ringcast.unpack(good, allow_pickle=False) == [types.SimpleNamespace(aaaa=1)]
    known = _allowed.allowed_classes(None)
    texts = [
        key for key in known if isinstance(key, bytes)
    ]  # the other keys are numbers of such texts
    assert len(known) <= 2048 and any(text.endswith(b"\0aaaa") for text in texts)


# ---- Handles -------------------------------------------------------------------------------------


def test_a_reader_goes_on_behind_the_frame_that_it_refused():
    with (
        ringcast.Writer(1 << 16) as writer,
        ringcast.Reader(writer.handle, classes=[Plain]) as reader,
    ):
        writer.send([Other("x")], 0, tag=7)
        writer.send([Plain("y")], 0)
        with pytest.raises(ringcast.PickleRefused, match="allowed_here.Other"):
            reader.recv_tagged(0)
        assert reader.recv(0) == [Plain("y")] and reader.lag == 0
        writer.send({1: fractions.Fraction(1)}, 0)
        with pytest.raises(ringcast.PickleRefused, match="a pickle"):  # implied
            reader.recv(0)
        assert still_works(writer, reader)


def test_what_one_reader_allows_another_does_not():
    with ringcast.Writer(1 << 16, 4) as writer:
        makers = [
            lambda: ringcast.Reader(writer.handle, classes=[Plain]),
            lambda: ringcast.Reader(writer.handle),
            lambda: ringcast.Reader(writer.handle, classes=[Other]),
            lambda: ringcast.Tap(writer.handle, classes=[Plain]),
            lambda: ringcast.Tap(writer.handle, classes=[Other]),
        ]
        ends = [make() for make in makers]
        for _ in range(2):
            writer.send([Plain("x")], 0)
            frame = ringcast.pack([Plain("x")])
            for end, may in zip(ends, (True, True, False, True, False)):
                if may:
                    assert end.recv(0) == [Plain("x")]
                    assert (
                        ringcast.unpack(frame, classes=[Plain])
                        == [Plain("x")]
                        == ringcast.unpack(frame)
                    )
                else:
                    with pytest.raises(ringcast.PickleRefused, match="allowed_here.Plain"):
                        end.recv(0)
                    refused(frame, HERE + ".Plain", classes=[Other])
                    refused(frame, HERE + ".Plain")
        for end in ends:
            end.close()


FRAMES = [("strict", {"classes": [Plain]}), ("free", {})]


@pytest.mark.parametrize("kind, options", FRAMES, ids=[kind for kind, _ in FRAMES])
def test_a_frame_goes_by_its_readers_classes_unless_others_are_given(kind, options):
    with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle, **options) as reader:
        writer.send({"p": [Plain("x")], "o": [Other("x")]}, 0)
        with reader.next(0) as frame, memoryview(frame) as view:
            assert frame["p"] == [Plain("x")]
            for whole in (frame, view):
                assert ringcast.unpack(whole, classes=[HERE])["o"] == [Other("x")]
                refused(whole, HERE + (".Other" if kind == "strict" else ".Plain"))
                refused(whole, HERE + ".Other", classes=[Plain])
            if kind == "strict":
                with pytest.raises(ringcast.PickleRefused, match="allowed_here.Other"):
                    frame["o"]
        writer.send({"p": [Plain("x")]}, 0)
        with reader.view(0) as got:
            assert got == {"p": [Plain("x")]}
        writer.send({"p": [Plain("x")]}, 0)
        if kind == "strict":
            with reader.next(0) as frame:
                assert ringcast.unpack(frame, allow_pickle=False) == {"p": [Plain("x")]}


def test_more_classes_than_a_cache_has_room_for():
    with (
        ringcast.Writer(1 << 16) as writer,
        ringcast.Reader(writer.handle, classes=["many_classes"]) as reader,
    ):
        for index in range(1030):
            value = [define("many_classes", f"Many{index}")("x")]
            writer.send(value, 0)
            assert reader.recv(0) == value
        writer.send([Plain("x")], 0)
        with pytest.raises(ringcast.PickleRefused, match="allowed_here.Plain"):
            reader.recv(0)
    del sys.modules["many_classes"]


# ---- The process ---------------------------------------------------------------------------------

PROGRAM = """
import pathlib, sys, types
import ringcast
from http import HTTPStatus
from test_allowed import Below, Marks, Plain, refused

frames = [bytes(ringcast.pack([value])) for value in (Plain("x"), Below("x"), HTTPStatus.OK)]
names = ["allowed_here.Plain", "allowed_here.package.module.Below", "http.HTTPStatus"]
for frame, name in zip(frames, names):
    refused(frame, name)
writer = ringcast.Writer(1 << 16)
reader = ringcast.Reader(writer.handle, allow_pickle=False)
ringcast.allow(Plain, "allowed_here.package")
for wrong, error in ((3, TypeError), ("a b", ValueError), ("", ValueError), ("a:", ValueError), ("a..b", ValueError)):
    try:
        ringcast.allow(HTTPStatus, wrong)
    except error:
        continue
    sys.exit(f"allowed: {wrong}")
assert ringcast.unpack(frames[0], allow_pickle=False) == [Plain("x")]
assert ringcast.unpack(frames[1], allow_pickle=False) == [Below("x")]
refused(frames[2], names[2])
writer.send([Plain("x"), Below("y")])
assert reader.recv(0) == [Plain("x"), Below("y")]
print("allowed")
"""


def test_the_process_allows_for_all_its_readers():
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=pathlib.Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "allowed\n", ran.stderr


ENVIRONMENTS = [
    (HERE, True, True),
    (f" {HERE}:Plain , http.HTTPStatus,", True, False),
    (f"{HERE}.package", False, True),
    (",", False, False),
    ("", False, False),
]


@pytest.mark.parametrize("text, plain, below", ENVIRONMENTS)
def test_the_environment_allows(monkeypatch, text, plain, below):
    monkeypatch.setenv("RINGCAST_CLASSES", text)
    monkeypatch.setenv("RINGCAST_ALLOW_PICKLE", "0")
    with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle) as reader:
        for value, may in ((Plain("x"), plain), (Below("x"), below)):
            packed = ringcast.pack({"v": [value]})
            writer.send(packed, 0)
            for read in (
                lambda _: reader.recv(0)["v"],
                lambda packed: ringcast.unpack(packed)["v"],
                lambda it: it["v"],
            ):
                if may:
                    assert read(packed) == [value]
                    continue
                with pytest.raises(ringcast.PickleRefused, match="RINGCAST_CLASSES"):
                    read(packed)


@pytest.mark.parametrize("text", ["a b", "vllm;sglang", "a:b:c", ":a"])
def test_an_environment_that_names_nothing_is_refused(monkeypatch, text):
    monkeypatch.setenv("RINGCAST_CLASSES", text)
    with ringcast.Writer(1 << 16) as writer:
        for make in (
            lambda: ringcast.Reader(writer.handle, classes=()),
            lambda: ringcast.Tap(writer.handle, classes=()),
        ):
            with pytest.raises(
                ValueError, match=f"^RINGCAST_CLASSES: '{text}' is no name of a module"
            ):
                make()
    assert ringcast.unpack(ringcast.pack(1)) == 1  # nobody asks


WRONG = [
    ({"classes": [3]}, TypeError, "a class, a module or the name of one is allowed, not int"),
    (
        {"classes": "vllm"},
        TypeError,
        "classes must be a list or tuple of classes and modules, not str",
    ),
    (
        {"classes": Plain},
        TypeError,
        "classes must be a list or tuple of classes and modules, not type",
    ),
    ({"classes": 3}, TypeError, "iterable"),
    ({"classes": ["a b"]}, ValueError, "'a b' is no name of a module"),
    ({"classes": [], "allow_pickle": True}, ValueError, "give one of both"),
    ({"classes": [], "allow_pickle": 0}, TypeError, "allow_pickle must be True, False or None"),
]


@pytest.mark.parametrize(
    "options, error, text", WRONG, ids=[str(options) for options, _, _ in WRONG]
)
def test_wrong_arguments_are_refused(options, error, text):
    with ringcast.Writer(1 << 16) as writer:
        for call in (
            lambda: ringcast.Reader(writer.handle, **options),
            lambda: ringcast.Tap(writer.handle, **options),
            lambda: ringcast.unpack(ringcast.pack(1), **options),
        ):
            with pytest.raises(error, match=text):
                call()


@needs_msgspec
def test_a_struct_is_a_class_as_any():
    cls = msgspec.defstruct("Rod", [("path", str)], module=HERE)
    MODULE.Rod = cls
    frame = ringcast.pack([cls("x")])
    refused(frame, HERE + ".Rod")
    assert (
        ringcast.unpack(frame, classes=[cls])
        == [cls("x")]
        == ringcast.unpack(frame, classes=[HERE])
    )
