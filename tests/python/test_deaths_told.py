# SPDX-License-Identifier: Apache-2.0
"""
Whoever waits for a process learns of its death, or why nothing can tell: in each situation that a
program may be in, and whether or not somebody waits for the dead process.

A test has the situations of a row side by side, reaped and zombie in turns.
"""

import asyncio
import contextlib
import errno
import os
import pickle
import resource
import select
import signal
import socket
import tempfile
import time
import traceback

import needs
import pytest
from peers import WATCHDOG

import ringcast
from ringcast.vllm import MessageQueue

if needs.torch is not None:
    from _dist import join_group

    import ringcast.torch as rt
    from ringcast._group import endpoint

MESSAGE = bytes(300)

# ---- What two processes have between them --------------------------------------------------------
# Each is made by both at once: the one that writes, and the one that reads. `peer` is a socket to
# the other.


def ring(writes, peer):
    if not writes:
        return ringcast.Reader(hear(peer).decode())
    writer = ringcast.Writer(1 << 12)
    os.write(peer, writer.handle.encode())
    writer.wait_readers(1, WATCHDOG)
    return writer


def queue(writes, peer):
    if writes:
        made = MessageQueue(1, 1, max_chunk_bytes=1 << 10, max_chunks=2)
        os.write(peer, pickle.dumps(made.export_handle()))
    else:
        made = MessageQueue.create_from_handle(pickle.loads(hear(peer)), 0)
    made.wait_until_ready()
    return made


def group(writes, peer):
    """The rank that writes is 0. torch.distributed has its own descriptors by now."""
    rt.broadcast_object("the first one")
    return rt._rings.end_of(None, 0)


# ---- Who waits -----------------------------------------------------------------------------------
# Each takes the handle and what the process has made beforehand, and returns the call: it waits for
# `timeout`, or for ever, and raises. The victim is the writer of the handle, or a reader.


def receive(reader, own):
    return reader.recv


def tap(reader, own):
    return ringcast.Tap(own.handle).next


def poll_for_frame(reader, own):
    own.poll.register(reader.fileno(), select.EPOLLIN)

    def call(timeout=None):
        while True:
            with contextlib.suppress(TimeoutError):
                return reader.recv(0)
            if not own.poll.poll(timeout) and timeout is not None:
                raise TimeoutError

    return call


def arecv(reader, own):
    return lambda timeout=None: own.loop.run_until_complete(reader.arecv(timeout))


def fill(writer):
    with contextlib.suppress(TimeoutError):
        while True:
            writer.send(MESSAGE, 0)


def send(writer, own):
    fill(writer)
    return lambda timeout=None: writer.send(MESSAGE, timeout)


def asend(writer, own):
    fill(writer)
    return lambda timeout=None: own.loop.run_until_complete(writer.asend(MESSAGE, timeout))


def poll_for_room(writer, own):
    fill(writer)
    own.poll.register(writer.room_fileno(), select.EPOLLIN)

    def call(timeout=None):
        while True:
            with contextlib.suppress(TimeoutError):
                return writer.send(MESSAGE, 0)
            if not own.poll.poll(timeout) and timeout is not None:
                raise TimeoutError

    return call


def check(writer, own):
    own.poll.register(writer.fileno(), select.EPOLLIN)

    def call(timeout=None):
        while True:
            if (reader := writer.check()) is not None:
                raise ringcast.ReaderDied(errno.EOWNERDEAD, reader.state)
            if not own.poll.poll(timeout) and timeout is not None:
                raise TimeoutError

    return call


def count(writer, own):
    def call(timeout=None):
        while timeout is None or writer.wait_readers(1, timeout):
            try:
                writer.wait_readers(1, 0)
            except TimeoutError:
                raise ringcast.ReaderDied(errno.EOWNERDEAD, "is not counted") from None
            if timeout is not None:
                raise TimeoutError
            time.sleep(0.001)

    return call


def dequeue(reader, own):
    return reader.dequeue


def enqueue(writer, own):
    with contextlib.suppress(TimeoutError):
        while True:
            writer.enqueue(MESSAGE, 0)

    def call(timeout=None):
        writer.enqueue(MESSAGE, timeout)
        # What has waited for room that the dead had taken is told by the next one.
        while timeout is None:
            writer.enqueue(MESSAGE)

    return call


def receive_broadcast(receiver, own):
    def call(timeout=None):
        return rt.broadcast_object() if timeout is None else receiver.ring.recv_tagged(timeout)

    return call


def broadcast(source, own):
    with contextlib.suppress(TimeoutError):
        while True:
            source.send(MESSAGE, endpoint.OBJECT, timeout=0)

    def call(timeout=None):
        if timeout is None:
            return rt.broadcast_object(MESSAGE)
        return source.send(MESSAGE, endpoint.OBJECT, timeout=timeout)

    return call


def stay_idle(end):
    """The thread that watches learns of the death, so that it can tell the other readers."""

    def call(timeout=None):
        until = time.monotonic() + (WATCHDOG if timeout is None else timeout)
        while end.lost is None:
            if time.monotonic() >= until:
                raise TimeoutError
            time.sleep(0.001)
        raise ringcast.ReaderDied(errno.EOWNERDEAD, end.lost)

    return call


def idle_source(source, own):
    return stay_idle(source)


def idle_queue(writer, own):
    return stay_idle(writer._end)


WAITS = [
    ("recv", "writer", ring, receive),
    ("next of a tap", "writer", ring, tap),
    ("epoll of fileno", "writer", ring, poll_for_frame),
    ("arecv", "writer", ring, arecv),
    ("send", "reader", ring, send),
    ("epoll of room_fileno", "reader", ring, poll_for_room),
    ("asend", "reader", ring, asend),
    ("check and epoll of fileno", "reader", ring, check),
    ("wait_readers", "reader", ring, count),
    ("dequeue", "writer", queue, dequeue),
    ("enqueue", "reader", queue, enqueue),
    ("a queue's idle writer", "reader", queue, idle_queue),
    ("broadcast_object that receives", "writer", group, receive_broadcast),
    ("broadcast_object that sends", "reader", group, broadcast),
    ("a group's idle source", "reader", group, idle_source),
]

# ---- In which situation --------------------------------------------------------------------------


def nothing(own):
    pass


def signals(rate):
    def begin(own):
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 1 / rate, 1 / rate)

    return begin


def no_pidfds(own):
    os.environ["RINGCAST_DISABLE"] = "pidfd"


def close_standard_files(own):
    os.closerange(0, 3)


def allow_no_descriptor(own):
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, own.most))


def use_all_descriptors(own):
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(own.numbers()) + 8, own.most))
    with contextlib.suppress(OSError):
        while True:
            own.kept.append(os.open("/dev/null", os.O_RDONLY))


def take_numbers(own):
    """
    As a daemon does, which closes what it doesn't know and opens files of its own: they are quiet
    pipes here.
    """
    quiet, _ = os.pipe()
    for number in own.numbers() - own.before - {quiet}:
        os.dup2(quiet, number)


# What the process does before it has a ring, and what when it is about to wait; whether it has
# waited before; and whether an error may say that nothing can tell.
SITUATIONS = [
    ("as usual", nothing, nothing, False, False),
    ("signals at 12 Hz", nothing, signals(12), False, False),
    ("signals at 100 Hz", nothing, signals(100), False, False),
    ("signals at 1000 Hz", nothing, signals(1000), False, False),
    ("RLIMIT_NOFILE 0", nothing, allow_no_descriptor, False, True),
    ("RLIMIT_NOFILE 0, has waited", nothing, allow_no_descriptor, True, True),
    ("no descriptor free", nothing, use_all_descriptors, False, True),
    ("no descriptor free, has waited", nothing, use_all_descriptors, True, True),
    ("no pidfds", no_pidfds, nothing, False, False),
    ("no pidfds, RLIMIT_NOFILE 0, has waited", no_pidfds, allow_no_descriptor, True, True),
    ("0 to 2 closed", close_standard_files, nothing, False, False),
    ("numbers taken", nothing, take_numbers, False, True),
    ("numbers taken, has waited", nothing, take_numbers, True, True),
]

ERRORS = {errno.EMFILE, errno.ENOBUFS}  # of those that may say that nothing can tell
DEATHS = (ringcast.WriterGone, ringcast.ReaderDied)

# ---- The processes -------------------------------------------------------------------------------


class Own:
    """What the waiting process has, beside its Reader or Writer."""

    def __init__(self):
        self.loop, self.poll = asyncio.new_event_loop(), select.epoll()
        self.most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self.kept, self.handle = [], None
        self.before = self.numbers()

    @staticmethod
    def numbers():
        return {int(number) for number in os.listdir("/proc/self/fd")}


def process(function, *args):
    """A process that calls the function, made by fork, as every test needs many."""
    pid = os.fork()
    if pid == 0:
        try:
            function(*args)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def victim(row, peer, store):
    _, role, make, _ = row
    if make is group:
        join_group(store, int(role != "writer"), 2)
    made = make(role == "writer", peer)
    os.write(peer, b"here")
    while made:
        signal.pause()


def wait(row, situation, peer, store, told):
    (_, role, make, begin_to_wait), (_, begin, meet, has_waited, _) = row, situation
    if make is group:
        join_group(store, int(role == "writer"), 2)
    own = Own()
    begin(own)
    made = make(role == "reader", peer)
    assert hear(peer) == b"here"
    own.handle = getattr(made, "handle", None)
    outcome = None
    try:
        call = begin_to_wait(made, own)
        if has_waited:
            with contextlib.suppress(TimeoutError):
                call(0.01)
        meet(own)
        os.write(told, b"waits")
        outcome = call()
    except BaseException as error:
        outcome = error
    signal.setitimer(signal.ITIMER_REAL, 0)
    died = isinstance(outcome, DEATHS)
    os.write(told, pickle.dumps((died, getattr(outcome, "errno", None), repr(outcome))))


def pipe_of_messages():
    return [end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]


def hear(pipe):
    assert select.select([pipe], [], [], WATCHDOG)[0], "no word from the process: it hangs"
    return os.read(pipe, 4096)


def report(row, situation, reaped):
    """
    Yields None when the processes are started, and when one is killed; then whether the report is a
    death; its errno, and all of it in words.
    """
    peer, to_peer = pipe_of_messages()
    heard, told = pipe_of_messages()
    pids = []
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        try:
            pids.append(process(victim, row, peer, store))
            pids.append(process(wait, row, situation, to_peer, store, told))
            yield None
            word = hear(heard)
            if word == b"waits":
                os.kill(pids[0], signal.SIGKILL)
                os.waitid(os.P_PID, pids[0], os.WEXITED | (0 if reaped else os.WNOWAIT))
                if reaped:
                    del pids[0]
                yield None
                word = hear(heard)
            else:
                yield None
            yield pickle.loads(word)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            for pipe in peer, to_peer, heard, told:
                os.close(pipe)


@pytest.mark.parametrize("row", WAITS, ids=[row[0] for row in WAITS])
def test_a_death_is_told(row):
    if row[2] is group and needs.torch is None:
        pytest.skip("torch is not installed here")
    cells = [(each, (WAITS.index(row) + number) % 2 == 0) for number, each in enumerate(SITUATIONS)]
    with contextlib.ExitStack() as ends:
        reports = [ends.enter_context(contextlib.closing(report(row, *cell))) for cell in cells]
        for _ in "started", "killed":
            for each in reports:
                next(each)
        wrong = {}
        for (situation, reaped), (died, number, words) in zip(cells, map(next, reports)):
            if not died and not (situation[-1] and number in ERRORS):
                wrong[situation[0], "reaped" if reaped else "zombie"] = words
    assert not wrong
