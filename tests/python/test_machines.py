# SPDX-License-Identifier: Apache-2.0
"""
A writer and readers on several machines, which are network namespaces: only trying tells who shares
one.
"""

import contextlib
import os
import queue
import re

import machines
import pytest
from machines import WATCHDOG, link

import ringcast

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed here")

from ringcast.vllm.zmq_hub import ZmqHub  # noqa: E402
from ringcast.vllm.zmq_transport import ReaderLink  # noqa: E402

pytestmark = pytest.mark.alike


@pytest.fixture(autouse=True)
def heartbeat(monkeypatch):
    """A process that stands still for less is not lost."""
    monkeypatch.setenv("RINGCAST_HEARTBEAT", "10")


def write(ip, remote_readers, capacity=1 << 20):
    """On the writer's machine: does what it is told to, and tells who is lost."""
    told = queue.Queue()
    writer = ringcast.Writer(capacity)
    uplink = ZmqHub(writer.handle, remote_readers, ip, told.put)
    link().send((uplink.address, uplink.ipv6, writer.handle))
    uplink.wait(WATCHDOG)
    while True:
        command, argument = link().recv()
        if command == "send":
            writer.send(argument, WATCHDOG)
        elif command == "describe":
            link().send(uplink.describe())
        elif command == "lost":
            link().send(told.get(timeout=WATCHDOG))
        else:
            writer.close()
            uplink.close(argument)
            return told.empty()


def read(address, ipv6, rank, handle=None):
    """Tells what it receives, to the end, and the ring that it is of."""
    if handle is not None:
        try:
            ringcast.Reader(handle).close()
            return "attached to a ring of another machine"
        except ringcast.Error:
            pass
    downlink = ReaderLink(address, ipv6, rank)
    link().send(downlink.reader.handle)
    ends = []
    while ends[-1:] != ["WriterGone"]:
        try:
            link().send(downlink.reader.recv(WATCHDOG))
        except ringcast.Error as error:
            ends.append(type(error).__name__)
            ends.append(str(error)) if not isinstance(error, ringcast.WriterGone) else None
    downlink.close()
    return ends


@contextlib.contextmanager
def group(ranks_by_machine, hosts=None):
    """The machines, the writer's first; the writer's job, and those of the readers by rank."""
    with machines.machines(1 + len(ranks_by_machine), hosts) as (first, *others):
        writer = first.start(write, first.address, sum(map(len, ranks_by_machine)))
        address, ipv6, handle = writer.recv()
        assert first.address in address
        readers = {
            rank: machine.start(read, address, ipv6, rank, handle)
            for machine, ranks in zip(others, ranks_by_machine)
            for rank in ranks
        }
        yield others, writer, readers, {rank: reader.recv() for rank, reader in readers.items()}


def test_each_machine_has_one_ring_whatever_it_is_called():
    with group([[1, 2], [3, 4]], ["same"] * 3) as (_, writer, readers, rings):
        assert rings[1] == rings[2] and rings[3] == rings[4] and rings[1] != rings[3]
        values = ["text", {"a": list(range(100))}, os.urandom(3 << 20), None]
        for value in values:
            writer.send(("send", value))
        for reader in readers.values():
            assert [reader.recv() for _ in values] == values
        writer.send(("describe", None))
        relay = r"rank \d \(pid \d+ on same\), which receives for rank \d \(.*?\d+ bytes behind"
        assert len(re.findall(relay, writer.recv())) == 2
        writer.send(("close", WATCHDOG))
        assert writer.result(), "an orderly end is no death"
        for reader in readers.values():
            assert reader.result() == ["WriterGone"]


def test_a_machine_that_disappears_is_named_and_everyone_hears_of_it():
    with group([[1], [2, 3]]) as (others, writer, readers, _):
        writer.send(("send", "all there"))
        assert [reader.recv() for reader in readers.values()] == ["all there"] * 3
        others[1].unplug()
        writer.send(("lost", None))
        assert re.search(r"rank [23] \(pid \d+ on machine3\), .* for rank [23] ", writer.recv())
        for rank in 2, 3:
            kind, said, last = readers[rank].result()
            assert (kind, last) == ("SendError", "WriterGone")
            assert f"the writer (pid {writer.pid} on machine1)" in said
        writer.send(("send", "goes on"))
        assert readers[1].recv() == "goes on"
        writer.send(("close", WATCHDOG))
        writer.result()
        assert readers[1].result() == ["WriterGone"]


def test_a_machine_that_disappears_while_it_holds_the_writer_back_lets_go():
    with group([[1], [2]]) as (others, writer, readers, _):
        others[1].unplug()
        for _ in range(300):  # far more than a ring
            writer.send(("send", bytes(100_000)))
        for _ in range(300):
            assert readers[1].recv() == bytes(100_000)
        writer.send(("close", WATCHDOG))
        writer.result()
        assert readers[1].result() == ["WriterGone"] and "SendError" in readers[2].result()
