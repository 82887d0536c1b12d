# SPDX-License-Identifier: Apache-2.0
"""
Waiting in an event loop: for Reader.arecv, arecv_tagged and iteration, and Writer.asend, when they
must wait.

Reader and Writer each have a descriptor that is readable when it is time to try again. A `Watch` is
the descriptor's registration in a loop, with the line of tasks that wait. A try without a result
makes the descriptor wait, so the registration stays from one wait to the next, and the end of a
wait costs no system call of the loop's. If the descriptor is readable and no task waits, the
registration is dropped, since the descriptor would stay readable.

A woken task tries by itself, so a task that is cancelled instead loses nothing.
"""

import asyncio
import collections
import os
import time
import types

from ringcast._ringcast import _nothing, _turn, pack
from ringcast.exceptions import WriterGone

_MOST_SENT = (
    1024  # values of asend_many() in one call: the copy of the rest of a long list takes time
)


@types.coroutine
def let_others_run():
    """Yield for a turn of the loop, after many results without a wait."""
    yield


class Wake:
    """
    A task waits for this object again and again. To asyncio a future; but the loop's call runs the
    task at once, not a turn of the loop later: the task tries the descriptor, which stops being
    readable before the loop looks again.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_callback",
        "_cancelled",
        "_context",
        "_loop",
        "_message",
        "_woken",
        "expired",
    )

    def __init__(self, loop):
        self._asyncio_future_blocking = False
        self._callback = self._context = self._message = None
        self._cancelled = self._woken = self.expired = False
        self._loop = loop

    def get_loop(self):
        return self._loop

    def add_done_callback(self, callback, *, context=None):
        self._callback, self._context = callback, context

    def __await__(self):
        if not self._woken:
            self._asyncio_future_blocking = True
            yield self
        self._woken = False

    def result(self):
        if self._cancelled:
            raise (
                asyncio.CancelledError()
                if self._message is None
                else asyncio.CancelledError(self._message)
            )

    def cancel(self, msg=None):
        if self._callback is None:
            return False  # the task is about to run
        self._cancelled, self._message = True, msg
        self.wake_soon()
        return True

    def wake(self):
        """Called by the loop, while no task runs."""
        self._woken = True
        callback, self._callback = self._callback, None
        if callback is not None:
            self._context.run(callback, self)

    def expire(self):
        self.expired = True
        self.wake()

    def wake_soon(self):
        """
        From any thread. The loop itself looks for a callback: this thread may look just before the
        task waits.
        """
        self._woken = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.wake)


class Watch:
    """
    A descriptor in a loop, and the waiting tasks in order. A Watch does not refer to the Reader or
    Writer, which holds the Watch as _watch and closes it.
    """

    __slots__ = ("fd", "line", "loop", "pid", "registered")

    def __init__(self, loop):
        self.loop = loop
        self.fd = None  # until a task must wait
        self.line = collections.deque()
        self.pid = os.getpid()
        self.registered = False

    def register(self):
        if not self.registered:
            self.loop.add_reader(self.fd, self.ready)
            self.registered = True

    def drop(self):
        # A forked child shares the loop's epoll with the parent, and changes nothing there.
        if self.registered and not self.loop.is_closed() and os.getpid() == self.pid:
            self.loop.remove_reader(self.fd)
        self.registered = False

    def ready(self):
        if self.line:
            self.line[0].wake()
        else:
            self.drop()

    def close(self):
        """The descriptor is about to be closed. A waiting task finds out by trying."""
        self.drop()
        self.fd = None
        if self.line:
            self.line[0].wake_soon()

    async def serve(self, fileno, attempt, last, timeout, turn=False):
        """Call `attempt` when the tasks ahead are done, and whenever the descriptor of `fileno` is
        readable, and return its first result; when the time is up, return the result of `last`.
        turn: let the other tasks run first."""
        wake, line = Wake(self.loop), self.line
        line.append(wake)
        timer = None if timeout is None else self.loop.call_later(timeout, wake.expire)
        served = False
        try:
            while True:
                if turn:
                    await let_others_run()
                turn = False
                if line[0] is wake:
                    outcome = attempt()
                    if outcome is _turn:
                        turn = True
                        continue
                    if outcome is not _nothing:
                        served = True
                        return outcome
                    if wake.expired:
                        return last()
                    if self.fd is None:
                        self.fd = fileno()
                        # only with a descriptor does a try without a result make the descriptor
                        # wait
                        continue
                    self.register()
                elif wake.expired:
                    raise TimeoutError(
                        "no room in time: other calls of asend() wait for it, which came before"
                    )
                await wake
        finally:
            if timer is not None:
                timer.cancel()
            first = line[0] is wake
            line.remove(wake)
            if not line:
                if not served:
                    self.drop()
            elif first:
                line[0].wake_soon()


def watch_of(owner):
    """The Watch of a Reader or Writer in the running loop."""
    loop = asyncio.get_running_loop()
    watch = owner._watch
    if watch is not None and watch.loop is loop:
        return watch
    if watch is not None:
        if watch.line and not watch.loop.is_closed():
            raise RuntimeError(
                f"a task of another event loop waits on this {type(owner).__name__}: one loop at "
                f"a time"
            )
        watch.drop()
    owner._watch = Watch(loop)
    return owner._watch


# ---- Reader --------------------------------------------------------------------------------------


async def arecv(reader, tagged, timeout):
    watch = reader._watch
    if watch is None or not watch.line:
        received = reader._take(tagged)
        while received is _turn:
            await let_others_run()
            received = reader._take(tagged)
        if received is not _nothing:
            return received
    watch = watch_of(reader)
    if watch.line:
        raise RuntimeError(
            "another task waits on this Reader: give each task its own, or guard it with a lock"
        )
    receive = reader.recv_tagged if tagged else reader.recv
    if timeout == 0:
        return receive(0)
    # The last try raises the reason.
    return await watch.serve(
        reader.fileno, lambda: reader._take(tagged), lambda: receive(1e-9), timeout
    )


async def arecv_many(reader, timeout, most):
    received = [await arecv(reader, False, timeout)]
    try:
        reader._more(received, most)
    except BaseException as error:
        error.received = received
        raise
    return received


async def anext_(reader):
    try:
        return await arecv(reader, False, None)
    except WriterGone:
        if not reader._has_ended:
            raise  # from a Reader that unpickled code uses, or from a device
        raise StopAsyncIteration from None
    except StopAsyncIteration as error:  # only the end of the ring ends an iteration
        raise RuntimeError(
            f"a value was not received, as its own code raised {error!r:.200}"
        ) from error


# ---- Writer --------------------------------------------------------------------------------------


async def asend(writer, obj, timeout, tag, hash):
    watch, outcome = writer._watch, None
    if watch is None or not watch.line:
        outcome = writer._offer(obj, tag, hash)
        if outcome is None:
            return
        if timeout == 0 and outcome is _nothing:
            return writer.send(obj, 0, tag=tag, hash=hash)
    # Packed now: the object may change during the wait.
    packed = pack(obj, allow_pickle=writer._allow_pickle, hash=hash)
    offer, last = (
        lambda: writer._offer(packed, tag, None),
        lambda: writer.send(packed, 1e-9, tag=tag),
    )
    await watch_of(writer).serve(writer.room_fileno, offer, last, timeout, outcome is _turn)


async def asend_many(writer, values, timeout, tag):
    values, sent = tuple(values), 0
    deadline = None if timeout is None else time.monotonic() + timeout

    def offer():
        nonlocal sent
        some = values[sent : sent + _MOST_SENT]
        try:
            writer.send_many(some, 0, tag=tag)
            sent += len(some)
        except TimeoutError as full:
            if not writer._is_full:
                raise  # a reader is too slow, or it is of a value's own code
            sent += full.sent
            return None if full.sent else _nothing

    def last():
        nonlocal sent
        writer.send_many(values[sent : sent + 1], 1e-9, tag=tag)  # or raises the reason
        sent += 1

    try:
        while sent < len(values):
            watch = writer._watch
            if watch is not None and watch.line or offer() is _nothing:
                left = None if deadline is None else max(0, deadline - time.monotonic())
                await watch_of(writer).serve(writer.room_fileno, offer, last, left)
            else:
                await let_others_run()
    except BaseException as error:
        error.sent = sent + getattr(error, "sent", 0)
        raise
