# SPDX-License-Identifier: Apache-2.0
"""The endpoints of a MessageQueue: their waits warn, and name the rank that is waited for.

vLLM's executor sends its calls by one queue to all workers, and each worker answers by a queue of
its own. The death of a worker ends all waits for answers: the awaited worker may wait for the dead
one, in a collective operation. The queue of calls learns of the death within milliseconds, and
cancels the queues of answers of its readers. Answers that have arrived are received first.
"""

import contextlib
import errno
import importlib
import logging
import math
import os
import sys
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple, Union

import ringcast
from ringcast._group.config import MOST_CHARACTERS, is_ours, name_setting
from ringcast._group.endpoint import WriterEnd, state_of
from ringcast._group.packing import pack
from ringcast.vllm._doors import Visits, new_name


# ---- Waits ---------------------------------------------------------------------------------------

_VLLM_MODULE = "vllm.distributed.device_communicators.shm_broadcast"
_INTERVAL = "VLLM_RINGBUFFER_WARNING_INTERVAL"
_DEFAULT_INTERVAL = 60.0


def engine_logger() -> Any:
    """A logger of the loaded engine: vLLM's has a prefix and a level; SGLang's are Python's own."""
    make = getattr(sys.modules.get("vllm.logger"), "init_logger", None)
    if make is not None:
        return make("vllm.ringcast")
    return logging.getLogger("sglang.ringcast" if "sglang" in sys.modules else "ringcast.vllm")


def warning_interval() -> float:
    """Seconds between two warnings: vLLM's setting if vLLM is loaded, else the environment's."""
    value = getattr(sys.modules.get(_VLLM_MODULE), _INTERVAL, None)
    if value is None:
        value = os.environ.get(_INTERVAL) or _DEFAULT_INTERVAL
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(
            f"{_INTERVAL} is {value!r}: it must be a number of seconds above 0, such as 60"
        )
    return seconds


class Wait:
    """
    The wait of one call. timeout: seconds, None for ever. spent: seconds that have passed. warns:
    whether to warn.
    """

    def __init__(self, timeout: Optional[float], spent: float = 0.0, warns: bool = True) -> None:
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds, or None, not nan")
        self._began = time.monotonic() - spent
        self._deadline = math.inf if timeout is None else self._began + timeout
        self._interval = warning_interval() if warns else math.inf
        self._warned = self._began

    def over(self) -> bool:
        return time.monotonic() >= self._deadline

    def left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def slice(self, most: float = math.inf) -> Optional[float]:
        """Seconds until the first of the next warning, the end, and `most`. None: no limit."""
        now = time.monotonic()
        seconds = min(self._deadline - now, self._warned + self._interval - now, most)
        return None if seconds == math.inf else max(0.0, seconds)

    def warn(self, describe: Callable[[], str]) -> None:
        """Warn, if the interval has passed."""
        now = time.monotonic()
        if now - self._warned >= self._interval:
            self._warned = now
            # Operators search for the first words, which are vLLM's.
            engine_logger().warning(
                "No available shared memory broadcast block found in %d seconds: %s",
                now - self._began,
                describe(),
            )

    def end(self) -> None:
        """The call goes on: say so after a warning."""
        if self._warned != self._began:
            engine_logger().warning(
                "The shared memory broadcast goes on after %d seconds",
                time.monotonic() - self._began,
            )


# ---- The ends of this process --------------------------------------------------------------------


def load(name: str) -> Any:
    """A module for readers by a relay, which needs pyzmq."""
    return importlib.import_module(f"ringcast.vllm.{name}")


# How many readers a warning names.
_MOST_NAMED = 8
# Seconds of the first part of a call, which reads no clock and gives no warning.
_FIRST = 0.05
# How often a waiting writer checks its readers.
_CHECK = 0.05
# How soon a thread tries again if another thread uses the ring, and how long an exit tries. Tries
# are counted, since a process may stand still between two of them.
_RETRY = 0.001
AT_EXIT_SECONDS = 1.0
# vLLM's thread that sees the end of a worker, and how long it takes at most: it waits 5 s for the
# others (VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS), and 4 s after SIGTERM.
_MONITOR, _MONITOR_SECONDS = "MultiprocWorkerMonitor", 15.0
# Tags of frames other than messages: all readers are attached; a reader has died (with the text).
_READY, _DIED = 1, 2
_STATES = {
    "active": "alive",
    "stopped": "stopped by a signal or a debugger",
    "joining": "attaching",
}


def _first(timeout: Optional[float]) -> float:
    return _FIRST if timeout is None else max(0.0, min(timeout, _FIRST))


def _describe(peer: ringcast.ReaderStatus, sent: int) -> str:
    # All readers have been attached since the first message.
    messages = max(0, sent - peer.stats.frames)
    state = _STATES.get(peer.state, peer.state)
    return (
        f"{peer.name} (pid {peer.pid}) is {state}, {peer.lag} bytes ({messages} messages) behind, "
        f"and has held the "
        f"writer back for {peer.held:.3g} s"
    )


def _state(pid: int) -> str:
    return _STATES["stopped" if state_of(pid) == "stopped" else "active"]


# The Senders of calls and the Receivers in this process.
_ends: List["weakref.ref[Any]"] = []
os.register_at_fork(after_in_child=_ends.clear)


def _add(end: Any) -> None:
    _ends.append(weakref.ref(end, _ends.remove))


def _all(kind: type) -> List[Any]:
    return [end for end in [reference() for reference in list(_ends)] if isinstance(end, kind)]


def _await_executor() -> None:
    """Let vLLM's executor, if it is in this process, end its workers before the caller hears of a
    death.

    A thread of it, which sees each worker's end, ends the others, after some seconds by SIGKILL.
    But the engine's process ends as soon as the engine hears of the death, and with it that thread:
    a worker that waits for the dead one, in a collective or on a device, would stay for ever.
    """
    for thread in threading.enumerate():
        if thread.name == _MONITOR and thread is not threading.current_thread():
            thread.join(_MONITOR_SECONDS)


# ---- The writer's endpoint -----------------------------------------------------------------------


class Sender(WriterEnd):
    """names: of the readers on this machine. The Writer evicts a dead reader: the notice then finds
    room."""

    def __init__(
        self, writer: ringcast.Writer, names: List[str], sends_calls: bool = False
    ) -> None:
        # Relays are readers of the ring: for other machines, and for containers with other PID
        # namespaces.
        self.link: Any = None
        self._near_link: Any = None
        self._visits = Visits(writer.handle)
        self._relayed: List[str] = []  # the readers that receive by _near_link
        self._names = names
        self._sends_calls = sends_calls  # of vLLM's executor
        self.readers: Dict[int, str] = {}  # the names by pid, once all are attached
        self._cancelled = False
        self._complete = False  # all readers are attached
        self._announced = False  # the readers know that all are attached
        self._told = False  # of a death
        self._departures = 0  # of readers, as far as they are known
        super().__init__(writer, goes_on=False)
        if sends_calls:
            _add(self)

    def enqueue(self, obj: Any, timeout: Optional[float]) -> None:
        try:
            if self.lost is not None:
                raise self._death()
            try:
                if self._complete:
                    self.ring.send(obj, _FIRST if timeout is None else _first(timeout))
                    return
            except TimeoutError as error:
                if not is_ours(error):
                    raise
            except TypeError:
                if not self.ring._value_failed:
                    raise
                # A tensor on another device, which vLLM's pickle takes.
                obj = pack(obj, self.ring._takes_cuda)
            self._enqueue_slowly(obj, timeout)
        except ringcast.Cancelled:
            raise RuntimeError("cancelled") from None
        except ringcast.FrameTooLarge as error:
            raise name_setting(error, "in the writer's process", "queue", capacity=False) from None
        finally:
            # The room may be of a dead reader, which the Writer has evicted.
            if self.ring._departures != self._departures:
                self._departures = self.ring._departures
                self._alarm = True
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
            hub = load("zmq_hub").ZmqHub(
                self.ring.handle, len(missing), f"ipc://{new_name()}", self.lose
            )
            self._near_link, self._relayed = hub, missing
            self._visits.tell(hub.address)

    def _missing(self) -> List[str]:
        came = {peer.name for peer in self.ring.peers() if peer.state in ("active", "stopped")}
        return [name for name in self._names if name not in came and name not in self._relayed]

    def _check_names(self) -> None:
        """The number of readers is right: find a rank that is missing because another rank has
        attached twice."""
        missing = self._missing()
        if missing:
            raise RuntimeError(
                f"all {len(self._names)} places are taken, but not by {', '.join(missing)}: "
                f"another rank has attached "
                "twice. Each rank calls create_from_handle() once"
            )

    def _describe_readers(self) -> str:
        """Which readers are behind, the slowest first."""
        sent = self.ring.stats().frames
        behind = sorted(
            (peer for peer in self.ring.peers() if peer.lag), key=lambda peer: -peer.lag
        )
        texts = [_describe(peer, sent) for peer in behind[:_MOST_NAMED]]
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

    # ---- Deaths ----

    def _check_readers(self) -> None:
        self._catch_up() if self._alarm else self.check()
        if self.lost is not None:
            raise self._death()

    def _death(self) -> ringcast.ReaderDied:
        """Once vLLM's executor has ended its workers."""
        _await_executor()
        return ringcast.ReaderDied(errno.EOWNERDEAD, self.lost)

    def _lose(self, who: str, what: str = "") -> None:
        if self.goes_on:
            warnings.warn(
                f"{who} {what}".rstrip() + ": the queue goes on without it",
                RuntimeWarning,
                stacklevel=1,
            )
        elif self.lost is None:
            if what:
                who = (
                    f"{who}, a reader of the message queue of pid {os.getpid()}, "
                    f"{what}{self._last()}: restart the "
                    "engine (a program of your own: make a new queue)"
                )
            self.lost = who[:MOST_CHARACTERS]
            if self._sends_calls:
                engine_logger().error("%s", self.lost)  # at once: see _await_executor
            for receiver in _all(Receiver) if self._sends_calls else []:
                receiver.end(self.readers, self.lost)

    def _last(self) -> str:
        """Of what has been sent, for an error's text."""
        # Another thread has the Writer, or has closed it.
        with contextlib.suppress(RuntimeError, ValueError):
            what = "call" if self._sends_calls else "message"
            sent = self.ring.stats().frames - self._announced
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
            threading.Thread(
                target=_keep_telling, args=(self.ring, text), name="ringcast-tell", daemon=True
            ).start()
        except ringcast.Error:
            pass


def _keep_telling(ring: ringcast.Writer, text: str) -> None:
    """
    For a thread: send the notice once there is room, unless the ring fails or is closed. Keeps no
    end alive.
    """
    with contextlib.suppress(ringcast.Error, ValueError):
        while True:
            try:
                return ring.send(text, None, tag=_DIED)
            except RuntimeError:  # an earlier call has the Writer
                time.sleep(_RETRY)


# ---- A reader's endpoint -------------------------------------------------------------------------


class Receiver:
    """link: the relay's end here, if the reader can't attach to the writer's ring."""

    def __init__(self, reader: Optional[ringcast.Reader], link: Any = None) -> None:
        self.link: Any = None
        self._ready = False
        self._kept: List[Any] = []  # the message that wait_until_ready() has found
        self._died: Optional[str] = None  # which reader: nothing more will come
        self._lost: Optional[str] = None  # which worker's death has ended the waits
        self.ring: Any = None
        if reader is not None:
            self._receive_from(reader, link)

    def _receive_from(self, reader: ringcast.Reader, link: Any) -> None:
        self.ring, self.link = reader, link
        _add(self)

    def enqueue(self, obj: Any, timeout: Optional[float]) -> NoReturn:
        raise AssertionError("Only writers can enqueue")

    def dequeue(self, timeout: Optional[float], indefinite: bool) -> Any:
        if self._kept:
            return self._kept.pop()
        spent = 0.0
        try:
            if self._died is not None:
                raise ringcast.ReaderDied(errno.EOWNERDEAD, self._died)
            obj, tag = self.ring.recv_tagged(_FIRST if timeout is None else _first(timeout))
            if not tag:
                return obj
            self._take_notice(obj, tag)
        except TimeoutError as error:
            if not is_ours(error):
                raise
            spent = _first(timeout)
        except ringcast.Cancelled:
            raise self._why_cancelled() from None
        except ringcast.WriterGone as error:
            raise self._name_gone(error) from None
        wait = Wait(timeout, spent, warns=not indefinite)
        while True:
            obj, tag = self._receive_waiting(wait)
            if not tag:
                return obj
            self._take_notice(obj, tag)

    def wait_until_ready(self) -> None:
        wait = Wait(None)
        while not self._ready:
            obj, tag = self._receive_waiting(wait)
            if tag:
                self._take_notice(obj, tag)
            else:
                self._ready = True  # the writer sends no message before all are attached
                self._kept.append(obj)

    def end(self, workers: Dict[int, str], lost: str) -> None:
        """One of `workers` has died: end the waits for their answers."""
        with contextlib.suppress(ValueError):  # closed meanwhile
            if self._name_in(workers) is not None:
                self._lost = lost
                self.ring.cancel()

    def _name_in(self, workers: Dict[int, str]) -> Optional[str]:
        """The writer's, by pid. The own pid is that of a queue with both ends here."""
        pid = self.ring.writer_pid
        return None if self.link is not None or pid == os.getpid() else workers.get(pid)

    def cancel(self) -> None:
        self.ring.cancel()

    def close(self) -> None:
        close_ring(self.ring)
        if self.link is not None:
            self.link.close()

    def _receive_waiting(self, wait: Wait) -> Tuple[Any, int]:
        while True:
            if self._died is not None:
                raise ringcast.ReaderDied(errno.EOWNERDEAD, self._died)
            wait.warn(self._describe_writer)
            try:
                obj, tag = self.ring.recv_tagged(wait.slice())
                wait.end()
                return obj, tag
            except ringcast.Cancelled:
                raise self._why_cancelled() from None
            except ringcast.WriterGone as error:
                raise self._name_gone(error) from None
            except TimeoutError as error:
                if wait.over() or not is_ours(error):
                    raise

    def _why_cancelled(self) -> Exception:
        """By the death of a worker, or by shutdown()."""
        if self._lost is None:
            return RuntimeError("cancelled")
        _await_executor()
        return ringcast.ReaderDied(errno.EOWNERDEAD, self._lost)

    def _name_gone(self, error: ringcast.WriterGone) -> ringcast.WriterGone:
        worker = self._worker()
        if worker is None:
            return error
        _await_executor()
        text = f"{worker} is gone, and all its answers were received: restart the engine"
        return ringcast.WriterGone(errno.EPIPE, text)

    def _worker(self) -> Optional[str]:
        """The writer, if it is a worker of the executor in this process."""
        names = [self._name_in(sender.readers) for sender in _all(Sender)]
        found = [name for name in names if name is not None]
        return f"{found[0]} (pid {self.ring.writer_pid})" if found else None

    def _describe_writer(self) -> str:
        who = "the writer" if self.link is None else "the relay of the writer"
        pid = self.ring.writer_pid
        name = self._worker() or f"{who} (pid {pid})"
        return f"{name} is {_state(pid)}, and all that it has sent was received"

    def _take_notice(self, obj: Any, tag: int) -> None:
        if tag == _READY:
            self._ready = True
        elif tag == _DIED:
            self._died = obj
            raise ringcast.ReaderDied(errno.EOWNERDEAD, obj)
        else:
            raise ringcast.ProtocolError(
                errno.EPROTO,
                f"a frame has the tag {tag}: its sender is no MessageQueue of this version of "
                f"ringcast",
            )


def close_ring(ring: Union[ringcast.Writer, ringcast.Reader]) -> None:
    """
    At exit a call of another thread ends as by shutdown(). An open ring would look like a death.
    """
    for _ in range(round(AT_EXIT_SECONDS / _RETRY)):
        try:
            return ring.close()
        except RuntimeError:
            ring.cancel()
            time.sleep(_RETRY)
