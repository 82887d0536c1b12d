# SPDX-License-Identifier: Apache-2.0
"""The two ends of a ring among the ranks of a group: each frame carries the operation and the number of the call, so
that ranks which don't make the same calls hear of it.

Deaths are told while nobody calls. When a rank dies, the source's watching thread sends a notice, a frame beside the
calls that takes no number of theirs. Where there is no room for it, since the dead hold the ring back perhaps, the ring
is closed instead, and the others look for themselves who is gone.
"""

import errno
import threading
import warnings
import weakref
from typing import Any, Callable, Dict, NoReturn, Optional, Sequence, Tuple, Union

import ringcast
from ringcast._group import failures
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
)
TENSOR_DICT, OBJECT, OBJECT_LIST, PYOBJ, SHARE, TENSOR = range(1, 7)
# Whose values those that are stood in for pickle as a whole, tensors on any device among them.
_ANYTHING = (OBJECT, OBJECT_LIST, PYOBJ, SHARE)
CALL_BITS = 24
CALL_MASK = (1 << CALL_BITS) - 1
# Tags beside the calls, the value is the text: a rank has died; the source is out of reach.
NOTICE, GONE = 255 << CALL_BITS, 254 << CALL_BITS


class Watched:
    """Who sends into a ring, and hears of the deaths of its readers while it is not called.

    The caller and the watching thread share no lock to send under, which would cost each send as much as the rest of
    it: a Writer refuses a second thread, and what the watching thread calls of it keeps the GIL, so that it is never
    the second one for the caller. Only who looks for the dead does it under a lock: check() names each of them once,
    and whoever was given the name may not have told of it yet.
    """

    def __init__(self, writer: ringcast.Writer, goes_on: bool) -> None:
        self.end = writer
        self._goes_on = goes_on  # without the dead; else the first is the last
        self._has_heard = False
        self._alarm = False  # the watching thread came while a call was under way, which is to look when it is done
        self._looking = threading.RLock()  # what is shown of a warning may send
        self._unwatch = watch(writer, self._notice)

    def _hear(self, who: str) -> None:
        """Of a death, in words."""
        raise NotImplementedError

    def _notice(self) -> bool:
        """Of the watching thread: a reader may have died."""
        with self._looking:
            self._alarm = True  # first: the call under way looks at it last
            try:
                if not self.end.closed:
                    self._look()
            except (RuntimeError, ValueError):  # a call is under way; or it is closed just now
                return False  # for as long as a call waits for room, the descriptor stays readable
            return not self._has_heard

    def _catch_up(self) -> None:
        self._look()
        if not self._has_heard and not self.end.closed:
            self._unwatch()
            self._unwatch = watch(self.end, self._notice)

    def _look(self) -> None:
        with self._looking:
            while not self._has_heard and (reader := self.end.check()) is not None:
                who = f"{reader.name} (pid {reader.pid}) "
                who += "has died" if reader.state == "dead" else "lives, but has written into the ring what it must not"
                self._has_heard = not self._goes_on
                self._hear(who)
            self._pass_on()
            self._alarm = False

    def _pass_on(self) -> None:
        """What was heard. RuntimeError: a call is under way."""


class Source(Watched):
    """The end of the rank that sends."""

    def __init__(self, writer: ringcast.Writer, rank: int, goes_on: bool) -> None:
        self.lost: Optional[str] = None  # who has died, once and for all
        self.carries_cuda = False  # the ranks have agreed that it does
        self._rank = rank
        self._call = 0
        self._legs: Sequence[Any] = ()  # to other machines
        super().__init__(writer, goes_on)

    def reach(self, legs: Sequence[Any]) -> None:
        self._legs = legs

    def send(
        self,
        value: Any,
        operation: int,
        kind: type = object,
        hash: Optional[str] = None,
        timeout: Optional[float] = None,
        inside: bool = False,
    ) -> None:
        """inside: what a dict has inside of its values may be anything, as where those that are stood in for pickle
        them. timeout: for room, also for the error that is sent instead. Its TimeoutError: nothing was sent, and the
        call can be made again."""
        if self.lost is not None:
            raise ringcast.ReaderDied(errno.EOWNERDEAD, self.lost)
        tag = operation << CALL_BITS | self._call
        try:
            if not isinstance(value, kind):
                raise TypeError(f"the source must give a {kind.__name__}, not {type(value).__name__}")
            if kind is dict and type(value) is not dict:
                value = dict(value)  # a class of the caller's, which perhaps nothing can send
            try:
                self.end.send(value, timeout, tag=tag, hash=hash)
            except TypeError:
                if operation not in _ANYTHING and not (inside and may_pack(value)):
                    raise
                self.end.send(pack(value), timeout, tag=tag)
            self._call = (self._call + 1) & CALL_MASK
        except Exception as error:
            if timeout is not None and isinstance(error, TimeoutError):
                raise
            raised = self._fail(error, operation, tag, timeout)
            if raised is error:
                raise
            raise raised from None
        finally:
            if self._alarm:
                self._catch_up()

    def refuse(self, error: BaseException, operation: int, timeout: Optional[float] = None) -> None:
        """Send the others, who wait for this call, that there is no value for it, and why. timeout: as for send()."""
        if self.lost is not None:
            raise ringcast.ReaderDied(errno.EOWNERDEAD, self.lost)
        tag = operation << CALL_BITS | self._call
        try:
            self._tell(error, operation, tag, timeout)
        except (ringcast.ReaderDied, ringcast.Cancelled) as death:
            raise self._fail(death, operation, tag) from None
        finally:
            if self._alarm:
                self._catch_up()

    def number(self, call: int) -> None:
        """The next call has this number, and not that after the last one's: of who numbers over several rings."""
        self._call = call & CALL_MASK

    def close(self) -> None:
        self._unwatch()  # before its descriptor goes
        self.end.close()
        for leg in self._legs:
            leg.join()

    # ---- What can't be sent ----

    def _fail(self, error: Exception, operation: int, tag: int, timeout: Optional[float] = None) -> Exception:
        """What is to be raised here; the others, who wait for this call, are given it too."""
        error = failures.name_knob(error, f"on rank {self._rank}")
        try:
            if failures.is_of_value(error):
                self._tell(error, operation, tag, timeout)
        except (ringcast.ReaderDied, ringcast.Cancelled) as death:  # lose() cancels
            error = death
        if isinstance(error, ringcast.ReaderDied):
            self._look()
        return error if self.lost is None else ringcast.ReaderDied(errno.EOWNERDEAD, self.lost)

    def _tell(self, error: BaseException, operation: int, tag: int, timeout: Optional[float] = None) -> None:
        """Give the others the error instead of what they wait for."""
        text = failures.told(_OPERATIONS[operation], self._rank, error)
        self.end.send_error(text, timeout, tag=tag)
        self._call = (self._call + 1) & CALL_MASK

    # ---- Who has died ----

    def lose(self, who: str) -> None:
        """Of a leg's thread: a rank of another machine has died, or can't be reached."""
        with self._looking:
            self._hear(who)
            self._has_heard = not self._goes_on
            self._alarm = True
            try:
                if not self.end.closed:
                    self._look()
            except RuntimeError:
                if not self._goes_on:
                    self.end.cancel()  # the call under way may wait for room that who waits for the dead won't make
            except ValueError:
                pass  # it is closed just now

    def _hear(self, who: str) -> None:
        if self._goes_on:
            warnings.warn(f"{who}: the broadcasts go on without it", RuntimeWarning, stacklevel=1)
        elif self.lost is None:
            self.lost = f"{who}: make a new group without it. (RINGCAST_ON_DEATH=evict would go on.)"

    def _pass_on(self) -> None:
        if self.lost is None or self.end.closed:
            return
        try:
            self.end.send(self.lost, 0, tag=NOTICE)
        except (TimeoutError, ringcast.Error):
            self.end.close()


class Receiver:
    """The end of a rank that receives."""

    def __init__(self, reader: ringcast.Reader, rank: int, source: int, sender: int, pids: Dict[int, int]) -> None:
        self.end = reader
        self.source = source
        self.lost: Optional[str] = None  # who has died, once and for all
        self.carries_cuda = False  # as the source's
        self._rank = rank
        self._sender = sender  # into the ring of this machine
        self._pids = pids  # of the ranks of this machine
        self._call: Optional[int] = 0  # None: the last one failed before or after its frame was taken, who knows
        self._relay: Any = None

    def relay(self, relay: Any) -> None:
        """This is the rank that sends into the ring, what comes from the source."""
        self._relay = relay
        weakref.finalize(self, relay.leave).atexit = False

    def receive(self, operation: int, take: Optional[Callable[[], Optional[Tuple[Any, int]]]] = None) -> Any:
        """take: instead of a wait for the next value; None if `take` gives none."""
        if self.lost is not None:
            raise ringcast.ReaderDied(errno.EOWNERDEAD, self.lost)
        expected, self._call = self._call, None
        try:
            taken = self.end.recv_tagged() if take is None else take()
        except (ringcast.SendError, ringcast.PickleRefused):
            self._call = None if expected is None else (expected + 1) & CALL_MASK
            raise
        except ringcast.WriterGone:
            self._raise_gone()
        if taken is None:
            self._call = expected
            return None
        value, tag = taken
        call = tag & CALL_MASK
        self._call = (call + 1) & CALL_MASK
        if tag >> CALL_BITS != operation or call != (call if expected is None else expected):
            self._raise_mismatch(operation, expected, tag, value)
        return value

    def take_hashed(self, operation: int) -> Optional[Tuple[Any, Any]]:
        """The value, and the hashes that it was sent with, as Frame.hashes. None: nothing has come."""
        value: Optional[Tuple[Any, Any]] = self.receive(operation, self._take_hashed)
        return value

    def number(self, call: int) -> None:
        """As Source.number(): of the frame that the next call is to receive."""
        self._call = call & CALL_MASK

    def close(self) -> None:
        self.end.close()
        if self._relay is not None:
            self._relay.close()

    def _take_hashed(self) -> Optional[Tuple[Tuple[Any, Any], int]]:
        try:
            taken = self.end.next(0)
        except TimeoutError:  # and not that of a value's own unpickling
            return None
        with taken as frame:
            return (ringcast.unpack(frame), frame.hashes), frame.tag

    def _raise_mismatch(self, operation: int, expected: Optional[int], tag: int, value: Any) -> NoReturn:
        number = tag >> CALL_BITS
        if tag in (NOTICE, GONE):
            text = value if isinstance(value, str) else value[0]
            if tag == NOTICE:
                self._raise_lost(text)
            self.end.close()
            raise ringcast.WriterGone(errno.EPIPE, text)
        theirs = _OPERATIONS[number] if 0 < number < len(_OPERATIONS) else f"something else (tag {tag:#x})"
        mine = _OPERATIONS[operation]
        raise RuntimeError(
            f"mismatched ranks: call {tag & CALL_MASK} of the source, rank {self.source}, was {theirs}; here, on rank "
            f"{self._rank}, call {'?' if expected is None else expected} is {mine}: all ranks must make the same calls "
            "in the same order"
        )

    def _raise_lost(self, text: str) -> NoReturn:
        self.lost = text
        raise ringcast.ReaderDied(errno.EOWNERDEAD, text) from None

    def _raise_gone(self) -> NoReturn:
        """The next use makes a new ring, unless a rank has died for whom there was no room to tell."""
        self.end.close()
        pid = self._pids[self._sender]
        who = f"rank {self._sender} (pid {pid}),"
        if self._sender == self.source:
            who = f"the source, {who}"
        else:
            who += f" which passes on what the source, rank {self.source}, sends from another machine,"
        if _is_gone(pid):
            raise ringcast.WriterGone(errno.EPIPE, f"{who} has died or exited") from None
        gone = [f"rank {rank} (pid {pid})" for rank, pid in self._pids.items() if _is_gone(pid)]
        if gone:
            have = "has" if len(gone) == 1 else "have"
            self._raise_lost(f"{', '.join(gone)} {have} died, and {who} has closed the ring: make a new group")
        raise ringcast.WriterGone(errno.EPIPE, f"{who} has closed the ring") from None


def _is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")  # ended, but nobody has asked how yet
    except (FileNotFoundError, ProcessLookupError):
        return True


End = Union[Source, Receiver]
