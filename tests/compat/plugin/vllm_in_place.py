# SPDX-License-Identifier: Apache-2.0
"""
install() and uninstall() in the real vLLM: who holds what, what vLLM's plugins do, and a process of
vLLM's that has not installed and gets a handle of ours. Exit status 0: all as it should be.
"""

import importlib.metadata
import multiprocessing
import os
import sys

from vllm.distributed import parallel_state
from vllm.distributed.device_communicators import shm_broadcast
from vllm.v1.executor import multiproc_executor, ray_executor_v2

HOLDERS = (shm_broadcast, multiproc_executor, ray_executor_v2)


def check_who_holds_what():
    from ringcast.vllm import Handle, MessageQueue
    from ringcast.vllm._install import SIGNATURES, install, uninstall

    coordinator = parallel_state.GroupCoordinator
    names = [name.partition(".")[2] for name in SIGNATURES if name.startswith("GroupCoordinator.")]
    before = (
        shm_broadcast.Handle,
        shm_broadcast.MessageQueue,
        {name: getattr(coordinator, name) for name in names},
    )
    assert install() and install()
    for module in HOLDERS:
        assert module.MessageQueue is MessageQueue and module.Handle is Handle, module.__name__
    for name in names:
        assert getattr(coordinator, name).__module__.startswith("ringcast."), name
    from vllm.distributed.stateless_coordinator import StatelessGroupCoordinator

    for name in names:
        assert getattr(StatelessGroupCoordinator, name).__module__.startswith("vllm."), name
    uninstall()
    uninstall()
    for module in HOLDERS:
        assert module.MessageQueue is before[1] and module.Handle is before[0], module.__name__
    assert {name: getattr(coordinator, name) for name in names} == before[2]


def check_plugin():
    """What vLLM does at the start of each of its processes."""
    points = [
        point.value for point in importlib.metadata.entry_points(group="vllm.general_plugins")
    ]
    if "ringcast._plugin:vllm" not in points:
        print(
            "SKIPPED plugin: ringcast is not installed here with its entry points, only found on "
            "the path"
        )
        return
    import vllm.plugins

    from ringcast.vllm._install import installed, uninstall

    for asked in "0", "1":
        os.environ["RINGCAST_VLLM"] = asked
        vllm.plugins.plugins_loaded = False
        vllm.plugins.load_general_plugins()
        assert installed() == (asked == "1")
    del os.environ["RINGCAST_VLLM"]
    uninstall()


def answer(handle, pipe):
    """As WorkerProc does, in a spawned process that nobody has told of ringcast."""
    requests = multiproc_executor.MessageQueue.create_from_handle(handle, 0)
    answers = multiproc_executor.MessageQueue(1, 1)
    pipe.send(answers.export_handle())
    requests.wait_until_ready()
    answers.wait_until_ready()
    answers.enqueue((type(answers).__module__, requests.dequeue(timeout=60)))


def check_a_process_that_has_not_installed():
    from ringcast.vllm import install, uninstall

    assert install()
    requests = multiproc_executor.MessageQueue(1, 1)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=answer, args=(requests.export_handle(), theirs)
    )
    child.start()
    theirs.close()
    answers = multiproc_executor.MessageQueue.create_from_handle(ours.recv(), 0)
    requests.wait_until_ready()
    answers.wait_until_ready()
    requests.enqueue({"request": 1})
    assert answers.dequeue(timeout=60) == ("ringcast.vllm.queue", {"request": 1})
    child.join()
    uninstall()


def main():
    for check in check_who_holds_what, check_plugin, check_a_process_that_has_not_installed:
        check()
        print(f"in place: {check.__name__[6:].replace('_', ' ')}: done", flush=True)


if __name__ == "__main__":
    sys.exit(main())
