# SPDX-License-Identifier: Apache-2.0
"""The two ends of a MessageQueue. Each holds its end of the ring, and the link to other machines if there is one."""

import collections
import contextlib
import errno
import threading
import time
import weakref
from typing import Any, Callable, Deque, List, NoReturn, Optional, Tuple

import ringcast
from ringcast._group.failures import name_knob
from ringcast._group.packing import pack
from ringcast.vllm import _waits
from ringcast.vllm._waits import Wait

# The first part of a call that has to wait; it takes no clock and gives no warning.
_FIRST = 0.05
# How often a writer that waits looks whether the readers live, those in its way and the others.
_LOOK = 0.05
# How soon the watching thread tries again when the Writer is taken.
_TURN = 0.001
# Tags of frames that are no message: all readers are attached; a reader has died, and the text says who.
_READY, _DIED = 1, 2
# Of the settings of the ring.
_WHERE = "in the writer's process"
# Fits the smallest of rings in UTF-8.
_MOST_CHARACTERS = 400


def name_of(rank: int) -> str:
    """What the reader of a rank is called in the ring, and so in errors and warnings."""
    return f"rank {rank}"


def _first(timeout: Optional[float]) -> float:
    return _FIRST if timeout is None else max(0.0, min(timeout, _FIRST))


class Sender:
    """The writer's end. names: of the readers of this machine.

    A Writer lets in one thread at a time, and there are two: the caller's and the one that watches for deaths. A call
    that is not over at once goes on under the lock, looks for deaths itself, and so does one that finds the Writer
    taken. Who watches and finds it taken sees to it that the next call does.
    """

    def __init__(self, writer: ringcast.Writer, names: List[str]) -> None:
        self.ring = writer
        self.leg: Any = None  # a bridge.Uplink, which is a reader of the ring itself
        self._names = names
        self._lock = threading.Lock()
        self._cancelled = False
        self._complete = False  # all readers are attached
        self._told = False  # and they know
        self._lost: Optional[str] = None  # a remote reader that has died
        self._died: Optional[str] = None  # a reader whose death was told
        self._send: Callable[..., None] = _go_slowly

    def enqueue(self, obj: Any, timeout: Optional[float]) -> None:
        try:
            self._send(obj, _FIRST if timeout is None else _first(timeout))
            return
        except (TimeoutError, RuntimeError):
            pass
        except TypeError:  # a tensor on another device, which vLLM's pickle takes
            obj = pack(obj)
        except ringcast.Cancelled:
            raise RuntimeError("cancelled") from None
        except ringcast.FrameTooLarge as error:
            raise name_knob(error, _WHERE, "queue", capacity=False) from None
        self._enqueue_slowly(obj, timeout)

    def _enqueue_slowly(self, obj: Any, timeout: Optional[float]) -> None:
        """There is no room, or not all readers are there, or the Writer was taken; or obj is what fails, again."""
        wait = Wait(timeout, _first(timeout) if self._complete else 0.0)
        with self._lock:
            if not self._complete:
                self._gather(wait)
            if not isinstance(obj, ringcast.PackedFrame):
                obj = pack(obj)  # once, and not at each look
            try:
                self._send_waiting(obj, wait)
            except ringcast.FrameTooLarge as error:
                raise name_knob(error, _WHERE, "queue", capacity=False) from None
            self._send = self.ring.send

    def dequeue(self, timeout: Optional[float], indefinite: bool) -> NoReturn:
        raise RuntimeError("Only readers can dequeue")

    def wait_until_ready(self) -> None:
        with self._lock:
            if not self._told:
                wait = Wait(None)
                self._gather(wait)
                self._send_waiting(None, wait, _READY)
                self._told = True

    def cancel(self) -> None:
        self._cancelled = True
        self.ring.cancel()

    def _send_waiting(self, obj: Any, wait: Wait, tag: int = 0) -> None:
        while True:
            self._check()
            wait.warn(self._describe_readers)
            try:
                self.ring.send(obj, wait.slice(_LOOK), tag=tag)
            except ringcast.Cancelled:
                raise RuntimeError("cancelled") from None
            except TimeoutError:
                if wait.over():
                    raise
            else:
                return

    def _gather(self, wait: Wait) -> None:
        """Wait for all readers: who attaches later than a message is sent never gets it."""
        here = len(self._names) + (self.leg is not None)
        while True:
            self._check()
            try:
                self.ring.wait_readers(here, wait.slice(_LOOK))
                if self.leg is not None:
                    self.leg.wait(wait.slice(_LOOK))
                self._check_names()
                self._complete = True
                self._send = self.ring.send
                return
            except ringcast.Cancelled:
                raise RuntimeError("cancelled") from None
            except TimeoutError:
                if self._cancelled:  # while the leg was waited for
                    raise RuntimeError("cancelled") from None
                if wait.over():
                    raise TimeoutError(self._describe_missing()) from None
            wait.warn(self._describe_missing)

    def _check_names(self) -> None:
        """There are as many readers as there should be: but are they who they should be?"""
        there = {peer.name for peer in self.ring.peers()}
        missing = [name for name in self._names if name not in there]
        if missing:
            raise RuntimeError(
                f"as many readers are attached as there should be, but {', '.join(missing)} is not among them: another "
                "has attached twice. Each rank calls create_from_handle() once"
            )

    def _describe_readers(self) -> str:
        text = _waits.describe_readers(self.ring)
        return text if self.leg is None else f"{text}; remote readers: {self.leg.describe()}"

    def _describe_missing(self) -> str:
        texts = [] if self.leg is None else [f"remote readers: {self.leg.describe()}"]
        if self._names:
            texts.insert(0, _waits.describe_missing(self.ring, self._names))
        return "; ".join(texts)

    def look(self) -> bool:
        """For the watching thread: see whether all readers live, and tell the others if not."""
        while True:
            with self._lock:
                try:
                    self._check()
                    return True
                except (ringcast.ReaderDied, ValueError):  # or the Writer is closed
                    return False
                except RuntimeError:
                    self._send = _go_slowly
            time.sleep(_TURN)

    def lose(self, text: str) -> None:
        """For the thread in which an Uplink tells it: this waits for calls under the lock."""
        self._lost = text
        self.look()

    def _check(self) -> None:
        """Under the lock: raise ReaderDied if a reader has died, once the others were told."""
        if self._died is None:
            dead = self.ring.check()
            if dead is not None:
                self._died = _waits.name_dead(dead)[:_MOST_CHARACTERS]
            elif self._lost is not None:
                self._died = self._lost[:_MOST_CHARACTERS]
            else:
                return
            self._send = _raise_died(self._died)
            if not self._tell(0):
                weak = weakref.ref(self)
                threading.Thread(target=_keep_telling, args=(weak,), name="ringcast-tell", daemon=True).start()
        raise ringcast.ReaderDied(errno.EOWNERDEAD, self._died)

    def _tell(self, timeout: float) -> bool:
        """Under the lock. The dead one is in nobody's way, for the Writer's on_death is "evict"; others may be."""
        with contextlib.suppress(ringcast.Error):
            try:
                self.ring.send(self._died, timeout, tag=_DIED)
            except (TimeoutError, RuntimeError):  # a call that had begun before has the Writer
                return False
        return True

    def keep_telling(self) -> bool:
        with self._lock, contextlib.suppress(ValueError):  # it is closed
            return self._tell(_LOOK)
        return True


def _keep_telling(weak: "weakref.ref[Sender]") -> None:
    """For a thread: until there was room. It keeps no queue alive."""
    while True:
        sender = weak()
        if sender is None or sender.keep_telling():
            return
        del sender
        time.sleep(_TURN)


class Receiver:
    """A reader's end. leg: a bridge.Downlink, whose reader it is, if the writer is on another machine."""

    def __init__(self, reader: ringcast.Reader, leg: Any = None) -> None:
        self.ring = reader
        self.leg = leg
        self._ready = False
        self._kept: Deque[Any] = collections.deque()  # what came before that
        self._recv: Callable[..., Tuple[Any, int]] = reader.recv_tagged

    def enqueue(self, obj: Any, timeout: Optional[float]) -> NoReturn:
        raise AssertionError("Only writers can enqueue")

    def dequeue(self, timeout: Optional[float], indefinite: bool) -> Any:
        if self._kept:
            return self._kept.popleft()
        spent = 0.0
        try:
            obj, tag = self._recv(_FIRST if timeout is None else _first(timeout))
            if not tag:
                return obj
            self._heed(obj, tag)
        except TimeoutError as error:
            if _is_of_a_message(error):
                raise
            spent = _first(timeout)
        except ringcast.Cancelled:
            raise RuntimeError("cancelled") from None
        wait = Wait(timeout, spent, warns=not indefinite)
        while True:
            obj, tag = self._receive_waiting(wait)
            if not tag:
                return obj
            self._heed(obj, tag)

    def wait_until_ready(self) -> None:
        wait = Wait(None)
        while not self._ready:
            obj, tag = self._receive_waiting(wait)
            if tag:
                self._heed(obj, tag)
            else:
                self._kept.append(obj)

    def cancel(self) -> None:
        self.ring.cancel()

    def _receive_waiting(self, wait: Wait) -> Tuple[Any, int]:
        while True:
            wait.warn(self._describe_writer)
            try:
                return self._recv(wait.slice())
            except ringcast.Cancelled:
                raise RuntimeError("cancelled") from None
            except TimeoutError as error:
                if wait.over() or _is_of_a_message(error):
                    raise

    def _describe_writer(self) -> str:
        return _waits.describe_writer(self.ring, "the writer" if self.leg is None else "who relays for the writer")

    def _heed(self, obj: Any, tag: int) -> None:
        """A frame that is no message."""
        if tag == _READY:
            self._ready = True
        elif tag == _DIED:
            self._recv = _raise_died(obj)  # nothing comes any more
            self._recv()
        else:
            raise ringcast.ProtocolError(
                errno.EPROTO, f"a frame has the tag {tag}: what is sent here is of another ringcast.vllm.MessageQueue"
            )


class Nobody:
    """The writer's end of a queue without readers."""

    ring = leg = None

    def enqueue(self, obj: Any, timeout: Optional[float]) -> None:
        pack(obj)  # raises what sending it would

    def dequeue(self, timeout: Optional[float], indefinite: bool) -> NoReturn:
        raise RuntimeError("Only readers can dequeue")

    def wait_until_ready(self) -> None:
        pass

    def cancel(self) -> None:
        pass


def _go_slowly(*_: Any) -> NoReturn:
    """In place of Writer.send()."""
    raise TimeoutError


def _is_of_a_message(error: TimeoutError) -> bool:
    """Whether unpickling a message has raised it, which is then gone: Python code has, and a Reader is none."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None


def _raise_died(text: str) -> Callable[..., NoReturn]:
    def fail(*_: Any) -> NoReturn:
        raise ringcast.ReaderDied(errno.EOWNERDEAD, text)

    return fail
