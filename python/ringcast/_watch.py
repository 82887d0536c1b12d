# SPDX-License-Identifier: Apache-2.0
"""One thread of the process sleeps until a reader of a watched Writer dies, so that deaths are noticed without a call.

A Writer finds a dead reader only when the reader blocks the Writer, or in check(). If a rank waits for a sender, and
the sender for the dead rank, neither would ever hear of the death. The thread polls descriptors (a pidfd is readable
within milliseconds of a death) and costs nothing while all readers live.
"""

import contextlib
import os
import select
import sys
import threading
import weakref
from typing import Any, Callable, Dict, Optional

import ringcast

_lock = threading.Lock()
_watcher: "Optional[_Watcher]" = None


def watch(writer: ringcast.Writer, method: Callable[[], bool]) -> Callable[[], None]:
    """Have the watching thread call `method`, a bound method, whenever a reader of `writer` may have died.

    The method calls Writer.check() itself (the Writer may be closed by then) and returns whether to go on watching. An
    exception of the method is shown as any thread's, and ends the watching. The method's object is held weakly. Returns
    a function that ends the watching, to be called before the Writer is closed.
    """
    global _watcher
    descriptor = writer.fileno()
    with _lock:
        if _watcher is None:
            _watcher = _Watcher()
        return _watcher.add(descriptor, method)


class _Watcher:
    def __init__(self) -> None:
        # Re-entrant: the holder may collect an owner, and the finalizer takes the lock again.
        self._lock = threading.RLock()
        self._epoll = select.epoll()
        self._methods: Dict[int, Any] = {}
        threading.Thread(target=self._run, name="ringcast-watch", daemon=True).start()

    def add(self, descriptor: int, method: Callable[[], bool]) -> Callable[[], None]:
        weak = weakref.WeakMethod(method)

        def forget() -> None:
            if _watcher is not self:
                return  # a child has the parent's
            with self._lock:
                if self._methods.get(descriptor) is weak:
                    self._drop(descriptor)

        with self._lock:
            self._methods[descriptor] = weak
            self._epoll.register(descriptor, select.EPOLLIN)
        # Runs before the owner's attributes go: the end of the Writer closes the descriptor.
        weakref.finalize(method.__self__, forget).atexit = False  # type: ignore[attr-defined]
        return forget

    def _drop(self, descriptor: int) -> None:
        del self._methods[descriptor]
        with contextlib.suppress(OSError):  # closed: the method may close its Writer
            self._epoll.unregister(descriptor)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                weak = self._methods.get(descriptor)
                method = weak() if weak is not None else None
                if method is not None and not _call(method):
                    with self._lock:
                        if self._methods.get(descriptor) is weak:
                            self._drop(descriptor)
                del method  # else the object would live until the next death


def _call(method: Callable[[], bool]) -> bool:
    try:
        return method()
    except Exception:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        return False


def _after_fork() -> None:
    """The thread is the parent's."""
    global _lock, _watcher
    _lock = threading.Lock()
    if _watcher is not None:
        _watcher._epoll.close()  # a copy of the descriptor; the parent's stays open
        _watcher = None


os.register_at_fork(after_in_child=_after_fork)
