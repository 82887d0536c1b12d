# SPDX-License-Identifier: Apache-2.0
"""vLLM's MessageQueue for readers of other machines, by a bridge that goes no further than this process, and among the
ranks of a group, which are threads here."""

import collections
import contextlib
import gc
import pickle
import sys
import threading
import types

import numpy as np
import pytest
from peers import WATCHDOG
from queues import meanwhile, the_watching_thread, watchdog  # noqa: F401

import ringcast
import ringcast.vllm
from ringcast.vllm import MessageQueue

pytestmark = pytest.mark.alike


# ---- Remote readers, with a bridge that goes no further than this process --------------------------------------------


class FakeUplink:
    def __init__(self, handle, remote_readers, connect_ip, lost):
        self.address, self.ipv6, self.lost, self.connect_ip = f"fake:{id(self)}", False, lost, connect_ip
        self.missing = remote_readers
        self.relay = ringcast.Writer(1 << 20)
        self.closed = threading.Event()
        self._reader = ringcast.Reader(handle, name="remote machines")
        self._thread = threading.Thread(target=self._forward)
        self._thread.start()
        UPLINKS[self.address] = self

    def _forward(self):
        with self._reader, self.relay, contextlib.suppress(ringcast.WriterGone, ringcast.Cancelled):
            while True:
                obj, tag = self._reader.recv_tagged()
                self.relay.send(obj, tag=tag)

    def wait(self, timeout):
        if self.missing:
            raise TimeoutError(f"{self.missing} are missing")

    def describe(self):
        return f"{self.missing} are missing"

    def close(self, linger=None):
        self._thread.join(WATCHDOG)
        self.closed.set()


class FakeDownlink:
    def __init__(self, address, ipv6, rank):
        uplink = UPLINKS[address]
        self.reader = ringcast.Reader(uplink.relay.handle, name=f"rank {rank}")
        uplink.missing -= 1

    def close(self, linger=None):
        self.reader.close()


UPLINKS = {}


@pytest.fixture
def bridge(monkeypatch):
    module = types.SimpleNamespace(ZmqHub=FakeUplink, ReaderLink=FakeDownlink)
    for name in "zmq_hub", "zmq_transport":
        monkeypatch.setitem(sys.modules, f"ringcast.vllm.{name}", module)
    yield
    UPLINKS.clear()


def test_remote_readers_have_the_ring_by_the_bridge(bridge, monkeypatch):
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.2")
    writer = MessageQueue(2, 1)
    uplink = UPLINKS[writer.handle.remote_subscribe_addr]
    assert uplink.connect_ip == "127.0.0.2" and writer.remote_socket is uplink and writer.n_remote_reader == 1
    near = MessageQueue.create_from_handle(writer.handle, 0)
    with pytest.raises(TimeoutError, match="1 of 1 readers are attached; remote readers: 1 are missing"):
        writer.enqueue("early", timeout=0.01)
    far = MessageQueue.create_from_handle(writer.handle, -1)
    assert (far._is_writer, far._is_local_reader, far._is_remote_reader) == (False, False, True)
    for queue in (writer, near, far):
        queue.wait_until_ready()
    writer.enqueue({"x": np.arange(3)})
    for queue in (near, far):
        assert queue.dequeue(timeout=WATCHDOG)["x"].tolist() == [0, 1, 2]
    del writer, queue
    gc.collect()
    assert uplink.closed.is_set()
    for end in (near, far):
        with pytest.raises(ringcast.WriterGone):
            end.dequeue()


def test_without_readers_of_this_machine_the_handle_has_no_ring(bridge):
    writer = MessageQueue(1, 0, connect_ip="127.0.0.1")
    assert writer.handle.buffer_handle is None and writer.handle.local_reader_ranks == []
    assert UPLINKS[writer.handle.remote_subscribe_addr].connect_ip == "127.0.0.1"
    far = MessageQueue.create_from_handle(writer.handle, 0)
    writer.wait_until_ready()
    far.wait_until_ready()


def test_the_death_of_a_remote_reader_is_told_to_all(bridge):
    writer = MessageQueue(2, 1)
    near, far = (MessageQueue.create_from_handle(writer.handle, rank) for rank in (0, 1))
    for queue in (writer, near, far):
        queue.wait_until_ready()
    with meanwhile(near.dequeue) as outcome:
        writer.remote_socket.lost("rank 7 (pid 7 on 10.0.0.7) has died")
    assert isinstance(outcome[0], ringcast.ReaderDied) and "rank 7 (pid 7 on 10.0.0.7)" in str(outcome[0])
    for call in (lambda: writer.enqueue(1), near.dequeue, far.dequeue):
        with pytest.raises(ringcast.ReaderDied, match="rank 7"):
            call()


def test_who_has_remote_readers_alone_is_told_of_these_alone(bridge):
    writer = MessageQueue(1, 0)
    with pytest.raises(TimeoutError, match="^remote readers: 1 are missing"):
        writer.enqueue(1, timeout=0)


def test_shutdown_ends_the_wait_for_remote_readers(bridge):
    writer = MessageQueue(1, 0)
    with meanwhile(writer.wait_until_ready) as outcome:
        writer.shutdown()
    assert repr(outcome) == "[RuntimeError('cancelled')]"


def test_without_pyzmq_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    for name in "zmq_hub", "zmq_transport":
        monkeypatch.delitem(sys.modules, f"ringcast.vllm.{name}", raising=False)
        monkeypatch.delattr(ringcast.vllm, name, raising=False)
    with pytest.raises(ImportError, match="needs pyzmq: pip install pyzmq"):
        MessageQueue(2, 1)


# ---- In a group without torch ----------------------------------------------------------------------------------------


class Group:
    """As vLLM's StatelessProcessGroup, for threads. Each rank has one of these; the store is all theirs."""

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
        found = [stack.enter_context(meanwhile(function, Group(rank, world, store), *args)) for rank in range(world)]
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
        queue = MessageQueue.create_from_process_group(group, 1 << 20, 2, external_writer_handle=handle, blocking=False)
        queue.wait_until_ready()
        return queue.dequeue(timeout=WATCHDOG), queue._is_local_reader

    with meanwhile(lambda: (writer.wait_until_ready(), writer.enqueue("from outside"))):
        assert run_group(3, run) == [("from outside", True)] * 3


def test_who_can_not_attach_is_remote(bridge, monkeypatch):
    ranks = {}
    real = ringcast.vllm.machines.attaches

    def attaches(handle):
        return ranks[threading.get_ident()] != 2 and real(handle)

    monkeypatch.setattr("ringcast.vllm.machines.attaches", attaches)

    def run(group):
        ranks[threading.get_ident()] = group.rank
        queue = MessageQueue.create_from_process_group(group, 1 << 20, 2, 1)
        group.barrier()
        return queue.broadcast_object("x" if queue._is_writer else None), queue._is_remote_reader

    assert run_group(3, run) == [("x", False), ("x", False), ("x", True)]


def test_a_rank_that_fails_is_named_on_all(monkeypatch):
    real = MessageQueue.create_from_handle.__func__

    def fails(cls, handle, rank):
        if rank == 1:
            raise PermissionError("not here")
        return real(cls, handle, rank)

    monkeypatch.setattr(MessageQueue, "create_from_handle", classmethod(fails))
    found = run_group(3, lambda group: MessageQueue.create_from_process_group(group, 1 << 20, 2))
    assert isinstance(found[1], PermissionError)
    for error in (found[0], found[2]):
        assert isinstance(error, RuntimeError) and "rank 1 could not" in str(error) and "not here" in str(error)


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


def test_what_is_no_group_is_refused():
    with pytest.raises(TypeError, match="pg must be a torch.distributed.ProcessGroup, or have rank, world_size and"):
        MessageQueue.create_from_process_group(None, 1, 1)
    group = Group(0, 1, (threading.Condition(), {}))
    with pytest.raises(ValueError, match="writer_rank is a rank in the group, from 0 to 0, not 1"):
        MessageQueue.create_from_process_group(group, 1, 1, 1)
    with pytest.raises(ValueError, match=r"reader_rank is a global rank of the group, one of \[0\], not 1"):
        MessageQueue.create_from_process_group_single_reader(group, 1, 1, 1)
