# SPDX-License-Identifier: Apache-2.0
"""What the queues of a process know of each other: calls, answers, and exceptions that vLLM drops.

vLLM's executor sends its calls by one queue to all workers, and each worker answers by a queue of its own. A call may
name one rank that answers. If another rank raises an exception then, that rank logs the exception and sends no answer,
while the rank that answers may wait for ever, in a collective operation with the rank that has failed.

In the executor's process, a queue of answers belongs to a queue of calls if the writer of the answers, by pid, is a
reader of the calls. A wait for an answer tells how far each worker has come, and looks for failures in the queues of
the other workers. A look passes over the queues in use by other threads.

The death of a worker ends all waits for answers: the awaited worker may wait for the dead worker, in a collective
operation. The queue of calls learns of the death within milliseconds, and cancels the queues of answers. The answers
that have arrived are received first.

In a worker's process, watch() puts a Called in place of the worker. An exception of the method that a call names is
sent as a frame with its own tag in the worker's queue of answers, and raised on to vLLM. The frame has the number of
answers that each rank owes by then: a wait compares the number with the rank's answers so far, and raises in the wait
for the failed call's answer alone. Then the executor drops late answers of the failed call: else the next call would
get such an answer.
"""

import contextlib
import errno
import os
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, NoReturn, Optional, Tuple

import ringcast
from ringcast._allowed import printable
from ringcast._group.config import MOST_CHARACTERS, name_of

# How many workers a warning names, besides the awaited one.
_MOST_NAMED = 8


class Failure(NamedTuple):
    call: int  # the number, from 1
    method: str
    rank: Optional[str]  # the name of the one that answers; None: all do
    everyone: int  # the answers of each rank by then,
    single: Dict[str, int]  # and the further answers of one rank, by name
    text: str  # of the exception

    def owed(self, name: str) -> int:
        """The answers of the rank, with the answer to this call if the rank is to give one."""
        return self.everyone + self.single.get(name, 0)

    def is_of(self, name: str, settled: int) -> bool:
        """Whether the next answer of the rank is the answer to this call."""
        return self.rank in (None, name) and settled + 1 == self.owed(name)


# ---- In the executor -------------------------------------------------------------------------------------------------

_senders: List["weakref.ref[Any]"] = []
_receivers: List["weakref.ref[Any]"] = []
os.register_at_fork(after_in_child=_senders.clear)
os.register_at_fork(after_in_child=_receivers.clear)


def add_sender(end: Any) -> None:
    _senders.append(weakref.ref(end, _senders.remove))


def add_receiver(end: Any) -> None:
    _receivers.append(weakref.ref(end, _receivers.remove))


def _alive(ends: List["weakref.ref[Any]"]) -> Iterator[Any]:
    for reference in list(ends):
        end = reference()
        if end is not None and not end.ring.closed:
            yield end


def _answers() -> Iterator[Any]:
    """The Receivers of other processes' answers. Without those on other machines."""
    # The own pid would be that of a queue with both ends here.
    return (end for end in _alive(_receivers) if end.link is None and end.ring.writer_pid != os.getpid())


def sender_of(receiver: Any) -> Any:
    """The Sender of the calls that `receiver` has the answers of, also after a death; else None."""
    found = (sender for sender in _alive(_senders) if receiver in answers_to(sender))
    return next(found, None)


def answers_to(sender: Any) -> List[Any]:
    """The Receivers of the answers to the calls of `sender`. Without the answers from other machines."""
    if not sender.sends_calls:
        return []
    return [end for end in _answers() if end.ring.writer_pid in sender.readers]


def end_waits(sender: Any) -> None:
    """A worker has died: end the waits for answers."""
    for receiver in answers_to(sender):
        with contextlib.suppress(ValueError):  # closed meanwhile
            receiver.cancel()


def why_cancelled(receiver: Any) -> Exception:
    """The error of a wait that has ended with Cancelled: by the death of a worker, or by shutdown()."""
    lost = getattr(sender_of(receiver), "lost", None)
    return RuntimeError("cancelled") if lost is None else ringcast.ReaderDied(errno.EOWNERDEAD, lost)


def name_gone(error: ringcast.WriterGone, receiver: Any) -> ringcast.WriterGone:
    """The error with the rank of the worker, if the writer was a worker."""
    sender, pid = sender_of(receiver), receiver.ring.writer_pid
    if sender is None:
        return error
    text = f"{sender.readers[pid]} (pid {pid}) is gone, and all its answers were received: restart the engine"
    return ringcast.WriterGone(errno.EPIPE, text)


class Worker(NamedTuple):
    peer: ringcast.ReaderStatus  # as a reader of the calls
    answers: Any  # the Receiver
    calls: int  # that the executor has sent

    def progress(self, sender: Any) -> str:
        received = max(0, self.peer.stats.frames - sender.notices)
        with contextlib.suppress(*_IN_USE):
            return f"has received call {received} of {self.calls} and answered {self.answers.messages()}"
        return f"has received call {received} of {self.calls}"


# Another thread uses the handle; the handle is closed.
_IN_USE = RuntimeError, ValueError
_is_worker = False  # this process


def workers(sender: Any) -> List[Worker]:
    """The readers of `sender` that answer by a queue to this process. RuntimeError, ValueError: _IN_USE."""
    if _is_worker:
        return []
    answers = {end.ring.writer_pid: end for end in _answers()}
    calls = sender.ring.stats().frames - sender.notices
    return [Worker(peer, answers[peer.pid], calls) for peer in sender.ring.peers() if peer.pid in answers]


def team_of(receiver: Any) -> Tuple[Any, List[Worker]]:
    """The Sender of the calls that `receiver` has the answers of, and the workers, the awaited one first; else None.
    RuntimeError, ValueError: _IN_USE, perhaps of that Sender."""
    error = None
    for sender in _alive(_senders) if receiver.link is None and not _is_worker else ():
        try:
            found = workers(sender)
        except _IN_USE as in_use:
            error = in_use
            continue
        if any(worker.answers is receiver for worker in found):
            return sender, sorted(found, key=lambda worker: worker.answers is not receiver)
    if error is not None:
        raise error
    return None, []


def look(receiver: Any) -> bool:
    """RuntimeError: another worker has failed in the call of the awaited answer. False: there are no other workers, now
    or later."""
    if any(end.link is not None for end in _alive(_receivers)):
        return False  # the late answers of these workers could not be told apart
    found: List[Tuple[Worker, Failure]] = []
    try:
        team = team_of(receiver)[1]
        for worker in team[1:]:
            worker.answers.look_ahead()
            found += [(worker, failure) for failure in worker.answers.failures if _is_news(failure, worker, team[0])]
    except _IN_USE:
        return True
    if found:
        _give_up(team, *found[0])
    return len(team) > 1


def _is_news(failure: Failure, worker: Worker, awaited: Worker) -> bool:
    """Whether the awaited answer is to the failed call, and the executor lacks the failed worker's own answer."""
    if not failure.is_of(awaited.peer.name, awaited.answers.settled()):
        return False
    return failure.rank is not None or worker.answers.settled() < failure.owed(worker.peer.name)


def _give_up(team: List[Worker], worker: Worker, failure: Failure) -> NoReturn:
    for each in team:
        each.answers.settle(failure.owed(each.peer.name))
    raise RuntimeError(
        f"{worker.peer.name} (pid {worker.peer.pid}) has failed in call {failure.call} ({failure.method}), and the "
        f"answer of {team[0].peer.name} is awaited: {printable(failure.text, MOST_CHARACTERS)}. The log has the "
        "worker's stack trace"
    )


def describe(receiver: Any, state: Callable[[int], str]) -> Optional[str]:
    """How far the workers have come. None: no answer is awaited, or another thread uses the queues."""
    sender: Any = None
    with contextlib.suppress(*_IN_USE):
        sender, team = team_of(receiver)
    if sender is None:
        return None
    for worker in team[1:]:
        worker.answers.look_ahead()
    texts = [
        f"{worker.peer.name} (pid {worker.peer.pid}) is {state(worker.peer.pid)}, {worker.progress(sender)}"
        for worker in team[: _MOST_NAMED + 1]
    ]
    more = len(team) - len(texts)
    texts += [f"and {more} more workers"] if more else []
    return f"an answer is awaited: {'; '.join(texts)}"


def progress_by_pid(sender: Any) -> Dict[int, str]:
    """Progress of the readers of `sender`."""
    with contextlib.suppress(*_IN_USE):
        return {worker.peer.pid: f", {worker.progress(sender)}" for worker in workers(sender)}
    return {}


# ---- In a worker -----------------------------------------------------------------------------------------------------


class Calls:
    """The calls of one worker. dequeue() is in place of the queue's."""

    def __init__(self, requests: Any, answers: Any) -> None:
        self._requests = requests
        self._answers = answers
        self._owed: Dict[Any, int] = {None: 0}  # the calls, by the rank that answers; None: all ranks
        self.method: Any = None  # of the present call, until the worker is asked for the method
        self._rank: Any = None  # of the present call

    def dequeue(self, timeout: Optional[float] = None, indefinite: bool = False) -> Any:
        call = self._requests.dequeue(timeout, indefinite)
        if type(call) is tuple and len(call) == 4:
            self.method, self._rank = call[0], call[3]
            self._owed[self._rank] = self._owed.get(self._rank, 0) + 1
        return call

    def telling(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        self.method = None

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                self._tell(name, f"{type(error).__name__}: {error}")
                raise

        return call

    def _tell(self, name: str, text: str) -> None:
        single = {name_of(rank): number for rank, number in self._owed.items() if rank is not None}
        rank = None if self._rank is None else name_of(self._rank)
        failure = Failure(sum(self._owed.values()), name, rank, self._owed[None], single, text[:MOST_CHARACTERS])
        self._answers.tell_failure(tuple(failure))


class Called:
    """A worker, with the worker's attributes and class. The method that the present call names tells an exception to
    the executor, then raises the exception."""

    __slots__ = ("__weakref__", "_ringcast")

    def __init__(self, worker: Any, calls: Calls) -> None:
        _behind.__set__(self, (worker, calls))

    def __getattribute__(self, name: str) -> Any:
        worker, calls = _behind.__get__(self)
        found = getattr(worker, name)
        return calls.telling(found, name) if name == calls.method else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_behind.__get__(self)[0], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_behind.__get__(self)[0], name)


_behind: Any = vars(Called)["_ringcast"]  # the slot, which no attribute of a worker can hide


def watch(process: Any) -> None:
    """Have the exceptions of a WorkerProc's calls told. With vLLM's fault tolerance the executor awaits every rank's
    own answer, and goes on: then nothing changes."""
    global _is_worker
    _is_worker = True
    config = getattr(getattr(process.worker, "vllm_config", None), "parallel_config", None)
    requests, answers = (
        getattr(queue, "_end", None) for queue in (process.rpc_broadcast_mq, process.worker_response_mq)
    )
    if requests is None or answers is None or getattr(config, "enable_fault_tolerance", False):
        return
    calls = Calls(requests, answers)
    vars(process.rpc_broadcast_mq)["dequeue"] = calls.dequeue
    process.worker = Called(process.worker, calls)
