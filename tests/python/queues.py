# SPDX-License-Identifier: Apache-2.0
"""What the tests of vLLM's MessageQueue have in common. It imports no torch, which the peers would
wait for."""

import contextlib
import faulthandler
import os
import threading

import pytest
from peers import WATCHDOG

import ringcast
from ringcast.vllm import MessageQueue

SMALL = {"max_chunk_bytes": 32 << 10, "max_chunks": 2}


@pytest.fixture(scope="module", autouse=True)
def the_watching_thread():
    """The first queue of a process starts it, with a descriptor that stays."""
    MessageQueue(1, 1)


@pytest.fixture(autouse=True)
def watchdog():
    """Says where the test hangs, and ends it."""
    faulthandler.dump_traceback_later(WATCHDOG, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def make(readers=1, **options):
    writer = MessageQueue(readers, readers, **options)
    return writer, [
        MessageQueue.create_from_handle(writer.export_handle(), rank) for rank in range(readers)
    ]


def make_ready(readers=1, **options):
    writer, others = make(readers, **options)
    writer.wait_until_ready()
    for reader in others:
        reader.wait_until_ready()
    return (writer, *others)


@contextlib.contextmanager
def meanwhile(call, *args):
    """
    Run it in a thread during the block, and give what it returned or raised, by the time the block
    is over.
    """
    outcome = []

    def run():
        try:
            outcome.append(call(*args))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield outcome
    thread.join(WATCHDOG)
    assert not thread.is_alive()


def fill(queue):
    """Until there is no room."""
    with pytest.raises(TimeoutError):
        for number in range(10_000):
            queue.enqueue(bytes(1000), timeout=0)
    return number


@contextlib.contextmanager
def once_it_waits(queue):
    """The end of the block is reached when a call of another thread has begun to wait."""
    with ringcast.Tap(queue.handle.buffer_handle) as tap:

        def waits():
            if queue._is_writer:
                return tap.stats().waits
            return sum(peer.stats.waits for peer in tap.peers() if peer.pid == os.getpid())

        before = waits()
        yield
        while waits() == before:
            pass
