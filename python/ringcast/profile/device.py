# SPDX-License-Identifier: Apache-2.0
"""The time of operations on a CUDA device: a pair of events on the current stream around each, read when the device has
passed them. Nothing waits for the device but finish(), once, at the end.

Nothing here has run on a real GPU; the tests have a stand-in for torch.cuda.
"""

import collections
import sys
from typing import Any, Callable, Deque, List, Optional, Tuple

# Pairs that the device has not passed. A record beyond them keeps the host's time.
MOST_PENDING = 10_000


class Devices:
    def __init__(self) -> None:
        self.cuda: Any = None  # torch.cuda, once it is initialised
        self._pending: Deque[Tuple[Any, Any]] = collections.deque()
        self._spare: List[Any] = []

    def look(self) -> None:
        """See whether the process uses CUDA by now. A profile never initialises CUDA."""
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if self.cuda is None and cuda is not None and cuda.is_initialized() and cuda.is_available():
            self.cuda = cuda

    def event(self) -> Optional[Any]:
        """A new event on the current stream. None: no device, too many pending, or a graph is being captured."""
        if self.cuda is None or len(self._pending) >= MOST_PENDING or self.cuda.is_current_stream_capturing():
            return None
        try:
            event = self._spare.pop()
        except IndexError:
            event = self.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, entry: Any, where: Any) -> None:
        """Keep an entry until the device has passed the events of the entry's record."""
        self._pending.append((entry, where))

    def settle(self, add: Callable[[Any, Any, int, int], None]) -> None:
        """Call add(entry, where, duration, exposed) for the entries that the device has passed."""
        while self._pending and self._pending[0][0].record.events[-1].query():
            entry, where = self._pending.popleft()
            events = entry.record.events
            # The last two events enclose the time that the stream was held up: all of it, or that of wait().
            add(entry, where, _between(events[0], events[-1]), _between(events[-2], events[-1]))
            self._spare.extend(events)

    def forget(self) -> None:
        self._pending.clear()

    def finish(self) -> None:
        for entry, _ in self._pending:
            entry.record.events[-1].synchronize()

    def memory(self) -> int:
        return int(self.cuda.memory_allocated()) if self.cuda is not None else 0

    def peak(self) -> int:
        return int(self.cuda.max_memory_allocated()) if self.cuda is not None else 0


def _between(first: Any, last: Any) -> int:
    return max(0, int(first.elapsed_time(last) * 1e6))
