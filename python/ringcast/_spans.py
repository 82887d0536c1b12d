# SPDX-License-Identifier: Apache-2.0
"""Spans: when each call of a Writer or Reader of this process began and ended, and its phases.
ringcast.trace and ringcast.profile subscribe.

While no function is subscribed, nothing is recorded. The extension keeps the spans in a buffer. The
functions get the spans at the end of a call, or before a Reader's wait, once CAPACITY / 4 spans are
there or the oldest is a second old. A forked child begins with an empty buffer, and with the same
subscribers.
"""

import atexit
import os
import sys
from typing import Callable, List, NamedTuple, Tuple

from ringcast import _ringcast

CAPACITY = 1 << 14


class Span(NamedTuple):
    #: "send" or "recv": a whole call; or a phase within it: of a send "encode" (measuring and
    #: writing the value), "wait_room", "copy" (bytes copied into the frame) and "publish" (the
    #: commit); of a recv "wait_frame" and "decode". Phases come before their call. The phases of
    #: Writer.reserve(), and of opening a composed frame, have no call around them: the "send" is
    #: the commit.
    kind: str
    start_ns: int  #: of CLOCK_MONOTONIC, which is the same in all processes of a machine
    end_ns: int
    thread: int  #: the native id
    ring: int  #: the same number in all processes
    #: Of the frame, the same for the writer and all readers; -1: no frame was sent or received. A
    #: call for several frames has the position of the first frame, a phase that of its frame. Small
    #: messages of a batch share a frame: the writer has one "publish", and a reader a position for
    #: each message, of the first 16 behind the frame's.
    position: int
    bytes: int  #: of the frame; of a whole call, of all frames


Subscriber = Callable[[List[Span]], None]

_subscribers: Tuple[Subscriber, ...] = ()
_is_prepared = _is_on = False


def subscribe(function: Subscriber) -> None:
    """Call `function` with lists of spans from now on, until unsubscribe(function).

    A thread calls `function` when a call of ringcast ends or waits there, and in flush(); so
    several threads may call at the same time. All subscribers get the same list. An Exception goes
    to sys.unraisablehook, even if a signal's handler raised the Exception meanwhile; SystemExit and
    KeyboardInterrupt are raised in the main thread, after the delivery. What `function` sends or
    receives comes with a later list.
    """
    global _subscribers
    if function in _subscribers:
        raise ValueError(f"{function!r} is subscribed already")
    flush()
    _prepare()
    _subscribers += (function,)
    _tell()


def unsubscribe(function: Subscriber) -> None:
    """Give `function` the spans so far, and then no more. Another thread may be in a last call of
    `function`."""
    global _subscribers
    if function not in _subscribers:
        raise ValueError(f"{function!r} is not subscribed")
    try:
        flush()
    finally:
        _subscribers = tuple(other for other in _subscribers if other != function)
        _tell()


def flush() -> None:
    """Give the subscribers all spans in the buffer. Nothing happens in a subscriber's own call."""
    if _subscribers:
        _ringcast._spans_flush()


def dropped() -> int:
    """The number of spans lost because the buffer was full, since the first subscriber came."""
    return _ringcast._spans_dropped()


def _tell() -> None:
    global _is_on
    if not _subscribers:
        _ringcast._spans_stop()
    elif _is_on:
        _ringcast._spans_functions(_subscribers)
    else:
        _ringcast._spans_start(_subscribers, CAPACITY)
    _is_on = bool(_subscribers)


def _after_fork() -> None:
    if _subscribers:
        _ringcast._spans_start(_subscribers, CAPACITY)


def _at_exit() -> None:
    """Record nothing while the interpreter shuts down."""
    flush()
    if _subscribers:
        _ringcast._spans_stop()


def _flush_at_the_end_of_a_process(_: object = None) -> None:
    """Processes of multiprocessing end without atexit."""
    from multiprocessing.util import Finalize

    Finalize(None, flush, exitpriority=0)


def _prepare() -> None:
    global _is_prepared
    if _is_prepared:
        return
    from multiprocessing.util import register_after_fork

    _is_prepared = True
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_after_fork)
    # A child of multiprocessing forgets the finalizers first, and then makes these calls.
    register_after_fork(sys.modules[__name__], _flush_at_the_end_of_a_process)
    _flush_at_the_end_of_a_process()
