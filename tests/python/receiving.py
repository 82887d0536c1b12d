# SPDX-License-Identifier: Apache-2.0
"""A call of the test in a thread of its own."""

import threading

from peers import WATCHDOG


class Receiving:
    """What recv(), or another call, gives in a thread of its own."""

    def __init__(self, receive):
        self.outcome, self.error = None, None
        self.thread = threading.Thread(target=self.run, args=(receive,))
        self.thread.start()

    def run(self, receive):
        try:
            self.outcome = receive()
        except BaseException as error:
            self.error = error

    def is_at_work(self):
        return self.thread.is_alive()

    def finish(self):
        self.thread.join(WATCHDOG)
        assert not self.thread.is_alive(), "it waits for ever"
        if self.error:
            raise self.error
        return self.outcome
