# SPDX-License-Identifier: Apache-2.0
"""Every test must leave the process as it found it: no descriptor, no mapping of a ring."""

import gc
import os
from multiprocessing import forkserver, resource_tracker

import pytest
from peers import Peer

import ringcast


def descriptors():
    """But for the pipe to the process that ranks are forked from, which the first test that needs it starts."""
    found = {}
    for number in set(os.listdir("/proc/self/fd")) - {str(forkserver._forkserver._forkserver_alive_fd)}:
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the one that listed them
            continue
    return found


def ring_mappings():
    with open("/proc/self/maps") as maps:
        return sorted(line.split()[0] for line in maps if "memfd:ringcast" in line)


@pytest.fixture(scope="session", autouse=True)
def what_is_there_already():
    """Modules, torch's above all, are many objects that no test drops: to look through them twice a test would take
    more time than the tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def nothing_left():
    gc.collect()
    before = descriptors(), ring_mappings()
    yield
    gc.collect()
    assert (descriptors(), ring_mappings()) == before


@pytest.fixture(scope="session", autouse=True)
def multiprocessings_own():
    """multiprocessing starts a process of its own with the first of ours, and keeps a pipe to it."""
    resource_tracker.ensure_running()


@pytest.fixture(scope="session")
def crew():
    """Three processes that read, started once: importing torch takes seconds."""
    peers = [Peer() for _ in range(3)]
    yield peers
    for peer in peers:
        peer.stop()


@pytest.fixture
def peer():
    """A process for one test, to be killed or to be waited for."""
    peer = Peer()
    yield peer
    peer.stop()


@pytest.fixture
def ring():
    """A ring of 1 MiB and one reader, in this process."""
    with ringcast.Writer(1 << 20) as writer, ringcast.Reader(writer.handle) as reader:
        yield writer, reader
