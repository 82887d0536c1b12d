# SPDX-License-Identifier: Apache-2.0
"""The ranks share the hashing of features that all of them have."""

import asyncio
import os
import threading
from typing import Any, List

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
import torch.distributed as dist
from _dist import meet, on_ranks, text_of
from hash_sharing import (
    IMPATIENT,
    PATIENT,
    Hasher,
    check,
    everywhere,
    features,
    here,
    slack,
    share_hash,
)
from receiving import Receiving

import ringcast
import ringcast.sglang
import ringcast.torch
from ringcast.sglang import feature_hash, share_once, sharing

pytestmark = pytest.mark.alike


# ---- Who hashes ----------------------------------------------------------------------------------


def ranks_sharing() -> None:
    given, counted = features(8), Hasher()
    given[1] = given[1].reshape(50, 100).T  # neither in order
    given[2], given[3] = given[2].numpy(), [given[3], [given[4].to(torch.bfloat16)]]
    given[5], given[6] = given[6].view(torch.complex64).conj(), b"bytes"
    with slack(PATIENT):
        shared = share_hash(given, how="hash", compute=counted)
        own = len(counted.features)
        check(shared, given)
        assert len(counted.features) == own, "a hash of another rank's part was not taken"
        check(shared, given)
    assert sum(everywhere(own)) == len(given)
    assert own < len(given)


@pytest.mark.parametrize("world", [2, 4])
def test_each_feature_is_hashed_by_one_rank(ranks, world):
    ranks.run(world, ranks_sharing)


@on_ranks(2)
def test_the_bytes_are_shared_evenly_and_the_first_turn_goes_round() -> None:
    given, firsts = [torch.zeros(size) for size in (80_000, 30_000, 30_000, 20_000)], set()
    with slack(PATIENT):
        for _ in range(16):
            counted = Hasher()
            check(share_hash(given, how="hash", compute=counted), given)
            assert sum(feature.nbytes for feature in counted.features) == 4 * 80_000
            firsts.add(counted.features[0] is given[0])
    assert firsts == {True, False}


TYPES = torch.float32, torch.int32, torch.complex64


@on_ranks(3)
def test_ranks_with_features_of_another_form_get_right_hashes() -> None:
    given, rank = features(9), dist.get_rank()
    with slack(IMPATIENT):
        for theirs in (
            given[: 9 - rank],
            [feature[rank:] for feature in given],
            [f.to(TYPES[rank]) for f in given],
        ):
            check(share_hash(theirs, how="hash", key="the same"), theirs)


@on_ranks(2)
def test_an_item_costs_8_bytes_however_many_there_are() -> None:
    """The name and all else that a frame needs goes once, for all hashes that are there within a
    millisecond."""
    given, counted = [b"%d" % index for index in range(2 * sharing._MOST_KEPT)], Hasher()
    check(share_hash([b"first"], how="hash"), [b"first"])
    ranks, frames = here(), []
    tell, ranks._own.tell = ranks._own.tell, lambda data: frames.append(data) or tell(data)
    sharing._GATHERING, before = 1e9, sharing._GATHERING
    try:
        with slack(PATIENT):
            check(share_hash(given, how="hash", compute=counted), given)
    finally:
        sharing._GATHERING = before
    assert len(counted.features) == sharing._MOST_KEPT, (
        "a hash of another rank's part was not taken"
    )
    assert [len(frame) for frame in frames] == [sharing._HEAD.size + 8 * sharing._MOST_KEPT]
    dist.barrier()


@on_ranks(2)
def test_features_that_look_alike_have_their_own_hashes() -> None:
    """Pages with a white margin."""
    given = [torch.zeros(100_000) for _ in range(6)]
    for index, feature in enumerate(given):
        feature[1] = index
    counted = Hasher()
    with slack(PATIENT):
        check(share_hash(given, how="hash", compute=counted), given)
    assert sum(everywhere(len(counted.features))) == 6


@on_ranks(2)
def test_ranks_that_make_other_calls_get_right_hashes() -> None:
    given, other = features(4), features(4, 5001)
    with slack(IMPATIENT):
        if dist.get_rank():
            check(share_hash(other, how="hash"), other)  # a call that rank 0 does not make
        for _ in range(3):
            check(share_hash(given, how="hash", compute=Hasher()), given)


@on_ranks(2)
def test_bad_arguments_are_refused_on_each_rank() -> None:
    given = features(2)
    check(share_hash(given), given)
    for error, arguments in [
        (ValueError, dict(how="share")),
        (TypeError, dict(compute=3)),
        (TypeError, dict(key=3)),
        (TypeError, dict(key=None)),
        (TypeError, dict(group="world")),
    ]:
        text_of(error, lambda: share_hash(given, **arguments))  # noqa: B023
    assert "key" in text_of(TypeError, lambda: ringcast.sglang.share_hash(given))
    assert "feature_hash takes" in text_of(TypeError, lambda: share_hash(["text"]))


def test_a_compute_without_a_hash_is_refused():
    with pytest.raises(TypeError, match="compute must return an int, not NoneType"):
        share_hash([b"x"], compute=lambda feature: None).result()


def test_without_a_group_each_hashes_for_itself():
    given = features(2)
    check(share_hash(given), given)


@on_ranks(2)
def test_after_closing_the_ranks_make_new_rings() -> None:
    given = features(2)
    for _ in range(2):
        with slack(PATIENT):
            check(share_hash(given, how="hash", compute=Hasher()), given)
        dist.barrier()
        ringcast.torch.close()
        dist.barrier()


# ---- Waiting -------------------------------------------------------------------------------------


async def awaited(shared: Any) -> Any:
    return await shared


@on_ranks(2)
def test_awaited_in_any_order() -> None:
    async def run() -> None:
        given = [[feature + number for feature in features(3)] for number in range(5)]
        shared = [share_hash(each, how="hash", compute=Hasher()) for each in given]

        async def one(each: Any, its: List[Any]) -> None:
            got, hashes = await each
            assert hashes == [feature_hash(feature) for feature in its]
            check(each, its)

        await asyncio.gather(*(one(*pair) for pair in reversed(list(zip(shared, given)))))

    with slack(PATIENT):
        asyncio.run(run())
    meet()
    if dist.get_rank() == 0:  # the other rank makes no call
        with slack(IMPATIENT):
            asyncio.run(run())


@on_ranks(2)
def test_it_is_done_when_no_rank_is_worth_waiting_for() -> None:
    given, threads = features(4), []

    def compute(feature: Any) -> int:
        threads.append(threading.current_thread())
        return feature_hash(feature)

    check(share_hash(given, how="hash"), given)
    if dist.get_rank() == 0:  # the other rank makes no call
        with slack(IMPATIENT):
            shared = share_hash(given, how="hash", compute=compute)
            while not shared.done():
                os.sched_yield()
            assert len(threads) == 2, "a late hash is computed by result() alone"
            asyncio.run(awaited(shared))
        check(shared, given)
        assert len(threads) == 4 and threading.main_thread() not in threads[2:]
    dist.barrier()


@on_ranks(2)
def test_several_threads_share_hashes_at_once() -> None:
    first = features(2)
    check(share_hash(first, key="the rings", how="hash"), first)

    def calls(thread: int) -> None:
        for number in range(30):
            given = features(3, 1000 + thread)
            check(share_hash(given, key=f"{thread} {number}", how="hash"), given)

    for running in [Receiving(lambda thread=thread: calls(thread)) for thread in range(3)]:
        running.finish()
    dist.barrier()


@on_ranks(2)
def test_a_ring_that_another_thread_reads_is_not_at_an_end() -> None:
    given = features(2)
    check(share_hash(given, how="hash"), given)
    peer = here()._peers[1 - dist.get_rank()]
    hear, failures = peer.end.hear, [RuntimeError("this Reader is in use")] * 3

    def hear_later() -> Any:
        if failures:
            raise failures.pop()
        return hear()

    peer.end.hear = hear_later
    meet()  # no rank is ahead
    with slack(PATIENT):
        counted = Hasher()
        check(share_hash(given, how="hash", compute=counted), given)
    assert len(counted.features) == 1 and not failures and not peer.is_gone
    dist.barrier()
    del peer.end.hear


@on_ranks(2)
def test_share_once_is_awaited_and_computes_in_a_thread() -> None:
    def compute(number: int) -> Any:
        if number == 3:
            raise KeyError(number)
        return {
            "feature": torch.full((40_000,), float(number)),
            "thread": threading.current_thread().name,
        }

    async def one(number: int, shared: Any) -> None:
        if number == 3:
            error = KeyError if shared.source == dist.get_rank() else ringcast.SendError
            with pytest.raises(error):
                await shared
            return
        value, hashes = await shared
        assert hashes["feature"] == feature_hash(value["feature"])
        assert float(value["feature"][7]) == number and value["thread"].startswith(
            "ringcast-compute"
        )

    async def run() -> None:
        calls = [
            share_once(lambda number=number: compute(number), 160_000, how="share", thread=True)
            for number in range(8)
        ]
        await asyncio.gather(
            *(one(number, shared) for number, shared in reversed(list(enumerate(calls))))
        )
        local = [
            share_once(lambda: compute(9), 160_000, how="local", thread=True) for _ in range(2)
        ]
        await asyncio.gather(*(one(9, shared) for shared in local))

    asyncio.run(run())
    calls = [share_once(lambda: compute(9), 160_000, how="share", thread=True) for _ in range(40)]
    assert all(float(shared.result()[0]["feature"][1]) == 9 for shared in calls)


# ---- What is remembered --------------------------------------------------------------------------


def hash_by(key: str, tensor: Any, remember: bool = True) -> int:
    return ringcast.sglang.share_hash([tensor], key=key, remember=remember).result()[1][0]


def test_a_key_is_hashed_once_where_that_is_asked_for():
    first, longer = torch.arange(1000.0), torch.arange(1001.0)
    other, told = first + 1, feature_hash(first)
    assert hash_by("never", other, remember=False) == hash_by("never", other) == feature_hash(other)
    assert hash_by("a", first) == told == hash_by("a", other), "the key tells, and nothing else"
    assert hash_by("b", other) == hash_by("a", other, remember=False) == feature_hash(other)
    assert hash_by("a", longer) == feature_hash(longer), "of another form"
    assert share_hash([first], key="a", compute=lambda _: 7, remember=True).result()[1] == [7]


@on_ranks(2)
def test_hashes_of_another_rank_are_remembered_too() -> None:
    given = features(4)
    more = [feature + 1 for feature in given]
    with slack(PATIENT):
        told = share_hash(given, key="again", how="hash", remember=True).result()[1]
    assert told == [feature_hash(feature) for feature in given]
    assert share_hash(more, key="again", how="local", remember=True).result()[1] == told
