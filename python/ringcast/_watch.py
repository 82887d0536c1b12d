# SPDX-License-Identifier: Apache-2.0
"""
One thread of the process sleeps until a reader of a watched Writer dies, so that deaths are noticed
without a call.

A Writer finds a dead reader only when the reader blocks the Writer, or in check(). If a rank waits
for a sender, and the sender for the dead rank, neither would ever hear of the death. The thread
polls descriptors (a pidfd is readable within milliseconds of a death). While all readers live it
looks, once a second, whether the descriptors are still there: a program may close what it doesn't
know, and have its own files by the same numbers.
"""

import contextlib
import errno
import os
import select
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import ringcast
from ringcast._files import above_the_streams

# Seconds between two looks at the descriptors.
_LOOK = 1.0
_lock = threading.Lock()
_watcher: "Optional[_Watcher]" = None


def watch(writer: ringcast.Writer, method: Callable[[], bool]) -> Callable[[], None]:
    """
    Have the watching thread call `method`, a bound method, whenever a reader of `writer` may have
    died.

    The method calls Writer.check() itself (the Writer may be closed by then) and returns whether to
    go on watching. An exception of the method is shown as any thread's, and ends the watching. The
    method's object is held weakly. Returns a function that ends the watching, to be called before
    the Writer is closed.
    """
    global _watcher
    descriptor = writer.fileno()
    with _lock:
        if _watcher is None:
            _watcher = _Watcher()
        return _watcher.add(descriptor, writer, method)


def _new_epoll() -> select.epoll:
    with select.epoll() as epoll:
        return select.epoll.fromfd(above_the_streams(os.dup(epoll.fileno())))


class _Watcher:
    def __init__(self) -> None:
        # Re-entrant: the holder may collect an owner, and the finalizer takes the lock again.
        self._lock = threading.RLock()
        self._epoll = _new_epoll()
        self._watched: Dict[
            int, Tuple[ringcast.Writer, Any]
        ] = {}  # by descriptor; with the weak method
        self._gone: List[Any] = []  # of earlier epolls, never closed: the numbers are the program's
        threading.Thread(target=self._run, name="ringcast-watch", daemon=True).start()

    def add(
        self, descriptor: int, writer: ringcast.Writer, method: Callable[[], bool]
    ) -> Callable[[], None]:
        weak = weakref.WeakMethod(method)

        def forget() -> None:
            if _watcher is self:  # a child has the parent's
                self._drop(weak)

        with self._lock:
            self._watched[descriptor] = writer, weak
            self._register(descriptor)
        # Runs before the owner's attributes go: the end of the Writer closes the descriptor.
        weakref.finalize(method.__self__, forget).atexit = False  # type: ignore[attr-defined]
        return forget

    def _drop(self, weak: Any) -> None:
        with self._lock:
            for descriptor, (_, other) in list(self._watched.items()):
                if other is weak:
                    del self._watched[descriptor]
                    with contextlib.suppress(OSError):  # closed: the method may close its Writer
                        self._epoll.unregister(descriptor)

    def _run(self) -> None:
        while True:
            for descriptor in self._poll():
                weak = self._watched.get(descriptor, (None, None))[1]
                method = weak() if weak is not None else None
                if method is not None and not _call(method):
                    self._drop(weak)
                del method  # else the object would live until the next death

    def _poll(self) -> List[int]:
        try:
            ready = [descriptor for descriptor, _ in self._epoll.poll(_LOOK)]
        except OSError:  # the number is another file's
            ready = []
            time.sleep(_LOOK)
        if not ready:
            # No descriptor is free: until the next look.
            with (
                self._lock,
                contextlib.suppress(OSError),
            ):
                self._look()
        return ready

    def _look(self) -> None:
        for old, (writer, weak) in list(self._watched.items()):
            if self.has(old):
                continue
            descriptor = _descriptor_of(writer)
            if writer.closed:
                self._drop(weak)
            elif descriptor is not None and self._watched.pop(old, None) is not None:
                self._watched[descriptor] = writer, weak
                self._register(descriptor)

    def has(self, descriptor: int) -> bool:
        """Whether this number, and the epoll's, are still those of our files."""
        try:
            self._epoll.modify(descriptor, select.EPOLLIN)
        except OSError:
            return False
        return True

    def _register(self, descriptor: int) -> None:
        try:
            self._epoll.register(descriptor, select.EPOLLIN)
        except FileExistsError:
            pass
        except OSError:  # the epoll is gone, and _look() registers the others
            epoll = _new_epoll()
            self._gone.append(self._epoll)
            self._epoll = epoll
            epoll.register(descriptor, select.EPOLLIN)


def _descriptor_of(writer: ringcast.Writer) -> Optional[int]:
    """None: not now, as another thread is in a call, or no descriptor is free."""
    for _ in range(2):
        try:
            return writer.fileno()
        except ringcast.Error as error:  # once, if the descriptor is gone
            if error.errno != errno.ENOBUFS:
                break
        except (RuntimeError, ValueError):
            break
    return None


def _call(method: Callable[[], bool]) -> bool:
    try:
        return method()
    except Exception:
        threading.excepthook(
            threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
        )
        return False


def _after_fork() -> None:
    """The thread is the parent's."""
    global _lock, _watcher
    _lock = threading.Lock()
    if _watcher is not None:
        if all(map(_watcher.has, _watcher._watched)):
            _watcher._epoll.close()  # a copy of the descriptor; the parent's stays open
        _watcher = None


os.register_at_fork(after_in_child=_after_fork)
