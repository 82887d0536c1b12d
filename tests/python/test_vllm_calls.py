# SPDX-License-Identifier: Apache-2.0
"""What vLLM's executor is told of its workers: how far each has come with its calls, and an exception of one while the
answer of another is awaited. Executor and workers are stand-ins; `make vllm-compat` has the real ones."""

import logging
import os
import re
import signal
import sys
import types

import pytest
from peers import WATCHDOG, Peer, state_of
from queues import SMALL, make, make_ready, meanwhile, the_watching_thread, watchdog  # noqa: F401

import ringcast
from ringcast.vllm import MessageQueue, _calls, _endpoints, _waits

# ---- Workers ---------------------------------------------------------------------------------------------------------


class Worker:
    def __init__(self, rank):
        self.rank = rank

    def add(self, number):
        return number + 1

    def meet(self, failing, fifo):
        """As a collective operation: without the rank that fails, rank 0 waits."""
        if self.rank == failing:
            raise ValueError(f"no memory on {failing}")
        if self.rank == 0:
            open(fifo).close()
        return "met"

    def hold(self, fifo):
        open(fifo).close()

    def leave(self, rank):
        if self.rank == rank:
            raise SystemExit

    def fail(self, *failing):
        if self.rank in failing:
            raise KeyError("lost")
        return "fine"


class Process:
    """As a WorkerProc: the rank that a call names answers, or all do."""

    def __init__(self, handle, rank):
        self.rank = rank
        self.worker = Worker(rank)
        self.rpc_broadcast_mq = MessageQueue.create_from_handle(handle, rank)
        self.worker_response_mq = MessageQueue(1, 1)

    def loop(self):
        while True:
            method, args, rest, rank = self.rpc_broadcast_mq.dequeue(indefinite=True)
            if method == "end":
                return
            try:
                output = True, getattr(self.worker, method)(*args, **rest)
            except Exception as error:
                output = False, str(error)
            if rank in (None, self.rank):
                self.worker_response_mq.enqueue(output)


def make_worker(state, handle, rank):
    state["process"] = Process(handle, rank)
    return state["process"].worker_response_mq.export_handle()


def run(state):
    process = state.pop("process")
    process.rpc_broadcast_mq.wait_until_ready()
    process.worker_response_mq.wait_until_ready()
    _calls.watch(process)
    process.loop()


class Executor:
    def __init__(self, peers, **options):
        self.calls = MessageQueue(len(peers), len(peers), **options)
        handles = [peer.call(make_worker, self.calls.handle, rank) for rank, peer in enumerate(peers)]
        self.answers = [MessageQueue.create_from_handle(handle, 0) for handle in handles]
        for peer in peers:
            peer.start(run)
        for queue in self.calls, *self.answers:
            queue.wait_until_ready()

    def send(self, method, *args, rank=None):
        self.calls.enqueue((method, args, {}, rank))

    def call(self, method, *args, rank=None):
        self.send(method, *args, rank=rank)
        return [self.answers[one].dequeue() for one in (range(len(self.answers)) if rank is None else [rank])]


@pytest.fixture(scope="module")
def pair():
    peers = [Peer(), Peer()]
    yield peers
    for peer in peers:
        peer.stop()


@pytest.fixture(autouse=True)
def this_is_the_executor(monkeypatch):
    monkeypatch.setattr(_calls, "_is_worker", False)


@pytest.fixture
def start(pair):
    started = []

    def start(**options):
        started.append(Executor(pair, **options))
        return started[0]

    yield start
    started[0].send("end")
    for peer in pair:
        peer.finish()
    vars(started[0]).clear()  # pytest keeps the executor itself


@pytest.fixture
def executor(start):
    return start()


@pytest.fixture
def looks(monkeypatch):
    """How often a wait has looked for failures."""
    seen, look = [], _calls.look
    monkeypatch.setattr(_endpoints, "_LOOK", 0.001)
    monkeypatch.setattr(_calls, "look", lambda receiver: (look(receiver), seen.append(1))[0])
    return seen


@pytest.fixture
def fifo(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    return str(tmp_path / "fifo")


# ---- Exceptions ------------------------------------------------------------------------------------------------------

# The calls before, each with the rank that answers, and the rank of the call that fails.
HISTORIES = {
    "first": ([], 0),
    "all answer": ([None], None),
    "one answers": ([0, 0], 0),
    "another has answered": ([1, None, 1, 1], 0),
    "another has answered, then all": ([0, 1, 1], None),
}


@pytest.mark.parametrize("history", HISTORIES)
def test_an_exception_reaches_the_wait_for_the_answer_of_another_rank(executor, pair, looks, fifo, history):
    before, rank = HISTORIES[history]
    for one in before:
        executor.call("add", 1, rank=one)
    executor.send("meet", 1, fifo, rank=rank)
    text = (
        rf"rank 1 \(pid {pair[1].pid}\) has failed in call {len(before) + 1} \(meet\), and the answer of rank 0 is "
        "awaited: ValueError: no memory on 1. The log has the worker's stack trace"
    )
    with pytest.raises(RuntimeError, match=text):
        executor.answers[0].dequeue()
    open(fifo, "w").close()  # the answers that come after all are not the next call's
    assert executor.call("add", 10) == [(True, 11), (True, 11)]


def test_a_wait_for_an_earlier_answer_goes_on(executor, looks, fifo, tmp_path):
    """Calls may be under way together: the failure is told in the wait for the answer of the call that failed."""
    os.mkfifo(tmp_path / "first")
    executor.send("meet", None, str(tmp_path / "first"), rank=0)
    executor.send("meet", 1, fifo, rank=0)
    with meanwhile(executor.answers[0].dequeue) as outcome:
        while len(looks) < 3 and not outcome:
            pass
        open(tmp_path / "first", "w").close()
    assert outcome == [(True, "met")]
    with pytest.raises(RuntimeError, match="has failed in call 2"):
        executor.answers[0].dequeue()
    open(fifo, "w").close()
    assert executor.call("add", 10, rank=0) == [(True, 11)]


@pytest.mark.parametrize("history", HISTORIES)
def test_an_exception_in_a_call_that_was_answered_is_none_of_a_later_wait(executor, looks, fifo, history):
    before, rank = HISTORIES[history]
    for one in before:
        executor.call("add", 1, rank=one)
    executor.call("fail", 1, rank=rank)
    executor.send("meet", None, fifo, rank=0)
    with meanwhile(executor.answers[0].dequeue) as outcome:
        while len(looks) < 3 and not outcome:
            pass
        open(fifo, "w").close()
    assert outcome == [(True, "met")]


def test_the_exception_of_the_rank_that_answers_goes_as_in_vllm(executor, looks):
    assert executor.call("fail", 0, rank=0) == [(False, "'lost'")]
    assert executor.call("fail", 0, 1) == [(False, "'lost'")] * 2
    assert executor.call("add", 1) == [(True, 2)] * 2


def until_there(answers, count):
    with ringcast.Tap(answers.handle.buffer_handle) as tap:
        while sum(peer.lag_frames for peer in tap.peers()) < count:
            pass


class Unloadable:
    def __reduce__(self):
        return int, ("no number",)


def test_what_is_looked_past_keeps_its_order_and_its_errors():
    writer, reader = make_ready()
    for value in 1, Unloadable(), TimeoutError("a value"), 2:
        writer.enqueue(value)
    writer._end.tell_failure(tuple(_calls.Failure(1, "add", None, 1, {}, "a text")))
    end = reader._end
    end.look_ahead()
    assert end.messages() == 0 and end.failures[-1].text == "a text"
    assert reader.dequeue() == 1
    with pytest.raises(ValueError, match="no number"):
        reader.dequeue()
    assert str(reader.dequeue()) == "a value"
    writer.enqueue(3)
    assert [reader.dequeue(), reader.dequeue()] == [2, 3]
    assert end.messages() == 5


def test_a_look_leaves_what_it_cannot_hold_in_the_ring():
    count = 2 * _endpoints.LEASES
    writer, reader = make_ready(max_chunks=count)
    for value in range(count):
        writer.enqueue(value)
    for _ in range(2):
        reader._end.look_ahead()
        assert len(reader._end._early) == _endpoints.LEASES
    assert [reader.dequeue() for _ in range(count)] == list(range(count))


def test_two_failed_calls_are_told_in_the_waits_for_their_own_answers(executor, looks, fifo):
    executor.send("meet", 1, fifo, rank=0)
    executor.send("fail", 1, rank=0)
    with pytest.raises(RuntimeError, match=r"has failed in call 1 \(meet\)"):
        executor.answers[0].dequeue()
    open(fifo, "w").close()
    until_there(executor.answers[0], 2)  # else a look finds the failure of call 2 first
    assert executor.answers[0].dequeue() == (True, "fine")


def test_a_failure_that_the_executor_has_is_not_raised_again(executor, looks, fifo):
    """As vLLM: the first failed answer ends the wait, and the other ranks' answers to that call are never asked for."""
    executor.send("fail", 0)
    assert executor.answers[0].dequeue() == (False, "'lost'")
    executor.send("meet", None, fifo)
    assert executor.answers[1].dequeue() == (True, "fine")  # of the first call, as in vLLM
    open(fifo, "w").close()
    assert executor.answers[0].dequeue() == executor.answers[1].dequeue() == (True, "met")


def test_a_late_answer_that_cannot_be_unpacked_is_dropped_too():
    writer, reader = make_ready()
    writer.enqueue(Unloadable())
    writer.enqueue(1)
    reader._end.settle(1)
    assert reader.dequeue() == 1 and reader._end.settled() == 2


def test_what_came_before_an_end_of_the_wait_for_all_is_kept():
    writer, (reader,) = make()
    with meanwhile(reader.wait_until_ready) as outcome:
        writer.enqueue("first")
        while writer._end.ring.peers()[0].lag:
            pass
        reader.shutdown()
    assert str(outcome[0]) == "cancelled"
    assert reader.dequeue(timeout=0) == "first"


def test_a_look_at_a_closed_queue_ends():
    _, reader = make_ready()
    reader.shutdown()
    reader._end.look_ahead()


def test_failures_that_nobody_reads_stop_no_worker(monkeypatch):
    monkeypatch.setattr(_endpoints, "_TELL_SECONDS", 0.01)
    writer, reader = make_ready(**SMALL)
    for call in range(3 * SMALL["max_chunks"]):
        writer._end.tell_failure(tuple(_calls.Failure(call, "add", "rank 0", 0, {}, "a text")))
    reader._end.look_ahead()
    writer.enqueue(1)
    assert reader.dequeue() == 1


def test_what_another_thread_uses_is_passed_over(executor, looks, every_millisecond, fifo):
    """Each thread waits for one worker, and looks at the other; a third queue has a thread that waits for room."""
    full, slow = make_ready(**SMALL)
    for _ in range(SMALL["max_chunks"]):
        full.enqueue(0)
    with meanwhile(lambda: full.enqueue(1)) as sent:
        executor.send("meet", None, fifo)
        with meanwhile(executor.answers[1].dequeue) as one:
            with meanwhile(executor.answers[0].dequeue) as other:
                while len(looks) < 10 and not other:
                    pass
                open(fifo, "w").close()
        assert (one, other) == ([(True, "met")], [(True, "met")])
        assert [slow.dequeue() for _ in range(SMALL["max_chunks"] + 1)][-1] == 1
    assert sent == [None]


# ---- What is seen of a call in a worker ------------------------------------------------------------------------------


class Told(list):
    tell_failure = list.append


def called(worker, method):
    told = Told()
    calls = _calls.Calls(types.SimpleNamespace(dequeue=lambda *_: (method, (), {}, 2)), told)
    calls.dequeue()
    return _calls.Called(worker, calls), told


class Outer(Worker):
    def both(self):
        try:
            self.fail(self.rank)
        except KeyError:
            return "caught"


def test_only_what_leaves_the_called_method_is_told():
    worker, told = called(Outer(0), "both")
    assert worker.both() == "caught" and told == []
    worker, told = called(Outer(0), "fail")
    with pytest.raises(KeyError) as raised:
        worker.fail(0)
    assert str(raised.value) == "'lost'"
    assert told == [(1, "fail", "rank 2", 0, {"rank 2": 1}, "KeyError: 'lost'")]
    with pytest.raises(KeyError):
        worker.fail(0)  # the next call has not come
    assert len(told) == 1
    worker, told = called(Outer(0), b"a pickled function")
    with pytest.raises(KeyError):
        worker.fail(0)
    assert told == []


def test_all_else_of_a_worker_is_its_own():
    inner = Worker(7)
    worker, told = called(inner, "add")
    assert isinstance(worker, Worker) and worker.rank == 7 and not hasattr(worker, "device")
    worker.device = "cpu"
    assert inner.device == worker.device == "cpu"
    del worker.device
    assert not hasattr(inner, "device")
    assert worker.add(1) == 2 and told == []


@pytest.mark.parametrize("tolerant", [False, True])
def test_with_fault_tolerance_nothing_changes(tolerant):
    calls, reader = make_ready()
    worker = Worker(0)
    worker.vllm_config = types.SimpleNamespace(parallel_config=types.SimpleNamespace(enable_fault_tolerance=tolerant))
    process = types.SimpleNamespace(worker=worker, rpc_broadcast_mq=reader, worker_response_mq=MessageQueue(1, 1))
    _calls.watch(process)
    assert (process.worker is worker) == ("dequeue" not in vars(reader)) == tolerant


# ---- Warnings --------------------------------------------------------------------------------------------------------


@pytest.fixture
def every_millisecond(monkeypatch):
    monkeypatch.setenv("VLLM_RINGBUFFER_WARNING_INTERVAL", "0.001")


def until_logged(caplog, pattern):
    while not any(re.search(pattern, record.getMessage()) for record in list(caplog.records)):
        pass


def stop(peer):
    os.kill(peer.pid, signal.SIGSTOP)
    while state_of(peer.pid) != "T":
        pass


def test_a_stopped_worker_is_told_with_its_calls_and_that_it_goes_on(executor, pair, every_millisecond, caplog):
    executor.call("add", 1)
    executor.call("add", 1, rank=1)
    stop(pair[1])
    executor.send("add", 5)
    assert executor.answers[0].dequeue() == (True, 6)
    with meanwhile(executor.answers[1].dequeue) as outcome:
        try:
            until_logged(
                caplog,
                r"No available shared memory broadcast block found in \d+ seconds: an answer is awaited: rank 1 "
                rf"\(pid {pair[1].pid}\) is stopped by a signal or a debugger, has received call 2 of 3 and answered "
                rf"2; rank 0 \(pid {pair[0].pid}\) is alive, has received call 3 of 3 and answered 2$",
            )
        finally:
            os.kill(pair[1].pid, signal.SIGCONT)
    assert outcome == [(True, 6)]
    assert re.fullmatch(
        r"The shared memory broadcast goes on after \d+ seconds", [record.getMessage() for record in caplog.records][-1]
    )


def test_a_worker_that_holds_up_the_calls_is_told_with_its_answers(start, pair, every_millisecond, caplog):
    executor = start(**SMALL)
    executor.call("add", 1)
    stop(pair[1])
    with meanwhile(lambda: [executor.send("add", 1, rank=0) for _ in range(SMALL["max_chunks"] + 1)]):
        try:
            until_logged(caplog, r"rank 1 \(pid \d+\) is stopped .* has received call 1 of 3 and answered 1$")
        finally:
            os.kill(pair[1].pid, signal.SIGCONT)
    assert [executor.answers[0].dequeue(timeout=WATCHDOG) for _ in range(3)] == [(True, 2)] * 3


@pytest.mark.parametrize(
    "engine, name", [(None, "ringcast.vllm"), ("sglang", "sglang.ringcast"), ("vllm.logger", "its own")]
)
def test_the_logger_is_of_the_engine(monkeypatch, engine, name):
    for module in "sglang", "vllm.logger":
        monkeypatch.delitem(sys.modules, module, raising=False)
    if engine is not None:
        module = types.SimpleNamespace(init_logger=lambda _: logging.getLogger("its own"))
        monkeypatch.setitem(sys.modules, engine, module)
    assert _waits.engine_logger().name == name
