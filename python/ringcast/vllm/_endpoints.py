# SPDX-License-Identifier: Apache-2.0
"""The endpoints of a MessageQueue: their waits warn, and name the rank that is waited for."""

import collections
import contextlib
import errno
import importlib
import math
import os
import threading
import time
import warnings
from typing import Any, Callable, Deque, Dict, List, NoReturn, Optional, Tuple, Union

import ringcast
from ringcast._group.config import MOST_CHARACTERS, is_ours, name_setting
from ringcast._group.endpoint import WriterEnd, state_of
from ringcast._group.packing import pack
from ringcast.vllm import _calls
from ringcast.vllm._doors import Visits, new_name
from ringcast.vllm._waits import Wait


def load(name: str) -> Any:
    """A module for readers by a relay, which needs pyzmq."""
    return importlib.import_module(f"ringcast.vllm.{name}")


# How many readers a warning names.
_MOST_NAMED = 8
# Seconds of the first part of a call, which reads no clock and gives no warning.
_FIRST = 0.05
# How often a waiting writer checks its readers.
_CHECK = 0.05
# How soon a thread tries again if another thread uses the ring, and how long an exit tries. Tries are counted, since a
# process may stand still between two of them.
_RETRY = 0.001
AT_EXIT_SECONDS = 1.0
# How often a wait for an answer looks for failures of other workers, and how long a worker tries to tell one.
_LOOK = 0.5
_TELL_SECONDS = 1.0
# The most frames that a queue's reader holds: messages that a look leaves in the ring.
LEASES = 16
_MOST_FAILURES = 16
# Tags of frames other than messages: all readers are attached; a reader has died (with the text); a call has failed
# here (with a Failure).
_READY, _DIED, _FAILED = 1, 2, 3
_STATES = {"active": "alive", "stopped": "stopped by a signal or a debugger", "joining": "attaching"}


def _first(timeout: Optional[float]) -> float:
    return _FIRST if timeout is None else max(0.0, min(timeout, _FIRST))


def _describe(peer: ringcast.ReaderStatus, sent: int) -> str:
    messages = max(0, sent - peer.stats.frames)  # all readers have been attached since the first message
    state = _STATES.get(peer.state, peer.state)
    return (
        f"{peer.name} (pid {peer.pid}) is {state}, {peer.lag} bytes ({messages} messages) behind, and has held the "
        f"writer back for {peer.held:.3g} s"
    )


def _state(pid: int) -> str:
    return _STATES["stopped" if state_of(pid) == "stopped" else "active"]


# ---- The writer's endpoint -------------------------------------------------------------------------------------------


class Sender(WriterEnd):
    """names: of the readers on this machine. The Writer evicts a dead reader: the notice then finds room."""

    def __init__(self, writer: ringcast.Writer, names: List[str]) -> None:
        # Relays are readers of the ring: for other machines, and for containers with other PID namespaces.
        self.link: Any = None
        self._near_link: Any = None
        self._visits = Visits(writer.handle)
        self._relayed: List[str] = []  # the readers that receive by _near_link
        self._names = names
        self.sends_calls = False  # of vLLM's executor
        self.readers: Dict[int, str] = {}  # the names by pid, once all are attached
        self._cancelled = False
        self._complete = False  # all readers are attached
        self._announced = False  # the readers know that all are attached
        self._told = False  # of a death
        self._send: Callable[..., None] = _go_slowly
        super().__init__(writer, goes_on=False)
        _calls.add_sender(self)

    @property
    def notices(self) -> int:
        """The frames that are no messages, while all readers live."""
        return int(self._announced)

    def enqueue(self, obj: Any, timeout: Optional[float]) -> None:
        try:
            try:
                self._send(obj, _FIRST if timeout is None else _first(timeout))
                return
            except TimeoutError as error:
                if not is_ours(error):
                    raise
            except TypeError:
                if not self.ring._value_failed:
                    raise
                obj = pack(obj, self.ring._takes_cuda)  # a tensor on another device, which vLLM's pickle takes
            self._enqueue_slowly(obj, timeout)
        except ringcast.Cancelled:
            raise RuntimeError("cancelled") from None
        except ringcast.FrameTooLarge as error:
            raise name_setting(error, "in the writer's process", "queue", capacity=False) from None
        finally:
            if self._alarm:
                self._catch_up()

    def _enqueue_slowly(self, obj: Any, timeout: Optional[float]) -> None:
        """There is no room, or a reader is missing."""
        wait = Wait(timeout, _first(timeout) if self._complete else 0.0)
        if not self._complete:
            self._gather(wait)
        if not isinstance(obj, ringcast.PackedFrame):
            obj = pack(obj, self.ring._takes_cuda)  # once, and not for each slice of the wait
        self._send_waiting(obj, wait)

    def dequeue(self, timeout: Optional[float], indefinite: bool) -> NoReturn:
        raise RuntimeError("Only readers can dequeue")

    def wait_until_ready(self) -> None:
        if not self._announced:
            wait = Wait(None)
            self._gather(wait)
            self._send_waiting(None, wait, _READY)
            self._announced = True

    def cancel(self) -> None:
        self._cancelled = True
        self.ring.cancel()

    def close(self) -> None:
        self._unwatch()
        self._visits.close()
        close_ring(self.ring)
        for link in self._links():
            link.close()

    def _links(self) -> List[Any]:
        return [link for link in (self.link, self._near_link) if link is not None]

    def _send_waiting(self, obj: Any, wait: Wait, tag: int = 0) -> None:
        while True:
            self._check_readers()
            wait.warn(self._describe_readers)
            try:
                self.ring.send(obj, wait.slice(_CHECK), tag=tag)
                return wait.end()
            except TimeoutError as error:
                if wait.over() or not is_ours(error):
                    raise

    def _gather(self, wait: Wait) -> None:
        """Wait for all readers: a reader never gets the messages from before it attached."""
        while True:
            self._check_readers()
            try:
                here = len(self._names) - len(self._relayed) + len(self._links())
                self.ring.wait_readers(here, wait.slice(_CHECK))
                for link in self._links():
                    link.wait(wait.slice(_CHECK))
                self._check_names()
                self.readers = {peer.pid: peer.name for peer in self.ring.peers()}
                self._complete = True
                self._send = self.ring.send
                self._visits.close()
                return
            except TimeoutError as error:
                if not is_ours(error):
                    raise
                if self._cancelled:  # during the wait for a relay
                    raise RuntimeError("cancelled") from None
                self._visit_readers()
                if wait.over():
                    raise TimeoutError(self._describe_missing()) from None
            wait.warn(self._describe_missing)

    def _visit_readers(self) -> None:
        """Make a relay once every missing reader asks for one."""
        missing = self._missing()
        dead = self._visits.go(missing) + self._visits.lost()
        for name in dead:
            with self._checking:
                self._lose(name, "in another PID namespace, has died before it was attached")
        if missing and not dead and set(missing) == set(self._visits.waiting()):
            hub = load("zmq_hub").ZmqHub(self.ring.handle, len(missing), f"ipc://{new_name()}", self.lose)
            self._near_link, self._relayed = hub, missing
            self._visits.tell(hub.address)

    def _missing(self) -> List[str]:
        came = {peer.name for peer in self.ring.peers() if peer.state in ("active", "stopped")}
        return [name for name in self._names if name not in came and name not in self._relayed]

    def _check_names(self) -> None:
        """The number of readers is right: find a rank that is missing because another rank has attached twice."""
        missing = self._missing()
        if missing:
            raise RuntimeError(
                f"all {len(self._names)} places are taken, but not by {', '.join(missing)}: another rank has attached "
                "twice. Each rank calls create_from_handle() once"
            )

    def _describe_readers(self) -> str:
        """Which readers are behind, the slowest first."""
        sent = self.ring.stats().frames
        behind = sorted((peer for peer in self.ring.peers() if peer.lag), key=lambda peer: -peer.lag)
        progress = _calls.progress_by_pid(self)
        texts = [_describe(peer, sent) + progress.get(peer.pid, "") for peer in behind[:_MOST_NAMED]]
        texts = texts or ["every reader has received all by now"]
        if len(behind) > _MOST_NAMED:
            texts.append(f"and {len(behind) - _MOST_NAMED} more readers")
        return "; ".join(texts + self._describe_links())

    def _describe_missing(self) -> str:
        texts = []
        if self._names:
            missing, here = self._missing(), len(self._names) - len(self._relayed)
            texts.append(f"{here - len(missing)} of {here} readers are attached")
            texts += [f"missing: {', '.join(missing)}"] if missing else []
        return "; ".join(texts + self._describe_links())

    def _describe_links(self) -> List[str]:
        texts = [] if self.link is None else [f"remote readers: {self.link.describe()}"]
        if self._near_link is not None:
            texts.append(f"readers in other PID namespaces: {self._near_link.describe()}")
        return texts

    def tell_failure(self, failure: Any) -> None:
        """Of a call, to the executor; without an error, since the exception of the call is raised next. A waiting
        executor makes room, if room is missing, in its next look."""
        for _ in range(round(_TELL_SECONDS / _RETRY)):
            try:
                return self.ring.send(failure, 0, tag=_FAILED)
            except (TimeoutError, RuntimeError) as error:  # or the thread of asynchronous answers has the Writer
                if not is_ours(error):
                    raise
            except (ringcast.Error, ValueError):
                return
            time.sleep(_RETRY)

    # ---- Deaths ----

    def _check_readers(self) -> None:
        self._catch_up() if self._alarm else self.check()
        if self.lost is not None:
            raise ringcast.ReaderDied(errno.EOWNERDEAD, self.lost)

    def _lose(self, who: str, what: str = "") -> None:
        if self.goes_on:
            warnings.warn(f"{who} {what}".rstrip() + ": the queue goes on without it", RuntimeWarning, stacklevel=1)
        elif self.lost is None:
            if what:
                who = (
                    f"{who}, a reader of the message queue of pid {os.getpid()}, {what}{self._last()}: restart the "
                    "engine (a program of your own: make a new queue)"
                )
            self.lost = who[:MOST_CHARACTERS]
            self._send = _raise_died(self.lost)
            _calls.end_waits(self)

    def _last(self) -> str:
        """Of what has been sent, for an error's text."""
        with contextlib.suppress(RuntimeError, ValueError):  # another thread has the Writer, or has closed it
            what, sent = "call" if self.sends_calls else "message", self.ring.stats().frames - self.notices
            return f"; the last {what} was {what} {sent}" if sent > 0 else ""
        return ""

    def _tell(self, text: str) -> None:
        """The evicted dead reader takes no room; a slow reader may."""
        if self._told:
            return
        self._told = True
        try:
            self.ring.send(text, 0, tag=_DIED)
        except (TimeoutError, RuntimeError):
            threading.Thread(target=_keep_telling, args=(self.ring, text), name="ringcast-tell", daemon=True).start()
        except ringcast.Error:
            pass


def _keep_telling(ring: ringcast.Writer, text: str) -> None:
    """For a thread: send the notice once there is room, unless the ring fails or is closed. Keeps no end alive."""
    with contextlib.suppress(ringcast.Error, ValueError):
        while True:
            try:
                return ring.send(text, None, tag=_DIED)
            except RuntimeError:  # an earlier call has the Writer
                time.sleep(_RETRY)


# A message, in a tuple, or its frame in the ring.
_Early = Union[Tuple[Any], ringcast.Frame]

# ---- A reader's endpoint ---------------------------------------------------------------------------------------------


class Receiver:
    """link: the relay's end here, if the reader can't attach to the writer's ring."""

    def __init__(self, reader: Optional[ringcast.Reader], link: Any = None) -> None:
        self.link: Any = None
        self._ready = False
        self._early: Deque[_Early] = collections.deque()  # received before dequeue() asked for them
        self._notices = self._to_drop = 0
        self.failures: Deque[_calls.Failure] = collections.deque(maxlen=_MOST_FAILURES)  # the last ones
        self.ring: Any = None
        if reader is not None:
            self._receive_from(reader, link)

    def _receive_from(self, reader: ringcast.Reader, link: Any) -> None:
        self.ring, self.link = reader, link
        self._recv: Callable[..., Tuple[Any, int]] = reader.recv_tagged
        _calls.add_receiver(self)

    def enqueue(self, obj: Any, timeout: Optional[float]) -> NoReturn:
        raise AssertionError("Only writers can enqueue")

    def dequeue(self, timeout: Optional[float], indefinite: bool) -> Any:
        spent = 0.0
        if not (self._early or self._to_drop):
            try:
                obj, tag = self._recv(_FIRST if timeout is None else _first(timeout))
                if not tag:
                    return obj if not self._early else self._after_early(obj)
                self._take_notice(obj, tag)
            except TimeoutError as error:
                if not is_ours(error):
                    raise
                spent = _first(timeout)
            except ringcast.Cancelled:
                raise _calls.why_cancelled(self) from None
            except ringcast.WriterGone as error:
                raise _calls.name_gone(error, self) from None
        wait = Wait(timeout, spent, warns=not indefinite)
        while self._to_drop:
            self._drop(wait)
        while True:
            obj, tag = self._receive_waiting(wait)
            if not tag:
                return obj
            self._take_notice(obj, tag)

    def _drop(self, wait: Wait) -> None:
        """Receive a message, or a notice. A message that can't be unpacked is dropped, too."""
        tag = 0
        try:
            if self._early:
                self._drop_early(self._early.popleft())
            else:
                obj, tag = self._receive_waiting(wait)
        except Exception:
            if not self.ring._value_failed:
                raise
        if tag:
            self._take_notice(obj, tag)
        else:
            self._to_drop -= 1

    def wait_until_ready(self) -> None:
        wait = Wait(None)
        early: List[_Early] = []
        try:
            while not self._ready:
                obj, tag = self._receive_waiting(wait)
                if tag:
                    self._take_notice(obj, tag)
                else:
                    early.append((obj,))
        finally:
            self._early.extendleft(reversed(early))

    def messages(self) -> int:
        """How many dequeue() has given. RuntimeError: another thread is in dequeue()."""
        received = sum(type(early) is tuple for early in self._early)  # the frames count when released
        frames: int = self.ring.stats().frames
        return max(0, frames - self._notices - received)

    def settled(self) -> int:
        """The messages that dequeue() has given, and the messages to drop."""
        return self.messages() + self._to_drop

    def settle(self, messages: int) -> None:
        """Have the messages up to that number dropped."""
        with contextlib.suppress(RuntimeError, ValueError):  # another thread receives them
            self._to_drop += max(0, messages - self.settled())

    def look_ahead(self) -> None:
        """Take the present notices. Messages before a notice stay in the ring, as far as the Reader has leases, for
        later calls of dequeue()."""
        while True:
            try:
                frame = self.ring.next(0)
            except (ringcast.Error, TimeoutError, RuntimeError, ValueError):  # as when another thread receives
                return
            if frame.tag == 0:
                self._early.append(frame)
                continue
            with frame, contextlib.suppress(ringcast.ReaderDied):  # dequeue() raises that
                self._take_notice(ringcast.unpack(frame), frame.tag)

    def cancel(self) -> None:
        self.ring.cancel()

    def close(self) -> None:
        close_ring(self.ring)
        if self.link is not None:
            self.link.close()

    def _receive_waiting(self, wait: Wait) -> Tuple[Any, int]:
        most = _LOOK
        while True:
            if self._early:
                return self._take_early(), 0
            wait.warn(self._describe_writer)
            try:
                taken = self._recv(wait.slice(most))
                wait.end()
                return taken if taken[1] or not self._early else (self._after_early(taken[0]), 0)
            except ringcast.Cancelled:
                raise _calls.why_cancelled(self) from None
            except ringcast.WriterGone as error:
                raise _calls.name_gone(error, self) from None
            except TimeoutError as error:
                if wait.over() or not is_ours(error):
                    raise
                most = _LOOK if _calls.look(self) else math.inf

    def _take_early(self) -> Any:
        early = self._early.popleft()
        if isinstance(early, tuple):
            return early[0]
        with early:
            return ringcast.unpack(early)

    def _drop_early(self, early: _Early) -> None:
        if not isinstance(early, tuple):
            early.release()

    def _after_early(self, obj: Any) -> Any:
        """For an object received just after another thread looked ahead."""
        self._early.append((obj,))
        return self._take_early()

    def _describe_writer(self) -> str:
        who, pid = "the writer" if self.link is None else "the relay of the writer", self.ring.writer_pid
        plain = f"{who} (pid {pid}) is {_state(pid)}, and all that it has sent was received"
        return _calls.describe(self, _state) or plain

    def _take_notice(self, obj: Any, tag: int) -> None:
        self._notices += 1
        if tag == _READY:
            self._ready = True
        elif tag == _FAILED:
            self.failures.append(_calls.Failure(*obj))
        elif tag == _DIED:
            self._recv = _raise_died(obj)  # nothing more will come
            self._recv()
        else:
            raise ringcast.ProtocolError(
                errno.EPROTO, f"a frame has the tag {tag}: its sender is no MessageQueue of this version of ringcast"
            )


def close_ring(ring: Union[ringcast.Writer, ringcast.Reader]) -> None:
    """At exit a call of another thread ends as by shutdown(). An open ring would look like a death."""
    for _ in range(round(AT_EXIT_SECONDS / _RETRY)):
        try:
            return ring.close()
        except RuntimeError:
            ring.cancel()
            time.sleep(_RETRY)


def _go_slowly(*_: Any) -> NoReturn:
    """In place of Writer.send()."""
    raise TimeoutError


def _raise_died(text: str) -> Callable[..., NoReturn]:
    def fail(*_: Any) -> NoReturn:
        raise ringcast.ReaderDied(errno.EOWNERDEAD, text)

    return fail
