# SPDX-License-Identifier: Apache-2.0
"""One rank computes, and the others receive the value: tensors without pickle, hashed once, each rank at its own pace.

Every rank has a ring to the others, made when the rank first computes. Frames carry the number of the call, so that
ranks which make different calls raise an error. While a rank waits, for a value or for room in the rank's ring, the
rank takes in the frames for calls already made here. So the waiting rank with the fewest calls gets room, because all
other ranks have made the same call and take the frame in: no circle of waits can form.
"""

import contextlib
import select
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Tuple

import torch.distributed as dist

import ringcast
from ringcast._group.config import choice, whole
from ringcast._group.endpoint import SHARE, End, Receiver, Source
from ringcast._group.packing import pack
from ringcast._group.ranks import Ranks
from ringcast._group.rings import end_of, ends
from ringcast.sglang import rule

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
) -> "Shared":
    """Have one rank of `group` compute a value for all ranks; result() returns the value and its hashes.

        shared = share_once(lambda: {"feature": load(request)}, request.nbytes, group=cpu_group)
        ...                                             # other work; shared.done() says whether result() would wait
        value, hashes = shared.result()                 # hashes["feature"] is SGLang's hash of it

    On the rank that computes, the call runs compute(), hashes the value while copying into the ring, and returns; the
    call waits only while the slowest rank is behind by all of the ring's memory. On the other ranks the call
    returns at once, without compute().

    nbytes: of the tensors in the value, as far as known; a hint, and no limit. src: the rank in the group that
    computes; None: each rank in turn, so that N ranks compute N calls at a time. hash: "sha256", with SGLang's hash as
    the first 8 bytes, "xxh3", or None (docs/python.md). seconds: the time of compute() without hashing, if known. how:
    "share"; "local": every rank computes for itself; "auto": by RINGCAST_SHARE_ONCE in the environment of the group's
    first rank, and by default by the measured rule (docs/share_once.md).

    All ranks of the group make the same calls in the same order, with the same arguments except compute, from one
    thread each; the first call, and the first call that a rank computes, is a collective. Without torch.distributed
    initialised, or in a group of one rank, every call is "local".
    TypeError, ValueError: invalid arguments. result() raises all other errors.
    """
    _check(compute, nbytes, src, hash, how)
    sharing = _sharing_of(group)
    if sharing is None:
        return Shared(None, _outcome_of(compute, hash))
    return sharing.call(compute, nbytes, src, hash, how, seconds)


class Shared:
    """The value of one call of share_once(). source: the rank in the group that computes; None: every rank does."""

    def __init__(
        self, source: Optional[int], outcome: Any = None, sharing: "Optional[_Sharing]" = None, hashed: bool = False
    ) -> None:
        self.source = source
        self._hashed = hashed
        self._outcome: Any = None  # (value, hashes), or an exception; None: still to come
        self._traceback: Any = None
        self._sharing = sharing  # None once there is an outcome: a kept value keeps no rings
        if outcome is not None:
            self._settle(outcome)

    def done(self) -> bool:
        """Whether result() would return at once. Copies what has come out of the ring."""
        if self._outcome is None:
            assert self._sharing is not None and self.source is not None
            self._sharing.take(self.source, self)
        return self._outcome is not None

    def result(self, timeout: Optional[float] = None) -> Tuple[Any, Any]:
        """(value, hashes). The computing rank gets the very value, each other rank a copy.

        timeout: seconds, None waits for ever; after a TimeoutError a later result() can succeed. The computing rank
        raises an error of compute(), the other ranks ringcast.SendError with the same text; the next call works.
        ringcast.WriterGone: the computing rank is gone. ringcast.ReaderDied: another rank is, by name. RuntimeError:
        the ranks made different calls.
        """
        if not self.done():
            assert self._sharing is not None
            self._sharing.wait_for(self, timeout)
        if isinstance(self._outcome, BaseException):
            raise self._outcome.with_traceback(self._traceback)  # or the traceback would grow each time
        outcome: Tuple[Any, Any] = self._outcome
        return outcome

    def _settle(self, outcome: Any) -> None:
        self._outcome, self._sharing = outcome, None
        if isinstance(outcome, BaseException):
            self._traceback = outcome.__traceback__

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


def _outcome_of(compute: Callable[[], Any], hash: Optional[str]) -> Any:
    try:
        value = compute()
        return value, None if hash is None else pack(value, hash).hashes
    except Exception as error:
        return error


# ---- The ranks of a group --------------------------------------------------------------------------------------------

_all: "weakref.WeakKeyDictionary[Any, _Sharing]" = weakref.WeakKeyDictionary()


def _sharing_of(group: Any) -> "Optional[_Sharing]":
    """None: the group has one rank."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    group = dist.group.WORLD if group is None else group
    sharing = _all.get(group) if isinstance(group, dist.ProcessGroup) else None
    if sharing is None or sharing.closed(group):
        if not isinstance(group, dist.ProcessGroup):
            end_of(group, 0)  # raises the error
        if group.size() == 1:
            return None
        sharing = _all[group] = _Sharing(group)
    return sharing


class _Sharing:
    """A rank's state in a group."""

    def __init__(self, group: Any) -> None:
        self._group = weakref.ref(group)
        self._rank, self._size = group.rank(), group.size()
        self._calls = self._turns = 0
        self._ends: Dict[int, End] = {}
        self._pending: Dict[int, Deque[Tuple[int, Shared]]] = {}  # by source: the calls, by number
        self._failed: Dict[int, Exception] = {}
        self._how, self._rates = self._agree(group)

    def _agree(self, group: Any) -> Tuple[str, rule.Rates]:
        """The first rank's rates and environment: all ranks must decide alike."""
        first: Any = None
        if self._rank == 0:
            try:
                first = (choice("RINGCAST_SHARE_ONCE", *rule.HOW), rule.measure())
            except Exception as error:  # the other ranks wait in the exchange
                first = error
        agreed: Any = Ranks(group).gather(first)[0]
        if isinstance(agreed, Exception):
            raise agreed
        return agreed  # type: ignore[no-any-return]

    def closed(self, group: Any) -> bool:
        """Whether ringcast.torch.close() was called: then the rings are no longer the group's."""
        made = ends(group)
        return any(made.get((_STREAM, src)) is not end for src, end in self._ends.items())

    def call(
        self, compute: Callable[[], Any], nbytes: int, src: Optional[int], hash: Optional[str], how: str, seconds: float
    ) -> Shared:
        if src is not None and not 0 <= src < self._size:
            raise ValueError(f"src is a rank in the group, from 0 to {self._size - 1}, not {src}")
        how = self._how if how == "auto" else how
        if how == "auto":
            how = "share" if rule.pays(self._rates, self._size, nbytes, hash, seconds) else "local"
        number = self._calls
        self._calls += 1
        if how == "local":
            return Shared(None, _outcome_of(compute, hash))
        if src is None:
            src = self._turns % self._size
            self._turns += 1
        end = self._end(src)
        if isinstance(end, Source):
            return Shared(src, self._compute(end, number, compute, hash))
        failed = self._failed.get(src)
        if failed is not None:
            return Shared(src, failed.with_traceback(None))
        shared = Shared(src, None, self, hash is not None)
        self._pending[src].append((number, shared))
        return shared

    def _end(self, src: int) -> End:
        end = self._ends.get(src)
        if end is None:
            # The exchange that makes the ring takes no frame in: take all frames in before.
            while any(self._pending.values()):
                self._wait(None)
            made = end_of(self._group(), src, stream=_STREAM)
            assert made is not None
            end = self._ends[src] = made
            self._pending[src] = deque()
        return end

    # ---- Computing ----

    def _compute(self, end: Source, number: int, compute: Callable[[], Any], hash: Optional[str]) -> Any:
        try:
            value = compute()
        except BaseException as error:
            return self._refuse(end, number, error)
        if hash is None and end.carries_cuda:  # tensors may stay on their device, which no PackedFrame allows
            end.number(number)
            try:
                end.send(value, SHARE, timeout=0)
                return value, None
            except TimeoutError:  # no room, or the value's pickling raised a TimeoutError, as packing will
                pass
            except Exception as error:
                return error
            except BaseException as error:
                if not end.is_at(number):
                    raise
                return self._refuse(end, number, error)
        try:
            packed = pack(value, hash)
        except BaseException as error:
            return self._refuse(end, number, error)
        try:
            self._send(end, number, lambda: end.send(packed, SHARE, timeout=0))
        except Exception as error:
            return error
        return value, None if hash is None else packed.hashes

    def _refuse(self, end: Source, number: int, failure: BaseException) -> Exception:
        """Send the error to the other ranks. Returns an Exception, for result(); raises a KeyboardInterrupt and the
        like."""
        with contextlib.suppress(ringcast.Error):  # the ring has failed: the receivers learn that from the ring
            self._send(end, number, lambda: end.refuse(failure, SHARE, 0))
        if isinstance(failure, Exception):
            return failure
        raise failure

    def _send(self, end: Source, number: int, attempt: Callable[[], None]) -> None:
        while True:
            end.number(number)
            try:
                return attempt()
            except TimeoutError:
                self._wait(None, end.ring.room_fileno())

    # ---- Taking in ----

    def take(self, src: int, until: Optional[Shared] = None) -> bool:
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
                break
        return took

    def _fail(self, src: int, error: Exception) -> None:
        self._failed[src] = error
        while self._pending[src]:
            self._pending[src].popleft()[1]._settle(error)

    def wait_for(self, shared: Shared, timeout: Optional[float]) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while shared._outcome is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"rank {shared.source} of the group has sent nothing for this call in {timeout} s")
            self._wait(left)

    def _wait(self, timeout: Optional[float], room: Optional[int] = None) -> None:
        """Take in all frames that came. If none did, wait for a frame, or for room."""
        took = False
        poll = select.poll()
        for src, pending in self._pending.items():
            took = bool(pending) and self.take(src) or took
            if pending:
                poll.register(self._ends[src].ring.fileno(), select.POLLIN)
        if not took:
            if room is not None:
                poll.register(room, select.POLLIN)
            poll.poll(None if timeout is None else timeout * 1000)
