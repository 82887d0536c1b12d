# SPDX-License-Identifier: Apache-2.0
"""Other processes for the tests: each is told over a pipe which function to call, and answers with
what it gave.

The functions take a dict first, which lives as long as the process.
"""

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import traceback

import numpy as np

import ringcast

WATCHDOG = 120  # seconds; a test that takes longer hangs


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


def names_of_rings():
    """Of this process's rings, as `ringcast list` shows them."""
    return [ring.name for ring in ringcast.rings() if ring.pid == os.getpid()]


def serve(pipe):
    state = {"pipe": pipe}
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


class Peer:
    def __init__(self):
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self):
        return self.process.pid

    def start(self, function, *args):
        self.pipe.send((function, args))

    def message(self):
        assert self.pipe.poll(WATCHDOG), "the peer says nothing"
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

    def stop(self):
        self.pipe.close()
        self.process.join(WATCHDOG)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def state_of(pid):
    """R, S, T, Z, ..."""
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


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


# ---- What peers do -------------------------------------------------------------------------------


def attach(state, handle, name=None):
    state["reader"] = ringcast.Reader(handle, name=name)


def detach(state):
    state.pop("reader").close()


def make_writer(state, capacity):
    state["writer"] = ringcast.Writer(capacity)
    return state["writer"].handle


def receive(state, timeout=WATCHDOG):
    return state["reader"].recv(timeout)


def receive_all(state):
    return list(state["reader"])


def send_frame(writer, data, kind=ringcast.KIND_TENSORS):
    """A frame of any bytes: what commit() would refuse is written behind its back."""
    span = writer.reserve(len(data), 0)
    with memoryview(span) as view:
        view[:] = bytes(len(data))
    address = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(span))
    span.commit(kind=kind)
    ctypes.memmove(address, bytes(data), len(data))
