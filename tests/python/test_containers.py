# SPDX-License-Identifier: Apache-2.0
"""A queue's readers in containers that share /dev/shm with the writer's, but neither PIDs nor a
network: they receive by a relay. First with namespaces, then with readers of this process that are
told they are elsewhere."""

import contextlib
import gc
import importlib
import logging
import os
import socket
import tempfile
import threading

import numpy as np
import pytest
from peers import WATCHDOG
from queues import meanwhile, the_watching_thread, watchdog  # noqa: F401

pytest.importorskip("zmq", reason="pyzmq is not installed here")

import machines  # noqa: E402
from machines import link  # noqa: E402

import ringcast  # noqa: E402
import ringcast.vllm  # noqa: E402
from ringcast.vllm import _doors, containers  # noqa: E402

pytestmark = pytest.mark.alike
# The second imports torch, which takes seconds.
QUEUES = {"vllm": "ringcast.vllm", "sglang": "ringcast.sglang.queue"}
SMALL = {"max_chunk_bytes": 512 << 10, "max_chunks": 2}
MESSAGES = [
    None,
    {"a": [1, "two"]},
    bytes(100),
    np.arange(1 << 18),
    bytes(3 << 20),
    b"x" * (40 << 20),
    "last",
]


@contextlib.contextmanager
def own_doors(patch):
    """
    A folder for doors that no other run has, also for processes that are started; nothing is left
    in it.
    """
    with tempfile.TemporaryDirectory(dir=_doors.FOLDER) as folder:
        patch.setattr(_doors, "FOLDER", folder)
        patch.setenv("DOORS", folder)
        yield
        assert os.listdir(folder) == []


# ---- What the processes do -----------------------------------------------------------------------


def act(engine, make, *args):
    """
    Make an end of a queue, and do as told; an answer is the result, or an error's type and text.
    """
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("ringcast.vllm").addHandler(handler)
    _doors.FOLDER = os.environ.get("DOORS", _doors.FOLDER)
    kind = importlib.import_module(QUEUES[engine]).MessageQueue
    if make == "write":
        queue = kind(*args, **SMALL)
        link().send(queue.export_handle())
    else:
        queue = kind.create_from_handle(*args)
        link().send(queue._is_remote_reader)
    while True:
        what, *values = link().recv()
        if what == "end":
            return told
        try:
            link().send((None, getattr(queue, what)(*values)))
        except (RuntimeError, OSError) as error:
            link().send((type(error).__name__, str(error)))


class Actor:
    def __init__(self, machine, *args):
        self.machine = machine
        self.job = machine.start(act, *args)
        self.first = self.job.recv()

    def start(self, *what):
        self.job.send(what)

    def finish(self):
        kind, value = self.job.recv()
        return value if kind is None else (kind, value)

    def call(self, *what):
        self.start(*what)
        return self.finish()

    def kill(self):
        self.machine.kill(self.job)


@contextlib.contextmanager
def group(engine="vllm", far=2):
    """The writer and rank 0 are in one container, the ranks 1 to `far` in another."""
    with (
        pytest.MonkeyPatch.context() as patch,
        own_doors(patch),
        machines.machines(2) as (one, two),
    ):
        writer = Actor(one, engine, "write", 1 + far, 1 + far)
        handle = writer.first
        readers = [
            Actor(two if rank else one, engine, "read", handle, rank) for rank in range(1 + far)
        ]
        assert [reader.first for reader in readers] == [False] + [True] * far
        yield writer, readers


def make_ready(*actors):
    for actor in actors:
        actor.start("wait_until_ready")
    assert [actor.finish() for actor in actors] == [None] * len(actors)


@pytest.mark.parametrize("engine", QUEUES)
def test_messages_of_all_sizes_cross_in_order(engine):
    with group(engine) as (writer, readers):
        make_ready(writer, *readers)
        for message in MESSAGES:
            for reader in readers:
                reader.start("dequeue", WATCHDOG)
            assert writer.call("enqueue", message) is None
            for reader in readers:
                assert repr(reader.finish()) == repr(message)
        # max_chunks would hold the writer back without a reader that receives.
        for number in range(10):
            for reader in readers:
                reader.start("dequeue", WATCHDOG)
            writer.call("enqueue", number)
            assert [reader.finish() for reader in readers] == [number] * len(readers)
        assert readers[1].call("dequeue", 0.01)[0] == "TimeoutError"
        writer.start("end")
        assert writer.job.result() == []
        for reader in readers:
            assert reader.call("dequeue", WATCHDOG)[0] == "WriterGone"
            reader.start("end")
        assert readers[0].job.result() == []
        for reader in readers[1:]:
            (text,) = reader.job.result()
            assert "the PID namespaces differ" in text and "--pid=container" in text


def test_a_reader_that_is_killed_is_named_on_all():
    with group() as (writer, readers):
        make_ready(writer, *readers)
        readers[0].start("dequeue")
        readers[2].kill()
        assert readers[0].finish()[0] == "ReaderDied"
        kind, text = writer.call("enqueue", 1)
        assert kind == "ReaderDied" and text.startswith(
            f"rank 2 (pid {readers[2].job.pid} on machine2)"
        )
        was_relay = "which receives for rank 1" in text  # the first of the two to join is
        assert readers[1].call("dequeue", WATCHDOG)[0] == (
            "WriterGone" if was_relay else "ReaderDied"
        )


@pytest.mark.parametrize("asks", [True, False])
def test_a_reader_that_is_killed_before_it_was_attached_is_named(asks):
    with group() as (writer, readers):
        if asks:  # the writer has visited both, and waits for a third reader in vain
            readers[1].start("wait_until_ready")
        readers[1].kill()
        kind, text = writer.call("wait_until_ready")
        assert kind == "ReaderDied" and "rank 1, a reader of the message queue" in text
        assert readers[0].call("wait_until_ready")[0] == "ReaderDied"


def test_a_killed_writer_is_told():
    with group() as (writer, readers):
        make_ready(writer, *readers)
        for reader in readers:
            reader.start("dequeue")
        writer.kill()
        near, *far = [reader.finish() for reader in readers]
        assert near[0] == "WriterGone"
        for kind, text in far:
            assert (
                kind == "SendError"
                and f"the writer (pid {writer.job.pid} on machine1) has died" in text
            )


def test_the_process_of_the_same_pid_is_not_taken_for_the_writer():
    with machines.machines(2) as (one, two):
        writer = Actor(one, "vllm", "write", 1, 1)
        other = Actor(two, "vllm", "write", 1, 1)
        assert writer.job.pid == other.job.pid
        handle, theirs = writer.first, other.first
        reader = Actor(two, "vllm", "read", handle, 0)
        own = Actor(two, "vllm", "read", theirs, 0)
        assert (reader.first, own.first) == (True, False)
        make_ready(writer, reader)
        make_ready(other, own)
        writer.call("enqueue", "the writer's")
        other.call("enqueue", "the other's")
        assert (reader.call("dequeue", WATCHDOG), own.call("dequeue", WATCHDOG)) == (
            "the writer's",
            "the other's",
        )


# ---- In one process ------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch):
    """Readers made from now on find another PID namespace."""

    def tell(**differs):
        place = containers.here()._replace(**(differs or {"pid_namespace": 1}))
        monkeypatch.setattr(containers, "here", lambda: place)
        monkeypatch.setattr(containers, "_told", False)

    with own_doors(monkeypatch):
        yield tell
        gc.collect()


def make(elsewhere, readers=1):
    writer = ringcast.vllm.MessageQueue(readers, readers)
    elsewhere()
    return writer, [
        ringcast.vllm.MessageQueue.create_from_handle(writer.handle, rank)
        for rank in range(readers)
    ]


def test_before_all_are_there_every_wait_ends_in_time(elsewhere):
    writer, (reader, _) = make(elsewhere, 2)
    for timeout in 0, 0.01:
        with pytest.raises(TimeoutError, match="has not made the relay"):
            reader.dequeue(timeout)
    writer.handle.local_reader_ranks.append(2)
    writer._end._names.append("rank 2")
    with pytest.raises(
        TimeoutError, match="0 of 3 readers are attached; missing: rank 0, rank 1, rank 2"
    ):
        writer.enqueue(1, timeout=0.01)
    with meanwhile(reader.wait_until_ready) as outcome:
        reader.shutdown()
    assert repr(outcome) == "[RuntimeError('cancelled')]"
    with pytest.raises(RuntimeError, match="cancelled"):
        reader.dequeue()


def test_the_writers_end_is_told_to_readers_that_it_has_visited(elsewhere):
    writer, (reader, _) = make(elsewhere, 2)
    writer._end._names.append("rank 2")
    with pytest.raises(TimeoutError):
        writer.enqueue(1, timeout=0)
    with meanwhile(reader.wait_until_ready) as outcome:
        del writer
        gc.collect()
    assert isinstance(outcome[0], ringcast.WriterGone)


@contextlib.contextmanager
def unanswered(elsewhere, monkeypatch):
    """A queue with its relay in the making, which answers once the event is set: (writer, reader,
    event)."""
    from ringcast.vllm import zmq_hub

    answers, offer = threading.Event(), zmq_hub.ZmqHub._offer
    monkeypatch.setattr(
        zmq_hub.ZmqHub, "_offer", lambda *args: answers.wait(WATCHDOG) and offer(*args)
    )
    writer, (reader,) = make(elsewhere)
    with meanwhile(writer.wait_until_ready):
        while "has not answered yet" not in why_late(reader, 0.01):
            pass
        yield writer, reader, answers
        answers.set()
        writer.shutdown()


def why_late(reader, timeout):
    with pytest.raises(TimeoutError) as raised:
        reader.dequeue(timeout)
    return str(raised.value)


def test_a_relay_that_does_not_answer_does_not_outlast_a_timeout(elsewhere, monkeypatch):
    with unanswered(elsewhere, monkeypatch) as (writer, reader, answers):
        for timeout in 0, 0.01:
            assert (
                "the relay of the writer, of another PID namespace, has not answered"
                in why_late(reader, timeout)
            )
        answers.set()
        reader.wait_until_ready()
        writer.enqueue("by the relay")
        assert reader.dequeue(WATCHDOG) == "by the relay"


def test_a_relay_that_does_not_answer_does_not_outlast_a_shutdown(elsewhere, monkeypatch):
    with unanswered(elsewhere, monkeypatch) as (_, reader, _), meanwhile(reader.dequeue) as outcome:
        reader.shutdown()
    assert repr(outcome) == "[RuntimeError('cancelled')]"


@pytest.mark.parametrize("differs", [{"boot": "another"}, {"user": 12345}])
def test_elsewhere_is_a_place_of_this_machine_and_user(differs, elsewhere, monkeypatch):
    writer = ringcast.vllm.MessageQueue(1, 1)
    elsewhere(**differs)

    def refuse(*args, **kwargs):
        raise ringcast.AccessDenied(13, "no")

    monkeypatch.setattr(ringcast, "Reader", refuse)
    with pytest.raises(ringcast.AccessDenied):
        ringcast.vllm.MessageQueue.create_from_handle(writer.handle, 0)


def test_a_process_that_may_not_be_looked_into_has_its_relay(elsewhere, monkeypatch, caplog):
    writer = ringcast.vllm.MessageQueue(1, 1)
    with monkeypatch.context() as patch:

        def refuse(*args, **kwargs):
            raise ringcast.AccessDenied(13, "it is not dumpable")

        patch.setattr(ringcast, "Reader", refuse)
        reader = ringcast.vllm.MessageQueue.create_from_handle(writer.handle, 0)
    assert "it is not dumpable" in caplog.text
    with meanwhile(reader.wait_until_ready):
        writer.wait_until_ready()
    writer.enqueue("by the relay")
    assert reader.dequeue(WATCHDOG) == "by the relay" and reader._is_remote_reader


def test_a_rank_attaches_once(elsewhere):
    writer, _ = make(elsewhere)
    with pytest.raises(RuntimeError, match="rank 0 has attached already"):
        ringcast.vllm.MessageQueue.create_from_handle(writer.handle, 0)


# ---- Strangers at the door -----------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", b"rc1:1:2:3:4:5\nipc:///elsewhere#0\n", b"x" * 5000])
def test_a_visitor_without_the_handle_is_sent_away(said, elsewhere):
    writer, (reader,) = make(elsewhere)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(_doors._name_of_door(writer.handle.buffer_handle, "rank 0"))
        stranger.sendall(said)
        if not said:
            stranger.shutdown(socket.SHUT_RDWR)
        with pytest.raises(TimeoutError):
            reader.dequeue(0.01)
        with meanwhile(reader.wait_until_ready):
            writer.wait_until_ready()
    writer.enqueue("the writer's")
    assert reader.dequeue(WATCHDOG) == "the writer's"


@pytest.mark.parametrize("side", ["writer", "reader"])
def test_another_user_is_no_visitor_and_has_no_door(side, elsewhere, monkeypatch):
    writer, (reader,) = make(elsewhere)
    mine = os.geteuid()
    monkeypatch.setattr(_doors.os, "geteuid", lambda: mine + 1)
    if side == "reader":  # the writer comes, and the reader takes it for another user's
        monkeypatch.setattr(_doors.Visits, "_visit", visit)
    with pytest.raises(TimeoutError):
        writer.enqueue(1, timeout=0)
    assert list(writer._end._visits.waiting()) == (["rank 0"] if side == "reader" else [])
    with pytest.raises(TimeoutError):
        reader.dequeue(0.01)
    assert reader._end._door._visitor is None


def visit(visits, name):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(_doors._name_of_door(visits._handle, name))
    sock.send(visits._handle.encode() + b"\n")
    sock.setblocking(False)
    visits._open[name] = sock


def test_without_a_common_folder_there_is_an_error_and_no_wait():
    writer = ringcast.vllm.MessageQueue(1, 1)
    handle = writer.export_handle()
    handle.place = handle.place._replace(
        pid_namespace=handle.place.pid_namespace + 1, folder=handle.place.folder + 1
    )
    with pytest.raises(
        ringcast.RingNotFound, match=r"can't ask for a relay in /dev/shm \(the writer has another\)"
    ):
        ringcast.vllm.MessageQueue.create_from_handle(handle, 0)
