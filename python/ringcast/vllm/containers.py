# SPDX-License-Identifier: Apache-2.0
"""Who can attach to a ring: which ranks of a group share a machine; and readers on the writer's
machine in another PID namespace, which can't, and receive by a relay (zmq_hub.py) over a Unix
socket."""

import contextlib
import errno
import os
import threading
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import ringcast
from ringcast._group import config
from ringcast._group.config import machine
from ringcast._group.ranks import Ranks
from ringcast.vllm._doors import FOLDER, Door
from ringcast.vllm._endpoints import AT_EXIT_SECONDS, Receiver, Wait, engine_logger, load

_told = False


class Place(NamedTuple):
    """Of a process. boot: the machine's. pid_namespace: an inode; 0: unknown. folder: the device of
    FOLDER; 0: none."""

    boot: str
    pid_namespace: int
    user: int
    folder: int


def here() -> Place:
    try:
        inode = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        inode = 0
    try:
        folder = os.stat(FOLDER).st_dev
    except OSError:
        folder = 0
    return Place(machine(), inode, os.geteuid(), folder)


def why_apart(place: Optional[Place], mine: Place, error: Optional[Exception] = None) -> str:
    """
    Why a process of `place`, of the same machine and user, can't be attached to from `mine`; "": no
    reason, or another machine or user. error: of the attempt.
    """
    if place is None or (place.boot, place.user) != (mine.boot, mine.user):
        return ""
    if place.pid_namespace and mine.pid_namespace and place.pid_namespace != mine.pid_namespace:
        return f"the PID namespaces differ ({place.pid_namespace}, here {mine.pid_namespace})"
    return str(error) if isinstance(error, ringcast.AccessDenied) else ""


def warn(who: str, why: str) -> None:
    """Once in a process."""
    global _told
    if not _told:
        _told = True
        engine_logger().warning(
            "%s is on the machine of its queue's writer, but can't attach to the ring, so that "
            "messages come by a "
            "relay, which copies them: %s. To avoid this, run the containers in one PID namespace "
            "(docker run "
            "--pid=container:NAME or --pid=host; Kubernetes: shareProcessNamespace: true)",
            *(who, why),
        )


# ---- Which ranks of a group share a machine ------------------------------------------------------
# Found by trying to attach: machines may have the same name.

# The bytes of a probe, which carries no frame.
_PROBE_BYTES = 4096


def who_attaches(
    ranks: Ranks, writers: Sequence[int], readers: Sequence[int]
) -> Dict[int, List[int]]:
    """
    Collective: for each of `writers`, the `readers` that can attach to the writer's ring. All are
    ranks in the group; a writer can attach to its own ring.
    """
    mine = ranks.rank
    probe, offers = ranks.all_or_none(
        lambda: _make_probe(len(readers)) if mine in writers else None,
        lambda made: made and (made.handle, here()),
    )
    try:
        _, reached = ranks.all_or_none(
            lambda: [
                one
                for one in writers
                if mine in readers
                and attaches(offers[one][0], offers[one][1], config.name_of(mine))
            ],
            lambda found: found,
        )
    finally:
        if probe is not None:
            probe.close()
    return {
        writer: [reader for reader in readers if writer in reached[reader]] for writer in writers
    }


def _make_probe(readers: int) -> ringcast.Writer:
    return ringcast.Writer(
        _PROBE_BYTES, max(1, readers), memory="pages", numa="none", spill_bytes=0
    )


def attaches(handle: str, place: Optional[Place] = None, name: str = "this process") -> bool:
    """Whether this process can attach to the ring. Any other failure, such as too many open files,
    raises. place: the writer's. name: this process's, in the warning if the writer is on this
    machine."""
    mine = here()
    why = why_apart(place, mine)
    try:
        if not why:  # else the pid is another process's here
            ringcast.Reader(handle).close()
            return True
    except (ringcast.RingNotFound, ringcast.AccessDenied, ringcast.ProtocolError) as error:
        why = why_apart(place, mine, error)
    if why:
        warn(name, why)
    return False


# ---- A reader's end ------------------------------------------------------------------------------


def attach(handle: str, rank: int, place: Optional[Place]) -> Receiver:
    """The end of the reader `rank`."""
    name, mine = config.name_of(rank), here()
    why = why_apart(place, mine)
    if not why:  # else the pid is another process's here
        try:
            return Receiver(config.make_reader(handle, rank, config.queue_spin()))
        except ringcast.AccessDenied as error:
            why = why_apart(place, mine, error)
            if not why:
                raise
    try:
        if place is not None and place.folder != mine.folder:
            raise OSError(errno.ENOENT, "the writer has another")
        end = LateReceiver(Door(handle, name), rank)
    except FileExistsError:
        raise RuntimeError(
            f"{name} has attached already: each rank calls create_from_handle() once"
        ) from None
    except OSError as error:
        raise ringcast.RingNotFound(
            errno.ENOENT,
            f"{name} can't attach to the ring ({why}), and can't ask for a relay in {FOLDER} "
            f"({error.strerror}): share "
            f"the PID namespace, or {FOLDER}, with the writer's container",
        ) from None
    warn(name, why)
    return end


class LateReceiver(Receiver):
    """
    Joins the relay in the first calls: the writer makes the relay once all readers are attached or
    ask.
    """

    def __init__(self, door: Door, rank: int) -> None:
        super().__init__(None)
        self._door, self._rank = door, rank
        self._cancelled = False
        self._joining: Any = None  # a ReaderLink without a reader so far
        self._in_use = threading.Lock()

    def dequeue(self, timeout: Optional[float], indefinite: bool) -> Any:
        if self.link is None:
            wait = Wait(timeout, warns=not indefinite)
            self._join(wait)
            timeout = None if timeout is None else wait.left()
        return super().dequeue(timeout, indefinite)

    def wait_until_ready(self) -> None:
        if self.link is None:
            self._join(Wait(None))
        super().wait_until_ready()

    def cancel(self) -> None:
        self._cancelled = True
        self._door.cancel()
        if self.ring is not None:
            self.ring.cancel()

    def close(self) -> None:
        if self.ring is None:
            self.cancel()
        if not self._in_use.acquire(timeout=AT_EXIT_SECONDS):
            return
        with contextlib.closing(self._door):
            if self.ring is not None:
                super().close()
            elif self._joining is not None:
                self._joining.close()

    def _join(self, wait: Wait) -> None:
        if not self._in_use.acquire(blocking=False):
            raise RuntimeError(
                "another thread waits for the relay of this queue: one thread at a time receives"
            )
        try:
            while not self._joins(wait.slice()):
                if self._cancelled:
                    raise RuntimeError("cancelled")
                if wait.over():
                    raise TimeoutError(self._describe_writer())
                wait.warn(self._describe_writer)
        finally:
            self._in_use.release()
        wait.end()

    def _joins(self, seconds: Optional[float]) -> bool:
        """
        Wait for the writer's visit, then for the relay's answers. False: the seconds are over, or
        cancel().
        """
        if self._joining is None:
            try:
                address = self._door.wait(seconds)
            except (TimeoutError, ringcast.Cancelled):
                return False
            self._joining = load("zmq_transport").ReaderLink(
                address, False, self._rank, waits=False
            )
            return False  # how much of the time is left?
        try:
            if self._cancelled or not self._joining.join(seconds, [self._door.descriptor]):
                return False
        except BaseException:
            self._joining.close()
            self._joining = None
            raise
        self._receive_from(self._joining.reader, self._joining)
        self._door.joined()
        self._door.close()
        if self._cancelled:
            self.ring.cancel()
        return True

    def _describe_writer(self) -> str:
        if self.ring is not None:
            return super()._describe_writer()
        if self._joining is not None:
            return (
                "the relay of the writer, of another PID namespace, has not answered yet: is the "
                "writer stopped?"
            )
        return (
            "the writer, of another PID namespace, has not made the relay: it does so in "
            "wait_until_ready() or "
            f"enqueue(), when all its readers are there, and needs the {FOLDER} of this container"
        )
