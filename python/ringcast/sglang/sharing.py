# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a group share: values that one rank computes, and hashes of features that every
rank has.

share_once: one rank computes, and the others receive the value, each at its own pace. Every rank
has a ring to the others, made when the rank first computes. Frames carry the number of the call, so
that ranks which make different calls raise an error. While a rank waits, for a value or for room in
the rank's ring, the rank takes in the frames for calls already made here. So the waiting rank with
the fewest calls gets room, because all other ranks have made the same call and take the frame in:
no circle of waits can form.

share_hash: each feature is hashed by one rank. Every rank makes the same plan: each feature of a
call goes to the rank with the fewest bytes in this call so far. A rank hashes its own part, and
tells the hashes to the others as they come, by a ring of its own. A frame has the call's name, a
digest of the features, and 8 bytes for each hash. A rank that needs a hash of another rank's part
waits until the hash is late, and then hashes the feature itself. So no rank waits for a rank
without a bound, and ranks that plan or decide differently, miss a call, stop or die cost a second
hash.

A hash is late if this rank has done its own part, and hashing the other rank's part here would be
over by now. This rank then waits for no hash of the late rank until the late rank is heard again. A
rank never waits to send: without room the hashes are not told.

A call's name is the `key`, which the caller gives to the same features on all ranks, and never to
others. The digest is of types, shapes and sizes, in the order of the features: under a key that
names other features of the same form, a hash is another feature's. Hashes of a call not made here
are kept for a while: a rank may be ahead.
"""

import asyncio
import contextlib
import ctypes
import hashlib
import logging
import math
import operator
import os
import select
import struct
import threading
import time
import weakref
from collections import OrderedDict, deque
from concurrent import futures
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Generator,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import torch
import torch.distributed as dist

import ringcast
from ringcast._files import above_the_streams
from ringcast._group import gather
from ringcast._group.config import asks_for_pool, whole
from ringcast._group.endpoint import SHARE, End, Receiver, Source
from ringcast._group.packing import pack
from ringcast._group.rings import end_of, ends
from ringcast.sglang import advise

_KINDS = (None, "sha256", "xxh3")
_STREAM = "share_once"
# After such an error nothing more comes from the ring.
_ENDS = (
    ringcast.WriterGone,
    ringcast.ReaderDied,
    ringcast.Evicted,
    ringcast.ForkedError,
    ringcast.Cancelled,
)


# ---- await ---------------------------------------------------------------------------------------
# A task waits for the rings' descriptors, and to be woken when another task or thread has brought
# the result. Each wait has copies of the descriptors: a loop knows one reader of a descriptor, and
# several tasks wait for one ring.


def wait_for(descriptors: Iterable[int], seconds: Optional[float]) -> None:
    """Until one is readable, or the time is up."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll(None if seconds is None else seconds * 1000)


class Awaited:
    """A result that can be awaited: the class has done() and result()."""

    def __init__(self) -> None:
        self._wakers: List[Callable[[], None]] = []

    def done(self) -> bool:
        raise NotImplementedError

    def result(self) -> Any:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Any]:
        """As result(), and other tasks run meanwhile."""
        while not self.done():
            yield from self._change().__await__()
        return self.result()

    def _descriptors(self) -> List[int]:
        """Readable when done() may have changed."""
        return []

    def _patience(self) -> Optional[float]:
        """Seconds after which done() changes without a descriptor; None: never."""
        return None

    def _wake(self) -> None:
        for waker in tuple(self._wakers):
            waker()

    async def _change(self) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def waker() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        copies = [above_the_streams(os.dup(descriptor)) for descriptor in self._descriptors()]
        self._wakers.append(waker)
        try:
            for copy in copies:
                loop.add_reader(copy, changed.set)
            if not self.done():  # the result may have come from another thread before
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), self._patience())
        finally:
            self._wakers.remove(waker)
            for copy in copies:
                loop.remove_reader(copy)
                os.close(copy)


# ---- share_once ----------------------------------------------------------------------------------


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
    """Have one rank of `group` compute a value for all ranks; result() returns the value and its
    hashes.

        shared = share_once(lambda: {"feature": load(request)}, request.nbytes, group=cpu_group)
        ...                                   # other work; shared.done(): result() would not wait
        value, hashes = shared.result()       # or await shared; hashes["feature"] is SGLang's hash

    On the rank that computes, the call runs compute(), hashes the value while copying into the
    ring, and returns; the call waits only while the slowest rank is behind by all of the ring's
    memory. On the other ranks the call returns at once, without compute().

    nbytes: of the tensors in the value, as far as known; a hint, and no limit. src: the rank in the
    group that computes; None: each rank in turn, so that N ranks compute N calls at a time. hash:
    "sha256", with SGLang's hash as the first 8 bytes, "xxh3", or None (docs/python.md). seconds:
    the time of compute() without hashing, if known. how: "share"; "local": every rank computes for
    itself; "auto": by the measured rule (docs/share_once.md), unless RINGCAST_SGLANG=1,share=local
    in the environment of the group's first rank says "local". thread: compute(), hash and pack in a
    thread, one call after the other; the call returns at once.

    All ranks of the group make the same calls in the same order, with the same arguments except
    compute, from one thread each; the first call, and the first call that a rank computes, is a
    collective. Without torch.distributed initialised, or in a group of one rank, every call is
    "local". TypeError, ValueError: invalid arguments. RuntimeError: the call is made inside a
    `compute` of share_once() or share_hash(). result() raises all other errors.
    """
    refuse_inside("share_once")
    _check(compute, nbytes, src, hash, how)
    sharing = sharing_of(group)
    if sharing is None:
        return _local(compute, hash, thread)
    return sharing.call(compute, nbytes, src, hash, how, seconds, thread)


class Shared(Awaited):
    """
    The value of one call of share_once(). source: the rank in the group that computes; None: every
    rank does.
    """

    def __init__(
        self,
        source: Optional[int],
        outcome: Any = None,
        sharing: "Optional[_Sharing]" = None,
        hashed: bool = False,
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

        timeout: seconds, None waits for ever; after a TimeoutError a later result() can succeed.
        The computing rank raises an error of compute(), the other ranks ringcast.SendError with the
        same text; the next call works. ringcast.WriterGone: the computing rank is gone.
        ringcast.ReaderDied: another rank is, by name. RuntimeError: the ranks made different calls.
        """
        if not self.done():
            sharing, made, until = self._sharing, self._made, until_of(timeout)
            if made is not None and not wait_for_thread(made, until):
                raise TimeoutError(f"compute() has not returned in {timeout} s")
            if sharing is not None and not sharing.wait_for(self, until):
                raise TimeoutError(f"{sharing.describe(self)} in {timeout} s")
        if isinstance(self._outcome, BaseException):
            # Or the traceback would grow each time.
            raise self._outcome.with_traceback(self._traceback)
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
        state = (
            "to come"
            if self._outcome is None
            else "failed"
            if isinstance(self._outcome, Exception)
            else "there"
        )
        return f"<Shared: {'local' if self.source is None else f'of rank {self.source}'}, {state}>"


def _check(
    compute: Callable[[], Any], nbytes: int, src: Optional[int], hash: Optional[str], how: str
) -> None:
    if not callable(compute):
        raise TypeError(
            f"compute must be a function without arguments, not {type(compute).__name__}"
        )
    if whole("nbytes", nbytes) < 0:
        raise ValueError(f"nbytes must be 0 or more, not {nbytes}")
    if src is not None:
        whole("src", src)
    if hash not in _KINDS:
        raise ValueError(f"hash must be one of {', '.join(map(repr, _KINDS))}, not {hash!r}")
    if how not in advise.HOW:
        raise ValueError(f"how must be one of {', '.join(advise.HOW)}, not {how!r}")


class _Made(NamedTuple):
    """What compute() came to. packed: None if nothing is sent, and no hash is asked for."""

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


_threads: Dict[
    int, futures.ThreadPoolExecutor
] = {}  # of this process: a fork has none of the parent's


def in_thread(function: Callable[..., Any], *arguments: Any) -> "futures.Future[Any]":
    """Run a function in this process's thread for what is computed: one call after the other."""
    thread = _threads.get(os.getpid())
    if thread is None:
        _threads.clear()
        thread = _threads[os.getpid()] = futures.ThreadPoolExecutor(
            1, "ringcast-compute", _is_for_computing
        )
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
            f"{name}() is called inside a function that computes for the other ranks: they do not "
            f"make this call, and "
            "the ranks would wait for each other. Call it outside, on all ranks"
        )


# ---- Deadlines -----------------------------------------------------------------------------------


def until_of(timeout: Optional[float]) -> float:
    """The time of time.monotonic() when a call is over."""
    return math.inf if timeout is None else time.monotonic() + timeout


def seconds_until(until: float) -> Optional[float]:
    """As a wait takes them; None: for ever."""
    return None if until == math.inf else max(0.0, until - time.monotonic())


def wait_for_thread(made: "futures.Future[Any]", until: float) -> bool:
    """Whether what in_thread() runs is done."""
    if _here.is_for_computing and not made.done():
        raise RuntimeError(
            "result() waits, in the thread that computes, for what this thread computes later"
        )
    return bool(futures.wait([made], seconds_until(until)).done)


# ---- The ranks of a group ------------------------------------------------------------------------

_all: "weakref.WeakKeyDictionary[Any, _Sharing]" = weakref.WeakKeyDictionary()


_agreed: "weakref.WeakKeyDictionary[Any, advise.Agreed]" = weakref.WeakKeyDictionary()


def agreed_of(group: Any) -> advise.Agreed:
    """The first rank's facts. The first call for a group is a collective."""
    if group not in _agreed:
        _agreed[group] = advise.agree(group)
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
            how = advise.best(
                advise.costs(self._rates, self._size, nbytes, hash, seconds), ("local", "share")
            )
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
            # The exchange that makes the ring takes no frame in: take all frames in before, and
            # send all.
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
        self,
        end: Source,
        number: int,
        compute: Callable[[], Any],
        hash: Optional[str],
        thread: bool,
    ) -> Shared:
        shared = Shared(self._rank, None, self)
        made: "futures.Future[_Made]" = futures.Future()
        if thread:
            made = in_thread(_make, compute, hash, True, end.carries_cuda)
            shared._made = made
        else:
            made.set_result(_make(compute, hash, True, end.carries_cuda))
        self._due.append(_Due(end, number, hash, shared, made))
        if thread:
            made.add_done_callback(lambda _: self._send_more())
            return shared
        self._send_due(math.inf)
        if shared._outcome is not None and not isinstance(shared._outcome, (tuple, Exception)):
            raise shared._outcome  # a KeyboardInterrupt and the like
        return shared

    def _send_due(self, until: float, shared: Optional[Shared] = None) -> None:
        """
        Send what has been computed, in the order of the calls, up to `shared` (None: all) or until
        the time is up; 0: what can be sent now. A rank that waits for room takes in what the others
        have sent.
        """
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
                # The ring has failed: the receivers learn that from the ring.
                with contextlib.suppress(ringcast.Error):
                    due.end.number(due.number)
                    due.end.refuse(made.failure, SHARE, 0)
            else:
                due.end.number(due.number)
                due.end.send(made.packed, SHARE, timeout=0)
        except TimeoutError:
            return False
        except Exception as error:
            made = _Made(failure=error)
        due.shared._settle(made.outcome(due.hash))
        self._due.popleft()  # last: without a due call nothing is unsettled
        return True

    # ---- Taking in ----

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """A second thread would take the first one's frames, and the first would wait for ever."""
        if not self._taking.acquire(blocking=False):
            raise RuntimeError(
                "another thread of this process waits in share_once() or result() for a value of "
                "the group: one thread "
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
                # A task that waits for the next frame: the descriptor may be lowered by now.
                if pending:
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
            return (
                "the value has found no room in this rank's ring: a rank has not taken in the "
                "values before"
            )
        return f"rank {shared.source} of the group has sent nothing for this call"

    def _wait(self, until: float, room: Optional[int] = None) -> None:
        """Take in all frames that came. If none did, wait for a frame, or for room."""
        with self._alone():
            pending = [src for src, calls in self._pending.items() if calls]
            took = [self._take(src) for src in pending]
            if not any(took):
                awaited = [self._ends[src].ring.fileno() for src in pending]
                wait_for(awaited if room is None else [*awaited, room], seconds_until(until))


# ---- Hashes of features --------------------------------------------------------------------------


def feature_hash(feature: Any) -> int:
    """
    SGLang's hash of a feature in the CPU's memory: the first 8 bytes, big-endian, of the SHA-256 of
    the bytes.

    feature: a tensor, an array, bytes, or a list of these, nested or not: the bytes of the list are
    the bytes of the items in order. Contract: SGLang's hash_feature (August 2026).
    TypeError: any other type; a tensor on a GPU, for which SGLang has another hash.
    """
    hasher = hashlib.sha256()
    for part in _parts(feature):
        hasher.update(_bytes_of(part))
    return int.from_bytes(hasher.digest()[:8], "big")


def _parts(feature: Any) -> Iterator[Any]:
    if isinstance(feature, list):
        for item in feature:
            yield from _parts(item)
    else:
        yield feature


def _bytes_of(part: Any) -> Any:
    """The bytes in C order, without a copy if the memory has that order."""
    if isinstance(part, torch.Tensor):
        if part.device.type != "cpu":
            raise TypeError(
                f"feature_hash takes a feature in the CPU's memory, not on {part.device}: copy "
                f"it, .cpu()"
            )
        flat = part.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return _memory_of(flat.view(torch.uint8))
    if isinstance(part, np.ndarray):
        return np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
    if isinstance(part, (bytes, bytearray, memoryview)):
        return part
    raise TypeError(
        f"feature_hash takes tensors, arrays and bytes, and lists of them, not "
        f"{type(part).__name__}"
    )


def _memory_of(flat: torch.Tensor) -> Any:
    """As numpy(), which would forbid torch to resize the tensor's storage."""
    if not flat.nbytes:
        return b""
    memory = (ctypes.c_ubyte * flat.nbytes).from_address(flat.data_ptr())
    memory.owner = flat
    return memory


def nbytes_of(feature: Any) -> int:
    """Bytes that feature_hash() reads. TypeError: as feature_hash()."""
    return sum(_nbytes_of(part) for part in _parts(feature))


def _nbytes_of(part: Any) -> int:
    if isinstance(part, np.ndarray) or isinstance(part, torch.Tensor) and part.device.type == "cpu":
        return part.nbytes
    return memoryview(_bytes_of(part)).nbytes


def digest_of(features: Iterable[Any]) -> bytes:
    """
    8 bytes that are equal on all ranks for features of the same types, shapes and sizes in the same
    order. The content does not count.
    """
    hasher = hashlib.blake2b(digest_size=8)
    for feature in features:
        for part in _parts(feature):
            hasher.update(f"{_nbytes_of(part)} {_form_of(part)},".encode())
        hasher.update(b";")
    return hasher.digest()


def _form_of(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return str(part.dtype), tuple(part.shape)
    if isinstance(part, np.ndarray):
        return part.dtype.str, part.shape
    return "bytes"


# ---- share_hash: a call --------------------------------------------------------------------------

# Of the latest calls with `remember` and the usual `compute`: by key and digest.
_remembered: "OrderedDict[Tuple[str, bytes], List[Optional[int]]]" = OrderedDict()
_MOST_REMEMBERED = 1024


class Call:
    """The features of a call, and the hashes that are known."""

    def __init__(
        self, features: List[Any], key: str, compute: Callable[[Any], int], remember: bool = False
    ) -> None:
        self.idle_since = time.monotonic()  # once this rank has hashed its part
        self.features, self.compute = features, compute
        self.nbytes = [nbytes_of(feature) for feature in features]
        self.name = hashlib.blake2b(key.encode(), digest_size=8).digest()
        self.digest = digest_of(features)
        self.owners: List[int] = []  # by feature: the rank that hashes; empty: there is no plan
        self.order: List[
            int
        ] = []  # the features by owner: a hash is told by the place in this order
        self.parts: Dict[int, int] = {}  # by rank: the bytes of its features
        self.shared: Callable[[], Any] = lambda: None  # the SharedHashes, while there is one
        self._memory = (key, self.digest) if remember and compute is feature_hash else None
        known = None if self._memory is None else _remembered.get(self._memory)
        self.hashes: List[Optional[int]] = [None] * len(features) if known is None else known.copy()

    def plan(self, size: int) -> None:
        """
        Set the owners: each feature, from the largest on, goes to the rank with the fewest bytes so
        far.
        """
        turn = int.from_bytes(self.name, "big") % size
        self.parts = given = dict.fromkeys([*range(turn, size), *range(turn)], 0)
        self.owners = [0] * len(self.features)
        for index in sorted(range(len(self.features)), key=self.nbytes.__getitem__, reverse=True):
            owner = min(given, key=given.__getitem__)
            given[owner] += self.nbytes[index]
            self.owners[index] = owner
        self.order = sorted(range(len(self.features)), key=self.owners.__getitem__)

    def places_of(self, rank: int) -> range:
        """Of a rank's part, in the order of the features."""
        first = sum(owner < rank for owner in self.owners)
        return range(first, first + self.owners.count(rank))

    def missing(self) -> List[int]:
        return [index for index, hash in enumerate(self.hashes) if hash is None]

    def hash(self, index: int) -> None:
        hash = computing(self.compute, self.features[index])
        try:
            self.hashes[index] = operator.index(hash)
        except TypeError:
            raise TypeError(f"compute must return an int, not {type(hash).__name__}") from None

    def is_whole(self) -> bool:
        """Whether all hashes are known; they are then remembered, if asked."""
        if self.missing():
            return False
        if self._memory is not None:
            _remembered[self._memory] = self.hashes.copy()
            if len(_remembered) > _MOST_REMEMBERED:
                _remembered.popitem(last=False)
        return True


# ---- share_hash: what a rank tells and hears -----------------------------------------------------

_HASH_STREAM = "share_hash"
_HASH_CAPACITY = 64 << 10
# A frame: the call's name, the digest of the features, the place of the first hash; hashes.
_HEAD, _HASH_BYTES = struct.Struct("<8s8sI"), 8
# Hashes kept of calls that were not made here.
_MOST_KEPT = 4096
# Seconds: what a wait allows beside the hashing; how long a hash waits for the next hash before
# both are told in a frame.
SLACK, _GATHERING = 0.005, 0.001


class _Peer:
    """Another rank, as heard."""

    def __init__(self, end: Receiver) -> None:
        self.end = end
        self.is_gone = False
        self.is_late = False  # and has not been heard since


class Ranks:
    """A rank's state in a group."""

    def __init__(self, group: Any, made: Sequence[Any]) -> None:
        self.group = weakref.ref(group)
        self.rank, self.size = group.rank(), group.size()
        self._own = next(end for end in made if isinstance(end, Source))
        self.made = dict(enumerate(made))
        self._peers = {src: _Peer(end) for src, end in enumerate(made) if isinstance(end, Receiver)}
        self._how, self._rates = agreed_of(group)[1:]
        crowd = max(1.0, self.size / self._rates.cpus)
        self._second = self._rates.hash.get("sha256", 0.0) * crowd  # to hash a byte
        self._telling = threading.RLock()
        self._hearing = threading.RLock()  # around each look at a Reader, which takes no time
        # By name.
        self._begun: "weakref.WeakValueDictionary[bytes, Call]" = weakref.WeakValueDictionary()
        # Hashes of calls that were not made here, by name, digest and place.
        self._early: "OrderedDict[Tuple[bytes, bytes, int], int]" = OrderedDict()

    def shares(self, call: Call, how: str) -> bool:
        """Whether the ranks share the call: all decide alike."""
        how = self._how if how == "auto" else how
        if how == "auto":
            costs = advise.costs(self._rates, self.size, sum(call.nbytes))
            how = advise.best(costs, ("local", "hash"))
        return how == "hash"

    # ---- Hashing ----

    def hash_part(self, call: Call) -> None:
        places = call.places_of(self.rank)
        first, since = places.start, call.idle_since
        try:
            for place in places:
                if call.hashes[call.order[place]] is None:
                    call.hash(call.order[place])
                now = time.monotonic()
                if now - since >= _GATHERING:
                    self._tell_hashes(call, first, place + 1)
                    first, since = place + 1, now
        finally:
            self._tell_hashes(call, first, places.stop)
            call.idle_since = time.monotonic()

    def _tell_hashes(self, call: Call, first: int, end: int) -> None:
        """Of the places from `first` to before `end`; nothing if a frame can't carry one of the
        hashes."""
        hashes = [call.hashes[index] for index in call.order[first:end]]
        if hashes and all(hash is not None and 0 <= hash < 1 << 64 for hash in hashes):
            self.tell(call.name, call.digest, first, hashes)

    def tell(self, name: bytes, digest: bytes, first: int, hashes: Sequence[Optional[int]]) -> None:
        with self._telling:
            head = _HEAD.pack(name, digest, first)
            self._own.tell(head + struct.pack(f"<{len(hashes)}Q", *hashes))

    # ---- Taking in ----

    def expect(self, call: Call) -> None:
        """Make the plan, and take the hashes of the other ranks from now on."""
        call.plan(self.size)
        with self._hearing:
            self._begun[call.name] = call
            for place in range(len(call.order)):
                early = self._early.pop((call.name, call.digest, place), None)
                if early is not None:
                    self._take(call, place, early)

    def take_in(self) -> bool:
        """Take in what the other ranks have told. Whether there was anything."""
        with self._hearing:
            took = [self._hear(src, peer) for src, peer in self._peers.items()]
        return any(took)

    def _hear(self, src: int, peer: _Peer) -> bool:
        took = False
        while not peer.is_gone:
            try:
                data = peer.end.hear()
            except RuntimeError:
                # A call further up, which a signal's handler has interrupted, takes in.
                break
            except (ringcast.Error, ValueError) as error:
                peer.is_gone = True
                logging.getLogger("sglang.ringcast").warning(
                    "Rank %d shares no more hashes: %s", src, error
                )
                break
            if data is None:
                break
            peer.is_late = False
            took = self._heard(data) or took
        return took

    def _heard(self, data: bytes) -> bool:
        """Frames of another form are dropped: the hashes are then late."""
        count, beyond = divmod(len(data) - _HEAD.size, _HASH_BYTES)
        if count < 0 or beyond:
            return False
        name, digest, first = _HEAD.unpack_from(data)
        hashes = struct.unpack_from(f"<{count}Q", data, _HEAD.size)
        call = self._begun.get(name)
        if call is None:
            for place, hash in enumerate(hashes, first):
                self._early[name, digest, place] = hash
                if len(self._early) > _MOST_KEPT:
                    self._early.popitem(last=False)
        elif digest == call.digest:
            for place, hash in enumerate(hashes, first):
                self._take(call, place, hash)
        shared = None if call is None else call.shared()
        if shared is not None:
            shared._wake()
        return True

    def _take(self, call: Call, place: int, hash: int) -> None:
        if place < len(call.order) and call.hashes[call.order[place]] is None:
            call.hashes[call.order[place]] = hash

    def until_late(self, call: Call, index: int) -> float:
        """Seconds until this rank hashes the feature itself."""
        self.take_in()
        peer = self._peers.get(call.owners[index])
        if call.hashes[index] is not None:
            return SLACK
        if peer is None or peer.is_gone or peer.is_late:
            return 0.0
        hashing = call.parts[call.owners[index]] * self._second
        left: float = call.idle_since + hashing + SLACK - time.monotonic()
        peer.is_late = left <= 0
        return left

    def wait(self, seconds: float) -> None:
        """Until a frame has come, or the time is up."""
        if not self.take_in():
            wait_for(self.descriptors(), seconds)

    def descriptors(self) -> List[int]:
        with self._hearing:
            return [peer.end.ring.fileno() for peer in self._peers.values() if not peer.is_gone]


# ---- share_hash ----------------------------------------------------------------------------------


def share_hash(
    features: Sequence[Any],
    *,
    key: str,
    group: Any = None,
    how: str = "auto",
    compute: Callable[[Any], int] = feature_hash,
    remember: bool = False,
) -> "SharedHashes":
    """
    Have each feature hashed by one rank of `group`; result() returns the features and their hashes.

        shared = share_hash([item.feature for item in items], key=request.rid, group=cpu_group)
        ...                                   # other work; shared.done(): result() would not wait
        features, hashes = shared.result()    # or await shared; hashes[0] is SGLang's hash

    The call hashes this rank's part of the features. result() waits for the hashes of the other
    ranks, and hashes what is late (docs/share_once.md) here. No call hangs when a rank is late,
    stopped or dead.

    features: the same on all ranks, each as feature_hash() takes it. key: a name of the call, the
    same on all ranks and never used for other features, such as a request's id: the ranks take each
    other's hashes by it. how: "hash"; "local": each rank for itself; "auto": as share= in
    RINGCAST_SGLANG of the group's first rank says, and by default by what this call would cost
    (ringcast/sglang/advise.py). compute: gives a feature's hash, below 2^64. remember: take the
    hashes of an earlier call with the same key, and keep the hashes of this call, where `compute`
    is feature_hash(). Several threads may make calls, each with its own key.

    The first call for a group is a collective. In a group on several machines, an elastic group and
    a group of one, every call is "local". TypeError, ValueError: invalid arguments. result() raises
    errors of compute().
    """
    refuse_inside("share_hash")
    features = list(features)
    if how not in advise.HOW_TO_HASH:
        raise ValueError(f"how must be one of {', '.join(advise.HOW_TO_HASH)}, not {how!r}")
    if not callable(compute):
        raise TypeError(f"compute must be a function of a feature, not {type(compute).__name__}")
    if not isinstance(key, str):
        raise TypeError(f"key must be a str, not {type(key).__name__}")
    ranks = ranks_of(group)
    if ranks is None:
        return SharedHashes(Call(features, key, compute, remember))
    return _begin(ranks, Call(features, key, compute, remember), how)


class SharedHashes(Awaited):
    """The features and hashes of one call of share_hash()."""

    def __init__(self, call: Call, ranks: Optional[Ranks] = None) -> None:
        super().__init__()
        self._call, self._ranks = call, ranks

    def done(self) -> bool:
        """Whether result() would not wait. result() then computes the late hashes."""
        ranks, call = self._ranks, self._call
        waits = ranks is not None and any(
            ranks.until_late(call, index) > 0 for index in call.missing()
        )
        return self._is_whole() or not waits

    def result(self, timeout: Optional[float] = None) -> Tuple[List[Any], List[int]]:
        """(features, hashes), in the order of the call. timeout: seconds; TimeoutError: the time is
        up, and a later result() can succeed. The wait has a bound anyway."""
        until = until_of(timeout)
        while not self._is_whole():
            for index in self._call.missing():
                self._bring(index, until)
        return self._call.features, list(self._call.hashes)  # type: ignore[arg-type]

    def hash_at(self, index: int) -> int:
        """The hash of one feature, as soon as known."""
        self._bring(index, math.inf)
        hash = self._call.hashes[index]
        assert hash is not None
        return hash

    def _bring(self, index: int, until: float) -> None:
        """Wait for a hash until the hash is late, then hash."""
        while self._call.hashes[index] is None:
            late = 0.0 if self._ranks is None else self._ranks.until_late(self._call, index)
            if late <= 0:
                self._call.hash(index)
            if self._call.hashes[index] is not None:
                break
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"rank {self._call.owners[index]} of the group has not sent a hash in time"
                )
            assert self._ranks is not None
            self._ranks.wait(min(late, left))

    def _is_whole(self) -> bool:
        if not self._call.is_whole():
            return False
        self._ranks = None  # hashes that are kept keep no rings
        return True

    def _descriptors(self) -> List[int]:
        return [] if self._ranks is None else self._ranks.descriptors()

    def _patience(self) -> Optional[float]:
        missing = self._call.missing()
        if self._ranks is None:
            return 0.0
        return max(0.0, self._ranks.until_late(self._call, missing[0])) if missing else 0.0

    def __await__(self) -> Any:
        """As result(); a hash that is late is computed in a thread."""
        while not (self.done() and self._is_whole()):
            if self._patience() == 0:
                yield from self._late().__await__()
            else:
                yield from self._change().__await__()
        return self.result()

    async def _late(self) -> None:
        missing = self._call.missing()
        if missing:
            await asyncio.get_running_loop().run_in_executor(None, self._call.hash, missing[0])

    def __repr__(self) -> str:
        return f"<SharedHashes: {len(self._call.missing())} of {len(self._call.features)} to come>"


_known: "weakref.WeakKeyDictionary[Any, Optional[Ranks]]" = weakref.WeakKeyDictionary()


def ranks_of(group: Any) -> Optional[Ranks]:
    """The first call for a group is a collective. None: each rank for itself."""
    group = dist.group.WORLD if group is None and dist.is_available() else group
    if group is None:
        return None
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"group must be a torch.distributed.ProcessGroup or None, not {type(group).__name__}"
        )
    if (
        group not in _known
        or (ranks := _known[group])
        and not is_open(group, _HASH_STREAM, ranks.made)
    ):
        made = gather.near_ends(group, _HASH_STREAM, _HASH_CAPACITY)
        _known[group] = None if made is None else Ranks(group, made)
    return _known[group]


def _begin(ranks: Ranks, call: Call, how: str) -> SharedHashes:
    ranks.take_in()
    is_shared = ranks.shares(call, how)
    shared = SharedHashes(call, ranks if is_shared else None)
    with contextlib.suppress(Exception):  # result() hashes again, and raises the error
        if is_shared:
            call.shared = weakref.ref(shared)
            ranks.expect(call)
            ranks.hash_part(call)
        else:
            for index in call.missing():
                call.hash(index)
    return shared
