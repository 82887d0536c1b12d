# SPDX-License-Identifier: Apache-2.0
"""ringcast.vllm.install(), in modules that have vLLM's names and signatures and nothing else: those
of vLLM, or others, or of a version that is not tested. `make vllm-compat` has the real ones."""

import contextlib
import importlib
import inspect
import json
import multiprocessing
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading
import warnings
from concurrent import futures

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
    write,
)

import ringcast.vllm._install as ins
from ringcast import _plugin
from ringcast._install import TESTED

pytestmark = [pytest.mark.alike, needs_torch]

PACKAGE = pathlib.Path(ins.__file__).parents[2]
vllm = pytest.fixture(package)


@contextlib.contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def in_place():
    """Of the queues, and of the groups."""
    from ringcast.vllm.group import GroupOperations

    coordinator = getattr(sys.modules[GROUPS], "GroupCoordinator", None)
    return (
        getattr(sys.modules[QUEUES], "MessageQueue", None) is ringcast_queue(),
        vars(coordinator).get("broadcast") is GroupOperations.broadcast if coordinator else False,
    )


# ---- In place, and out again ---------------------------------------------------------------------


@pytest.mark.parametrize("which", [OLDEST, NEWEST])
def test_all_that_hold_a_name_hold_ours_and_give_it_back(vllm, which):
    vllm(sources(which))
    queues, groups, executor, stateless = load(QUEUES, GROUPS, EXECUTOR, "vllm.stateless")
    before = state()
    assert ins.install() and ins.installed()
    from ringcast.vllm import Handle, MessageQueue
    from ringcast.vllm.group import GroupOperations

    assert queues.MessageQueue is executor.MessageQueue is executor.Queue is MessageQueue
    assert queues.Handle is executor.Handle is Handle
    for name in ins.SIGNATURES:
        owner, _, method = name.partition(".")
        if owner == "GroupCoordinator" and method:
            assert getattr(groups.GroupCoordinator, method) is getattr(GroupOperations, method)
            assert getattr(stateless.Plain, method) is getattr(GroupOperations, method)
    ins.uninstall()
    assert not ins.installed()
    assert state() == before


@pytest.mark.parametrize("variable", ["1", None])
def test_the_log_says_once_what_is_in_place_and_how_to_go_back(vllm, caplog, monkeypatch, variable):
    caplog.set_level("INFO")
    vllm(sources(NEWEST))
    if variable:
        monkeypatch.setenv("RINGCAST_VLLM", variable)
    assert ins.install() and ins.install()
    (record,) = caplog.records
    assert "queues and groups, in vLLM 0.33.0+cpu" in record.getMessage()
    assert record.getMessage().endswith("unset RINGCAST_VLLM" if variable else "uninstall()")


def test_again_is_nothing_new(vllm):
    vllm(sources(NEWEST))
    load(EXECUTOR)
    ins.uninstall()
    before = state()
    assert ins.install()
    placed = state()
    assert ins.install()
    assert state() == placed != before
    ins.uninstall()
    ins.uninstall()
    assert {key: value for key, value in state().items() if key in before} == before


def test_what_is_imported_later_gets_ours_and_gives_it_back(vllm):
    vllm(sources(NEWEST))
    assert ins.install()  # nothing of vLLM was imported
    (late,) = load("vllm.v1.late")
    from ringcast.vllm import MessageQueue

    assert late.MessageQueue is MessageQueue
    ins.uninstall()
    assert late.MessageQueue is sys.modules[QUEUES].MessageQueue is not MessageQueue


@pytest.mark.parametrize("loaded_before", [True, False])
def test_a_subclass_with_a_transport_of_its_own_keeps_all_its_functions(vllm, loaded_before):
    vllm(sources(NEWEST))
    if loaded_before:
        load("vllm.stateless")
    assert ins.install()
    (stateless,) = load("vllm.stateless")
    for subclass in stateless.Stateless, stateless.Grandchild:
        assert subclass().broadcast_object() == "stateless"
        assert subclass().send_object(1, 1) == subclass().irecv_tensor_dict() == "vllm"
    assert stateless.Plain.send_object.__module__.startswith("ringcast.")
    ins.uninstall()
    assert stateless.Stateless().send_object(1, 1) == stateless.Plain().send_object(1, 1) == "vllm"


def test_threads_may_install_and_uninstall_at_once(vllm):
    vllm(sources(NEWEST))
    load(EXECUTOR, "vllm.stateless")
    before = state()
    start = threading.Barrier(6)

    def work(i):
        start.wait()
        for turn in range(20):
            ins.uninstall() if (turn + i) % 3 == 0 else ins.install()

    with futures.ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    ins.uninstall()
    assert state() == before


def test_all_or_nothing_is_put_in_place(vllm, monkeypatch):
    vllm(sources(NEWEST))
    load(EXECUTOR, "vllm.stateless", GROUPS)
    before = state()
    import ringcast.vllm.group

    monkeypatch.delattr(ringcast.vllm.group, "GroupOperations")
    with pytest.raises(AttributeError, match="GroupOperations"):
        ins.install()
    assert state() == before and not ins.installed()


def test_without_vllm_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ins.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install vllm"):
        ins.install()


def test_what_vllm_lacks_is_told_as_it_is(vllm):
    vllm({**sources(NEWEST), QUEUES: "import a_module_that_is_nowhere\n"})
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_nowhere"):
        ins.install()


# ---- What we put there fits what was there -------------------------------------------------------


def test_ours_take_all_that_the_known_signatures_take():
    from ringcast.vllm import Handle, MessageQueue
    from ringcast.vllm.group import GroupOperations

    owners = {"MessageQueue": MessageQueue, "GroupCoordinator": GroupOperations}
    for name, signatures in ins.SIGNATURES.items():
        owner, _, method = name.partition(".")
        if not method:
            continue
        ours = list(inspect.signature(getattr(owners[owner], method)).parameters.values())
        for signature in signatures:
            scope = {}
            exec(f"def function{signature}: pass", scope)
            theirs = list(inspect.signature(scope["function"]).parameters.values())
            for mine, its in zip(ours, theirs):
                assert (mine.name, mine.default, mine.kind) == (its.name, its.default, its.kind), (
                    name
                )
            assert len(ours) >= len(theirs), name
            assert all(more.default is not more.empty for more in ours[len(theirs) :]), name
    *fields, own = [field.name for field in ins.dataclasses.fields(Handle)]
    assert ins._listed(fields) == ins.SIGNATURES["Handle"][NEWEST]
    assert own == "place"


# ---- What does not fit -------------------------------------------------------------------------

# Where, what stands there, what another vLLM has, and what is told of it.
MISFITS = [
    (QUEUES, "obj, timeout=None)", "obj, timeout=None, priority=0)", "MessageQueue.enqueue"),
    (QUEUES, "indefinite=False)", "indefinite=True)", "MessageQueue.dequeue"),
    (QUEUES, "def shutdown(", "def close(", "MessageQueue.shutdown is missing"),
    (QUEUES, "    remote_addr_ipv6", "    addresses", "Handle has"),
    (QUEUES, "class Handle", "class Ticket", "Handle is missing"),
    (GROUPS, "tensor_dict=None, src=0", "src=0, tensor_dict=None", "GroupCoordinator.broadcast_te"),
    (GROUPS, "def isend_object(", "def isend_obj(", "GroupCoordinator.isend_object is missing"),
    (GROUPS, "    rank_in_group:", "    group_rank:", "GroupCoordinator has"),
    (GROUPS, "class GroupCoordinator", "class Group", "GroupCoordinator is missing"),
    (GROUPS, None, None, f"{GROUPS} can't be imported"),
]


@pytest.mark.parametrize("module, old, new, text", MISFITS)
def test_a_part_that_differs_stays_as_it_was_and_the_other_is_put_in_place(
    vllm, module, old, new, text
):
    modules = sources(NEWEST)
    if old is None:
        del modules[module]
    else:
        assert old in modules[module]
        modules[module] = modules[module].replace(old, new)
    if old is None or "class" in old:
        del modules[EXECUTOR], modules["vllm.stateless"]
    vllm(modules)
    load("vllm.v1", *(name for name in (EXECUTOR, "vllm.stateless", QUEUES) if name in modules))
    before = state()
    with pytest.warns(RuntimeWarning, match=re.escape(text)) as caught:
        assert ins.install()
    assert len(caught) == 1 and caught[0].filename == __file__
    if old is not None:
        assert in_place() == (module != QUEUES, module != GROUPS)
    with no_warning():
        assert ins.installed() and ins.install()  # told once
    ins.uninstall()
    assert {key: value for key, value in state().items() if key in before} == before
    assert not ins.installed()


def test_a_vllm_of_which_no_part_fits_stays_wholly_as_it_was(vllm):
    modules = sources(NEWEST)
    for module in QUEUES, GROUPS:
        modules[module] = modules[module].replace("def broadcast_object(", "def broadcast_thing(")
    vllm({name: modules[name] for name in (QUEUES, GROUPS, EXECUTOR)})
    load(QUEUES, GROUPS, EXECUTOR)
    before = state()
    with pytest.warns(RuntimeWarning, match="not put in place") as caught:
        assert not ins.install()
    assert len(caught) == 2 and state() == before and not ins.installed()


def test_attributes_may_be_those_of_a_parent(vllm):
    """As where a plugin of a platform puts a subclass in the place of the class."""
    modules = sources(NEWEST)
    modules[GROUPS] += "class Patched(GroupCoordinator): pass\nGroupCoordinator = Patched\n"
    vllm(modules)
    with no_warning():
        assert ins.install()


VERSIONS = ["0.31.0", "0.33.1", "0.34.0rc1", None]
VERSIONS += [f"{version}+cu130" for version in TESTED["vLLM"]]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_untested_version_that_fits_runs_with_one_warning_and_strict_leaves_it_alone(
    vllm, monkeypatch, caplog, version, strict
):
    tested = version is not None and version.partition("+")[0] in TESTED["vLLM"]
    if strict:
        monkeypatch.setenv("RINGCAST_VLLM", "strict")
    text = f"__version__ = {version!r}\n" if version else ""
    vllm({**sources(NEWEST if tested else OLDEST), "vllm.__init__": text})
    load(QUEUES, GROUPS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [ins.install(), ins.install()] == [tested or not strict] * 2
    assert in_place() == (tested or not strict,) * 2
    told = [str(each.message) for each in caught] + [each.getMessage() for each in caplog.records]
    assert len(told) == (not tested) and len(caught) == (not tested and not strict)
    assert all((version or "of an unknown version") in text for text in told)


# ---- vLLM's plugins ------------------------------------------------------------------------------


def python(folder, code, *arguments):
    path = os.pathsep.join([str(folder), str(PACKAGE)])
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result


# Prints, for each value of RINGCAST_VLLM, what the plugin did, and the texts of its warnings.
PLUGIN = """import json, os, sys, warnings
from ringcast import _plugin
from ringcast.vllm._install import installed, uninstall
for asked in sys.argv[1:]:
    os.environ["RINGCAST_VLLM"] = asked
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _plugin.vllm()
    texts = [str(each.message) for each in caught]
    imported = bool({"torch", "zmq", "vllm"} & set(sys.modules))
    print(json.dumps([installed(), imported, texts]))
    uninstall()
"""
# RINGCAST_VLLM, whether it is installed then, and the word of the warning.
ASKED = {
    "": (False, None),
    "0": (False, None),
    "yes": (False, "yes"),
    "1,on_death=maybe": (False, "on_death=fail|evict"),
    "1,share=local": (False, "1,share=local"),
    "1,on_death": (False, "1,on_death"),
    "1,": (False, "'1,'"),
    "1": (True, None),
    "strict": (True, None),
    "strict,on_death=evict": (True, None),
}


def plugin(folder, modules, *asked):
    write(folder, modules)
    return [json.loads(line) for line in python(folder, PLUGIN, *asked).stdout.splitlines()]


def test_the_plugin_installs_if_it_is_asked_and_never_raises(tmp_path):
    """Unasked it imports nothing."""
    found = plugin(tmp_path, sources(NEWEST), *ASKED)
    for (asked, (installs, word)), (installed, imported, texts) in zip(ASKED.items(), found):
        assert (installed, imported) == (installs, installs), asked
        assert word in texts[0] if word else texts == [], asked
    assert len(found) == len(ASKED)


def test_the_plugin_warns_of_a_vllm_that_is_broken(tmp_path):
    broken = {**sources(NEWEST), QUEUES: "raise OSError('a library is broken')\n"}
    ((installed, _, (text,)),) = plugin(tmp_path, broken, "1")
    assert not installed and "a library is broken" in text


def test_vllm_finds_the_plugin():
    text = pathlib.Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8")
    section = text.partition('[project.entry-points."vllm.general_plugins"]\n')[2]
    name, module, function = re.match(r'(\w+) = "([\w.]+):(\w+)"', section).groups()
    assert name == "ringcast" and getattr(importlib.import_module(module), function) is _plugin.vllm


# ---- A handle that reaches a process where nobody has installed ----------------------------------


def serve(handle, pipe):
    """As vLLM's WorkerProc: its names come from its own module."""
    (executor,) = load(EXECUTOR)
    requests = executor.MessageQueue.create_from_handle(handle, 0)
    answers = executor.MessageQueue(1, 1)
    pipe.send(answers.export_handle())
    requests.wait_until_ready()
    answers.wait_until_ready()
    answers.enqueue(["answer", requests.dequeue(timeout=60)])
    pipe.recv()


def test_a_spawned_worker_installs_when_a_handle_of_ours_comes(vllm):
    folder = vllm(sources(NEWEST))
    (executor,) = load(EXECUTOR)
    assert ins.install()
    requests = executor.MessageQueue(1, 1)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=serve, args=(requests.export_handle(), theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        answers = executor.MessageQueue.create_from_handle(ours.recv(), 0)
        requests.wait_until_ready()
        answers.wait_until_ready()
        requests.enqueue("request", timeout=60)
        assert answers.dequeue(timeout=60) == ["answer", "request"]
        ours.send("done")
        child.join()
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()
        child.close()
        ours.close()
    assert folder.exists()


def test_a_handle_that_comes_where_it_can_not_be_used_says_so(tmp_path, vllm):
    vllm(sources(NEWEST))
    assert ins.install()
    from ringcast.vllm import Handle

    pickled = pickle.dumps(Handle([0], "a ring"))
    other = tmp_path / "other"
    modules = sources(NEWEST)
    modules[QUEUES] = modules[QUEUES].replace("def shutdown(", "def close(")
    write(other, modules)
    code = (
        f"import pickle, warnings\nwarnings.simplefilter('ignore')\n"
        f"try: pickle.loads({pickled!r})\nexcept RuntimeError as error: print(error)"
    )
    assert (
        "take the same versions of vLLM and ringcast in all processes" in python(other, code).stdout
    )
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    assert "a ring" in python(nowhere, f"import pickle\nprint(pickle.loads({pickled!r}))").stdout
    ins.uninstall()
    assert b"_receive" not in pickle.dumps(Handle([0], "a ring"))
