# SPDX-License-Identifier: Apache-2.0
"""zenoh: publish/subscribe between peers, messages in shared memory.

As in the examples of zenoh-python (github.com/eclipse-zenoh/zenoh-python, examples/z_pub_shm.py, z_sub_shm.py and
z_ping_shm.py). Reliable, the publisher waits when readers lag, messages sent at once (express). The network carries
a message's place, over a Unix socket; the message is copied into shared memory, and out by bytes(): zenoh for
Python gives no view of the memory.
"""

import json
import time
from typing import Any

from adapters.base import Way

KEY = "ringcast/peers"
WAITING = 16  # messages in a reader's channel
SOON = 0.2  # seconds in which zenoh's threads remove the files
MEMORY = 256 << 20  # bytes of the writer's shared memory, at least


class ZenohShm(Way):
    name = "zenoh-shm"
    family = "eclipse-zenoh"
    requires = ("zenoh",)

    def initialize(self) -> None:
        import zenoh

        endpoint = f"unixsock-stream/{self.me.folder}/zenoh"
        config = zenoh.Config()
        settings = {
            "mode": "peer",
            "scouting/multicast/enabled": False,
            "transport/shared_memory/enabled": True,
            "listen/endpoints": [] if self.me.rank else [endpoint],
            "connect/endpoints": [endpoint] if self.me.rank else [],
        }
        for name, value in settings.items():
            config.insert_json5(name, json.dumps(value))
        if self.me.rank:
            self.me.wait_for("listening")
        self.session = zenoh.open(config)
        if self.me.rank:
            self.subscriber = self.session.declare_subscriber(KEY, zenoh.handlers.FifoChannel(WAITING))
        else:
            self.publish()
        self.handshake()

    def publish(self) -> None:
        import zenoh

        self.me.publish("listening", "")
        size = max(MEMORY, 4 * self.me.largest)
        self.memory = zenoh.shm.ShmProvider.default_backend(size)
        self.wait = zenoh.shm.BlockOn(zenoh.shm.GarbageCollect())
        self.publisher = self.session.declare_publisher(
            KEY,
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
            priority=zenoh.Priority.REAL_TIME,
            express=True,
        )

    def handshake(self) -> None:
        """Send until each reader has got a message, so that all subscriptions are known to the writer."""
        if self.me.rank:
            self.subscriber.recv()
            self.me.publish(f"heard-{self.me.rank}", "")
            while bytes(self.subscriber.recv().payload) != b"begin":
                pass
            return
        heard = [self.me.folder / f"heard-{rank}.told" for rank in range(1, self.me.processes)]
        while not all(path.exists() for path in heard):
            self.publisher.put(b"hello")
            time.sleep(0.01)
        self.publisher.put(b"begin")

    def write(self, data: Any) -> None:
        message = self.memory.alloc(len(data), policy=self.wait)
        message[:] = bytes(data)  # bytes are not copied by this
        self.publisher.put(message)

    def read(self) -> bytes:
        return self.subscriber.recv().payload.to_bytes()

    def cleanup(self) -> None:
        """The shared memory's files go with the objects, once no reader has them, by zenoh's threads."""
        self.me.barrier("left")
        if self.me.rank:
            self.subscriber.undeclare()
            self.session.close()
            del self.subscriber, self.session
            time.sleep(SOON)
        self.me.barrier("closed")
        if not self.me.rank:
            self.publisher.undeclare()
            self.session.close()
            del self.publisher, self.session
            time.sleep(SOON)
            self.memory.garbage_collect()
            del self.wait, self.memory
            time.sleep(SOON)
