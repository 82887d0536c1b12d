# SPDX-License-Identifier: Apache-2.0
"""The endpoints of a ring among processes that belong together: a queue's, or the ranks of a group.

In a group each frame carries the operation and the number of the call, so that ranks which make
different calls raise an error instead of receiving wrong data.

Deaths are reported while no process makes a call. When a reader dies, the watching thread of the
writer's process sends a notice, a frame without a call number, which names the dead. If the ring
has no room for the notice now, a thread waits for room. If the dead reader is the one in the way, a
group closes the ring and each rank looks for the dead by pid.
"""

import errno
import threading
import warnings
import weakref
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple, Union

import ringcast
from ringcast._allowed import printable
from ringcast._group import config
from ringcast._group.packing import may_pack, pack
from ringcast._watch import watch

# A tag is the operation's number, then the number of the call.
_OPERATIONS = (
    "",
    "broadcast_tensor_dict",
    "broadcast_object",
    "broadcast_object_list",
    "broadcast_pyobj",
    "share_once",
    "broadcast",
    "send_object",
    "send_tensor_dict",
    "all_gather_object",
    "barrier",
    "all_reduce",
    "prepare",
)
TENSOR_DICT, OBJECT, OBJECT_LIST, PYOBJ, SHARE, TENSOR, SEND_OBJECT, SEND_TENSOR_DICT = range(1, 9)
GATHER, BARRIER, REDUCE, PREPARE = range(9, 13)
# Operations with an original that pickles the value as a whole, with tensors on any device.
_ANYTHING = (OBJECT, OBJECT_LIST, PYOBJ, SHARE)
CALL_BITS = 24
CALL_MASK = (1 << CALL_BITS) - 1
# How soon a thread tries again if another thread uses the ring.
_RETRY = 0.001
_MOST_PAUSE = 0.05
# Tags outside of the calls; the value is a text: a rank has died; the source is out of reach.
NOTICE, GONE = 255 << CALL_BITS, 254 << CALL_BITS


def operation_of(tag: int) -> str:
    number = tag >> CALL_BITS
    return (
        _OPERATIONS[number] if 0 < number < len(_OPERATIONS) else f"something else (tag {tag:#x})"
    )


def is_before(tag: int, call: int) -> bool:
    """
    Whether the frame with the tag is of an earlier call. Numbers start anew after the last one.
    """
    return 0 < (call - tag) & CALL_MASK <= CALL_MASK // 2


def state_of(pid: int) -> str:
    """Of a process on this machine: "alive", "stopped", "dead", or "in an unknown state". For texts
    alone: the rings tell who lives."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            letter = stat.read().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "dead"
    except (OSError, IndexError):
        return "in an unknown state"
    return "dead" if letter in b"ZX" else "stopped" if letter in b"Tt" else "alive"


class WriterEnd:
    """The endpoint that sends into a ring, and learns of its readers' deaths while no call is made.

    No lock is around send(), since a lock would double the cost of a send: a Writer refuses a
    second thread, and the watching thread's calls hold the GIL, so that the caller never is the
    second thread. Only the search for the dead holds a lock: check() names each dead reader once.
    """

    def __init__(self, writer: ringcast.Writer, goes_on: bool) -> None:
        self.ring = writer
        self.lost: Optional[str] = None  # the text that names the dead reader, for good
        self.goes_on = goes_on  # after a death; else the first death is the end
        self._alarm = (
            False  # the watching thread found a call under way, which checks the readers at its end
        )
        self._checking = threading.RLock()  # a warning's handler may send
        self._unwatch = watch(writer, self._notice)

    def check(self) -> None:
        """
        Find the dead readers and send the notice. RuntimeError: another thread's call is under way.
        """
        with self._checking:
            while self.lost is None and (reader := self._find_dead()) is not None:
                what = (
                    "has died"
                    if reader.state == "dead"
                    else "is alive, but wrote invalid data into the ring"
                )
                self._lose(f"{reader.name} (pid {reader.pid})", what)
            if self.lost is not None and not self.ring.closed:
                self._tell(self.lost)
            self._alarm = False

    def _find_dead(self) -> Optional[ringcast.ReaderStatus]:
        try:
            return self.ring.check()
        except ringcast.Error as error:
            if error.errno != errno.ENOBUFS:
                raise
            return self.ring.check()  # by new descriptors: the program had closed the first ones

    def lose(self, name: str) -> None:
        """For the thread of a relay: a rank on another machine has died or is out of reach."""
        with self._checking:
            self._lose(name)
            self._alarm = True
            try:
                if not self.ring.closed:
                    self.check()
            except RuntimeError:
                if not self.goes_on:
                    self._interrupt()
            except ValueError:
                pass  # the ring was closed meanwhile

    def _lose(self, name: str, what: str = "") -> None:
        """Record a death: set self.lost unless the ring goes on."""
        raise NotImplementedError

    def _tell(self, text: str) -> None:
        """Send the notice."""

    def _interrupt(self) -> None:
        """
        End the call under way: the call may wait for room in vain, since the readers may wait for
        the dead rank.
        """

    def _notice(self) -> bool:
        """For the watching thread: a reader may have died. Returns whether to go on watching."""
        with self._checking:
            self._alarm = True  # before the check: the call under way looks at the alarm last
            try:
                if not self.ring.closed:
                    self.check()
            except (
                RuntimeError,
                ValueError,
            ):
                # A call is under way, or the ring was closed meanwhile.
                return False  # the descriptor stays readable as long as a call waits for room
            return self.lost is None

    def _catch_up(self) -> None:
        """At the end of a call that met an alarm."""
        self.check()
        if self.lost is None and not self.ring.closed:
            self._unwatch()
            self._unwatch = watch(self.ring, self._notice)


def _tell_or_close(ring: ringcast.Writer, text: str, closing: threading.Event) -> None:
    """For a thread: send the notice once there is room, or close the ring. Looks for room again and
    again, since a Writer that an interruption has cancelled refuses to wait. Keeps no end alive."""
    pause = _RETRY
    while not closing.wait(pause):
        pause = min(2 * pause, _MOST_PAUSE)
        try:
            return ring.send(text, 0, tag=NOTICE)
        except (
            TimeoutError,
            ringcast.Cancelled,
            RuntimeError,
        ):
            # RuntimeError: an earlier call has the Writer.
            continue
        except (ringcast.Error, ValueError):
            return ring.close()


class Source(WriterEnd):
    """The endpoint of the rank that sends to its group. rank: this process's, a global one.

    divides: dicts are searched for tensors that go apart, since earlier ones had such tensors; else
    the Writer finds the first one, and refuses it.
    """

    divides = False

    def __init__(self, writer: ringcast.Writer, rank: int, goes_on: bool) -> None:
        self.is_near = True  # all ranks are on this machine
        self.carries_cuda = False  # as the ranks have agreed
        self.links: Sequence[Any] = ()  # to other machines
        self.refused = False  # the last call that failed did so for its value
        self.rank = rank
        self._call = 0
        self._send = writer.send
        self._telling: Optional[threading.Thread] = None
        self._closing = threading.Event()
        weakref.finalize(self, self._closing.set).atexit = False
        super().__init__(writer, goes_on)

    def send(
        self,
        value: Any,
        operation: int,
        kind: Any = None,
        hash: Optional[str] = None,
        timeout: Optional[float] = None,
        divide: Optional[Callable[[Any], Any]] = None,
    ) -> None:
        """
        kind: of the value; None: any. divide: makes the dict for the ring of a dict that the Writer
        refuses. timeout: for room, also for an error in place of the value. TimeoutError: nothing
        was sent, and the call can be repeated.

        An error of the value goes to the receivers in its place. What a signal handler raises in
        the wait does not, and leaves at once: the receivers still wait for this call, which the
        next send() is.
        """
        if self.lost is not None:
            self._raise_lost()
        tag = operation << CALL_BITS | self._call
        refused = kind is not None and type(value) is not kind
        try:
            if refused:
                if not isinstance(value, kind):
                    raise TypeError(
                        f"the source must give a {kind.__name__}, not {type(value).__name__}"
                    )
                if kind is dict:
                    value = dict(value)  # a subclass may have no typed form
                refused = False
            try:
                self._send(value, timeout, tag=tag, hash=hash)
            except TypeError:
                refused = self.ring._value_failed
                if not refused:
                    raise
                if divide is not None:
                    value = divide(value)
                # The originals pickle the values of a dict: the values may hold anything.
                if operation not in _ANYTHING and not (
                    operation == TENSOR_DICT and may_pack(value)
                ):
                    raise
                value = pack(value, self.carries_cuda)
                refused = False
                self.ring.send(value, timeout, tag=tag)
            self._call = (self._call + 1) & CALL_MASK
        except BaseException as error:
            if self.ring._sent == tag:  # a signal handler has raised when the frame was sent
                self._call = (self._call + 1) & CALL_MASK
                raise
            self.refused = refused or self.ring._value_failed
            if not isinstance(error, Exception) or (
                timeout is not None and isinstance(error, TimeoutError)
            ):
                raise
            raised = self._fail(error, operation, tag, timeout)
            if raised is error:
                raise
            raise raised from None
        finally:
            if self._alarm:
                self._catch_up()

    def broadcast(self, value: Any, operation: int) -> Any:
        """Send any value, and return the value: this rank's part of a broadcast."""
        self.send(value, operation)
        return value

    def refuse(self, error: BaseException, operation: int, timeout: Optional[float] = None) -> None:
        """Send an error in place of a value to the ranks that wait for this call. timeout: as for
        send()."""
        if self.lost is not None:
            self._raise_lost()
        tag = operation << CALL_BITS | self._call
        try:
            self._send_error(error, operation, tag, timeout)
        except (ringcast.ReaderDied, ringcast.Cancelled) as death:
            raise self._fail(death, operation, tag) from None
        finally:
            if self._alarm:
                self._catch_up()

    def tell(self, data: bytes) -> bool:
        """Send bytes that the receivers can do without: now, or not at all. Whether the bytes were
        sent."""
        if self.lost is not None:
            return False
        try:
            self.ring.send_bytes(data, 0)
            return True
        except (TimeoutError, ValueError, ringcast.Error):  # no room, or the ring is at an end
            return False
        finally:
            if self._alarm:
                self._catch_up()

    def number(self, call: int) -> None:
        """
        Set the number of the next call, for a caller that numbers its calls over several rings.
        """
        self._call = call & CALL_MASK

    @property
    def call(self) -> int:
        """The number of the next call."""
        return self._call

    def close(self) -> None:
        self._unwatch()  # before the descriptor is closed
        self._closing.set()
        if self._telling is not None:
            self._telling.join()
        self.ring.close()
        for link in self.links:
            link.close()

    def _raise_lost(self) -> NoReturn:
        # The caller may close the ring next: another thread tells the ranks first.
        with self._checking:
            raise ringcast.ReaderDied(errno.EOWNERDEAD, self.lost)

    def _fail(
        self, error: Exception, operation: int, tag: int, timeout: Optional[float] = None
    ) -> Exception:
        """The error to raise here; the other ranks get the text."""
        error = config.name_setting(error, f"on rank {self.rank}")
        try:
            if config.is_of_value(error, self.refused):
                self._send_error(error, operation, tag, timeout)
        except (ringcast.ReaderDied, ringcast.Cancelled) as death:  # lose() cancels
            error = death
        if isinstance(error, ringcast.ReaderDied):
            self.check()
        return error if self.lost is None else ringcast.ReaderDied(errno.EOWNERDEAD, self.lost)

    def _send_error(
        self, error: BaseException, operation: int, tag: int, timeout: Optional[float] = None
    ) -> None:
        text = config.text_of(operation_of(tag), self.rank, error)
        try:
            self.ring.send_error(text, timeout, tag=tag)
        finally:
            if self.ring._sent == tag:  # also if a signal handler has raised since
                self._call = (self._call + 1) & CALL_MASK

    def _lose(self, name: str, what: str = "") -> None:
        text = f"{name} {what}".rstrip()
        if self.goes_on:
            warnings.warn(f"{text}: the broadcasts go on without it", RuntimeWarning, stacklevel=1)
        elif self.lost is None:
            self.lost = (
                f"{text}: make a new group without it. (With on_death=evict the others would go "
                "on.)"
            )

    def _tell(self, text: str) -> None:
        try:
            if self._telling is None:
                self.ring.send(text, 0, tag=NOTICE)
        except (TimeoutError, ringcast.Cancelled):
            arguments = self.ring, text, self._closing
            self._telling = threading.Thread(
                target=_tell_or_close, args=arguments, name="ringcast-tell", daemon=True
            )
            self._telling.start()
        except ringcast.Error:
            self.ring.close()

    def _interrupt(self) -> None:
        self.ring.cancel()


class ReaderEnd:
    """The endpoint that receives, and checks the operation and the number of each call."""

    ring: Any
    _call: Optional[int] = (
        0  # None: unknown, since the last call failed, perhaps without taking its frame
    )

    def receive(
        self, operation: int, take: Optional[Callable[[], Optional[Tuple[Any, int]]]] = None
    ) -> Any:
        """
        take: called instead of a wait for the next value. receive() returns None if `take` does.
        """
        expected, self._call = self._call, None
        # Before the wait, in which there is time.
        due = -1 if expected is None else operation << CALL_BITS | expected
        try:
            taken = self.ring.recv_tagged() if take is None else take()
        except (ringcast.SendError, ringcast.PickleRefused):
            self._call = None if expected is None else (expected + 1) & CALL_MASK
            raise
        except ringcast.WriterGone:
            self._raise_gone()
        if taken is None:
            self._call = expected
            return None
        value, tag = taken
        if tag != due:
            return self._accept(operation, expected, value, tag)
        self._call = (tag + 1) & CALL_MASK
        return value

    def _accept(self, operation: int, expected: Optional[int], value: Any, tag: int) -> Any:
        call = tag & CALL_MASK
        self._call = (call + 1) & CALL_MASK
        if tag >> CALL_BITS != operation or call != (call if expected is None else expected):
            self._raise_mismatch(operation, "?" if expected is None else str(expected), tag, value)
        return value

    def _raise_gone(self) -> NoReturn:
        raise NotImplementedError

    def _raise_mismatch(self, operation: int, expected: str, tag: int, value: Any) -> NoReturn:
        raise NotImplementedError


class Receiver(ReaderEnd):
    """The endpoint of a rank that receives from its group. rank, source, sender: global ranks."""

    def __init__(
        self, reader: ringcast.Reader, rank: int, source: int, sender: int, pids: Dict[int, int]
    ) -> None:
        self.ring = reader
        self.source = source
        self.lost: Optional[str] = None  # the text that names the dead rank, for good
        self.is_near = True  # as the source's
        self.carries_cuda = False  # as the source's
        self.rank = rank
        self._sender = sender  # the rank that sends into the ring of this machine
        self._pids = pids  # of the ranks of this machine
        self._relay: Any = None

    def own(self, relay: Any) -> None:
        """The relay from the source's machine to this ring runs in this process."""
        self._relay = relay
        weakref.finalize(self, relay.leave).atexit = False

    def receive(
        self, operation: int, take: Optional[Callable[[], Optional[Tuple[Any, int]]]] = None
    ) -> Any:
        if self.lost is not None:
            raise ringcast.ReaderDied(errno.EOWNERDEAD, self.lost)
        return super().receive(operation, take)

    def broadcast(self, value: Any, operation: int) -> Any:
        """
        Receive the source's value: this rank's part of a broadcast. The own `value` is ignored.
        """
        return self.receive(operation)

    @property
    def refused(self) -> bool:
        """Whether the last value that came could not be unpacked."""
        failed: bool = self.ring._value_failed
        return failed

    def describe_source(self) -> str:
        """The source, which is on this machine."""
        pid = self._pids[self.source]
        return f"rank {self.source} (pid {pid}, {state_of(pid)})"

    def take_hashed(self, operation: int) -> Optional[Tuple[Any, Any]]:
        """The value, and the hashes of its frame, as Frame.hashes. None: no frame has come."""
        value: Optional[Tuple[Any, Any]] = self.receive(operation, self._take_hashed)
        return value

    def hear(self) -> Optional[bytes]:
        """The bytes of a Source.tell(); b"" of any other frame. None: no frame has come."""
        try:
            taken = self.ring.next(0)
        except TimeoutError:
            return None
        with taken as frame:
            return bytes(frame) if frame.kind == ringcast.KIND_BYTES else b""

    def number(self, call: int) -> None:
        """As Source.number(): the number of the next frame to receive."""
        self._call = call & CALL_MASK

    def close(self) -> None:
        self.ring.close()
        if self._relay is not None:
            self._relay.close()

    def _take_hashed(self) -> Optional[Tuple[Tuple[Any, Any], int]]:
        try:
            taken = self.ring.next(0)
        except TimeoutError:  # not around unpack(), where a value's code may raise TimeoutError
            return None
        with taken as frame:
            return (ringcast.unpack(frame), frame.hashes), frame.tag

    def _raise_mismatch(self, operation: int, expected: str, tag: int, value: Any) -> NoReturn:
        if tag in (NOTICE, GONE):
            text = printable(value if isinstance(value, str) else value[0], config.MOST_CHARACTERS)
            if tag == NOTICE:
                self._raise_lost(text)
            self.ring.close()
            raise ringcast.WriterGone(errno.EPIPE, text)
        raise RuntimeError(
            f"mismatched ranks: call {tag & CALL_MASK} of the source, rank {self.source}, was "
            f"{operation_of(tag)}; "
            f"here, on rank {self.rank}, call {expected} is {_OPERATIONS[operation]}: all ranks "
            f"must make the same "
            "calls in the same order"
        )

    def _raise_lost(self, text: str) -> NoReturn:
        self.lost = text
        raise ringcast.ReaderDied(errno.EOWNERDEAD, text) from None

    def _raise_gone(self) -> NoReturn:
        """The next call makes a new ring, unless a rank has died and the notice found no room."""
        self.ring.close()
        pid = self._pids[self._sender]
        name = f"rank {self._sender} (pid {pid}),"
        if self._sender == self.source:
            name = f"the source, {name}"
        else:
            name += (
                f" which passes on what the source, rank {self.source}, sends from another machine,"
            )
        if state_of(pid) == "dead":
            raise ringcast.WriterGone(errno.EPIPE, f"{name} has died or exited") from None
        dead = [
            f"rank {rank} (pid {pid})"
            for rank, pid in self._pids.items()
            if state_of(pid) == "dead"
        ]
        if dead:
            have = "has" if len(dead) == 1 else "have"
            self._raise_lost(
                f"{', '.join(dead)} {have} died, and {name} has closed the ring: make a new group"
            )
        raise ringcast.WriterGone(errno.EPIPE, f"{name} has closed the ring") from None


End = Union[Source, Receiver]


def is_of_one_call(error: Exception, end: End) -> bool:
    """
    Whether the value of a call is at fault, and the next call works. False: the ring or a peer has
    failed, or a signal handler has raised the error.
    """
    if isinstance(error, (ringcast.SendError, TypeError, ValueError)) and config.is_ours(error):
        return True
    return config.is_of_value(error, end.refused)


def broadcast_into(end: Optional[End], objects: List[Any]) -> List[Any]:
    """ringcast.torch.broadcast_object_list() by the ring of `end`. None: of a group of one rank."""
    if end is None:
        return objects
    if isinstance(end, Source):
        end.send(objects, OBJECT_LIST, list)
        return objects
    # Before the checks: an error leaves no frame for the next call.
    received = end.receive(OBJECT_LIST)
    if not isinstance(objects, list):
        raise TypeError(f"broadcast_object_list needs a list to fill, not {type(objects).__name__}")
    if len(objects) != len(received):
        raise ValueError(
            f"the source, rank {end.source}, broadcast a list of {len(received)}, but the list to "
            f"be filled here has "
            f"{len(objects)}: give one of the same length"
        )
    objects[:] = received
    return objects
