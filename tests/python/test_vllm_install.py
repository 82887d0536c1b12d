# SPDX-License-Identifier: Apache-2.0
"""ringcast.vllm.install(), in modules that have vLLM's names and signatures and nothing else. `make
vllm-compat` has the real ones."""

import importlib
import inspect
import multiprocessing
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading

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

pytestmark = [pytest.mark.alike, needs_torch]

PACKAGE = pathlib.Path(ins.__file__).parents[2]


vllm = pytest.fixture(package)


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


def test_the_log_says_what_is_in_place(vllm, caplog, monkeypatch):
    caplog.set_level("INFO")
    vllm(sources(NEWEST))
    monkeypatch.setenv("RINGCAST_VLLM", "1")
    assert ins.install() and ins.install()
    (record,) = caplog.records
    assert "in place of queues and groups, in vLLM 0.33.0+cpu" in record.getMessage()
    assert record.getMessage().endswith("; to go back: unset RINGCAST_VLLM")
    ins.uninstall()
    monkeypatch.delenv("RINGCAST_VLLM")
    assert ins.install()
    assert caplog.records[-1].getMessage().endswith("; to go back: uninstall()")


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


def test_our_own_modules_and_those_of_others_that_took_ours_keep_it(vllm):
    vllm(sources(NEWEST))
    assert ins.install()
    import ringcast.vllm.queue as ours

    ins.uninstall()
    assert ours.MessageQueue is ringcast_queue() and ours.Handle.__module__.startswith("ringcast.")


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
    raised = []

    def work(i):
        try:
            start.wait()
            for turn in range(20):
                ins.uninstall() if (turn + i) % 3 == 0 else ins.install()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not raised
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
    assert "vllm" not in sys.modules
    monkeypatch.setattr(ins.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install vllm"):
        ins.install()


def test_what_vllm_lacks_is_told_as_it_is(vllm):
    modules = sources(NEWEST)
    modules[QUEUES] = "import a_module_that_is_nowhere\n"
    vllm(modules)
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


# ---- vLLM's plugins ------------------------------------------------------------------------------


def python(folder, code, **environment):
    path = os.pathsep.join([str(folder), str(PACKAGE)])
    command = [sys.executable, "-W", "always", "-c", code]
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result


PLUGIN = """import sys
from ringcast import _plugin
from ringcast.vllm._install import installed
_plugin.vllm()
"""


@pytest.mark.parametrize("asked", ["", "0"])
def test_unasked_the_plugin_does_nothing_and_imports_nothing(tmp_path, asked):
    write(tmp_path, sources(NEWEST))
    code = PLUGIN + "assert not installed()\nassert not {'torch', 'zmq', 'vllm'} & set(sys.modules)"
    assert python(tmp_path, code, RINGCAST_VLLM=asked).stderr == ""


@pytest.mark.parametrize("asked", ["1", "strict", "strict,on_death=evict"])
def test_asked_the_plugin_installs(tmp_path, asked):
    write(tmp_path, sources(NEWEST))
    assert python(tmp_path, PLUGIN + "assert installed()", RINGCAST_VLLM=asked).stderr == ""


def test_the_plugin_warns_and_never_raises(tmp_path):
    modules = sources(NEWEST)
    modules[QUEUES] = "raise OSError('a library is broken')\n"
    write(tmp_path, modules)
    told = python(tmp_path, PLUGIN + "assert not installed()", RINGCAST_VLLM="1").stderr
    assert (
        "RuntimeWarning: ringcast is not put in place, vLLM goes on as it was: a library is broken"
        in told
    )
    told = python(tmp_path, PLUGIN + "assert not installed()", RINGCAST_VLLM="yes").stderr
    assert "RINGCAST_VLLM is 'yes'" in told and "vLLM's own functions stay" in told
    for asked in "1,on_death=maybe", "1,share=local", "1,on_death", "1,":
        told = python(tmp_path, PLUGIN + "assert not installed()", RINGCAST_VLLM=asked).stderr
        assert f"RINGCAST_VLLM is '{asked}'" in told and "on_death=fail|evict" in told


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
