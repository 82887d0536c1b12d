# SPDX-License-Identifier: Apache-2.0
"""The leg of a MessageQueue between machines, over ZeroMQ: from the writer's ring to a ring on each other machine.

    uplink = Uplink(writer.handle, 2, None, print)    # in the writer's process; hand uplink.address to the readers
    downlink = Downlink(uplink.address, uplink.ipv6, 3)   # on another machine, in the process of rank 3
    uplink.wait(60)                                   # until both remote readers are there
    writer.send(...)                                  # downlink.reader.recv() gives it

A machine gets each frame once, whatever the number of its readers: the first of them relays into a ring of its own, to
which the others attach. Which processes share a machine is found out by trying to attach. Frames arrive byte for byte,
all, and in their order; a machine that is behind holds the writer back, by a reader that is called "remote machines".

Who listens and who calls know each other by what is in the address: a token, and the listener's public key. With CURVE,
ZeroMQ's encryption, nobody else can read or forge what passes. RINGCAST_CURVE=0, in the environment of the writer,
turns it off, for a network of one's own: encrypting takes a core about 2 ms for each MiB on either side, seven times
what it takes to send it as it is, and 4 µs for a small message.

A process that is killed is noticed at once, a machine that falls silent after the heartbeat's time: RINGCAST_HEARTBEAT,
in seconds (default 5), in the environment of each side. So is one that is killed but has forked a child, which still
has its connections. A process that is stopped for so long is taken for dead.
"""

import weakref
from typing import Callable, Optional

try:
    import zmq  # noqa: F401
except ImportError as error:
    raise ImportError("a MessageQueue with readers on other machines needs pyzmq: pip install pyzmq") from error

from ringcast.vllm import _downlink, _uplink, _wire

__all__ = ["Downlink", "Uplink"]

_AT_EXIT_SECONDS = 1.0


class Uplink:
    """The writer's side: forwards what is sent on the ring of `handle`, from now on, to readers on other machines.

    remote_readers: how many will come; nothing is forwarded before. connect_ip: the address of this machine to listen
    at; None: the one that a route outwards would use. lost: called with a text that names who has died, in a thread of
    its own; if it is a method, its object is not kept alive.

    zmq.ZMQError: connect_ip is none of this machine's addresses. ValueError: an argument, or RINGCAST_HEARTBEAT.
    """

    def __init__(
        self, handle: str, remote_readers: int, connect_ip: Optional[str], lost: Callable[[str], None]
    ) -> None:
        if remote_readers < 1:
            raise ValueError(f"remote_readers must be 1 or more, not {remote_readers}")
        self._core = _uplink.Core(handle, remote_readers, connect_ip or _wire.local_ip(), lost)
        self._finalizer = weakref.finalize(self, self._core.stop, _AT_EXIT_SECONDS)

    @property
    def address(self) -> str:
        """For Downlink(). Whoever has it can read what is sent: hand it over as one does a password."""
        return str(self._core.address)

    @property
    def ipv6(self) -> bool:
        return self._core.ipv6

    def wait(self, timeout: Optional[float] = None) -> None:
        """Wait until all remote readers are connected.

        TimeoutError: some are not. ringcast.ReaderDied: one that was has died. RuntimeError("cancelled"): close().
        """
        self._core.wait(timeout)

    def describe(self) -> str:
        """Who is connected, and how many bytes each machine is behind."""
        return self._core.describe()

    def close(self, linger: Optional[float] = None) -> None:
        """Send on what the ring still has, and the end; wait at most `linger` seconds (None: 5) for the others to have
        it. Then each remote reader receives what is left, and raises WriterGone."""
        self._finalizer.detach()
        self._core.stop(_uplink.LINGER_SECONDS if linger is None else linger)


class Downlink:
    """The side of a reader on another machine: `reader` receives what the writer sends.

    address, ipv6: of the Uplink. rank: by which the reader is called in errors.

    ValueError: no such address. ringcast.WriterGone: nobody is there. TimeoutError: no answer. ConnectionRefusedError:
    it does not serve this one, and says why.

    When the writer closes, `reader` drains and raises WriterGone; when the writer dies or can't be reached any more,
    ringcast.SendError, which names it, and then WriterGone.
    """

    def __init__(self, address: str, ipv6: bool, rank: int) -> None:
        connection = _downlink.Connection(_wire.parse_address(address), ipv6)
        relay = None
        try:
            self.reader, relay = _downlink.join(connection, rank)
        finally:
            if relay is None:
                connection.close()
        self._finalizer = weakref.finalize(self, relay.stop if relay is not None else _nothing)

    def close(self, linger: Optional[float] = None) -> None:
        """If this process relays for its machine, the others there raise SendError once they have drained. linger: as
        of Uplink, and without effect."""
        self.reader.close()
        self._finalizer()


def _nothing() -> None:
    pass
