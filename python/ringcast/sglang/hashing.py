# SPDX-License-Identifier: Apache-2.0
"""The ranks of a group share the hashing of features that every rank has: each feature is hashed by one rank.

Every rank makes the same plan: each feature of a call goes to the rank with the fewest bytes in this call so far. A
rank hashes its own part and tells each hash to the others at once, by a ring of its own: 8 bytes, and 8 bytes that name
the feature (hashes.digest_of). A rank that needs a hash of another rank's part waits until the hash is late, and then
hashes the feature itself. So no rank waits for another without a bound, and a disagreement among ranks costs a second
hash, and nothing else: ranks that plan or decide differently, that miss a call, stop or die.

Late is: past the time when the other rank was due, by as long as hashing the feature here takes. A rank that was late
is not waited for until a frame of it comes. A rank never waits to send: without room the hash is not told.

A name is of the call (`key`, or the number of the call), of the feature's type and shape, and of a sample of its
elements. The order tells two features of a call with the same name apart. A hash under a name that no feature
here has is kept for a while: another rank may be ahead.
"""

import asyncio
import contextlib
import hashlib
import select
import struct
import threading
import time
import weakref
from collections import Counter, OrderedDict
from concurrent import futures
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch.distributed as dist

import ringcast
from ringcast._group import gather
from ringcast._group.endpoint import Receiver, Source
from ringcast._group.rings import ends
from ringcast.sglang import rule
from ringcast.sglang.awaiting import Awaited
from ringcast.sglang.hashes import feature_hash
from ringcast.sglang.plan import Call
from ringcast.sglang.share import Shared, agreed_of, in_thread, sharing_of

_STREAM = "share_hash"
_CAPACITY = 64 << 10
# A frame: the sender's slowdown, then a name and a hash.
_HEAD, _ENTRY = struct.Struct("<d"), struct.Struct("<8sQ")
_MOST_SLOWDOWN = 1000.0
# Hashes kept that no call here has asked for, and hashes waited for.
_MOST_KEPT = 4096
# Seconds: what a wait allows beside the hashing, and the least CPU time that tells of the slowdown.
_SLACK, _TELLING = 0.005, 0.0005
# The first rank tells a slowdown that differs by so much from the one told last.
_MUCH = 1.25


def share_hash(
    features: Sequence[Any],
    *,
    group: Any = None,
    key: Optional[str] = None,
    how: str = "auto",
    compute: Callable[[Any], int] = feature_hash,
    lacking: Sequence[int] = (),
    thread: bool = False,
) -> "SharedHashes":
    """Have each feature hashed by one rank of `group`; result() returns the features and their hashes.

        shared = share_hash([item.feature for item in items], group=cpu_group, key=request.rid)
        ...                                             # other work; shared.done() says whether result() would wait
        features, hashes = shared.result()              # or await shared; hashes[0] is SGLang's hash of features[0]

    The call hashes this rank's part of the features. result() waits for the hashes of the other ranks, and hashes what
    is late (see above) here. No call hangs when a rank is late, stopped or dead.

    features: the same on all ranks, each as feature_hash() takes it. key: a name of the call, the same on all ranks and
    never used for other features; None: the number of the call, and then all ranks make the same calls in order. how:
    "hash"; "local": each rank for itself; "auto": by RINGCAST_SHARE_HASH in the environment of the group's first rank,
    and by default by what this call would cost (ringcast/sglang/rule.py). compute: gives a feature's hash, below 2^64;
    hashes of another `compute` than feature_hash() are not remembered. lacking: the ranks in the group that have no
    features, the same on all ranks: each gives `features` of None, and gets the features by share_once() from a rank in
    turn, while the others hash. thread: hash this rank's part in a thread; the call returns at once.

    Hashes of tensors and files are remembered (ringcast/sglang/cache.py). The first call for a group is a collective.
    In a group on several machines, an elastic group and a group of one, every call is "local".
    TypeError, ValueError: invalid arguments. result() raises errors of compute(), and with `lacking` of share_once().
    """
    features = list(features)
    if how not in rule.HOW_TO_HASH:
        raise ValueError(f"how must be one of {', '.join(rule.HOW_TO_HASH)}, not {how!r}")
    if not callable(compute):
        raise TypeError(f"compute must be a function of a feature, not {type(compute).__name__}")
    if key is not None and not isinstance(key, str):
        raise TypeError(f"key must be a str, not {type(key).__name__}")
    state = _state_of(group)
    if state is None:
        if lacking:
            raise ValueError("lacking needs a group of several ranks on this machine")
        return SharedHashes(Call(features, compute))
    return state.call(features, key, how, compute, tuple(lacking), thread)


class SharedHashes(Awaited):
    """The features and hashes of one call of share_hash()."""

    def __init__(self, call: "Call", state: "Optional[_State]" = None, sent: Optional[Shared] = None) -> None:
        super().__init__()
        self._call, self._state = call, state
        self._sent = sent  # features on the way to ranks without
        self._own: "Optional[futures.Future[None]]" = None
        self._asked = False

    def done(self) -> bool:
        """Whether result() would return at once, neither waiting nor hashing."""
        if not self._features_are_here(0) or self._own is not None and not self._own.done():
            return False
        if self._state is not None:
            self._state.take_in()
        return self._is_whole()

    def result(self, timeout: Optional[float] = None) -> Tuple[List[Any], List[int]]:
        """(features, hashes), in the order of the call. timeout: seconds; TimeoutError: the time is up, and a later
        result() can succeed. Without `lacking` the wait has a bound anyway."""
        self._asked = True
        deadline = None if timeout is None else time.monotonic() + timeout
        self._features_are_here(timeout)
        if self._own is not None:
            if not futures.wait([self._own], _left(deadline)).done:
                raise TimeoutError(f"the hashes of this rank's part are not there in {timeout} s")
            self._own.result()
        while not self._is_whole():
            self._bring(self._call.missing()[0], deadline)
        return self._call.features, list(self._call.hashes)  # type: ignore[arg-type]

    def hash_at(self, index: int) -> int:
        """The hash of one feature, as soon as known, if this rank hashes its part in the call."""
        self._asked = True
        if self._state is None or self._call.digests is None or self._own is not None:
            return self.result()[1][index]
        self._bring(index, None)
        hash = self._call.hashes[index]
        assert hash is not None
        return hash

    def _bring(self, index: int, deadline: Optional[float]) -> None:
        """Wait for a hash until the hash is late, then hash."""
        while self._call.hashes[index] is None:
            late = 0.0 if self._state is None else self._state.until_late(self._call, index)
            if late <= 0:
                self._hash(index)
            if self._call.hashes[index] is not None:
                break
            left = _left(deadline)
            if left is not None and left <= 0:
                raise TimeoutError(f"rank {self._call.owners[index]} of the group has not sent a hash in time")
            assert self._state is not None
            self._state.wait(late if left is None else min(late, left))

    def _is_whole(self) -> bool:
        if self._call.missing():
            return False
        self._state = None  # hashes that are kept keep no rings
        return True

    def waits(self) -> bool:
        """Whether no result was asked for yet."""
        return not self._asked

    def _features_are_here(self, timeout: Optional[float]) -> bool:
        """Take the features that another rank sends."""
        if self._sent is None:
            return True
        if self._call.digests is None:  # this rank lacks the features
            if timeout == 0 and not self._sent.done():
                return False
            value, _ = self._sent.result(timeout)
            assert self._state is not None
            self._call.take(value)
            self._state.expect(self._call)
        self._sent = None
        return True

    def _hash(self, index: int) -> None:
        if self._state is None:
            self._call.hash(index)
        else:
            self._state.hash(self._call, index)

    def _descriptors(self) -> List[int]:
        sent = [] if self._sent is None else self._sent._descriptors()
        return sent + ([] if self._state is None else self._state.descriptors())

    def _patience(self) -> Optional[float]:
        if self._own is not None and not self._own.done() or self._sent is not None:
            return None
        missing = self._call.missing()
        if self._state is None:
            return 0.0
        return max(0.0, self._state.until_late(self._call, missing[0])) if missing else 0.0

    def __await__(self) -> Any:
        """As result(); a hash that is late is computed in a thread."""
        while not self.done():
            if self._sent is None and (self._own is None or self._own.done()) and self._patience() == 0:
                yield from self._late().__await__()
            else:
                yield from self._change().__await__()
        return self.result()

    async def _late(self) -> None:
        missing = self._call.missing()
        if missing:
            await asyncio.get_running_loop().run_in_executor(None, self._hash, missing[0])

    def __repr__(self) -> str:
        return f"<SharedHashes: {len(self._call.missing())} of {len(self._call.features)} to come>"


def _bound(kept: "OrderedDict[bytes, Any]") -> None:
    if len(kept) > _MOST_KEPT:
        kept.popitem(last=False)


def _left(deadline: Optional[float]) -> Optional[float]:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


# ---- The ranks of a group --------------------------------------------------------------------------------------------

_states: "weakref.WeakKeyDictionary[Any, Optional[_State]]" = weakref.WeakKeyDictionary()


def _state_of(group: Any) -> "Optional[_State]":
    """None: each rank for itself."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group must be a torch.distributed.ProcessGroup or None, not {type(group).__name__}")
    if group not in _states or (state := _states[group]) is not None and state.closed(group):
        made = gather.near_ends(group, _STREAM, _CAPACITY)
        _states[group] = None if made is None else _State(group, made)
    return _states[group]


class _Peer:
    """Another rank, as heard."""

    def __init__(self, end: Receiver) -> None:
        self.end = end
        self.is_late = self.is_gone = False


class _State:
    """A rank's state in a group."""

    def __init__(self, group: Any, made: Sequence[Any]) -> None:
        self._group = weakref.ref(group)
        self._rank, self._size = group.rank(), group.size()
        self._own = next(end for end in made if isinstance(end, Source))
        self._made = tuple(made)
        self._peers = {src: _Peer(end) for src, end in enumerate(made) if isinstance(end, Receiver)}
        self._how, self._rates = agreed_of(group)[1:]
        self._slowdown = self._own_slowdown = 1.0  # of the first rank, as told last; of this rank
        self._calls = 0
        self._telling = threading.RLock()
        self._expected: "OrderedDict[bytes, List[Tuple[weakref.ref[Call], int]]]" = OrderedDict()
        self._early: "OrderedDict[bytes, int]" = OrderedDict()
        self._open: "weakref.WeakSet[SharedHashes]" = weakref.WeakSet()

    def closed(self, group: Any) -> bool:
        """Whether ringcast.torch.close() was called."""
        ours = ends(group)
        return any(ours.get((_STREAM, src)) is not end for src, end in enumerate(self._made))

    def call(
        self,
        features: List[Any],
        key: Optional[str],
        how: str,
        compute: Callable[[Any], int],
        lacking: Tuple[int, ...],
        thread: bool,
    ) -> SharedHashes:
        number = self._calls
        self._calls += 1
        having = self._check(features, lacking)
        call = Call(features, compute, f"call {number}" if key is None else f"key {key}", having)
        self.take_in()
        sent = self._send(features, having, sum(call.nbytes)) if lacking else None
        how = self._how if how == "auto" else how
        if how == "auto":
            how = "hash" if lacking else self._best(call)
        if how == "local":
            call.ranks = (self._rank,)
        shared = SharedHashes(call, self, sent)
        call.shared = weakref.ref(shared)
        self._open.add(shared)
        if self._rank in lacking:
            return shared
        if how == "hash" or lacking:
            self.expect(call)
        else:
            shared._state = None
        if thread:
            shared._own = in_thread(self._hash_part, call)
            shared._own.add_done_callback(lambda _: shared._wake())
        else:
            with contextlib.suppress(Exception):  # result() hashes again, and raises the error
                self._hash_part(call)
        return shared

    def _check(self, features: List[Any], lacking: Tuple[int, ...]) -> Tuple[int, ...]:
        """The ranks that have the features."""
        wrong = [rank for rank in lacking if not (isinstance(rank, int) and 0 <= rank < self._size)]
        if wrong:
            raise ValueError(f"lacking takes ranks in the group, from 0 to {self._size - 1}, not {wrong[0]!r}")
        having = tuple(rank for rank in range(self._size) if rank not in lacking)
        if not having:
            raise ValueError("lacking names every rank: some rank must have the features")
        if self._rank in lacking:
            if any(feature is not None for feature in features):
                raise ValueError(f"rank {self._rank} is lacking, so its features must be None")
            features.clear()
        return having

    def _send(self, features: List[Any], having: Tuple[int, ...], nbytes: int) -> Shared:
        """Send the features, unhashed, to the ranks without: the ranks hash meanwhile."""
        sharing = sharing_of(self._group())
        assert sharing is not None
        sharing.take_all()
        src, wanted = having[self._calls % len(having)], self._rank not in having
        return sharing.call(lambda: features, nbytes, src, None, "share", 0.0, wanted=wanted)

    def _best(self, call: Call) -> str:
        nbytes, largest = sum(call.nbytes), max(call.nbytes, default=0)
        waiting = sum(1 for each in self._open if each.waits())
        at_once = waiting + (nbytes / largest if largest else 1)
        cost = rule.costs(self._rates, self._size, nbytes, waiting=at_once, slowdown=self._slowdown)
        return rule.best(cost, ("local", "hash"))

    # ---- Hashing ----

    def _hash_part(self, call: Call) -> None:
        for index in range(len(call.features)):
            if call.digests is None or call.owners[index] == self._rank:
                if call.hashes[index] is None:
                    self.hash(call, index)
                else:  # remembered
                    self._tell(call, index)

    def hash(self, call: Call, index: int) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        call.hash(index)
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        if cpu > _TELLING:
            self._own_slowdown += (min(max(1.0, wall / cpu), _MOST_SLOWDOWN) - self._own_slowdown) / 8
        self._tell(call, index)

    def _tell(self, call: Call, index: int) -> None:
        """Tell a hash, if other ranks may want it; and a change of the first rank's slowdown."""
        hash, entry = call.hashes[index], b""
        if call.digests is not None and hash is not None and 0 <= hash < 1 << 64 and len(call.ranks) > 1:
            entry = _ENTRY.pack(call.digests[index], hash)
        changed = self._rank == 0 and not 1 / _MUCH < self._own_slowdown / self._slowdown < _MUCH
        if entry or changed:
            with self._telling:
                if self._rank == 0:
                    self._slowdown = self._own_slowdown
                self._own.tell(_HEAD.pack(self._own_slowdown) + entry)

    # ---- Taking in ----

    def expect(self, call: Call) -> None:
        """Make the plan, and take the hashes of the other ranks from now on."""
        call.plan(int.from_bytes(hashlib.blake2b(call.name.encode(), digest_size=8).digest(), "big"))
        assert call.digests is not None
        second = self._rates.hash.get("sha256", 0.0) * max(self._slowdown, self._own_slowdown)
        due = Counter[int]()
        for index, (owner, digest) in enumerate(zip(call.owners, call.digests)):
            due[owner] += call.nbytes[index]
            call.late_at.append(call.began + (due[owner] + call.nbytes[index]) * second + _SLACK)
            early = self._early.pop(digest, None)
            if call.hashes[index] is None:
                call.hashes[index] = early
                if early is None and owner != self._rank:
                    self._expected.setdefault(digest, []).append((weakref.ref(call), index))
                    _bound(self._expected)

    def take_in(self) -> bool:
        """Take in what the other ranks have told. Whether there was anything."""
        took = False
        for src, peer in self._peers.items():
            while not peer.is_gone:
                try:
                    data = peer.end.hear()
                except (ringcast.Error, ValueError, RuntimeError):
                    peer.is_gone = True
                    break
                if data is None:
                    break
                took = self._heard(src, peer, data) or took
        return took

    def _heard(self, src: int, peer: _Peer, data: bytes) -> bool:
        """Frames of another form are dropped: the hashes are then late."""
        if len(data) < _HEAD.size or (len(data) - _HEAD.size) % _ENTRY.size:
            return False
        slowdown = _HEAD.unpack_from(data)[0]
        if not 1.0 <= slowdown <= _MOST_SLOWDOWN:
            return False
        if src == 0:
            self._slowdown = slowdown
        peer.is_late = False
        for digest, hash in _ENTRY.iter_unpack(data[_HEAD.size :]):
            calls = self._expected.pop(digest, None)
            if calls is None:
                self._early[digest] = hash
                _bound(self._early)
                continue
            for reference, index in calls:
                call = reference()
                if call is not None and call.hashes[index] is None:
                    call.hashes[index] = hash
                    shared = call.shared()
                    if shared is not None:
                        shared._wake()
        return True

    def until_late(self, call: Call, index: int) -> float:
        """Seconds until this rank hashes the feature itself."""
        self.take_in()
        peer = self._peers.get(call.owners[index])
        if call.hashes[index] is not None:
            return _SLACK
        if peer is None or peer.is_gone or peer.is_late:
            return 0.0
        left = call.late_at[index] - time.monotonic()
        peer.is_late = left <= 0
        return left

    def wait(self, seconds: float) -> None:
        """Until a frame has come, or the time is up."""
        if self.take_in():
            return
        poll = select.poll()
        for descriptor in self.descriptors():
            poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1000)

    def descriptors(self) -> List[int]:
        return [peer.end.ring.fileno() for peer in self._peers.values() if not peer.is_gone]
