# SPDX-License-Identifier: Apache-2.0
"""The death of a worker reaches vLLM's executor while the answer of any worker is awaited. A worker
that leaves in order is no death. Executor and workers are stand-ins."""

import contextlib
import os
import signal
import threading

import pytest
from peers import WATCHDOG, Peer, state_of
from queues import meanwhile, once_it_waits, the_watching_thread, watchdog  # noqa: F401

import ringcast
from ringcast.vllm import MessageQueue, _endpoints

# ---- Stand-ins -----------------------------------------------------------------------------------


class Worker:
    def __init__(self, rank):
        self.rank = rank

    def add(self, number):
        return number + 1

    def hold(self, fifo):
        open(fifo).close()

    def leave(self, rank):
        if self.rank == rank:
            raise SystemExit


class Process:
    """As a WorkerProc: the rank that a call names answers, or all do."""

    def __init__(self, handle, rank):
        self.rank = rank
        self.worker = Worker(rank)
        self.rpc_broadcast_mq = MessageQueue.create_from_handle(handle, rank)
        self.worker_response_mq = MessageQueue(1, 1)

    def loop(self):
        while True:
            method, args, rank = self.rpc_broadcast_mq.dequeue(indefinite=True)
            output = getattr(self.worker, method)(*args)
            if rank in (None, self.rank):
                self.worker_response_mq.enqueue((True, output))


def make_worker(state, handle, rank):
    state["process"] = Process(handle, rank)
    return state["process"].worker_response_mq.export_handle()


def run(state):
    process = state.pop("process")
    process.rpc_broadcast_mq.wait_until_ready()
    process.worker_response_mq.wait_until_ready()
    process.loop()


class Executor:
    def __init__(self, peers, **options):
        self.calls = MessageQueue(len(peers), len(peers), **options)
        handles = [
            peer.call(make_worker, self.calls.handle, rank) for rank, peer in enumerate(peers)
        ]
        self.answers = [MessageQueue.create_from_handle(handle, 0) for handle in handles]
        for peer in peers:
            peer.start(run)
        for queue in self.calls, *self.answers:
            queue.wait_until_ready()

    def send(self, method, *args, rank=None):
        self.calls.enqueue((method, args, rank))

    def call(self, method, *args, rank=None):
        self.send(method, *args, rank=rank)
        return [
            self.answers[one].dequeue()
            for one in (range(len(self.answers)) if rank is None else [rank])
        ]


# ---- Deaths --------------------------------------------------------------------------------------


@pytest.fixture
def team():
    """Makes processes: some are killed, so each test has its own. team(size) -> the peers."""
    peers = []

    def make(size):
        peers.extend(Peer() for _ in range(size))
        return peers

    yield make
    for peer in peers:
        if peer.process.is_alive():
            peer.process.kill()  # in a call without an end
        peer.stop()


def kill(peer):
    """The pid stays taken: nothing has waited for the process."""
    os.kill(peer.pid, signal.SIGKILL)


def until_lost(queue):
    while queue._end.lost is None:
        pass


@contextlib.contextmanager
def waiting(queue, call):
    """The block runs when the call, in another thread, waits; its outcome is there after it."""
    with contextlib.ExitStack() as stack:
        with once_it_waits(queue):
            outcome = stack.enter_context(meanwhile(call))
        yield outcome


def assert_named(error, peers, rank, last):
    assert isinstance(error, (ringcast.ReaderDied, ringcast.WriterGone))
    text = str(error)
    assert text.startswith(f"rank {rank} (pid {peers[rank].pid})") and "restart the engine" in text
    if isinstance(error, ringcast.ReaderDied):
        assert ("the last call was call" in text) == (last > 0)
        assert not last or f"was call {last}:" in text


# How many workers; who dies, whose answer is awaited, and whether somebody waits when it dies.
DEATHS = [
    (2, 0, 0, True),
    (2, 1, 0, True),
    (2, 0, 1, False),
    (3, 2, 1, True),
    (3, 1, 0, False),
    (3, 1, 1, False),
]


@pytest.mark.parametrize("size, victim, awaited, at_once", DEATHS)
def test_a_death_ends_the_wait_for_any_answer(team, tmp_path, size, victim, awaited, at_once):
    """All workers are in a collective operation, which has no end without the dead worker."""
    os.mkfifo(tmp_path / "fifo")
    peers = team(size)
    executor = Executor(peers)
    executor.call("add", 1)
    executor.send("hold", str(tmp_path / "fifo"), rank=awaited)
    answers = executor.answers[awaited]
    if at_once:
        with waiting(answers, answers.dequeue) as outcome:
            kill(peers[victim])
        assert_named(outcome[0], peers, victim, last=2)
    else:
        kill(peers[victim])
        until_lost(executor.calls)
    for _ in range(2):
        with pytest.raises(ringcast.Error) as raised:
            answers.dequeue(timeout=WATCHDOG)
        assert_named(raised.value, peers, victim, last=2)


@pytest.mark.parametrize("awaited", [0, 1])
def test_the_executor_ends_its_workers_before_the_engine_hears(team, tmp_path, caplog, awaited):
    """vLLM's thread ends with the engine's process. The death is in the log at once."""
    os.mkfifo(tmp_path / "fifo")
    peers = team(2)
    executor = Executor(peers)
    executor.send("hold", str(tmp_path / "fifo"))
    heard, order = threading.Event(), []

    def monitor():
        until_lost(executor.calls)
        heard.wait(0.2)
        order.append("workers ended")

    thread = threading.Thread(target=monitor, name="MultiprocWorkerMonitor")
    thread.start()
    kill(peers[1])
    with pytest.raises(ringcast.Error) as raised:
        executor.answers[awaited].dequeue()
    order.append("heard")
    heard.set()
    thread.join()
    assert order == ["workers ended", "heard"]
    assert_named(raised.value, peers, 1, last=1)
    assert f"rank 1 (pid {peers[1].pid})" in caplog.text


@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_ends_the_warm_up(team, victim):
    """All workers are attached, and none says that the worker is ready."""
    peers = team(3)
    calls = MessageQueue(3, 3)
    handles = [peer.call(make_worker, calls.handle, rank) for rank, peer in enumerate(peers)]
    answers = [MessageQueue.create_from_handle(handle, 0) for handle in handles]
    calls.wait_until_ready()
    with waiting(answers[0], answers[0].wait_until_ready) as outcome:
        kill(peers[victim])
    assert_named(outcome[0], peers, victim, last=0)


@pytest.mark.parametrize("first", ["an answer", "a shutdown"])
def test_what_came_before_a_death_is_told_before_it(team, first):
    peers = team(2)
    executor = Executor(peers)
    answers = executor.answers[0]
    if first == "an answer":
        executor.send("add", 1, rank=0)
        with ringcast.Tap(answers.handle.buffer_handle) as tap:
            while not sum(peer.lag_frames for peer in tap.peers()):
                pass
    else:
        answers.shutdown()
        with pytest.raises(RuntimeError, match="^cancelled$"):
            answers.dequeue()
    kill(peers[1])
    until_lost(executor.calls)
    if first == "an answer":
        assert answers.dequeue() == (True, 2)
    with pytest.raises(ringcast.ReaderDied) as raised:
        answers.dequeue()
    assert_named(raised.value, peers, 1, last=int(first == "an answer"))


# ---- Workers that leave --------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_workers_that_leave_in_any_order_are_no_deaths(team, order):
    """As at a shutdown by SIGTERM: SystemExit in the worker's loop."""
    peers = team(3)
    executor = Executor(peers)
    answers = executor.answers[0]
    with waiting(answers, answers.dequeue) as outcome:
        for rank in order:
            executor.send("leave", rank, rank="none")
            peers[rank].process.join(WATCHDOG)
            assert peers[rank].process.exitcode == 0
            assert executor.calls._end._notice() and executor.calls._end.lost is None
        assert not outcome
        executor.send("add", 1, rank=0)
    assert outcome == [(True, 2)]
    with pytest.raises(ringcast.WriterGone) as raised:
        executor.answers[1].dequeue()
    assert_named(raised.value, peers, 1, last=0)
    assert "is gone, and all its answers were received" in str(raised.value)


# ---- The other way round -------------------------------------------------------------------------


def make_executor(state):
    state["calls"] = MessageQueue(1, 1)
    return state["calls"].handle


def await_answers(state, handle):
    state["answers"] = MessageQueue.create_from_handle(handle, 0)
    state["calls"].wait_until_ready()


def get_ready(state):
    process = state["process"]
    process.rpc_broadcast_mq.wait_until_ready()
    process.worker_response_mq._end._gather(_endpoints.Wait(None))


def wait_for_a_call(state):
    process = state["process"]
    until_lost(process.worker_response_mq)
    try:
        return process.rpc_broadcast_mq.dequeue()
    except ringcast.Error as error:
        return type(error).__name__, str(error)


def test_a_worker_is_not_misled_by_the_death_of_the_executor(team):
    executor, worker = team(2)
    handle = worker.call(make_worker, executor.call(make_executor), 0)
    executor.call(await_answers, handle)
    worker.call(get_ready)
    worker.start(wait_for_a_call)
    kill(executor)
    name, text = worker.finish()
    assert name == "WriterGone" and f"(pid {executor.pid}) is gone" in text


# ---- Warnings ------------------------------------------------------------------------------------


def test_a_warning_names_the_awaited_worker_and_says_that_it_is_stopped(team, monkeypatch, caplog):
    monkeypatch.setenv("VLLM_RINGBUFFER_WARNING_INTERVAL", "0.001")
    peers = team(2)
    executor = Executor(peers)
    os.kill(peers[1].pid, signal.SIGSTOP)
    while state_of(peers[1].pid) != "T":
        pass
    executor.send("add", 5)
    with meanwhile(executor.answers[1].dequeue) as outcome:
        while f"rank 1 (pid {peers[1].pid}) is stopped" not in caplog.text:
            pass
        os.kill(peers[1].pid, signal.SIGCONT)
    assert outcome == [(True, 6)] and "goes on after" in caplog.text
