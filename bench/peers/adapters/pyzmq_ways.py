# SPDX-License-Identifier: Apache-2.0
"""pyzmq over ipc. One PUSH socket for each reader, as PUSH deals messages out among the connected
readers; and PUB/SUB, which begins when all have subscribed (XPUB tells). No high-water mark, so PUB
loses nothing.

As the page "Serializing messages with PyZMQ" advises, large messages are not copied (copy=False),
nor large buffers of objects: these leave the pickle (protocol 5) and are further parts of the
message. Large: 64 KiB, pyzmq's own threshold.
"""

import pickle
from typing import Any, List

from adapters.base import Way

LARGE = 64 << 10


class Zmq(Way):
    family = "pyzmq"
    requires = ("zmq",)
    keeps = LARGE
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

    def write(self, data: Any) -> None:
        copy = len(data) < LARGE
        for end in self.ends:
            end.send(data, copy=copy)

    def write_object(self, value: Any) -> None:
        parts: List[Any] = []

        def in_pickle(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes < LARGE:
                return True
            parts.append(buffer.raw())
            return False

        data = pickle.dumps(value, 5, buffer_callback=in_pickle)
        if not parts:
            return self.write(data)
        for end in self.ends:
            end.send_multipart([data, *parts], copy=False)

    def read_object(self) -> Any:
        data = self.read()
        if not self.end.rcvmore:
            return pickle.loads(data)
        return pickle.loads(
            data, buffers=[part.buffer for part in self.end.recv_multipart(copy=False)]
        )

    def address(self, rank: int) -> str:
        return f"ipc://{self.me.folder}/zmq-{rank}"

    def cleanup(self) -> None:
        self.context.destroy(0)


class Push(Zmq):
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


class Pub(Zmq):
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
        self.ends = [self.end]
