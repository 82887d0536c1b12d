# SPDX-License-Identifier: Apache-2.0
"""
Processes for the tests: one is started, brought to a point or a state, stopped, killed or let go
there; and then one looks at what is left.

    def send_half(state, handle):                # runs in the peer; `state` lives as long as it
        state["writer"].reserve(100)
        state.at("half")                         # tells, and stands there until it is to go on
        return "done"

    with Peer() as peer:                         # the fixtures `peer` and `crew` give some, too
        handle = peer.call(make_writer, 1 << 16) # what the function gave, or raises what it raised
        peer.start(send_half, handle)            # begins; finish() has what it gave
        peer.reach("half")
        peer.end("killed")                       # or another of ENDS
    assert what_is_left() == before              # as after each test, by the fixture nothing_left

Peer(forked=True) is a fork of this process: it begins at once, has what is there already, and can
stay a zombie. in_a_fork(function) calls a closure in a fork.

In place of reach(): sleeps() waits until the peer waits in the kernel; once_it_waits(handle) until
anybody waits on a ring. A call in a thread is Receiving (receiving.py), and is_in_use(handle) tells
that the thread has come to it. Whatever else is to become true: until(condition). No test sleeps
for it, and none has a time limit but Clock's, which does not run while this process stands still.
"""

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import time
import traceback
import weakref

import numpy as np

import ringcast

WATCHDOG = 120  # seconds; a test that takes longer hangs

# ---- Waiting -------------------------------------------------------------------------------------


class Clock:
    """
    Seconds that this process has had: a look that comes late, as the process stood still, counts as
    one that was in time.
    """

    def __init__(self, seconds=WATCHDOG):
        self.left, self.seen = seconds, time.monotonic()

    def runs(self):
        """Whether there is time left. To be asked again and again."""
        now = time.monotonic()
        self.left -= min(now - self.seen, 0.1)
        self.seen = now
        return self.left > 0


def until(condition, why="it does not come true"):
    """What the condition gives, once that is true."""
    clock = Clock()
    while True:
        found = condition()
        if found:
            return found
        assert clock.runs(), why
        time.sleep(0.0005)


def is_in_use(handle):
    """Whether another thread is in a call of this Reader, Writer or Tap."""
    try:
        handle.info()
    except RuntimeError:
        return True
    return False


def waits_of(tap):
    """How often anybody has begun to wait on the ring: for room, or for a frame."""
    return tap.stats().waits + sum(peer.stats.waits for peer in tap.peers())


@contextlib.contextmanager
def once_it_waits(handle):
    """The end of the block is reached when somebody has begun to wait on the ring."""
    with ringcast.Tap(handle) as tap:
        before = waits_of(tap)
        yield
        until(lambda: waits_of(tap) > before)


def state_of(pid):
    """R, S, T, Z, ..."""
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


# ---- What is left --------------------------------------------------------------------------------


def descriptors():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the one that listed them
            continue
        if "/matplotlib/" not in target:  # keeps its fonts open
            found[number] = target
    return found


def ring_mappings():
    with open("/proc/self/maps") as maps:
        return sorted(line.split()[0] for line in maps if "memfd:ringcast" in line)


def children():
    """The processes that this one has started and has not waited for."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as listed:
            found.update(map(int, listed.read().split()))
    return found


def what_is_left():
    return descriptors(), ring_mappings(), children()


def names_of_rings():
    """Of this process's rings, as `ringcast list` shows them."""
    return [ring.name for ring in ringcast.rings() if ring.pid == os.getpid()]


# ---- Peers ---------------------------------------------------------------------------------------


class State(dict):
    """What a peer has made; "pipe" leads to the test."""

    def at(self, point):
        self["pipe"].send(point)
        self["pipe"].recv()


def serve(pipe):
    state = State(pipe=pipe)
    while True:
        try:
            function, args = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer = True, function(state, *args)
        except Exception as error:
            answer = False, (error, traceback.format_exc())
        pipe.send(answer)


class Forked:
    """A fork, with the part of multiprocessing.Process that a Peer uses."""

    def __init__(self, target, args, ours):
        self.pid = os.fork()
        self.is_reaped = False
        if self.pid == 0:
            try:
                ours.close()
                target(*args)
            finally:
                os._exit(0)

    def kill(self):
        if not self.is_reaped:
            os.kill(self.pid, signal.SIGKILL)

    def join(self, timeout=None):
        """With a timeout: if it ends in time, as whoever has closed the pipe asks it to."""
        clock = Clock(timeout or WATCHDOG)
        while not self.is_reaped and clock.runs():
            self.is_reaped = os.waitpid(self.pid, os.WNOHANG)[0] != 0
            time.sleep(0.0005)

    def is_alive(self):
        return not self.is_reaped

    def close(self):
        pass


class Peer:
    def __init__(self, forked=False):
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        if forked:
            self.process = Forked(serve, (theirs,), self.pipe)
        else:
            self.process = context.Process(target=serve, args=(theirs,), daemon=True)
            self.process.start()
        theirs.close()
        self.is_stopped = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def pid(self):
        return self.process.pid

    def start(self, function, *args):
        self.pipe.send((function, args))

    def message(self):
        until(lambda: self.pipe.poll(0.05), "the peer says nothing")
        return self.pipe.recv()

    def finish(self):
        succeeded, result = self.message()
        if succeeded:
            return result
        error, trace = result
        raise error from RuntimeError(trace)

    def call(self, function, *args):
        self.start(function, *args)
        return self.finish()

    def reach(self, point):
        """Returns when its function is there, and stands there."""
        told = self.message()
        assert told == point, told

    def go_on(self):
        self.pipe.send(None)

    def is_in(self, states):
        """Returns when it is in one of these states, of ps."""
        until(lambda: state_of(self.pid) in states)

    def sleeps(self):
        self.is_in("S")

    def end(self, how):
        """In one of the ways of ENDS."""
        ENDS[how](self)

    def stop(self):
        self.pipe.close()
        if self.is_stopped:
            os.kill(self.pid, signal.SIGCONT)
        self.process.join(WATCHDOG)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def kill(peer):
    peer.process.kill()
    peer.process.join()
    peer.is_stopped = False


def make_zombie(peer):
    """It is dead, and nobody has asked for its status."""
    peer.process.kill()
    os.waitid(os.P_PID, peer.pid, os.WEXITED | os.WNOWAIT)


def leave(peer):
    """It closes what it has, and ends."""
    peer.call(close_all)
    peer.pipe.close()
    peer.process.join()


def suspend(peer):
    os.kill(peer.pid, signal.SIGSTOP)
    peer.is_stopped = True
    peer.is_in("T")


def go_on(peer):
    os.kill(peer.pid, signal.SIGCONT)
    peer.is_stopped = False
    peer.is_in("RS")


ENDS = {
    "killed": kill,
    "zombie": make_zombie,  # of forked ones
    "leaves": leave,
    "stopped": suspend,
    "continued": go_on,
}


def call_all(peers, function, *args):
    """
    Has all of them do it at once. Hears all of them out, even if one fails: they stay in step.
    """
    for peer in peers:
        peer.start(function, *args)
    results, errors = [], []
    for peer in peers:
        try:
            results.append(peer.finish())
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


@contextlib.contextmanager
def forked(function):
    """
    A child, made by fork, that calls it once the block is over; then what it gave is in the list.
    """
    (go, told), (reading, writing) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = b""
        try:
            signal.alarm(WATCHDOG)
            os.close(told)
            os.read(go, 1)
            answer = pickle.dumps(function())
        finally:
            os.write(writing, answer)
            os._exit(0)
    os.close(go)
    os.close(writing)
    answers = []
    try:
        yield answers
    finally:
        os.close(told)
        with open(reading, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(pid, 0)
    assert answer, "the child died"
    answers.append(pickle.loads(answer))


def in_a_fork(function):
    """What `function` gives in a child made by fork."""
    with forked(function) as answers:
        pass
    return answers[0]


# ---- What peers do -------------------------------------------------------------------------------


def attach(state, handle, name=None):
    state["reader"] = ringcast.Reader(handle, name=name)


def detach(state):
    state.pop("reader").close()


def make_writer(state, capacity):
    state["writer"] = ringcast.Writer(capacity)
    return state["writer"].handle


def close_all(state):
    for name in set(state) - {"pipe"}:
        state.pop(name).close()


def receive(state, timeout=WATCHDOG):
    return state["reader"].recv(timeout)


def receive_all(state):
    return list(state["reader"])


# ---- Beside processes ----------------------------------------------------------------------------


class Runs:
    """Its unpickling calls the function, here: a user's code in the middle of a call."""

    known = weakref.WeakValueDictionary()

    def __init__(self, call):
        self.call = call
        Runs.known[id(self)] = self

    def __reduce__(self):
        return run_of, (id(self),)


def run_of(number):
    return Runs.known[number].call()


def still_works(writer, reader):
    """Whether a ring of this process goes on, after what is in it already."""
    while True:
        try:
            reader.recv(0)
        except TimeoutError:
            break
        except ringcast.Error:
            continue
    writer.send({"a": np.arange(3)}, 0)
    return reader.recv(0)["a"].tolist() == [0, 1, 2]


def send_frame(writer, data, kind=ringcast.KIND_TENSORS):
    """A frame of any bytes: what commit() would refuse is written behind its back."""
    span = writer.reserve(len(data), 0)
    with memoryview(span) as view:
        view[:] = bytes(len(data))
    address = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(span))
    span.commit(kind=kind)
    ctypes.memmove(address, bytes(data), len(data))
