# SPDX-License-Identifier: Apache-2.0
"""pyzmq over ipc. One PUSH socket for each reader, as PUSH deals messages out among the connected readers; and
PUB/SUB, which begins when all have subscribed (XPUB tells). No high-water mark, so PUB loses nothing.

Large messages without a copy by pyzmq, as the page "Serializing messages" advises: copy=False from 64 KiB on, the
library's own threshold.
"""

from typing import Any

from adapters.base import Way

LARGE = 64 << 10


class Zmq(Way):
    family = "pyzmq"
    requires = ("zmq",)
    keeps = True
    large = False  # the last message was; sizes seldom change

    @classmethod
    def version(cls) -> str:
        import zmq

        return f"{zmq.__version__} with libzmq {zmq.zmq_version()}"

    def socket(self, kind: int) -> Any:
        import zmq

        socket = self.context.socket(kind)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, 0)
        return socket

    def read(self) -> Any:
        if not self.large:
            data = self.end.recv()
            self.large = len(data) >= LARGE
            return data
        view = self.end.recv(copy=False).buffer
        self.large = len(view) >= LARGE
        return view

    def address(self, rank: int) -> str:
        return f"ipc://{self.me.folder}/zmq-{rank}"

    def cleanup(self) -> None:
        self.context.destroy(0)


class Push(Zmq):
    name = "zmq-push"

    def initialize(self) -> None:
        import zmq

        self.context = zmq.Context()
        if self.me.rank:
            self.end = self.socket(zmq.PULL)
            self.end.connect(self.address(self.me.rank))
        else:
            self.ends = [self.socket(zmq.PUSH) for _ in range(self.me.readers)]
            for rank, end in enumerate(self.ends, 1):
                end.bind(self.address(rank))
        self.me.barrier("zmq")

    def write(self, data: Any) -> None:
        copy = len(data) < LARGE
        for end in self.ends:
            end.send(data, copy=copy)


class Pub(Zmq):
    name = "zmq-pub"

    def initialize(self) -> None:
        import zmq

        self.context = zmq.Context()
        if self.me.rank:
            self.end = self.socket(zmq.SUB)
            self.end.subscribe(b"")
            self.end.connect(self.address(0))
            return
        self.end = self.socket(zmq.XPUB)
        self.end.setsockopt(zmq.XPUB_VERBOSE, 1)  # tells of each subscriber, not only of the first
        self.end.bind(self.address(0))
        for _ in range(self.me.readers):
            assert self.end.recv() == b"\x01"

    def write(self, data: Any) -> None:
        self.end.send(data, copy=len(data) < LARGE)
