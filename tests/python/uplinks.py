# SPDX-License-Identifier: Apache-2.0
"""Both sides of the leg between machines in one process, for the tests of ringcast.vllm.zmq_hub."""

import contextlib
import queue

import pytest
from peers import WATCHDOG

import ringcast

pytest.importorskip("zmq", reason="pyzmq is not installed here")

from ringcast.vllm.zmq_hub import ZmqHub  # noqa: E402
from ringcast.vllm.zmq_transport import Connection, ReaderLink  # noqa: E402

LOOPBACK = "127.0.0.1"


class Leg:
    """A ring, an uplink, and who was lost."""

    def __init__(self, remote_readers=1, capacity=1 << 22, ip=LOOPBACK):
        self.told = queue.Queue()
        self.writer = ringcast.Writer(capacity)
        self.uplink = ZmqHub(self.writer.handle, remote_readers, ip, self.tell)
        self.downlinks = []

    def tell(self, text):
        self.told.put(text)

    def downlink(self, rank=3):
        downlink = ReaderLink(self.uplink.address, self.uplink.ipv6, rank)
        self.downlinks.append(downlink)
        return downlink.reader

    def lost(self):
        return self.told.get(timeout=WATCHDOG)

    def close(self):
        self.uplink.close(0)
        for downlink in self.downlinks:
            downlink.close()
        self.writer.close()
        assert self.told.empty(), f"nobody was told: {self.told.get()}"


def be_patient(patch):
    """A process that stands still for seconds is none that is gone, and a goodbye is waited for."""
    patch.setenv("RINGCAST_HEARTBEAT", str(WATCHDOG))
    patch.setattr(Connection, "goodbye_seconds", WATCHDOG)


def legs():
    """A fixture: makes Legs that are closed after the test."""
    with contextlib.ExitStack() as stack:
        be_patient(stack.enter_context(pytest.MonkeyPatch.context()))
        yield lambda *args, **kwargs: stack.enter_context(contextlib.closing(Leg(*args, **kwargs)))
