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
from hash_sharing import IMPATIENT, PATIENT, Hasher, check, everywhere, features, hashes_of, here, slack, share_hash

from ringcast._group.endpoint import state_of
from ringcast.sglang import feature_hash, sharing

pytestmark = pytest.mark.alike


# ---- What goes wrong -------------------------------------------------------------------------------------------------


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
def test_the_hashes_of_a_late_rank_are_waited_for_in_ever_fewer_calls() -> None:
    given = features(4)
    with slack(PATIENT):
        check(share_hash(given, how="hash"), given)
    ranks, rank = here(), dist.get_rank()
    meet()
    if rank == 0:
        waited = []
        with slack(0.0):
            for _ in range(40):
                shared = share_hash(given, how="hash", compute=Hasher())
                waited.append(1 not in shared._call.absent)
                check(shared, given)
        assert [index for index, does in enumerate(waited) if does] == [0, 1, 3, 7, 15, 31]
    meet()
    if rank == 1:
        with slack(IMPATIENT):
            for _ in range(40):  # told too late
                check(share_hash(given, how="hash", compute=Hasher()), given)
    meet()
    if rank == 0:
        assert ranks.take_in() and ranks._peers[1].late == 40
    with slack(PATIENT):
        shared = share_hash(given, how="hash", compute=Hasher())  # both are in step again
        meet()
        check(shared, given)
    assert ranks._peers[1 - rank].late == 0


@on_ranks(2)
def test_results_that_are_kept_are_not_waiting() -> None:
    given = features(2)
    kept = [share_hash(given, how="hash") for _ in range(5)]
    assert len(here().unasked) == 5
    for shared in kept:
        check(shared, given)
    assert len(here().unasked) == 0
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
            dist.barrier()  # before this rank hashes for the other, which is a way to the hash there
            check(shared, given)
    with slack(PATIENT):
        check(share_hash(given, how="hash"), given)


@on_ranks(2)
def test_frames_of_another_form_are_dropped_and_a_wrong_hash_is_taken() -> None:
    """What a hostile rank of the group can do: a wrong number under a right name, and nothing else."""
    given, rank = features(2), dist.get_rank()
    with slack(PATIENT):
        check(share_hash(given, how="hash"), given)
    ranks = here()
    meet()
    if rank:
        name = b"a name.."
        for frame in (
            *(b"", b"1", bytes(8), bytes(sharing._HEAD.size + 7)),
            *(sharing._HEAD.pack(name, name, slowdown, 0) for slowdown in (float("nan"), float("inf"), -1.0, 0.5)),
        ):
            assert ranks._own.tell(frame)
        ranks._own.ring.send({"text": [1, 2, 3]}, tag=1)
        ranks._own.ring.send_error("no")
    meet()
    before = ranks._peers[1 - rank].slowdown, dict(ranks._early), dict(ranks._decided)
    ranks.take_in()
    assert (ranks._peers[1 - rank].slowdown, dict(ranks._early), dict(ranks._decided)) == before
    meet()
    if rank:  # hashes of no call, of places that no call has, and more than are kept
        for number in range(200):
            ranks.tell(b"%8d" % number, name, 2**32 - 1, range(40))
            ranks.tell(b"%8d" % number, sharing.LOCAL)
    meet()
    ranks.take_in()
    assert len(ranks._early) <= sharing._MOST_KEPT and len(ranks._decided) <= sharing._MOST_KEPT
    meet()
    with slack(PATIENT):
        check(share_hash(given, how="hash", compute=Hasher()), given)
        wrong = share_hash(given, how="hash", compute=(lambda feature: 2**64 - 1) if rank else Hasher())
        hashes = hashes_of(wrong, given)
        assert hashes.count(2**64 - 1) == 1
    with slack(PATIENT if rank else IMPATIENT):
        beyond = share_hash(given, how="hash", compute=lambda feature: 2**64 if rank else 7)
        hashes = hashes_of(beyond, given)
        # No 64-bit number: it is not sent. Rank 1 hashes all by itself if it hears nothing from the impatient rank 0.
        assert hashes == [7, 7] if rank == 0 else 2**64 in hashes and set(hashes) <= {7, 2**64}


# ---- What is decided -------------------------------------------------------------------------------------------------


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


def deciding(ranks: Any, way: str) -> None:
    """Have this rank decide by load, and find `way`."""
    found = iter(["hash", "local", way])
    ranks._best = lambda nbytes, waiting: next(found)


@pytest.mark.parametrize(("world", "way"), [(2, "local"), (2, "hash"), (4, "local"), (4, "hash")])
def test_the_first_rank_to_come_decides_for_all(ranks, world, way):
    ranks.run(world, ranks_following, way)


def ranks_following(way: str) -> None:
    given, counted, rank = features(8), Hasher(), dist.get_rank()
    check(share_hash(given, how="hash"), given)
    deciding(here(), way if rank == 1 else {"hash": "local", "local": "hash"}[way])
    with slack(PATIENT):
        if rank == 1:
            shared = share_hash(given, compute=counted)
        meet()
        if rank != 1:
            shared = share_hash(given, compute=counted)
        check(shared, given)
    assert len(counted.features) == (8 if way == "local" else 8 // dist.get_world_size())
    dist.barrier()


@on_ranks(3)
def test_a_rank_that_shares_waits_for_no_rank_once_another_has_called_it_local() -> None:
    """As when two come at the same time: neither has heard of the other's decision."""
    given, ranks, rank = features(6), None, dist.get_rank()
    check(share_hash(given, how="hash"), given)
    ranks = here()
    with slack(1e6):
        if rank == 0:
            shared = share_hash(given, how="hash", compute=Hasher())
        meet()
        if rank == 1:
            deciding(ranks, "local")
            ranks._decided.clear()
            ranks.take_in = lambda: False
            shared = share_hash(given, compute=Hasher())
            del ranks.take_in
        if rank != 2:
            check(shared, given)
    dist.barrier()


@on_ranks(2)
def test_whatever_the_load_a_small_call_is_not_told() -> None:
    given = features(2, 10)
    check(share_hash(given, how="hash"), given)
    ranks, told = here(), []
    ranks.tell = lambda *frame: told.append(frame)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "_TELLING", 1e9)  # else a rank that stands still while it hashes may have news
        check(share_hash(given, compute=Hasher()), given)
    assert told == []


@on_ranks(2)
def test_each_ranks_load_reaches_the_others() -> None:
    given, rank = features(2), dist.get_rank()
    check(share_hash(given, how="hash"), given)
    here()._own_slowdown = 3.0 if rank == 0 else 5.0
    with slack(PATIENT), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "_TELLING", 1e9)  # what the hashing takes here changes nothing
        check(share_hash(given, how="hash", compute=Hasher()), given)
    assert here()._peers[1 - rank].slowdown == (3.0 if rank else 5.0)
