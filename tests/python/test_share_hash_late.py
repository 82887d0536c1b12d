# SPDX-License-Identifier: Apache-2.0
"""Ranks that share hashes and are late, stop, die, are hostile, or decide differently."""

import itertools
import os
import signal
from typing import Any, List

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch.distributed as dist
from _dist import meet, on_ranks, text_of
from hash_sharing import (
    IMPATIENT,
    PATIENT,
    Hasher,
    check,
    everywhere,
    features,
    hashes_of,
    here,
    slack,
    share_hash,
)

from ringcast._group.endpoint import state_of
from ringcast.sglang import feature_hash, sharing

pytestmark = pytest.mark.alike


# ---- What goes wrong -----------------------------------------------------------------------------


@on_ranks(2)
def test_a_rank_that_is_late_is_not_waited_for() -> None:
    given = features(6)
    with slack(IMPATIENT):
        if dist.get_rank() == 0:
            for _ in range(20):
                check(share_hash(given, how="hash", compute=Hasher()), given)
        else:
            share_hash(given, how="hash", compute=Hasher())  # the first call is a collective
        meet()
        if dist.get_rank():
            for _ in range(19):
                check(share_hash(given, how="hash", compute=Hasher()), given)
        meet()
    counted = Hasher()
    with slack(PATIENT):  # both are in step again
        check(share_hash(given, how="hash", compute=counted), given)


@on_ranks(2)
def test_a_late_rank_is_waited_for_again_when_it_is_heard() -> None:
    given = features(4)
    with slack(PATIENT):
        check(share_hash(given, how="hash"), given)
    rank, peer = dist.get_rank(), here()._peers[1 - dist.get_rank()]
    meet()
    if rank == 0:
        with slack(IMPATIENT):
            check(share_hash(given, how="hash", compute=Hasher()), given)
        with slack(PATIENT):  # rank 1 makes no call meanwhile: a wait would last
            check(share_hash(given, how="hash", compute=Hasher()), given)
        assert peer.is_late
    meet()
    if rank:
        with slack(IMPATIENT):
            for _ in range(2):
                check(share_hash(given, how="hash", compute=Hasher()), given)
    meet()
    with slack(PATIENT):
        counted = Hasher()
        check(share_hash(given, how="hash", compute=counted), given)
    assert len(counted.features) == 2 and not peer.is_late
    dist.barrier()


@on_ranks(3)
def test_a_rank_that_is_stopped_holds_nobody_up() -> None:
    """However many calls: there is room in no ring towards a stopped rank, in the end."""
    given, pids, rank = features(6, 10), everywhere(os.getpid()), dist.get_rank()
    stopped: List[Any] = []
    others = dist.new_group([0, 1])

    def stop(feature: Any) -> int:
        if not stopped:
            stopped.append(feature)
            os.kill(os.getpid(), signal.SIGSTOP)
        return feature_hash(feature)

    check(share_hash(given, how="hash"), given)
    with slack(IMPATIENT):
        if rank == 2:
            check(share_hash(given, how="hash", compute=stop), given)
        else:
            while state_of(pids[2]) != "stopped":
                os.sched_yield()
            for _ in range(700):  # a ring has room for 500 frames
                check(share_hash(given, how="hash", compute=Hasher()), given)
            dist.barrier(others)
    if rank == 0:
        os.kill(pids[2], signal.SIGCONT)
    dist.barrier()


def ranks_one_dying() -> None:
    given, rank = features(6), dist.get_rank()

    def die(feature: Any) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    check(share_hash(given, how="hash"), given)
    meet()
    with slack(IMPATIENT):
        for _ in range(50):
            check(share_hash(given, how="hash", compute=die if rank == 2 else Hasher()), given)


def test_the_others_hash_when_a_rank_dies_in_the_middle(mortals):
    mortals.run(3, ranks_one_dying, dying=2)


@on_ranks(2)
def test_an_error_of_hashing_is_raised_where_the_hash_is_needed() -> None:
    given = features(2)

    def fail(feature: Any) -> int:
        raise KeyError("no memory")

    with slack(IMPATIENT):
        shared = share_hash(given, how="hash", compute=fail if dist.get_rank() else feature_hash)
        if dist.get_rank():
            text_of(KeyError, shared.result)
            text_of(KeyError, shared.result)
            dist.barrier()
        else:
            # before this rank hashes for the other, which is a way to the hash there
            dist.barrier()
            check(shared, given)
    with slack(PATIENT):
        check(share_hash(given, how="hash"), given)


@on_ranks(2)
def test_frames_of_another_form_are_dropped_and_a_wrong_hash_is_taken() -> None:
    """
    What a hostile rank of the group can do: a wrong number under a right name, and nothing else.
    """
    given, rank = features(2), dist.get_rank()
    with slack(PATIENT):
        check(share_hash(given, how="hash"), given)
    ranks = here()
    meet()
    if rank:
        name = b"a name.."
        for frame in b"", b"1", bytes(8), bytes(sharing._HEAD.size + 7):
            assert ranks._own.tell(frame)
        ranks._own.ring.send({"text": [1, 2, 3]}, tag=1)
        ranks._own.ring.send_error("no")
    meet()
    before = dict(ranks._early)
    ranks.take_in()
    assert dict(ranks._early) == before
    meet()
    if rank:  # hashes of no call, of places that no call has, and more than are kept
        for number in range(200):
            ranks.tell(b"%8d" % number, name, 2**32 - 1, range(40))
    meet()
    ranks.take_in()
    assert (0 if rank else 200) <= len(ranks._early) <= sharing._MOST_KEPT
    meet()
    with slack(PATIENT):
        check(share_hash(given, how="hash", compute=Hasher()), given)
        wrong = share_hash(
            given, how="hash", compute=(lambda feature: 2**64 - 1) if rank else Hasher()
        )
        hashes = hashes_of(wrong, given)
        assert hashes.count(2**64 - 1) == 1
    with slack(PATIENT if rank else IMPATIENT):
        beyond = share_hash(given, how="hash", compute=lambda feature: 2**64 if rank else 7)
        hashes = hashes_of(beyond, given)
        # No 64-bit number: it is not sent. Rank 1 hashes all by itself if it hears nothing from the
        # impatient rank 0.
        assert hashes == [7, 7] if rank == 0 else 2**64 in hashes and set(hashes) <= {7, 2**64}


# ---- What is decided -----------------------------------------------------------------------------


@pytest.mark.parametrize(("told", "each"), [("local", 4), ("hash", 2)])
def test_the_first_ranks_environment_counts(ranks, told, each):
    assert ranks.run(2, ranks_told, told) == [each] * 2


def ranks_told(told: str) -> int:
    os.environ["RINGCAST_SGLANG"] = f"1,share={told if dist.get_rank() == 0 else 'hash'}"
    counted, given = Hasher(), features(4)
    with slack(PATIENT):
        check(share_hash(given, compute=counted), given)
    return len(counted.features)


def ranks_deciding(*ways: Any) -> None:
    counted, given = Hasher(), features(5)
    with slack(IMPATIENT):
        for way in ways:
            check(share_hash(given, how=way[dist.get_rank()], compute=counted), given)
    dist.barrier()


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_that_decide_differently_all_have_their_hashes(ranks, world):
    ranks.run(world, ranks_deciding, *itertools.product(("local", "hash"), repeat=world))
