# SPDX-License-Identifier: Apache-2.0
"""
vLLM's MessageQueue for readers of other machines, which are in this process, and among the ranks of
a group, which are threads here.
"""

import collections
import contextlib
import importlib.util
import pickle
import sys
import threading

import numpy as np
import pytest
from peers import WATCHDOG, names_of_rings
from queues import meanwhile, the_watching_thread, watchdog  # noqa: F401

import ringcast
import ringcast.vllm
from ringcast.vllm import MessageQueue

pytestmark = pytest.mark.alike
needs_zmq = pytest.mark.skipif(
    importlib.util.find_spec("zmq") is None, reason="pyzmq is not installed here"
)


# ---- Readers on this machine and on others -------------------------------------------------------


@needs_zmq
def test_a_queue_may_have_readers_on_this_machine_and_on_others(monkeypatch):
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    writer = MessageQueue(2, 1)
    assert (
        writer.handle.remote_subscribe_addr == writer.remote_socket.address
        and writer.n_remote_reader == 1
    )
    assert "//127.0.0.1:" in writer.remote_socket.address
    near = MessageQueue.create_from_handle(writer.handle, 0)
    with pytest.raises(TimeoutError, match="remote readers: 1 of 1"):
        writer.enqueue("early", timeout=0.01)
    far = MessageQueue.create_from_handle(writer.handle, -1)
    assert (far._is_writer, far._is_local_reader, far._is_remote_reader) == (False, False, True)
    assert {"vllm.mq.calls", "vllm.mq.calls.relay"} <= set(names_of_rings())
    for queue in writer, near, far:
        queue.wait_until_ready()
    writer.enqueue({"x": np.arange(3)})
    for queue in near, far:
        assert queue.dequeue(timeout=WATCHDOG)["x"].tolist() == [0, 1, 2]
    with meanwhile(near.dequeue) as outcome:
        writer._end.lose("rank 7 (pid 7 on 10.0.0.7) has died")
    assert isinstance(outcome[0], ringcast.ReaderDied)
    for call in lambda: writer.enqueue(1), near.dequeue, far.dequeue:
        with pytest.raises(ringcast.ReaderDied, match="rank 7 .pid 7 on 10.0.0.7"):
            call()


@needs_zmq
@pytest.mark.parametrize("far, near", [(1, 0), (7992, 8)])
def test_readers_may_be_elsewhere_alone_and_more_than_a_ring_has(far, near):
    writer = MessageQueue(far + near, near, connect_ip="127.0.0.1")
    assert writer.n_remote_reader == far and (writer.handle.buffer_handle is None) == (near == 0)
    with pytest.raises(TimeoutError, match=f"remote readers: {far} of {far} have not come"):
        writer.enqueue(1, timeout=0)
    with meanwhile(writer.wait_until_ready) as outcome:
        writer.shutdown()
    assert repr(outcome) == "[RuntimeError('cancelled')]"


def test_without_pyzmq_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    for name in "zmq_hub", "zmq_transport":
        monkeypatch.delitem(sys.modules, f"ringcast.vllm.{name}", raising=False)
        monkeypatch.delattr(ringcast.vllm, name, raising=False)
    with pytest.raises(ImportError, match="pip install pyzmq"):
        MessageQueue(2, 1)


# ---- In a group without torch --------------------------------------------------------------------


class Group:
    """As vLLM's StatelessProcessGroup, for threads. Each rank has one of these; the store is all
    theirs."""

    def __init__(self, rank, world_size, store):
        self.rank, self.world_size, self._store = rank, world_size, store
        self._sent, self._received = 0, collections.Counter()

    def broadcast_obj(self, obj, src):
        changed, posted = self._store
        with changed:
            if self.rank == src:
                posted[src, self._sent] = pickle.dumps(obj)
                self._sent += 1
                changed.notify_all()
                return obj
            key = src, self._received[src]
            self._received[src] += 1
            assert changed.wait_for(lambda: key in posted, WATCHDOG)
            return pickle.loads(posted[key])

    def barrier(self):
        for src in range(self.world_size):
            self.broadcast_obj(None, src)


def run_group(world, function, *args):
    """function(group, *args) on each rank, in threads; what each returned or raised."""
    store = threading.Condition(), {}
    with contextlib.ExitStack() as stack:
        found = [
            stack.enter_context(meanwhile(function, Group(rank, world, store), *args))
            for rank in range(world)
        ]
    return [outcome[0] for outcome in found]


@pytest.mark.parametrize("blocking", [True, False])
def test_a_group_has_a_queue_from_any_rank(blocking):
    def run(group):
        queue = MessageQueue.create_from_process_group(group, 40 << 10, 2, 2, blocking=blocking)
        if not blocking:
            queue.wait_until_ready()
        group.barrier()
        got = queue.broadcast_object([group.rank] if queue._is_writer else None)
        return got, queue._is_writer, queue.handle.local_reader_ranks

    assert run_group(4, run) == [([2], rank == 2, [0, 1, 3]) for rank in range(4)]


def test_a_group_passes_on_a_queue_from_outside():
    writer = MessageQueue(3, 3)

    def run(group):
        handle = writer.handle if group.rank == 0 else None
        queue = MessageQueue.create_from_process_group(
            group, 1 << 20, 2, external_writer_handle=handle, blocking=False
        )
        queue.wait_until_ready()
        return queue.dequeue(timeout=WATCHDOG), queue._is_local_reader

    with meanwhile(lambda: (writer.wait_until_ready(), writer.enqueue("from outside"))):
        assert run_group(3, run) == [("from outside", True)] * 3


def test_a_rank_that_fails_is_named_on_all(monkeypatch):
    real = MessageQueue._attach.__func__

    def fails(cls, handle, rank):
        if rank == 1:
            raise PermissionError("not here")
        return real(cls, handle, rank)

    monkeypatch.setattr(MessageQueue, "_attach", classmethod(fails))
    found = run_group(3, lambda group: MessageQueue.create_from_process_group(group, 1 << 20, 2))
    assert isinstance(found[1], PermissionError)
    for error in (found[0], found[2]):
        assert (
            isinstance(error, RuntimeError) and "rank 1" in str(error) and "not here" in str(error)
        )


def test_each_rank_has_a_queue_to_a_single_reader():
    def run(group):
        queue, handles = MessageQueue.create_from_process_group_single_reader(group, 1 << 20, 6, 1)
        assert queue._is_writer and queue.n_local_reader == 1 and bool(handles) == (group.rank == 1)
        readers = [MessageQueue.create_from_handle(handle, 0) for handle in handles]
        with meanwhile(queue.wait_until_ready):
            for reader in readers:
                reader.wait_until_ready()
        queue.enqueue(group.rank)
        got = [reader.dequeue(timeout=WATCHDOG) for reader in readers]
        group.barrier()
        return got

    assert run_group(3, run) == [[], [0, 1, 2], []]


def test_what_is_no_group_or_no_rank_is_refused():
    group = Group(0, 1, (threading.Condition(), {}))
    for call, error, text in (
        (lambda: MessageQueue.create_from_process_group(None, 1, 1), TypeError, "pg must be"),
        (lambda: MessageQueue.create_from_process_group(group, 1, 1, 1), ValueError, "writer_rank"),
        (
            lambda: MessageQueue.create_from_process_group_single_reader(group, 1, 1, 1),
            ValueError,
            "reader_rank",
        ),
    ):
        with pytest.raises(error, match=text):
            call()
