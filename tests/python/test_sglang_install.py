# SPDX-License-Identifier: Apache-2.0
"""ringcast.sglang.install(): what is put in place of SGLang's functions, by parts, and what is left
alone."""

import importlib.metadata
import sys
import warnings
from typing import Any, Set

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

from sglang_stubs import (
    CLASSES,
    COORDINATOR,
    ELASTIC,
    FEATURES,
    NAMES,
    P2P,
    QUEUE,
    QUEUES,
    STUBS,
    load,
    write_stubs,
)

from ringcast import _plugin
from ringcast.sglang import install, uninstall

pytestmark = pytest.mark.alike

PARTS = {"requests", "groups", "queues", "hashes"}


@pytest.fixture
def stubs(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "0.5.23")
    write_stubs(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    uninstall()
    assert not [
        finder for finder in sys.meta_path if type(finder).__module__.startswith("ringcast")
    ]
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]


def in_place() -> Set[str]:
    """The parts that are ringcast's, each as a whole."""
    for module, *_ in [*NAMES, *CLASSES, (FEATURES,)]:
        load(module)
    found = {part: set() for part in PARTS}
    for module, name in [*NAMES, (FEATURES, "hash_feature")]:
        found["hashes" if module == FEATURES else "requests"].add(
            is_ours(getattr(load(module), name))
        )
    for module, of, name in CLASSES:
        part = "hashes" if name == "process_input_requests" else "requests"
        part = "groups" if of == "GroupCoordinator" else part
        found[part].add(is_ours(getattr(getattr(load(module), of), name)))
    for name in "MessageQueue", "Handle":
        found["queues"].add(is_ours(getattr(load(QUEUES), name)))
    assert all(len(ours) == 1 for ours in found.values()), found
    return {part for part, ours in found.items() if True in ours}


def is_ours(thing: Any) -> bool:
    return hasattr(thing, "__wrapped__") or thing.__module__.startswith("ringcast.")


def test_the_log_says_what_is_in_place(stubs, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setenv("RINGCAST_SGLANG", "1")
    assert install() and install()
    (record,) = caplog.records
    assert record.getMessage().endswith("; to go back: unset RINGCAST_SGLANG")
    assert " is in place of requests, groups, queues, hashes, in SGLang " in record.getMessage()


@pytest.mark.parametrize("loaded", [[], ["srt.utils"], [name for name, *_ in NAMES + CLASSES]])
def test_install_puts_them_in_whether_loaded_before_or_after(stubs, loaded):
    for name in loaded:
        load(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert install() and install()
        assert in_place() == PARTS
        uninstall()
        uninstall()
        assert in_place() == set()
        assert load("srt.utils").broadcast_pyobj([], 0) == "original"
        assert load("srt.utils.common").__spec__.loader is load("srt.utils.common").__loader__
        assert install() and in_place() == PARTS


SCHEDULER, HASHES = STUBS["srt/managers/scheduler.py"], STUBS["srt/managers/mm_utils.py"]
ORIGINAL = "    return 'original'\n" + P2P
OTHER_BROADCAST = f"def broadcast_pyobj(data, rank, dist_group=None):\n{ORIGINAL}"
TIMED = ("barrier(self)", "barrier(self, timeout=None)")
# The module, what it has, and the part that keeps SGLang's own for that.
OTHERS = [
    ("common", OTHER_BROADCAST, "requests"),
    ("common", "broadcast_pyobj = print\n" + P2P, "requests"),
    ("scheduler", SCHEDULER.replace("raw_mm_inputs)", "raw, *more)"), "requests"),
    ("scheduler", SCHEDULER.replace("(self, recv_reqs)", "(self, *all)"), "hashes"),
    ("mm_utils", HASHES.replace("(f)", "(f, seed)"), "hashes"),
    ("parallel_state", COORDINATOR.replace(*TIMED), "groups"),
    ("group_coordinator", COORDINATOR.replace("gather_object(self", "gather_object(me"), "groups"),
    ("shm_broadcast", QUEUE.replace("enqueue(self, obj)", "enqueue(self, obj, timeout)"), "queues"),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("module", "text", "part"), OTHERS)
def test_another_signature_leaves_its_part_as_it_was_with_one_warning(
    stubs, module, text, part, when
):
    write_stubs(stubs, **{module: text})
    if when == "after":
        in_place()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert install()
        assert in_place() == PARTS - {part}
        assert install()
    (warning,) = caught
    assert f"SGLang's {part}" in str(warning.message) and module in str(warning.message)


def test_install_is_false_where_no_part_fits(stubs):
    write_stubs(stubs, **{module: text for module, text, _ in OTHERS if module != "scheduler"})
    in_place()
    with pytest.warns(RuntimeWarning, match="leaves SGLang's"):
        assert not install() and not install()
    assert in_place() == set()


ELASTIC_MODULE = "srt.elastic_ep.elastic_ep"


@pytest.mark.parametrize(("old", "fits"), [("", True), ("(group)", False)])
def test_elastic_groups_that_do_not_fit_leave_all_parts_as_they_were(stubs, old, fits):
    """They close the rings of all parts."""
    text = ELASTIC.replace(old, "(group, more)") if old else ELASTIC
    write_stubs(stubs, {"srt/elastic_ep/elastic_ep.py": text})
    assert install() and in_place() == PARTS
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(ELASTIC_MODULE)
    assert len(caught) == (not fits)
    assert in_place() == (PARTS if fits else set())
    assert is_ours(load(ELASTIC_MODULE)._join_world_group) is fits and install() is fits


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("strict", [False, True])
def test_an_untested_version_runs_with_one_warning_and_strict_leaves_it_alone(
    stubs, monkeypatch, caplog, strict, when
):
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "0.5.24")
    monkeypatch.setenv("RINGCAST_SGLANG", "strict" if strict else "1")
    if when == "after":
        in_place()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert install() is not strict
        assert in_place() == (set() if strict else PARTS)
    told = [str(each.message) for each in caught] + [each.getMessage() for each in caplog.records]
    (text,) = told
    assert "SGLang 0.5.24" in text and len(caught) == (not strict)


def test_what_a_version_does_not_have_is_left_out(stubs):
    write_stubs(stubs, scheduler="MultimodalInputs = None\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert install()
        assert is_ours(load("srt.utils").broadcast_pyobj)
        load("srt.managers.scheduler")


def test_without_sglang_it_says_what_to_install():
    with pytest.raises(ImportError, match="pip install sglang"):
        install()


ASKED = [(None, False), ("0", False), ("", False), ("1,share=local", True), ("strict", True)]


@pytest.mark.parametrize(("told", "puts"), ASKED)
def test_the_plugin_does_nothing_unless_it_is_asked(stubs, monkeypatch, told, puts):
    monkeypatch.delenv("RINGCAST_SGLANG", raising=False)
    if told is not None:
        monkeypatch.setenv("RINGCAST_SGLANG", told)
    _plugin.sglang()
    assert in_place() == (PARTS if puts else set())
