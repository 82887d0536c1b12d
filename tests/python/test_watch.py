# SPDX-License-Identifier: Apache-2.0
"""The thread that notices deaths of readers."""

import contextlib
import os
import threading

import pytest
from peers import WATCHDOG, Peer, attach, in_a_fork
from queues import the_watching_thread  # noqa: F401

import ringcast
from ringcast._group.framing import Wake
from ringcast._watch import watch
from ringcast.vllm._doors import Door

pytestmark = pytest.mark.alike


class Watched:
    """A Writer with one reader in a process of its own."""

    def __init__(self, closes):
        self.writer, self.reader, self.noticed = ringcast.Writer(1 << 20), Peer(), threading.Event()
        self.closes = closes
        self.reader.call(attach, self.writer.handle)
        self.forget = watch(self.writer, self.notice)

    def notice(self):
        dead = self.writer.check()
        if self.closes:
            self.writer.close()
        if dead:
            self.noticed.set()
        return False

    def dies(self):
        self.reader.process.kill()
        assert self.noticed.wait(WATCHDOG)
        self.reader.stop()
        self.forget()
        self.writer.close()


def test_a_method_that_closes_its_writer_does_not_end_the_thread():
    first, second = Watched(closes=True), Watched(closes=False)
    first.dies()
    second.dies()


def test_no_descriptor_has_a_number_of_the_standard_files():
    """A daemon that has closed them opens its own there."""

    class Owner:
        def notice(self):
            return True

    def child():
        os.closerange(0, 3)
        owner, writer = Owner(), ringcast.Writer(4096)
        watch(writer, owner.notice)
        kept = Wake(), Door(writer.handle, "reader")
        for number in range(3):
            with contextlib.suppress(OSError):
                return os.readlink(f"/proc/self/fd/{number}")
        kept[1].close()
        return None

    assert in_a_fork(child) is None
