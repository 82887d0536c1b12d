# SPDX-License-Identifier: Apache-2.0
"""One rank computes for all."""

import contextlib
import hashlib
import os
import threading
import traceback
from dataclasses import dataclass
from typing import Any, List

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import _dist
import torch
import torch.distributed as dist
from _dist import on_ranks, text_of
from peers import WATCHDOG, names_of_rings
from receiving import Receiving
from values import assert_same, scribble

import ringcast
import ringcast.torch
from ringcast.sglang import advise, feature_hash, share_hash, share_once, sharing

pytestmark = pytest.mark.alike


def feature(seed: int, count: int = 5000) -> Any:
    return torch.arange(count, dtype=torch.float32) * (seed + 1)


def hash_of(tensor: Any) -> int:
    return int.from_bytes(hashlib.sha256(tensor.contiguous().numpy().tobytes()).digest()[:8], "big")


def mm_inputs(seed: int) -> Any:
    parts = [feature(seed + 1), feature(seed + 2).reshape(50, 100).T]
    return {"feature": feature(seed), "offsets": [(3, 7)], "parts": parts}


def check(got: Any, seed: int) -> None:
    """Tensors with a hash arrive in C order; the rank that computed has its own."""
    value, hashes = got
    given, wanted = (
        {**one, "parts": [part.contiguous() for part in one["parts"]]}
        for one in (value, mm_inputs(seed))
    )
    assert_same(given, wanted)
    parts = [hash_of(part) for part in value["parts"]]
    assert hashes == {"feature": hash_of(value["feature"]), "parts": parts}


# ---- What arrives --------------------------------------------------------------------------------


def ranks_each_in_turn() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    computed: List[int] = []

    def compute(seed: int) -> Any:
        computed.append(seed)
        return mm_inputs(seed)

    shared = [
        share_once(lambda seed=seed: compute(seed), 20_000, how="share") for seed in range(10)
    ]
    assert [one.source for one in shared] == [seed % size for seed in range(10)]
    assert computed == list(range(rank, 10, size))
    for seed, one in reversed(list(enumerate(shared))):  # in any order, and again
        check(one.result(), seed)
        assert one.done() and one.result() is one.result()
    assert names_of_rings() == ([] if size == 1 else [f"sglang.default.{rank}.share_once"])
    for one in shared:
        scribble(one.result()[0])
    check(share_once(lambda: mm_inputs(99), 20_000, how="share").result(_dist.JOB_SECONDS), 99)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_each_rank_in_turn_computes_and_all_get_its_value_and_hashes(ranks, world):
    if world == 1:
        check(share_once(lambda: mm_inputs(1), 20_000, how="share").result(), 1)
    else:
        ranks.run(world, ranks_each_in_turn)


@dataclass
class Item:
    modality: str
    feature: Any
    hash: Any = None


@on_ranks(2)
def test_the_hashes_of_items_come_in_their_order() -> None:
    def compute() -> Any:
        return {"mm_items": [Item("image", feature(seed)) for seed in range(3)], "im_token_id": 7}

    value, hashes = share_once(compute, 60_000, src=1, how="share").result()
    for item, item.hash in zip(value["mm_items"], hashes["mm_items"]):
        assert item.hash == feature_hash(item.feature)
    alone = share_once(compute, 60_000, how="local").result()
    assert alone[1] == hashes
    assert share_once(compute, 60_000, how="share", hash=None).result()[1] is None


@on_ranks(4)
def test_a_source_is_a_rank_in_the_group() -> None:
    group = dist.new_group([1, 3])
    if dist.get_rank() not in (1, 3):
        assert "is not in the group" in text_of(
            ValueError, lambda: share_once(list, 1, group=group)
        )
        return
    for seed in range(4):
        shared = share_once(
            lambda seed=seed: mm_inputs(seed), 20_000, group=group, how="share", src=seed % 2
        )
        assert shared.source == seed % 2
        check(shared.result(), seed)


@on_ranks(3)
def test_who_computes_goes_on_although_nobody_has_come_to_receive() -> None:
    check(share_once(lambda: mm_inputs(0), 20_000, src=0, how="share").result(), 0)
    if dist.get_rank() == 0:
        mine = [
            share_once(lambda seed=seed: mm_inputs(seed), 20_000, src=0, how="share")
            for seed in range(64)
        ]
        assert all(one.done() for one in mine)
    dist.barrier()  # who waited for the others would not come here
    if dist.get_rank() != 0:
        theirs = [share_once(lambda: None, 20_000, src=0, how="share") for _ in range(64)]
        assert not any(one._outcome for one in theirs)
        assert theirs[-1].done() and all(one._outcome for one in theirs)
        for seed, one in enumerate(theirs):
            check(one.result(), seed)


def ranks_in_little_memory(calls: int) -> None:
    """
    Each ring holds one value: all are blocked in sending, and wait for each other, unless they take
    in meanwhile.
    """
    os.environ["RINGCAST_CAPACITY"], os.environ["RINGCAST_SPILL_BYTES"] = str(1 << 17), "0"
    shared = [
        share_once(lambda seed=seed: mm_inputs(seed), 60_000, how="share") for seed in range(calls)
    ]
    for seed, one in enumerate(shared):
        check(one.result(), seed)


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_that_have_no_room_take_in_what_the_others_sent(ranks, world):
    ranks.run(world, ranks_in_little_memory, 60)


@on_ranks(2)
def test_a_wait_that_ends_in_time_has_lost_nothing() -> None:
    check(share_once(lambda: mm_inputs(0), 20_000, src=1, how="share").result(), 0)
    if dist.get_rank() == 0:
        shared = share_once(lambda: None, 20_000, src=1, how="share")
        assert not shared.done() and "to come" in repr(shared)
        assert "rank 1 of the group" in text_of(TimeoutError, lambda: shared.result(0))
        dist.barrier()
        check(shared.result(_dist.JOB_SECONDS), 1)
    else:
        dist.barrier()
        check(share_once(lambda: mm_inputs(1), 20_000, src=1, how="share").result(), 1)


@on_ranks(2)
def test_a_wait_for_room_ends_in_time_and_has_lost_nothing() -> None:
    os.environ["RINGCAST_CAPACITY"], os.environ["RINGCAST_SPILL_BYTES"] = str(1 << 17), "0"
    check(share_once(lambda: mm_inputs(0), 20_000, src=0, how="share").result(), 0)
    if dist.get_rank() != 0:
        dist.barrier()
    calls = [
        share_once(lambda seed=seed: mm_inputs(seed), 60_000, src=0, how="share", thread=True)
        for seed in range(8)
    ]
    if dist.get_rank() == 0:
        sharing.in_thread(int).result()  # all are computed
        assert "room" in text_of(TimeoutError, lambda: calls[-1].result(0.01))
        dist.barrier()
    for seed, one in enumerate(calls):
        check(one.result(_dist.JOB_SECONDS), seed)


@on_ranks(2)
def test_a_second_thread_that_takes_in_is_told_and_loses_nothing() -> None:
    check(share_once(lambda: mm_inputs(0), 20_000, src=1, how="share").result(), 0)
    if dist.get_rank() == 0:
        shared = share_once(lambda: None, 20_000, src=1, how="share")
        waiting = Receiving(shared.result)
        ranks = sharing.sharing_of(None)
        assert ranks is not None
        while ranks._taking.acquire(blocking=False):  # until the other thread waits
            ranks._taking.release()
        assert "another thread" in text_of(RuntimeError, shared.result) and not shared.done()
        dist.barrier()
        check(waiting.finish(), 1)
    else:
        dist.barrier()
        check(share_once(lambda: mm_inputs(1), 20_000, src=1, how="share").result(), 1)


# ---- What goes wrong -----------------------------------------------------------------------------


@on_ranks(3)
def test_what_compute_raises_is_raised_on_all_ranks_and_the_next_call_works() -> None:
    rank = dist.get_rank()

    def fail() -> Any:
        raise KeyError("no such image")

    def cannot_be_sent() -> Any:
        return {"feature": feature(1), "later": lambda: None}

    for compute, error, text in (
        (fail, KeyError, "no such image"),
        (cannot_be_sent, Exception, "lambda"),
    ):
        shared = share_once(compute, 20_000, src=1, how="share")
        behind = share_once(lambda: mm_inputs(5), 20_000, src=1, how="share")
        if rank == 1:
            with pytest.raises(error, match=text):
                shared.result()
        else:
            told = text_of(ringcast.SendError, shared.result)
            assert "share_once" in told and "rank 1" in told and text in told, told
        check(behind.result(), 5)
    shared = share_once(fail, 1, how="local")
    assert text_of(KeyError, shared.result) == "'no such image'"
    assert length_of_traceback(shared) == length_of_traceback(shared)
    with pytest.raises(KeyError) as raised:
        shared.result()
    assert any(
        frame.f_code is fail.__code__ for frame, _ in traceback.walk_tb(raised.value.__traceback__)
    )


def room_for(value: Any) -> int:
    """How many frames of this fit the ring."""
    count = 0
    with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle):
        with contextlib.suppress(TimeoutError):
            while True:
                writer.send(value, 0, tag=1)
                count += 1
    return count


@on_ranks(2)
def test_who_has_no_room_for_an_error_takes_in_what_the_others_sent() -> None:
    """
    Rank 0 has no room for the error, and rank 1 none for its values, until rank 0 takes them in.
    """
    os.environ["RINGCAST_CAPACITY"], os.environ["RINGCAST_SPILL_BYTES"] = str(1 << 16), "0"

    def call(src: int, value: Any) -> Any:
        return share_once(lambda: value, 1, src=src, how="share", hash=None)

    for src in 0, 1:
        assert call(src, b"").result()[0] == b""
    dist.barrier()
    many = room_for(b"")
    shared = [call(1, bytes(5000)) for _ in range(20)]
    shared += [call(0, b"") for _ in range(many)]
    failing = call(0, bytes(1 << 20))
    behind = call(0, b"behind")
    text_of(ringcast.FrameTooLarge if dist.get_rank() == 0 else ringcast.SendError, failing.result)
    assert [len(one.result()[0]) for one in shared] == [5000] * 20 + [0] * many
    assert behind.result()[0] == b"behind"


kept: List[Any] = []  # by the ranks


@on_ranks(2)
def test_who_keeps_what_was_shared_keeps_no_ring() -> None:
    kept.extend(share_once(lambda: mm_inputs(1), 20_000, src=src, how="share") for src in (0, 1))
    for shared in kept:
        check(shared.result(), 1)


@on_ranks(2)
def test_a_rank_that_is_interrupted_leaves_nobody_waiting() -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    if dist.get_rank() == 0:
        with pytest.raises(KeyboardInterrupt):
            share_once(interrupt, 1, src=0, how="share")
    else:
        told = text_of(ringcast.SendError, share_once(interrupt, 1, src=0, how="share").result)
        assert "KeyboardInterrupt" in told
    check(share_once(lambda: mm_inputs(3), 1, src=0, how="share").result(), 3)


class Interrupts:
    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


@on_ranks(2)
def test_a_rank_that_is_interrupted_while_it_sends_leaves_nobody_waiting() -> None:
    for hash in None, "sha256":
        if dist.get_rank() == 0:
            with pytest.raises(KeyboardInterrupt):
                share_once(lambda: {"a": Interrupts()}, 1, src=0, hash=hash, how="share")
        else:
            shared = share_once(lambda: None, 1, src=0, hash=hash, how="share")
            assert "KeyboardInterrupt" in text_of(ringcast.SendError, shared.result)
    check(share_once(lambda: mm_inputs(3), 1, src=0, how="share").result(), 3)


@on_ranks(2)
def test_after_the_source_has_closed_its_ring_the_ranks_go_on_once_all_have_closed() -> None:
    check(share_once(lambda: mm_inputs(0), 1, src=0, how="share").result(), 0)
    if dist.get_rank() == 0:
        ringcast.torch.close()
    else:
        shared = share_once(lambda: mm_inputs(1), 1, src=0, how="share")
        assert "has closed the ring" in text_of(ringcast.WriterGone, shared.result)
        ringcast.torch.close()
    check(share_once(lambda: mm_inputs(2), 1, src=0, how="share").result(), 2)


@on_ranks(3)
def test_ranks_that_make_other_calls_hear_of_it() -> None:
    check(share_once(lambda: mm_inputs(0), 1, src=0, how="share").result(), 0)
    if dist.get_rank() == 1:
        share_once(lambda: mm_inputs(1), 1, how="local")  # a call that the others do not make
    shared = share_once(lambda: mm_inputs(2), 1, src=0, how="share")
    if dist.get_rank() == 1:
        text = text_of(RuntimeError, shared.result)
        assert "call 1 of the source, rank 0, was share_once; here, on rank 1, call 2" in text
    else:
        check(shared.result(), 2)


@on_ranks(2)
def test_bad_arguments_are_refused_on_each_rank() -> None:
    for error, arguments in [
        (TypeError, dict(nbytes="10")),
        (ValueError, dict(nbytes=-1)),
        (ValueError, dict(nbytes=1, src=2)),
        (TypeError, dict(nbytes=1, src="0")),
        (ValueError, dict(nbytes=1, hash="md5")),
        (ValueError, dict(nbytes=1, how="once")),
        (TypeError, dict(nbytes=1, group="world")),
    ]:
        text_of(error, lambda: share_once(list, **arguments))  # noqa: B023
    assert "nbytes must be an int, not str: '10'" in text_of(
        TypeError, lambda: share_once(list, "10")
    )
    assert "compute must be a function" in text_of(TypeError, lambda: share_once([1], 10))
    os.environ["RINGCAST_SGLANG"] = "1,share=never"
    assert "share=local|hash" in text_of(
        ValueError, lambda: share_once(list, 1, group=dist.new_group([0, 1]))
    )
    del os.environ["RINGCAST_SGLANG"]
    check(share_once(lambda: mm_inputs(3), 1, how="share").result(), 3)


def length_of_traceback(shared: Any) -> int:
    with pytest.raises(Exception) as raised:
        shared.result()
    return len(list(traceback.walk_tb(raised.value.__traceback__)))


# ---- When it pays --------------------------------------------------------------------------------

# Seconds a byte: what 10 MB take is 6, 0.4 and 0.6 ms.
RATES = advise.Rates({"sha256": 6e-10, "xxh3": 6e-11}, 4e-11, 6e-11)


@pytest.mark.parametrize(
    ("ranks_", "nbytes", "hash_", "seconds", "pays"),
    [
        (4, 10_000_000, "sha256", 0, True),
        (8, 10_000_000, "sha256", 0, True),
        (4, 10_000, "sha256", 0, False),  # small
        (4, 0, "sha256", 0, False),
        (4, 10_000_000, None, 0, False),  # nothing is saved
        (4, 10_000_000, "xxh3", 0, False),  # it costs as much as the way
        (4, 10_000_000, None, 0.01, True),
        (2, 250_000, "sha256", 0, False),  # two ranks save half at the most
        (4, 250_000, "sha256", 0, True),
        (2, 10_000_000, "sha256", 0, True),
    ],
)
def test_the_rule(ranks_, nbytes, hash_, seconds, pays):
    """Of two ways, with CPUs for all ranks."""
    cost = advise.costs(RATES, ranks_, nbytes, hash_, seconds)
    assert advise.best(cost, ("local", "share")) == ("share" if pays else "local")


@pytest.mark.parametrize(("ranks_", "cpus"), [(2, 2), (4, 2), (4, 4), (4, 64)])
def test_the_rule_of_hashes_shares_what_is_large(ranks_, cpus):
    rates = RATES._replace(cpus=cpus)
    ways = [
        advise.best(advise.costs(rates, ranks_, nbytes), ("local", "hash"))
        for nbytes in (10_000, 10_000_000)
    ]  # fmt: skip
    assert ways == ["local", "hash"]


def ranks_deciding(told: str) -> Any:
    """The first rank's rates and environment count, whatever the others' are."""
    os.environ["RINGCAST_SGLANG"] = told if dist.get_rank() == 0 else "0,share=local"
    original, advise.measure = advise.measure, lambda: RATES if dist.get_rank() == 0 else None
    try:
        found = [
            share_once(lambda: 1, nbytes).source for nbytes in (10_000, 10_000_000, 0, 10_000_000)
        ]
        assert share_once(lambda: 1, 0, how="share").source is not None
        assert share_once(lambda: 1, 10_000_000, how="local").source is None
        return found
    finally:
        advise.measure = original


@pytest.mark.parametrize(
    ("told", "sources"), [("1", [None, 0, None, 1]), ("0,share=local", [None] * 4)]
)
def test_all_ranks_decide_as_the_first_one_has_measured(ranks, told, sources):
    assert ranks.run(3, ranks_deciding, told) == [sources] * 3


# ---- Hashes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize(
    "inside",
    [
        lambda: share_once(lambda: 1, 1, thread=True).result(),
        lambda: share_hash([b"x"], key="inside").result(),
    ],
)
def test_who_shares_inside_what_one_rank_computes_is_told(inside, thread):
    with pytest.raises(RuntimeError, match="inside"):
        share_once(inside, 1, thread=thread).result(WATCHDOG)
    with pytest.raises(RuntimeError, match="inside"):
        share_hash([b"x"], key="outside", compute=lambda _: inside()).result(WATCHDOG)


def test_what_the_thread_computes_later_is_not_waited_for_in_the_thread():
    later, is_there = [], threading.Event()
    first = share_once(lambda: (is_there.wait(), later[0].result())[1], 1, thread=True)
    later.append(share_once(lambda: 1, 1, thread=True, hash=None))
    is_there.set()
    with pytest.raises(RuntimeError, match="later"):
        first.result(WATCHDOG)
    assert later[0].result(WATCHDOG) == (1, None)


def test_feature_hash_is_that_of_the_bytes():
    tensor = feature(3).reshape(50, 100)
    joined = hash_of(torch.cat([tensor.flatten(), feature(4)]))
    assert feature_hash(tensor) == feature_hash(tensor.numpy()) == hash_of(tensor)
    assert feature_hash(tensor.T) == hash_of(tensor.T) != hash_of(tensor)
    assert (
        feature_hash([tensor, feature(4)])
        == feature_hash([[tensor], [feature(4).numpy()]])
        == joined
    )
    assert feature_hash(tensor.numpy().tobytes()) == hash_of(tensor)
    assert feature_hash(tensor.to(torch.bfloat16)) == hash_of(
        tensor.to(torch.bfloat16).view(torch.int16)
    )
    for wrong in "text", None, torch.empty(3, device="meta"):
        with pytest.raises(TypeError, match="feature_hash takes"):
            feature_hash(wrong)


@on_ranks(2)
def test_the_task_of_the_next_value_looks_again_after_a_value_was_taken() -> None:
    """The look that took the value may have lowered the descriptor by which the next task waits."""
    shared = [
        share_once(lambda: {"x": 1}, 1 << 20, src=0, hash=None, how="share") for _ in range(2)
    ]
    dist.barrier()
    woken: List[int] = []
    shared[1]._wakers.append(lambda: woken.append(1))
    assert shared[0].done()
    assert bool(woken) == (dist.get_rank() == 1)
    assert [each.result()[0] for each in shared] == [{"x": 1}] * 2
