# SPDX-License-Identifier: Apache-2.0
"""await for what the ranks share.

A task waits for the rings' descriptors, and to be woken when another task or thread has brought the result. Each wait
has copies of the descriptors: a loop knows one reader of a descriptor, and several tasks wait for one ring.
"""

import asyncio
import contextlib
import os
import select
from typing import Any, Callable, Generator, Iterable, List, Optional

from ringcast._files import above_the_streams


def wait_for(descriptors: Iterable[int], seconds: Optional[float]) -> None:
    """Until one is readable, or the time is up."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll(None if seconds is None else seconds * 1000)


class Awaited:
    """A result that can be awaited: the class has done() and result()."""

    def __init__(self) -> None:
        self._wakers: List[Callable[[], None]] = []

    def done(self) -> bool:
        raise NotImplementedError

    def result(self) -> Any:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Any]:
        """As result(), and other tasks run meanwhile."""
        while not self.done():
            yield from self._change().__await__()
        return self.result()

    def _descriptors(self) -> List[int]:
        """Readable when done() may have changed."""
        return []

    def _patience(self) -> Optional[float]:
        """Seconds after which done() changes without a descriptor; None: never."""
        return None

    def _wake(self) -> None:
        for waker in tuple(self._wakers):
            waker()

    async def _change(self) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def waker() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        copies = [above_the_streams(os.dup(descriptor)) for descriptor in self._descriptors()]
        self._wakers.append(waker)
        try:
            for copy in copies:
                loop.add_reader(copy, changed.set)
            if not self.done():  # the result may have come from another thread before
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), self._patience())
        finally:
            self._wakers.remove(waker)
            for copy in copies:
                loop.remove_reader(copy)
                os.close(copy)
