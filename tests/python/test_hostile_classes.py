# SPDX-License-Identifier: Apache-2.0
"""
What a frame by hand may name: a class that is here, of the kind that it says, and nothing else.
Nothing is imported or run where pickles are turned off, and no name or error text grows without
bounds.
"""

import abc
import dataclasses
import importlib.util
import os
import subprocess
import sys
import types

import natives
import pytest
from hostile import T, class_token, nested, stream
from needs import needs_msgspec, needs_torch, torch

import ringcast

pytestmark = pytest.mark.alike
KINDS = T.NAMED_CLASSES
# Of none of these does a frame make an instance, though it may name what is in them.
STRANGE = "os builtins enum collections pathlib types io threading struct loads_itself turtle natives never_imported_by_anybody".split()
REFUSALS = ringcast.ProtocolError, ringcast.PickleRefused, ImportError


def unpack(tokens, **more):
    return ringcast.unpack(
        nested(tokens), classes=[*STRANGE, "subprocess:Popen", "__main__"], **more
    )


def of_class(kind, module, name, *fields, then="INSTANCE 0"):
    return class_token(kind, module, name, *fields) + stream(then)


NOT_CLASSES = (
    "os/system builtins/eval builtins/int builtins/dict io/BytesIO threading/Lock types/FunctionType "
    "os/path natives/natives natives/make natives/T enum/Enum collections/OrderedDict "
    "collections/namedtuple builtins/tuple pathlib/PosixPath struct/Struct"
).split()


@pytest.mark.parametrize("name", NOT_CLASSES)
def test_what_is_no_class_of_the_kind_is_refused(name):
    for kind in KINDS:
        rows = [(f"{kind}/{name} INSTANCE 0"), (f"{kind}/{name}/a INSTANCE 0 'true'")]
        for row in [f"enum/{name} MEMBER 0 'a'"] if kind == "enum" else rows:
            with pytest.raises(REFUSALS):
                unpack(row + " NONE" * (kind == "instance"))


UNKNOWN = [
    "os.path.nothing",
    "",
    ".",
    "..",
    "natives.",
    ".natives",
    "\ufeff",
    "no module",
    "a" * 5000,
]


@pytest.mark.parametrize(
    "module", [STRANGE[-1], *UNKNOWN, "natives\n"], ids=lambda name: ascii(name)[:30]
)
def test_a_module_that_is_not_there_is_not_imported(module, tmp_path, monkeypatch):
    (tmp_path / "never_imported_by_anybody.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    tokens = of_class("dataclass", module, "Plain", "a", then="INSTANCE 0 1")
    with pytest.raises((ImportError, ringcast.PickleRefused)):
        unpack(tokens)
    assert set(sys.modules) == before
    with pytest.raises((ImportError, ringcast.ProtocolError, SystemExit)):
        ringcast.unpack(nested(tokens), allow_pickle=True)


def test_a_module_is_imported_where_pickles_may_be_loaded(tmp_path, monkeypatch):
    (tmp_path / "imported_by_a_frame.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Found:\n    a: object\n"
    )
    (tmp_path / "fails_to_load.py").write_text("raise ValueError('not today')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    data = nested("dataclass/imported_by_a_frame/Found/a INSTANCE 0 1")
    assert ringcast.unpack(data, allow_pickle=True).a == 1
    assert ringcast.unpack(data, classes=["imported_by_a_frame"]).a == 1  # it is there now
    del sys.modules["imported_by_a_frame"]
    with pytest.raises(ValueError, match="not today"):  # no damage
        ringcast.unpack(nested("dataclass/fails_to_load/Plain/a INSTANCE 0 1"), allow_pickle=True)


def test_what_is_looked_up_by_name_runs_no_code(monkeypatch):
    ran = []

    class Module(types.ModuleType):
        def __getattribute__(self, name):
            ran.append(name)
            return super().__getattribute__(name)

    class Holder:
        def __getattr__(self, name):
            ran.append(name)
            return natives.Plain

    module = Module("loads_itself")
    vars(module)["holder"] = Holder()
    spec = importlib.util.find_spec("turtle")
    if spec:
        lazy = importlib.util.LazyLoader(spec.loader)
        spec.loader = lazy
        loaded = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "turtle", loaded)
        lazy.exec_module(loaded)
    monkeypatch.setitem(sys.modules, "loads_itself", module)
    ran.clear()
    for name in ("Plain", "holder", "holder.Plain", "holder.__class__", "__dict__.Plain"):
        with pytest.raises(REFUSALS):
            unpack(f"dataclass/loads_itself/{name}/a/b INSTANCE 0 1 2")
    with pytest.raises(ImportError, match="has no such class here"):
        unpack("dataclass/turtle/Plain INSTANCE 0")
    assert ran == [] and "tkinter" not in sys.modules


def test_a_class_that_is_another_here_is_told_by_its_name_and_fields():
    with pytest.raises(ringcast.ProtocolError, match=r"natives\.Plain .* a, c; here .* a, b"):
        unpack("dataclass/natives/Plain/a/c INSTANCE 0 1 2")
    with pytest.raises(ImportError, match="__main__.Nowhere, .* module that both sides import"):
        unpack("dataclass/__main__/Nowhere INSTANCE 0")


@dataclasses.dataclass
class Abstract(abc.ABC):
    a: object = 1

    @abc.abstractmethod
    def method(self): ...


def test_an_abstract_dataclass_is_not_made():
    with pytest.raises(ringcast.ProtocolError, match="Abstract"):
        ringcast.unpack(nested(f"dataclass/{__name__}/Abstract/a INSTANCE 0 1"), classes=[__name__])


@needs_msgspec
def test_no_code_of_a_struct_runs():
    assert unpack("struct/natives/StructPositive/a/checks INSTANCE 0 0 0").checks == 0


@needs_torch
def test_names_that_torch_lacks_are_refused():
    for name in (b"nothing", b"Tensor", b"float32.x", b"nn", b"\xff", b"", b"load"):
        with pytest.raises(ringcast.ProtocolError):
            unpack([T.DTYPE, len(name), *name])
    for name in (b"nowhere", b"cuda:x", b"cpu:-7", b"\xff", b"", b"cuda:99999999999"):
        with pytest.raises(ringcast.ProtocolError):
            unpack([T.DEVICE, len(name), *name])
    assert unpack("SIZE 1 ~fdffffffffffffff") == torch.Size([-3])


@needs_torch
def test_a_dtype_of_a_torch_that_was_taken_out_is_an_import_error(monkeypatch):
    token = [T.DTYPE, 7, *b"float32"]
    assert unpack(token) is torch.float32
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(ImportError, match=r"sys\.modules"):
        unpack(token)


# ---- Bounds --------------------------------------------------------------------------------------

LONG = ["x" * 40_000] * 50
TOO_LONG = {
    "a class that is not there": class_token("dataclass", "types", "Q" * 300_000),
    "a module that is not there": class_token("dataclass", "types." + "q" * 300_000, "Q"),
    "fields of no slots": class_token("instance", "natives", "SlotsAlone", *LONG),
    "fields of no namedtuple": class_token("namedtuple", "natives", "Pair", *LONG),
}


@pytest.mark.parametrize("name", TOO_LONG)
@pytest.mark.parametrize("classes", [[], ["types", "natives"]])
def test_what_a_message_says_of_a_frame_is_short(name, classes):
    with pytest.raises(REFUSALS) as raised:
        ringcast.unpack(nested([*TOO_LONG[name], T.NONE]), classes=classes)
    assert len(str(raised.value)) < 1500


def test_a_class_has_names_of_bounded_length(monkeypatch):
    """A class that modules hold which hold each other can be named in any length, and each name is
    kept."""
    monkeypatch.setattr(natives, "itself", natives, raising=False)
    assert vars(unpack("dataclass/natives/" + "itself." * 9 + "Bare INSTANCE 0")) == {}
    with pytest.raises(ringcast.ProtocolError, match="too long a name"):
        unpack("dataclass/natives/" + "itself." * 200 + "Bare INSTANCE 0")


def test_the_names_of_attributes_do_not_live_for_ever():
    """As interned strs of Python 3.12 do; the count of references to such a str is huge."""
    for_ever = 0
    for number in range(300):
        names = [f"{number}_{index}_".ljust(350, "x") for index in range(20)]
        told = unpack(
            of_class("dataclass", "natives", "Bare", *names, then="INSTANCE 0" + " NONE" * 20)
        )
        items = " ".join(f"'y{name}' NONE" for name in names)
        held = unpack(f"instance/natives/Bare INSTANCE 0 DICT 20 {items}")
        assert [*vars(told)] == names and len(vars(held)) == 20
        assert ringcast.unpack(ringcast.pack([told, held]))[1].read == held.read
        kept = [name for value in (told, held) for name in vars(value)]
        for_ever += sum(len(name) for name in kept if sys.getrefcount(name) > 1 << 30)
    assert for_ever <= 1 << 20


CLASSES_IN_A_ROW = """
import sys, threading
sys.modules["torch"] = None  # it takes seconds to import
sys.path[:0] = {paths!r}
from hostile import nested
import natives, ringcast

def unpack(tokens):
    return ringcast.unpack(nested(tokens), classes=["natives"])

def attempt(data, results):
    try:
        unpack(data)
    except RecursionError as error:
        assert "of this thread's stack" in str(error), error
        results.append("refused")
    else:
        results.append("fine")

member = "enum/natives/Color MEMBER 0 'RED'"
unpack(member)
results = []
for stack in range(96, 512, 16):
    threading.stack_size(stack << 10)
    for levels in (100, 200, 400, 800):
        data = "LIST 1 " * levels + "enum/natives/Color " * 255 + member
        thread = threading.Thread(target=attempt, args=(data, results))
        thread.start()
        thread.join()
assert "fine" in results and "refused" in results, results
print("done")
"""


# stacks from 96 KiB on: AddressSanitizer's frames are several times as large
@pytest.mark.unwatched
def test_many_classes_in_a_row_take_no_stack():
    here = os.path.dirname(__file__)
    program = CLASSES_IN_A_ROW.format(paths=[here, os.path.join(here, "../vectors")])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CI": ""})
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
