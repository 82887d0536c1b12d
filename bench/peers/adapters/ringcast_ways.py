# SPDX-License-Identifier: Apache-2.0
"""ringcast, as in docs/python.md: bytes by send_bytes() and a Frame read in place, objects as typed
frames; and pickles by the same ring, to tell the transport and the codec apart."""

from typing import Any

from adapters.base import Way


class Ringcast(Way):
    family = "ringcast"
    requires = ("ringcast",)
    readings = ("bytes", "objects", "in-place")
    serialiser = "ringcast"
    copying = False

    def initialize(self) -> None:
        import ringcast

        self.frame: Any = None
        if self.me.rank:
            self.ring: Any = ringcast.Reader(
                self.me.wait_for("handle"), name=f"rank {self.me.rank}"
            )
            return
        self.ring = ringcast.Writer()
        self.me.publish("handle", self.ring.handle)
        self.ring.wait_readers(self.me.readers, self.seconds)

    def write(self, data: Any) -> None:
        self.ring.send_bytes(data)

    def read(self) -> Any:
        if self.frame is not None:
            self.frame.release()
        self.frame = self.ring.next()
        return memoryview(self.frame)

    def write_object(self, value: Any) -> None:
        self.ring.send(value)

    def read_object(self) -> Any:
        self.drop()
        return self.ring.recv()

    def drop(self) -> None:
        if self.frame is not None:
            self.frame.release()
            self.frame = None

    def reserve(self, size: int) -> Any:
        self.span = self.ring.reserve(size)
        return self.span

    def commit(self) -> None:
        self.span.commit()

    def read_in_place(self) -> Any:
        self.drop()
        self.frame = self.ring.next()
        return self.frame

    def release(self) -> None:
        self.drop()

    def cleanup(self) -> None:
        self.drop()
        self.ring.close()


class Copy(Ringcast):
    """The same ring, but the reader gets a copy as bytes, as of a socket."""

    readings = ("bytes",)
    copying = True

    def read(self) -> Any:
        return self.ring.recv()


class Pickled(Ringcast):
    """The same ring, with the pickle of the peers."""

    readings = ("objects",)
    serialiser = "pickle5"
    write_object = Way.write_object

    read_object = Way.read_object


class View(Ringcast):
    """The arrays of an object lie in the ring, and are read there."""

    readings = ("objects",)
    view: Any = None

    def read_object(self) -> Any:
        self.drop()
        self.view = self.ring.view()
        return self.view.__enter__()

    def drop(self) -> None:
        if self.view is not None:
            self.view.__exit__(None, None, None)
            self.view = None
