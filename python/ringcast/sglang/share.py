# SPDX-License-Identifier: Apache-2.0
"""One rank computes, and the others receive the value: tensors without pickle, hashed once, each rank at its own pace.

Every rank has a ring to the others, made when the rank first computes. Frames carry the number of the call, so that
ranks which make different calls raise an error. While a rank waits, for a value or for room in the rank's ring, the
rank takes in the frames for calls already made here. So the waiting rank with the fewest calls gets room, because all
other ranks have made the same call and take the frame in: no circle of waits can form.
"""

import contextlib
import math
import os
import threading
import time
import weakref
from collections import deque
from concurrent import futures
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch.distributed as dist

import ringcast
from ringcast._group.config import asks_for_pool, whole
from ringcast._group.endpoint import SHARE, End, Receiver, Source
from ringcast._group.packing import pack
from ringcast._group.rings import end_of, ends
from ringcast.sglang import rule
from ringcast.sglang.awaiting import Awaited, wait_for

_HASHES = (None, "sha256", "xxh3")
_STREAM = "share_once"
# After such an error nothing more comes from the ring.
_ENDS = (ringcast.WriterGone, ringcast.ReaderDied, ringcast.Evicted, ringcast.ForkedError, ringcast.Cancelled)


def share_once(
    compute: Callable[[], Any],
    nbytes: int,
    *,
    group: Any = None,
    src: Optional[int] = None,
    hash: Optional[str] = "sha256",
    how: str = "auto",
    seconds: float = 0.0,
    thread: bool = False,
) -> "Shared":
    """Have one rank of `group` compute a value for all ranks; result() returns the value and its hashes.

        shared = share_once(lambda: {"feature": load(request)}, request.nbytes, group=cpu_group)
        ...                                             # other work; shared.done() says whether result() would wait
        value, hashes = shared.result()                 # or await shared; hashes["feature"] is SGLang's hash of it

    On the rank that computes, the call runs compute(), hashes the value while copying into the ring, and returns; the
    call waits only while the slowest rank is behind by all of the ring's memory. On the other ranks the call
    returns at once, without compute().

    nbytes: of the tensors in the value, as far as known; a hint, and no limit. src: the rank in the group that
    computes; None: each rank in turn, so that N ranks compute N calls at a time. hash: "sha256", with SGLang's hash as
    the first 8 bytes, "xxh3", or None (docs/python.md). seconds: the time of compute() without hashing, if known. how:
    "share"; "local": every rank computes for itself; "auto": by the measured rule (docs/share_once.md), unless
    RINGCAST_SGLANG=1,share=local in the environment of the group's first rank says "local". thread: compute(), hash and
    pack in a thread, one call after the other; the call returns at once.

    All ranks of the group make the same calls in the same order, with the same arguments except compute, from one
    thread each; the first call, and the first call that a rank computes, is a collective. Without torch.distributed
    initialised, or in a group of one rank, every call is "local".
    TypeError, ValueError: invalid arguments. RuntimeError: the call is made inside a `compute` of share_once() or
    share_hash(). result() raises all other errors.
    """
    refuse_inside("share_once")
    _check(compute, nbytes, src, hash, how)
    sharing = sharing_of(group)
    if sharing is None:
        return _local(compute, hash, thread)
    return sharing.call(compute, nbytes, src, hash, how, seconds, thread)


class Shared(Awaited):
    """The value of one call of share_once(). source: the rank in the group that computes; None: every rank does."""

    def __init__(
        self, source: Optional[int], outcome: Any = None, sharing: "Optional[_Sharing]" = None, hashed: bool = False
    ) -> None:
        super().__init__()
        self.source = source
        self._hashed = hashed
        self._outcome: Any = None  # (value, hashes), or an exception; None: still to come
        self._traceback: Any = None
        self._sharing = sharing  # None once there is an outcome: a kept value keeps no rings
        self._made: "Optional[futures.Future[Any]]" = None  # what this rank computes
        if outcome is not None:
            self._settle(outcome)

    def done(self) -> bool:
        """Whether result() would return at once. Copies what has come out of the ring."""
        sharing = self._sharing
        if self._outcome is None and sharing is not None:
            sharing.look(self)
        return self._outcome is not None

    def result(self, timeout: Optional[float] = None) -> Tuple[Any, Any]:
        """(value, hashes). The computing rank gets the very value, each other rank a copy.

        timeout: seconds, None waits for ever; after a TimeoutError a later result() can succeed. The computing rank
        raises an error of compute(), the other ranks ringcast.SendError with the same text; the next call works.
        ringcast.WriterGone: the computing rank is gone. ringcast.ReaderDied: another rank is, by name. RuntimeError:
        the ranks made different calls.
        """
        if not self.done():
            sharing, made, until = self._sharing, self._made, until_of(timeout)
            if made is not None and not wait_for_thread(made, until):
                raise TimeoutError(f"compute() has not returned in {timeout} s")
            if sharing is not None and not sharing.wait_for(self, until):
                raise TimeoutError(f"{sharing.describe(self)} in {timeout} s")
        if isinstance(self._outcome, BaseException):
            raise self._outcome.with_traceback(self._traceback)  # or the traceback would grow each time
        outcome: Tuple[Any, Any] = self._outcome
        return outcome

    def _settle(self, outcome: Any) -> None:
        if isinstance(outcome, BaseException):
            self._traceback = outcome.__traceback__
        self._outcome, self._sharing, self._made = outcome, None, None
        self._wake()

    def _descriptors(self) -> List[int]:
        sharing = self._sharing
        return [] if sharing is None else sharing.descriptors(self)

    def __repr__(self) -> str:
        state = "to come" if self._outcome is None else "failed" if isinstance(self._outcome, Exception) else "there"
        return f"<Shared: {'local' if self.source is None else f'of rank {self.source}'}, {state}>"


def _check(compute: Callable[[], Any], nbytes: int, src: Optional[int], hash: Optional[str], how: str) -> None:
    if not callable(compute):
        raise TypeError(f"compute must be a function without arguments, not {type(compute).__name__}")
    if whole("nbytes", nbytes) < 0:
        raise ValueError(f"nbytes must be 0 or more, not {nbytes}")
    if src is not None:
        whole("src", src)
    if hash not in _HASHES:
        raise ValueError(f"hash must be one of {', '.join(map(repr, _HASHES))}, not {hash!r}")
    if how not in rule.HOW:
        raise ValueError(f"how must be one of {', '.join(rule.HOW)}, not {how!r}")


class _Made(NamedTuple):
    """What compute() came to. packed: None if the value is to be sent as it is."""

    value: Any = None
    packed: Any = None
    failure: Optional[BaseException] = None

    def outcome(self, hash: Optional[str]) -> Any:
        if self.failure is not None:
            return self.failure
        return self.value, None if hash is None else self.packed.hashes


def _make(compute: Callable[[], Any], hash: Optional[str], packs: bool, takes_cuda: bool) -> _Made:
    try:
        value = computing(compute)
        return _Made(value, pack(value, takes_cuda, hash) if packs else None)
    except BaseException as error:
        return _Made(failure=error)


def _local(compute: Callable[[], Any], hash: Optional[str], thread: bool) -> Shared:
    """Every rank for itself."""
    if not thread:
        made = _make(compute, hash, hash is not None, asks_for_pool())
        if made.failure is not None and not isinstance(made.failure, Exception):
            raise made.failure
        return Shared(None, made.outcome(hash))
    shared = Shared(None)

    def run() -> None:
        shared._settle(_make(compute, hash, hash is not None, asks_for_pool()).outcome(hash))

    shared._made = in_thread(run)
    return shared


_threads: Dict[int, futures.ThreadPoolExecutor] = {}  # of this process: a fork has none of the parent's


def in_thread(function: Callable[..., Any], *arguments: Any) -> "futures.Future[Any]":
    """Run a function in this process's thread for what is computed: one call after the other."""
    thread = _threads.get(os.getpid())
    if thread is None:
        _threads.clear()
        thread = _threads[os.getpid()] = futures.ThreadPoolExecutor(1, "ringcast-compute", _is_for_computing)
    return thread.submit(function, *arguments)


class _Here(threading.local):
    computes = False  # a function that one rank computes with
    is_for_computing = False  # the thread


_here = _Here()


def _is_for_computing() -> None:
    _here.is_for_computing = True


def computing(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the caller's that one rank may call alone."""
    before, _here.computes = _here.computes, True
    try:
        return function(*arguments)
    finally:
        _here.computes = before


def refuse_inside(name: str) -> None:
    if _here.computes:
        raise RuntimeError(
            f"{name}() is called inside a function that computes for the other ranks: they do not make this call, and "
            "the ranks would wait for each other. Call it outside, on all ranks"
        )


# ---- Deadlines -------------------------------------------------------------------------------------------------------


def until_of(timeout: Optional[float]) -> float:
    """The time of time.monotonic() when a call is over."""
    return math.inf if timeout is None else time.monotonic() + timeout


def seconds_until(until: float) -> Optional[float]:
    """As a wait takes them; None: for ever."""
    return None if until == math.inf else max(0.0, until - time.monotonic())


def wait_for_thread(made: "futures.Future[Any]", until: float) -> bool:
    """Whether what in_thread() runs is done."""
    if _here.is_for_computing and not made.done():
        raise RuntimeError("result() waits, in the thread that computes, for what this thread computes later")
    return bool(futures.wait([made], seconds_until(until)).done)


# ---- The ranks of a group --------------------------------------------------------------------------------------------

_all: "weakref.WeakKeyDictionary[Any, _Sharing]" = weakref.WeakKeyDictionary()


_agreed: "weakref.WeakKeyDictionary[Any, rule.Agreed]" = weakref.WeakKeyDictionary()


def agreed_of(group: Any) -> rule.Agreed:
    """The first rank's facts. The first call for a group is a collective."""
    if group not in _agreed:
        _agreed[group] = rule.agree(group)
    return _agreed[group]


def is_open(group: Any, stream: str, made: Mapping[int, End]) -> bool:
    """Whether the rings are the group's: not after ringcast.torch.close()."""
    theirs = ends(group)
    return all(theirs.get((stream, src)) is end for src, end in made.items())


def sharing_of(group: Any) -> "Optional[_Sharing]":
    """None: the group has one rank."""
    group = dist.group.WORLD if group is None and dist.is_available() else group
    if group is None:
        return None
    sharing = _all.get(group) if isinstance(group, dist.ProcessGroup) else None
    if sharing is None or sharing.closed(group):
        if not isinstance(group, dist.ProcessGroup):
            end_of(group, 0)  # raises the error
        if group.size() == 1:
            return None
        sharing = _all[group] = _Sharing(group)
    return sharing


class _Due(NamedTuple):
    """A call that this rank computes."""

    end: Source
    number: int
    hash: Optional[str]
    shared: Shared
    made: "futures.Future[_Made]"


class _Sharing:
    """A rank's state in a group."""

    def __init__(self, group: Any) -> None:
        self._group = weakref.ref(group)
        self._rank, self._size = group.rank(), group.size()
        self._calls = self._turns = 0
        self._ends: Dict[int, End] = {}
        self._pending: Dict[int, Deque[Tuple[int, Shared]]] = {}  # by source: the calls, by number
        self._failed: Dict[int, Exception] = {}
        self._due: "Deque[_Due]" = deque()  # computed, or being computed, and not yet sent
        self._sending = threading.RLock()  # around each send; a warning's handler may send
        self._taking = threading.RLock()  # of the thread that takes in
        self._how, _, self._rates = agreed_of(group)

    def closed(self, group: Any) -> bool:
        return not is_open(group, _STREAM, self._ends)

    def call(
        self,
        compute: Callable[[], Any],
        nbytes: int,
        src: Optional[int],
        hash: Optional[str],
        how: str,
        seconds: float,
        thread: bool = False,
    ) -> Shared:
        if src is not None and not 0 <= src < self._size:
            raise ValueError(f"src is a rank in the group, from 0 to {self._size - 1}, not {src}")
        how = self._how if how == "auto" else how
        if how == "auto":
            how = rule.best(rule.costs(self._rates, self._size, nbytes, hash, seconds), ("local", "share"))
        number = self._calls
        self._calls += 1
        if how == "local":
            return _local(compute, hash, thread)
        if src is None:
            src = self._turns % self._size
            self._turns += 1
        end = self._end(src)
        if isinstance(end, Source):
            return self._compute(end, number, compute, hash, thread)
        failed = self._failed.get(src)
        if failed is not None:
            return Shared(src, failed.with_traceback(None))
        shared = Shared(src, None, self, hash is not None)
        self._pending[src].append((number, shared))
        return shared

    def _end(self, src: int) -> End:
        end = self._ends.get(src)
        if end is None:
            # The exchange that makes the ring takes no frame in: take all frames in before, and send all.
            self._send_due(math.inf)
            while any(self._pending.values()):
                self._wait(math.inf)
            made = end_of(self._group(), src, stream=_STREAM, engine="sglang")
            assert made is not None
            end = self._ends[src] = made
            self._pending[src] = deque()
        return end

    # ---- Computing ----

    def _compute(
        self, end: Source, number: int, compute: Callable[[], Any], hash: Optional[str], thread: bool
    ) -> Shared:
        # Without a hash tensors may stay on their device, which no PackedFrame allows.
        packs = hash is not None or not end.carries_cuda
        shared = Shared(self._rank, None, self)
        made: "futures.Future[_Made]" = futures.Future()
        if thread:
            made = in_thread(_make, compute, hash, packs, end.carries_cuda)
            shared._made = made
        else:
            made.set_result(_make(compute, hash, packs, end.carries_cuda))
        self._due.append(_Due(end, number, hash, shared, made))
        if thread:
            made.add_done_callback(lambda _: self._send_more())
            return shared
        self._send_due(math.inf)
        if shared._outcome is not None and not isinstance(shared._outcome, (tuple, Exception)):
            raise shared._outcome  # a KeyboardInterrupt and the like
        return shared

    def _send_due(self, until: float, shared: Optional[Shared] = None) -> None:
        """Send what has been computed, in the order of the calls, up to `shared` (None: all) or until the time is up;
        0: what can be sent now. A rank that waits for room takes in what the others have sent."""
        while self._due and (shared is None or shared._outcome is None):
            with self._sending:
                due = self._due[0] if self._due else None
                if due is None or due.made.done() and self._sent(due):
                    continue
            if time.monotonic() >= until:
                return
            if due.made.done():
                self._wait(until, self._room(due.end))
            else:
                wait_for_thread(due.made, until)

    def _send_more(self) -> None:
        """In the thread, when a value is computed."""
        self._send_due(0)
        for due in tuple(self._due):  # there is no room: tasks wait for that from now on
            due.shared._wake()

    def _sent(self, due: "_Due") -> bool:
        """Whether the first of the computed values is dealt with; False: there is no room."""
        made = due.made.result()
        try:
            if made.failure is not None:
                with contextlib.suppress(ringcast.Error):  # the ring has failed: the receivers learn that from the ring
                    due.end.number(due.number)
                    due.end.refuse(made.failure, SHARE, 0)
            elif made.packed is not None:
                due.end.number(due.number)
                due.end.send(made.packed, SHARE, timeout=0)
            else:
                made = self._send_value(due, made)
        except TimeoutError:
            return False
        except Exception as error:
            made = _Made(failure=error)
        due.shared._settle(made.outcome(due.hash))
        self._due.popleft()  # last: without a due call nothing is unsettled
        return True

    def _send_value(self, due: "_Due", made: _Made) -> _Made:
        """Send a value that is not packed. TimeoutError: there is no room, or the value's pickling raised a
        TimeoutError: the value is packed, and due again."""
        due.end.number(due.number)
        try:
            due.end.send(made.value, SHARE, timeout=0)
            return made
        except TimeoutError:
            packed = _make(lambda: made.value, due.hash, True, due.end.carries_cuda)
        except Exception:
            raise
        except BaseException as error:
            if not due.end.is_at(due.number):
                raise
            packed = _Made(failure=error)
        again: "futures.Future[_Made]" = futures.Future()
        again.set_result(packed)
        self._due[0] = due._replace(made=again)
        raise TimeoutError

    # ---- Taking in ----

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """A second thread would take the first one's frames, and the first would wait for ever."""
        if not self._taking.acquire(blocking=False):
            raise RuntimeError(
                "another thread of this process waits in share_once() or result() for a value of the group: one thread "
                "at a time shares values"
            )
        try:
            yield
        finally:
            self._taking.release()

    def _take(self, src: int, until: Optional[Shared] = None) -> bool:
        """Take in the frames that `src` has sent: all, or up to `until`. Whether there was one."""
        end, pending = self._ends[src], self._pending[src]
        assert isinstance(end, Receiver)
        took = False
        while pending:
            number, shared = pending[0]
            end.number(number)
            try:
                taken = end.take_hashed(SHARE)
                if taken is None:
                    return took
                outcome: Any = taken[0], taken[1] if shared._hashed else None
            except Exception as error:
                outcome = error
                if isinstance(error, _ENDS) or end.ring.closed:
                    self._fail(src, error)
                    return True
            took = True
            pending.popleft()
            shared._settle(outcome)
            if shared is until:
                if pending:  # a task that waits for the next frame: the descriptor may be lowered by now
                    pending[0][1]._wake()
                break
        return took

    def _fail(self, src: int, error: Exception) -> None:
        self._failed[src] = error
        while self._pending[src]:
            self._pending[src].popleft()[1]._settle(error)

    def look(self, shared: Shared) -> None:
        """Settle the call if that takes no waiting."""
        if shared.source == self._rank:
            self._send_due(0)
        else:
            # A thread that takes in settles this call, too.
            if self._taking.acquire(blocking=False):
                try:
                    self._take(shared.source, shared)  # type: ignore[arg-type]
                finally:
                    self._taking.release()

    def descriptors(self, shared: Shared) -> List[int]:
        """Readable when look() may settle the call."""
        end = self._ends[shared.source]  # type: ignore[index]
        if isinstance(end, Receiver):
            return [end.ring.fileno()]
        first = next(iter(self._due), None)
        return [self._room(end)] if first is not None and first.made.done() else []

    def _room(self, end: Source) -> int:
        with self._sending:  # a thread may be sending
            return end.ring.room_fileno()

    def wait_for(self, shared: Shared, until: float) -> bool:
        """Whether the call is settled."""
        if shared.source == self._rank:
            self._send_due(until, shared)
        else:
            while shared._outcome is None and time.monotonic() < until:
                self._wait(until)
        return shared._outcome is not None

    def describe(self, shared: Shared) -> str:
        """What a call waits for."""
        if shared.source == self._rank:
            return "the value has found no room in this rank's ring: a rank has not taken in the values before"
        return f"rank {shared.source} of the group has sent nothing for this call"

    def _wait(self, until: float, room: Optional[int] = None) -> None:
        """Take in all frames that came. If none did, wait for a frame, or for room."""
        with self._alone():
            pending = [src for src, calls in self._pending.items() if calls]
            took = [self._take(src) for src in pending]
            if not any(took):
                awaited = [self._ends[src].ring.fileno() for src in pending]
                wait_for(awaited if room is None else [*awaited, room], seconds_until(until))
