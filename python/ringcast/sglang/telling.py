# SPDX-License-Identifier: Apache-2.0
"""The ranks of a group share the hashing of features that every rank has: each feature is hashed by one rank.

Every rank makes the same plan: each feature of a call goes to the rank with the fewest bytes in this call so far. A
rank hashes its own part, and tells the hashes to the others as they come, by a ring of its own. A frame has the call's
name, a digest of the features, and 8 bytes for each hash. A rank that needs a hash of another rank's part waits until
the hash is late, and then hashes the feature itself. So no rank waits for a rank without a bound, and ranks that plan
or decide differently, miss a call, stop or die cost a second hash.

A hash is late if this rank has done its own part, the other rank was due, and hashing the feature here would be over by
now. Until a hash of the late rank comes in time, this rank waits for the rank in the second, fourth, eighth call only.
A rank never waits to send: without room the hashes are not told.

A call's name is the `key`, which the caller gives to the same features on all ranks, and never to others. The digest
is of types, shapes and sizes, in the order of the features: under a key that names other features of the same form, a
hash is another feature's. Hashes of a call not made here are kept for a while: a rank may be ahead.

Where the load makes a difference, one rank decides for all: the first to make the call tells "local" or "hash" at once,
and the ranks that come later do the same. Ranks that come at the same time may decide differently; a rank that shares
waits for no hash of a call that another rank called "local".
"""

import logging
import math
import struct
import threading
import time
import weakref
from collections import Counter, OrderedDict
from typing import Any, List, Optional, Sequence, Tuple

import ringcast
from ringcast._group.endpoint import Receiver, Source
from ringcast.sglang import rule
from ringcast.sglang.awaiting import wait_for
from ringcast.sglang.plan import Call
from ringcast.sglang.share import agreed_of

STREAM = "share_hash"
CAPACITY = 64 << 10
# A frame: the call's name, the digest of the features, the sender's slowdown, the place of the first hash; hashes.
_HEAD, _HASH_BYTES = struct.Struct("<8s8sfI"), 8
# In place of a name: the frame tells the slowdown alone. In place of a digest: the sender decided "local".
_NO_CALL = LOCAL = bytes(8)
_MOST_SLOWDOWN = 1000.0
# Hashes, and decisions, kept of calls that were not made here.
_MOST_KEPT = 4096
# Seconds: what a wait allows beside the hashing; the least CPU time that tells of the slowdown; how long a hash waits
# for the next hash before both are told in a frame.
SLACK, _TELLING, _GATHERING = 0.005, 0.0005, 0.001
# The first rank tells a slowdown that differs by so much from the one told last.
_MUCH = 1.25


def _bound(kept: "OrderedDict[Any, Any]") -> None:
    if len(kept) > _MOST_KEPT:
        kept.popitem(last=False)


class _Peer:
    """Another rank, as heard."""

    def __init__(self, end: Receiver) -> None:
        self.end = end
        self.slowdown = 1.0
        self.is_gone = False
        self.late = 0  # calls since this rank was late; 0: in time


class Ranks:
    """A rank's state in a group."""

    def __init__(self, group: Any, made: Sequence[Any]) -> None:
        self.group = weakref.ref(group)
        self.rank, self.size = group.rank(), group.size()
        self._own = next(end for end in made if isinstance(end, Source))
        self.made = dict(enumerate(made))
        self._peers = {src: _Peer(end) for src, end in enumerate(made) if isinstance(end, Receiver)}
        self._how, self._rates = agreed_of(group)[1:]
        self._own_slowdown = self._told_slowdown = 1.0
        self._telling = threading.RLock()
        self._hearing = threading.RLock()  # around each look at a Reader, which takes no time
        self._begun: "weakref.WeakValueDictionary[bytes, Call]" = weakref.WeakValueDictionary()  # by name
        # Of calls that were not made here: by name; by name, digest and place, the rank and the hash.
        self._decided: "OrderedDict[bytes, str]" = OrderedDict()
        self._early: "OrderedDict[Tuple[bytes, bytes, int], Tuple[int, int]]" = OrderedDict()
        self.unasked: "weakref.WeakSet[Any]" = weakref.WeakSet()  # calls without a result asked for

    # ---- Deciding ----

    def decide(self, call: Call, how: str) -> Tuple[str, bool]:
        """The way, "local" or "hash", and whether to tell the others."""
        told = self._decided.pop(call.name, None)
        how = self._how if how == "auto" else how
        if how != "auto":
            return how, False
        if told is not None:
            return told, False
        nbytes, largest = sum(call.nbytes), max(call.nbytes, default=0)
        together = nbytes / largest if largest else 1.0
        if self._best(nbytes, math.inf) == "local":  # whatever the load
            return "local", False
        if self._best(nbytes, together) == "hash":
            return "hash", False
        return self._best(nbytes, together + len(self.unasked)), True

    def _best(self, nbytes: int, waiting: float) -> str:
        slowdown = self._told_slowdown if self.rank == 0 else self._peers[0].slowdown
        cost = rule.costs(self._rates, self.size, nbytes, waiting=waiting, slowdown=slowdown)
        return rule.best(cost, ("local", "hash"))

    # ---- Hashing ----

    def hash_part(self, call: Call) -> None:
        if call.owners:
            return self._hash_and_tell(call, call.places_of(self.rank))
        for index in call.missing():
            self._hash(call, index)
        if self.rank == 0 and not 1 / _MUCH < self._own_slowdown / self._told_slowdown < _MUCH:
            self.tell(_NO_CALL, LOCAL)

    def _hash_and_tell(self, call: Call, places: range) -> None:
        first, since = places.start, call.began
        try:
            for place in places:
                if call.hashes[call.order[place]] is None:
                    self._hash(call, call.order[place])
                now = time.monotonic()
                if now - since >= _GATHERING:
                    self._tell_hashes(call, first, place + 1)
                    first, since = place + 1, now
        finally:
            self._tell_hashes(call, first, places.stop)
            call.idle_since = time.monotonic()

    def _hash(self, call: Call, index: int) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        call.hash(index)
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        if cpu > _TELLING:
            self._own_slowdown += (min(max(1.0, wall / cpu), _MOST_SLOWDOWN) - self._own_slowdown) / 8

    def hash_late(self, call: Call, index: int) -> None:
        """A hash of another rank's part: further ranks may be waiting, too."""
        self._hash(call, index)
        if call.owners:
            place = call.order.index(index)
            self._tell_hashes(call, place, place + 1)

    def _tell_hashes(self, call: Call, first: int, end: int) -> None:
        """Of the places from `first` to before `end`; nothing if a frame can't carry one of the hashes."""
        hashes = [call.hashes[index] for index in call.order[first:end]]
        if hashes and all(hash is not None and 0 <= hash < 1 << 64 for hash in hashes):
            self.tell(call.name, call.digest, first, hashes)

    def tell(self, name: bytes, digest: bytes, first: int = 0, hashes: Sequence[Optional[int]] = ()) -> None:
        with self._telling:
            self._told_slowdown = self._own_slowdown
            head = _HEAD.pack(name, digest, self._own_slowdown, first)
            self._own.tell(head + struct.pack(f"<{len(hashes)}Q", *hashes))

    # ---- Taking in ----

    def expect(self, call: Call) -> None:
        """Make the plan, and take the hashes of the other ranks from now on."""
        call.plan(self.size)
        second = self._rates.hash.get("sha256", 0.0)
        due = Counter[int]()
        for owner, nbytes in zip(call.owners, call.nbytes):
            due[owner] += nbytes
            slowdown = self._own_slowdown if owner == self.rank else self._peers[owner].slowdown
            call.due.append(due[owner] * slowdown * second)
            call.patience.append(nbytes * self._own_slowdown * second + SLACK)
        for src, peer in self._peers.items():
            peer.late += peer.late > 0
            if peer.late & peer.late - 1:  # no power of two
                call.absent.add(src)
        with self._hearing:
            self._begun[call.name] = call
            for place in range(len(call.order)):
                early = self._early.pop((call.name, call.digest, place), None)
                if early is not None:
                    self._take(call, place, *early)

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
            except RuntimeError:  # a call further up, which a signal's handler has interrupted, takes in
                break
            except (ringcast.Error, ValueError) as error:
                peer.is_gone = True
                logging.getLogger("sglang.ringcast").warning("Rank %d shares no more hashes: %s", src, error)
                break
            if data is None:
                break
            took = self._heard(src, peer, data) or took
        return took

    def _heard(self, src: int, peer: _Peer, data: bytes) -> bool:
        """Frames of another form are dropped: the hashes are then late."""
        count, beyond = divmod(len(data) - _HEAD.size, _HASH_BYTES)
        if count < 0 or beyond:
            return False
        name, digest, slowdown, first = _HEAD.unpack_from(data)
        if not 1.0 <= slowdown <= _MOST_SLOWDOWN:
            return False
        peer.slowdown = slowdown
        if name == _NO_CALL:
            return True
        hashes = struct.unpack_from(f"<{count}Q", data, _HEAD.size)
        call = self._begun.get(name)
        if call is None:
            self._decided.setdefault(name, "local" if digest == LOCAL else "hash")
            _bound(self._decided)
            for place, hash in enumerate(hashes, first):
                self._early[name, digest, place] = src, hash
                _bound(self._early)
        elif digest == LOCAL:
            call.absent.update(self._peers)
        elif digest == call.digest:
            for place, hash in enumerate(hashes, first):
                self._take(call, place, src, hash)
        shared = None if call is None else call.shared()
        if shared is not None:
            shared._wake()
        return True

    def _take(self, call: Call, place: int, src: int, hash: int) -> None:
        if place < len(call.order) and call.hashes[call.order[place]] is None:
            index = call.order[place]
            call.hashes[index] = hash
            if src == call.owners[index]:
                self._peers[src].late = 0

    def until_late(self, call: Call, index: int) -> float:
        """Seconds until this rank hashes the feature itself."""
        self.take_in()
        owner = call.owners[index]
        peer = self._peers.get(owner)
        if call.hashes[index] is not None:
            return SLACK
        if peer is None or peer.is_gone or owner in call.absent:
            return 0.0
        left = max(call.began + call.due[index], call.idle_since) + call.patience[index] - time.monotonic()
        if left <= 0:
            call.absent.add(owner)
            peer.late = max(1, peer.late)
        return left

    def wait(self, seconds: float) -> None:
        """Until a frame has come, or the time is up."""
        if not self.take_in():
            wait_for(self.descriptors(), seconds)

    def descriptors(self) -> List[int]:
        with self._hearing:
            return [peer.end.ring.fileno() for peer in self._peers.values() if not peer.is_gone]
