# SPDX-License-Identifier: Apache-2.0
"""The thread that notices deaths of readers."""

import threading

import pytest
from peers import WATCHDOG, Peer, attach
from queues import the_watching_thread  # noqa: F401

import ringcast
from ringcast._watch import watch

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
