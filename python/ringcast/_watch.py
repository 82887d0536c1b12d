# SPDX-License-Identifier: Apache-2.0
"""Deaths are noticed while nobody calls: one thread of the process sleeps until a reader of a watched Writer dies.

A Writer finds a death in its way, or when it is asked. Who waits for a frame that will never be sent, since its sender
waits for the dead, would hear of it from neither. The thread asks the kernel (a pidfd tells within milliseconds) and
costs nothing while all live.
"""

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
    """Have `method`, a bound method, called by the watching thread whenever a reader of `writer` may have died.

    It looks for itself (Writer.check(), under the lock that its owner sends under; the Writer may be closed by then),
    and returns whether to go on watching. What it raises is shown as any thread's exception, and ends the watching. Its
    object is not kept alive. Call what is returned before the Writer is closed: it ends the watching.
    """
    global _watcher
    descriptor = writer.fileno()
    with _lock:
        if _watcher is None:
            _watcher = _Watcher()
        return _watcher.add(descriptor, method)


class _Watcher:
    def __init__(self) -> None:
        # Whoever holds it may be the one that collects an owner, which is then forgotten under it.
        self._lock = threading.RLock()
        self._epoll = select.epoll()
        self._methods: Dict[int, Any] = {}
        threading.Thread(target=self._run, name="ringcast-watch", daemon=True).start()

    def add(self, descriptor: int, method: Callable[[], bool]) -> Callable[[], None]:
        weak = weakref.WeakMethod(method)

        def forget() -> None:
            if _watcher is not self:
                return  # in a child: its parent's
            with self._lock:
                if self._methods.get(descriptor) is weak:
                    del self._methods[descriptor]
                    self._epoll.unregister(descriptor)

        with self._lock:
            self._methods[descriptor] = weak
            self._epoll.register(descriptor, select.EPOLLIN)
        # Runs before the owner's attributes go, its Writer among them, with which the descriptor is closed.
        weakref.finalize(method.__self__, forget).atexit = False  # type: ignore[attr-defined]
        return forget

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                weak = self._methods.get(descriptor)
                method = weak() if weak is not None else None
                if method is not None and not _call(method):
                    with self._lock:
                        if self._methods.get(descriptor) is weak:
                            del self._methods[descriptor]
                            self._epoll.unregister(descriptor)
                del method  # or its object would live until the next death


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
        _watcher._epoll.close()  # a copy of the descriptor: the parent's goes on
        _watcher = None


os.register_at_fork(after_in_child=_after_fork)
