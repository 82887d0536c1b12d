# SPDX-License-Identifier: Apache-2.0
"""eCAL: publish/subscribe over shared memory.

As on eCAL's pages (eclipse-ecal.github.io/ecal, "Shared Memory Layer" and the Python samples). By
default eCAL's publisher overwrites messages unread by a slow reader. With the acknowledgement a
write waits until each reader's callback has the message: no message is lost. The callback hands the
message over to the reader's thread by a queue.
"""

import queue
import time
from typing import Any

from adapters.base import Way

ACKNOWLEDGED = 5000  # milliseconds; a write waits so long for readers, at most


class Ecal(Way):
    family = "eclipse-ecal"
    requires = ("ecal.nanobind_core",)
    note = "with its acknowledgement: a write waits for each reader's callback"

    def initialize(self) -> None:
        import ecal.nanobind_core as ecal

        ecal.initialize(f"peers-{self.me.rank}", ecal.init.PUBLISHER | ecal.init.SUBSCRIBER)
        topic = f"peers-{self.me.folder.name}"
        if self.me.rank:
            self.messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            self.subscriber = ecal.Subscriber(topic)
            self.subscriber.set_receive_callback(self.received)
        else:
            settings = ecal.get_publisher_configuration()
            settings.layer.udp.enable = False
            settings.layer.tcp.enable = False
            settings.layer.shm.acknowledge_timeout_ms = ACKNOWLEDGED
            settings.layer.shm.zero_copy_mode = True
            settings.layer.shm.memfile_min_size_bytes = self.me.largest
            self.publisher = ecal.Publisher(topic, ecal.DataTypeInformation(), settings)
        self.handshake()

    def received(self, publisher: Any, kind: Any, data: Any) -> None:
        self.messages.put(data.buffer)

    def handshake(self) -> None:
        """Until both ends know each other, which takes eCAL's registration a second or two."""
        end = time.monotonic() + 30
        count = (
            self.subscriber.get_publisher_count
            if self.me.rank
            else self.publisher.get_subscriber_count
        )
        while count() < (1 if self.me.rank else self.me.readers):
            if time.monotonic() > end:
                raise TimeoutError("eCAL's registration has not connected the members in 30 s")
            time.sleep(0.01)
        self.me.barrier("registered")

    def write(self, data: Any) -> None:
        if not self.publisher.send(bytes(data)):
            raise RuntimeError("eCAL's publisher could not send")

    def read(self) -> bytes:
        return self.messages.get()

    def cleanup(self) -> None:
        import ecal.nanobind_core as ecal

        self.me.barrier("left")
        ecal.finalize()
