# SPDX-License-Identifier: Apache-2.0
"""The names of the drop-ins' rings: what becomes of hostile parts, and where a group's name comes
from. In live groups: test_torch_broadcast.py, test_torch_machines.py, test_vllm_group.py,
test_vllm_queue.py, test_sglang.py."""

import sys
import types

import pytest
from peers import names_of_rings

import ringcast
from ringcast._group import names

pytestmark = pytest.mark.alike


class Hostile:
    def __str__(self):
        raise RuntimeError("no text")


class OfBytes:
    def __str__(self):
        return b"no text"


HOSTILE = [
    "",
    " ",
    "a b",
    "a/b@1",
    "ä\0\n%s{}",
    "\ud800",
    "x" * 10_000,
    "..",
    "-",
    None,
    b"\xff",
    Hostile(),
    OfBytes(),
]


@pytest.mark.parametrize("part", HOSTILE, ids=range(len(HOSTILE)))
def test_every_part_gives_a_name_that_the_library_takes(part):
    others = names_of_rings()
    for name in (
        names.join("vllm", part, 0),
        names.join("vllm.mq", part),
        names.join("torch", part, part, part),
    ):
        for each in name, names.relay_of(name):
            with ringcast.Writer(4096, name=each):
                assert sorted(names_of_rings()) == sorted([*others, each])
    with ringcast.Writer(4096, name=names.relay_of(part)) as writer:
        assert writer.name.endswith(".relay")


def test_valid_names_stay_and_the_ranks_of_a_long_name_stay_apart():
    assert names.join("vllm", "tp:1", 0) == "vllm.tp:1.0"
    assert names.join("torch", "a b/ä", 7) == "torch.a-b--.7"
    made = {names.join("torch", "x" * 100, f"{rank}-{rank + 1}", "hash") for rank in range(1000)}
    assert len(made) == 1000 and max(map(len, made)) == 41


# ---- A group's name ------------------------------------------------------------------------------


@pytest.mark.parametrize("module, engine", names._COORDINATORS.items())
def test_the_engines_coordinators_name_their_groups(monkeypatch, module, engine):
    tp, pp = (types.SimpleNamespace(cpu_group=object(), other=None) for _ in range(2))
    groups = {"old:0": lambda: None, "tp:0": lambda: tp, "pp:12": lambda: pp}
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(_groups=groups))
    assert names.family(tp.cpu_group, "torch") == (engine, "tp")
    assert names.family(pp.cpu_group, "vllm") == (engine, "pp:12")
    assert names.family(object(), "torch") == ("torch", "group")


BROKEN = [
    None,
    7,
    {"tp:0": None},
    {"tp:0": lambda: None},
    {"tp:0": lambda: 7},
    {None: lambda: types},
    [Hostile()],
]


@pytest.mark.parametrize("registered", BROKEN, ids=range(len(BROKEN)))
def test_a_registry_of_another_form_is_passed_over(monkeypatch, registered):
    module = types.SimpleNamespace(_groups=registered)
    monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", module)
    group = types.SimpleNamespace(group_name="one")
    # The second: without torch.
    assert names.family(group, "vllm") in (("vllm", "one"), ("vllm", "group"))
