# SPDX-License-Identifier: Apache-2.0
"""Whoever waits for a process learns of its death, or why nothing can tell: in each situation that a program may be in,
and whether or not somebody waits for the dead process.

As a program it prints the time from the kill to the report, for each line of the table the median and the worst of
ROUNDS in ms:
  python tests/python/test_deaths_told.py [ROUNDS [WORD...]]    with a WORD: the lines that have one of the words
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
import statistics
import sys
import time
import traceback

import pytest

import ringcast

WATCHDOG = 30  # seconds; a wait that takes longer hangs
MESSAGE = bytes(300)

# ---- Who waits ---------------------------------------------------------------------------------------------------
# Each takes the handle and what the process has made beforehand, and returns the call: it waits for `timeout`, or for
# ever, and raises. The victim is the writer of the handle, or a reader.


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

    return call


WAITS = [
    ("recv", "writer", receive),
    ("next of a tap", "writer", tap),
    ("epoll of fileno", "writer", poll_for_frame),
    ("arecv", "writer", arecv),
    ("send", "reader", send),
    ("epoll of room_fileno", "reader", poll_for_room),
    ("asend", "reader", asend),
    ("check and epoll of fileno", "reader", check),
    ("wait_readers", "reader", count),
]

# ---- In which situation ------------------------------------------------------------------------------------------


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
    """As a daemon does, which closes what it doesn't know and opens files of its own: they are quiet pipes here."""
    quiet, _ = os.pipe()
    for number in own.numbers() - own.before - {quiet}:
        os.dup2(quiet, number)


# What the process does before it has a ring, and what when it is about to wait; whether it has waited before; and
# whether an error may say that nothing can tell.
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

# ---- The processes -----------------------------------------------------------------------------------------------


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


def victim(role, handles, told):
    ring = ringcast.Writer(1 << 12) if role == "writer" else ringcast.Reader(os.read(handles, 200).decode())
    os.write(told, ring.handle.encode() if role == "writer" else b"here")
    while True:
        signal.pause()


def wait(row, situation, handles, told):
    (_, role, make), (_, begin, meet, has_waited, _) = row, situation
    own = Own()
    begin(own)
    if role == "writer":
        own.handle = os.read(handles, 200).decode()
        ring = ringcast.Reader(own.handle)
    else:
        ring = ringcast.Writer(1 << 12)
        os.write(told, ring.handle.encode())
        ring.wait_readers(1, WATCHDOG)
    outcome = None
    try:
        call = make(ring, own)
        if has_waited:
            with contextlib.suppress(TimeoutError):
                call(0.01)
        meet(own)
        os.write(told, b"waits")
        outcome = call()
    except BaseException as error:
        outcome = error
    now = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0)
    died = isinstance(outcome, DEATHS)
    os.write(told, pickle.dumps((now, died, getattr(outcome, "errno", None), repr(outcome))))


def pipe_of_messages():
    return [end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]


def read(pipe):
    assert select.select([pipe], [], [], WATCHDOG)[0], "no word from the process: it hangs"
    return os.read(pipe, 4096)


def report(row, situation, reaped):
    """The time from the kill to the report, in ms; whether the report is a death; its errno, and all of it in words."""
    role = row[1]
    handles, to_handles = pipe_of_messages()
    heard, told = pipe_of_messages()
    heard_of_victim, told_by_victim = pipe_of_messages()
    pids = []
    try:
        pids.append(process(victim, role, handles, told_by_victim))
        if role == "writer":
            os.write(to_handles, read(heard_of_victim))
        pids.append(process(wait, row, situation, handles, told))
        if role == "reader":
            os.write(to_handles, read(heard))
            read(heard_of_victim)
        word = read(heard)
        if word == b"waits":
            killed = time.monotonic()
            os.kill(pids[0], signal.SIGKILL)
            os.waitid(os.P_PID, pids[0], os.WEXITED | (0 if reaped else os.WNOWAIT))
            if reaped:
                del pids[0]
            word = read(heard)
        else:
            killed = time.monotonic()
        now, died, number, words = pickle.loads(word)
        return 1000 * (now - killed), died, number, words
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for pipe in handles, to_handles, heard, told, heard_of_victim, told_by_victim:
            os.close(pipe)


def name(row):
    return row[0]


@pytest.mark.parametrize("situation", SITUATIONS, ids=name)
@pytest.mark.parametrize("row", WAITS, ids=name)
def test_a_death_is_told(row, situation):
    for reaped in True, False:
        _, died, number, words = report(row, situation, reaped)
        assert died or (situation[-1] and number in ERRORS), words


def main(rounds=20, *words):
    print(f"{'ms from the kill to the report, of ' + str(rounds):66} median  worst")
    for row in WAITS:
        for situation in SITUATIONS:
            for reaped in True, False:
                line = f"{row[0]}, {situation[0]}, {'reaped' if reaped else 'zombie'}"
                if words and not any(word in line for word in words):
                    continue
                reports = [report(row, situation, reaped) for _ in range(int(rounds))]
                times = [ms for ms, *_ in reports]
                why = {"" if died else os.strerror(number) if number else text for _, died, number, text in reports}
                print(
                    f"{line:66} {statistics.median(times):6.1f} {max(times):6.1f}  {'; '.join(sorted(why))}", flush=True
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
