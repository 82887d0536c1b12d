# SPDX-License-Identifier: Apache-2.0
"""The hashes by which install() knows an engine's code again (ringcast/_syntax.py, ENGINE/_known.py)."""

import ast
import importlib.util
import sys

import pytest
from known_code import known

from ringcast import _syntax

pytestmark = pytest.mark.alike

FUNCTION = '''
def enqueue(self, obj, timeout=None):
    """Sends it."""
    left: float = timeout + 1
    if self.closed and f"{obj!r:>{left}} of" "x":
        raise ValueError("a\\nb", None, 1, True, ...)
    return [left, *obj]
'''
CLASS = '''
@dataclass
class Handle:
    """A handle."""

    ranks: list
    name: str = "x"

    def send(self):
        return self.ranks

    def _write(self, x):
        return x + 1
'''


def hash_of(source, apart=()):
    return _syntax.hash_of_tree(ast.parse(source).body[0], apart)


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (FUNCTION, '"""Sends it."""', '"""Sends it, at once."""'),
        (FUNCTION, '    """Sends it."""\n', ""),
        (FUNCTION, "    return", "    # why\n    return"),
        (FUNCTION, "    return [left, *obj]", "    return [\n        left,\n        *obj,\n    ]"),
        (FUNCTION, "left: float = timeout", "left = timeout"),
        (FUNCTION, "    left: float", "    more: int\n    left: float"),
        (FUNCTION, "(self, obj, timeout=None)", "(self, obj: Any, timeout: float | None = None) -> list"),
        (FUNCTION, ' of" "x"', ' ofx"'),
        (FUNCTION, '"a\\nb"', "'a' u'\\x0ab'"),
        (CLASS, "ranks: list", "ranks: tuple[int, ...]"),
    ],
)
def test_what_changes_nothing_leaves_the_hash(source, old, new):
    assert old in source
    assert hash_of(source.replace(old, new)) == hash_of(source)


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (FUNCTION, "timeout + 1", "timeout - 1"),
        (FUNCTION, "timeout + 1", "timeout + 1.0"),
        (FUNCTION, " and ", " or "),
        (FUNCTION, "timeout=None", "timeout=0"),
        (FUNCTION, "None, 1, True", "None, True, 1"),
        (FUNCTION, "ValueError(", "TypeError("),
        (FUNCTION, "!r:>", "!s:>"),
        (FUNCTION, ":>{", ":<{"),
        (FUNCTION, "*obj", "obj"),
        (FUNCTION, "def enqueue", "@cache\ndef enqueue"),
        (FUNCTION, "def enqueue", "async def enqueue"),
        (CLASS, "    ranks: list\n", ""),
        (CLASS, "@dataclass", "@dataclass(frozen=True)"),
        (CLASS, "x + 1", "x - 1"),
        (CLASS, "return self.ranks", "return self.name"),
    ],
)
def test_what_changes_something_changes_the_hash(source, old, new):
    assert old in source
    assert hash_of(source.replace(old, new)) != hash_of(source)


def test_methods_apart_are_not_in_the_hash_of_the_class():
    changed = CLASS.replace("return self.ranks", "return self.name")
    assert hash_of(changed, ["send"]) == hash_of(CLASS, ["send"])
    changed = CLASS.replace("x + 1", "x - 1")
    assert hash_of(changed, ["send"]) != hash_of(CLASS, ["send"])


def test_all_versions_of_python_give_one_hash():
    """Written down, so that each Python that runs this test has the same."""
    assert (hash_of(FUNCTION), hash_of(CLASS)) == ("5954219157c1", "c20a9926eca6")


def test_the_hash_of_what_is_loaded_is_that_of_the_source(tmp_path):
    source = "from dataclasses import dataclass\n" + CLASS + FUNCTION
    source += "class Queue:\n    @staticmethod\n    def make(x):\n        return '''\n two lines\n'''\n"
    file = tmp_path / "loaded.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("loaded", file)
    module = sys.modules["loaded"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        expected = known.hashes(
            source, ["Handle", "Handle.send", "enqueue", "Queue.make", "Queue", "none", "Queue.none"]
        )
        assert len(expected) == 5
        assert _syntax.hash_of(module.Handle, ["send"]) == expected["Handle"]
        assert _syntax.hash_of(module.Handle.send) == expected["Handle.send"]
        assert _syntax.hash_of(module.enqueue) == expected["enqueue"]
        assert _syntax.hash_of(module.Queue.make) == expected["Queue.make"]
        assert _syntax.hash_of(module.Queue, ["make"]) == expected["Queue"]
    finally:
        del sys.modules["loaded"]


@pytest.mark.parametrize("thing", [print, None, eval("lambda: 1"), type("Made", (), {})])
def test_without_source_there_is_no_hash(thing):
    assert _syntax.hash_of(thing) is None


def test_the_table_says_which_versions_have_a_code():
    first, second = "def a(): return 1\n", "def a(): return 2\nclass B:\n    def c(self): pass\n"
    sources = {"1": first, "2": first + "# more\n", "3": second}
    table = known.table({version: {"m": text}.get for version, text in sources.items()}, {"m": ["a", "B", "B.c"]})
    assert list(table["m"]["a"].values()) == ["1, 2", "3"]
    assert list(table["m"]["B.c"].values()) == ["3"]
    scope = {}
    exec(known.written("An engine", table), scope)
    assert scope["KNOWN"] == table


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_each_name_that_is_replaced_has_known_code(engine):
    pytest.importorskip("torch")
    import ringcast.sglang._known
    import ringcast.vllm._known

    modules = known.names_of_vllm() if engine == "vllm" else known.names_of_sglang()
    table = getattr(ringcast, engine)._known.KNOWN
    missing = {
        f"{module}.{name}" for module in modules for name in modules[module] if name not in table.get(module, {})
    }
    # These are of SGLang's sources of August 2026, and of no release here.
    gen = "sglang.multimodal_gen.runtime."
    assert missing == (
        {
            f"{gen}utils.distributed.broadcast_pyobj",
            f"{gen}distributed.group_coordinator.GroupCoordinator.all_gather_object",
        }
        if engine == "sglang"
        else set()
    )
