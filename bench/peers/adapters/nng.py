# SPDX-License-Identifier: Apache-2.0
"""pynng: a Push0 socket for each reader, over ipc://.

As in pynng's documentation (pynng.readthedocs.io, "Pynng's core functionality"). A publisher (Pub0) of NNG drops
messages for which a slow subscriber has no room; Push0 waits: no message is lost.
"""

from typing import Any

from adapters.base import Way

WAITING = 128  # messages in each of a socket's two queues


class Pynng(Way):
    name = "pynng"
    family = "pynng"
    requires = ("pynng",)

    def initialize(self) -> None:
        import pynng

        if self.me.rank:
            self.socket = pynng.Pull0(recv_buffer_size=WAITING, recv_max_size=0)
            self.socket.dial(self.me.wait_for(f"address-{self.me.rank}"), block=True)
            return
        self.sockets = []
        for reader in range(1, self.me.processes):
            address = f"ipc://{self.me.folder}/nng-{reader}"
            self.sockets.append(pynng.Push0(listen=address, send_buffer_size=WAITING))
            self.me.publish(f"address-{reader}", address)

    def write(self, data: Any) -> None:
        for socket in self.sockets:
            socket.send(data)

    def read(self) -> Any:
        return self.socket.recv()

    def cleanup(self) -> None:
        for socket in [self.socket] if self.me.rank else self.sockets:
            socket.close()
