# SPDX-License-Identifier: Apache-2.0
"""
What ringcast.vllm.install() does with a vLLM that does not fit, or is not of a tested version, in
stubs.
"""

import re
import sys
import warnings

import pytest
from needs import needs_torch
from queues import the_watching_thread  # noqa: F401
from vllm_stubs import (
    EXECUTOR,
    GROUPS,
    NEWEST,
    OLDEST,
    QUEUES,
    load,
    package,
    ringcast_queue,
    sources,
    state,
)

import ringcast.vllm._install as ins
from ringcast._install import TESTED

pytestmark = [pytest.mark.alike, needs_torch]


vllm = pytest.fixture(package)


# ---- What does not fit ---------------------------------------------------------------------------

MISFITS = {
    "another argument": (
        QUEUES,
        "obj, timeout=None)",
        "obj, timeout=None, priority=0)",
        "MessageQueue.enqueue",
    ),
    "another default": (QUEUES, "indefinite=False)", "indefinite=True)", "MessageQueue.dequeue"),
    "a queue without a method": (
        QUEUES,
        "def shutdown(",
        "def close(",
        "MessageQueue.shutdown is missing",
    ),
    "another field": (QUEUES, "    remote_addr_ipv6", "    addresses", "Handle has"),
    "no Handle": (QUEUES, "class Handle", "class Ticket", "Handle is missing"),
    "another order": (
        GROUPS,
        "tensor_dict=None, src=0",
        "src=0, tensor_dict=None",
        "GroupCoordinator.broadcast_te",
    ),
    "no function": (
        GROUPS,
        "def isend_object(",
        "def isend_obj(",
        "GroupCoordinator.isend_object is missing",
    ),
    "another attribute": (GROUPS, "    rank_in_group:", "    group_rank:", "GroupCoordinator has"),
    "no coordinator": (
        GROUPS,
        "class GroupCoordinator",
        "class Group",
        "GroupCoordinator is missing",
    ),
}


def in_place():
    """Of the queues, and of the groups."""
    from ringcast.vllm.group import GroupOperations

    coordinator = getattr(sys.modules[GROUPS], "GroupCoordinator", None)
    return (
        getattr(sys.modules[QUEUES], "MessageQueue", None) is ringcast_queue(),
        vars(coordinator).get("broadcast") is GroupOperations.broadcast if coordinator else False,
    )


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_part_that_differs_stays_as_it_was_and_the_other_is_put_in_place(vllm, misfit):
    module, old, new, text = MISFITS[misfit]
    modules = sources(NEWEST)
    assert old in modules[module]
    modules[module] = modules[module].replace(old, new)
    for name in EXECUTOR, "vllm.stateless":
        if "class" in old:
            del modules[name]
    vllm(modules)
    load(
        "vllm.v1",
        *[name for name in (QUEUES, GROUPS, EXECUTOR, "vllm.stateless") if name in modules],
    )
    before = state()
    with pytest.warns(RuntimeWarning, match=re.escape(text)) as caught:
        assert ins.install()
    assert len(caught) == 1 and caught[0].filename == __file__
    assert in_place() == (module != QUEUES, module != GROUPS) and ins.installed()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ins.install()  # told once
    ins.uninstall()
    assert state() == before and not ins.installed()


def test_a_vllm_of_which_no_part_fits_stays_wholly_as_it_was(vllm):
    modules = sources(NEWEST)
    for module in QUEUES, GROUPS:
        modules[module] = modules[module].replace("def broadcast_object(", "def broadcast_thing(")
    vllm({name: modules[name] for name in (QUEUES, GROUPS, EXECUTOR)})
    load(QUEUES, GROUPS, EXECUTOR)
    before = state()
    with pytest.warns(RuntimeWarning, match="not put in place") as caught:
        assert not ins.install()
    assert len(caught) == 2
    assert state() == before and not ins.installed()


def test_a_module_that_has_moved_leaves_its_part_as_it_was(vllm):
    modules = sources(NEWEST)
    del modules[GROUPS], modules["vllm.stateless"]
    vllm(modules)
    with pytest.warns(RuntimeWarning, match=f"{GROUPS} can't be imported"):
        assert ins.install()
    assert sys.modules[QUEUES].MessageQueue is ringcast_queue()


def test_attributes_may_be_those_of_a_parent(vllm):
    """As where a plugin of a platform puts a subclass in the place of the class."""
    modules = sources(NEWEST)
    modules[GROUPS] += "class Patched(GroupCoordinator): pass\nGroupCoordinator = Patched\n"
    vllm(modules)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ins.install()


# ---- What fits, and is of no tested version ------------------------------------------------------


@pytest.mark.parametrize("version", ["0.31.0", "0.33.1", "0.34.0rc1", None])
def test_an_untested_version_that_fits_runs_with_one_warning(vllm, version):
    modules = sources(OLDEST)
    modules["vllm.__init__"] = f"__version__ = {version!r}\n" if version else ""
    vllm(modules)
    with pytest.warns(RuntimeWarning) as caught:
        assert ins.install() and ins.install()
    (warning,) = caught
    assert (
        f"vLLM {version or 'of an unknown version'}" in str(warning.message)
        and warning.filename == __file__
    )
    assert in_place() == (True, True)


def test_strict_leaves_an_untested_version_alone(vllm, monkeypatch, caplog):
    monkeypatch.setenv("RINGCAST_VLLM", "strict")
    vllm({**sources(NEWEST), "vllm.__init__": "__version__ = '0.34.0'\n"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not ins.install() and not ins.install()
    assert in_place() == (False, False)
    (record,) = caplog.records
    assert record.levelname == "ERROR" and "RINGCAST_VLLM=strict" in record.getMessage()


@pytest.mark.parametrize("version", TESTED["vLLM"])
def test_strict_takes_a_tested_version(vllm, version, monkeypatch, caplog):
    monkeypatch.setenv("RINGCAST_VLLM", "strict")
    vllm({**sources(NEWEST), "vllm.__init__": f"__version__ = '{version}+cu130'\n"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ins.install()
    assert in_place() == (True, True) and not caplog.records
