# SPDX-License-Identifier: Apache-2.0
"""The ranks share the hashing of features that all of them have."""

import asyncio
import contextlib
import os
import signal
from typing import Any, Callable, Iterator, List

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import numpy as np
import torch
import torch.distributed as dist
from _dist import meet, on_ranks, text_of

import ringcast.torch
from ringcast._group.endpoint import state_of
from ringcast.sglang import cache, feature_hash, hashing, plan, share_hash, share_once

pytestmark = pytest.mark.alike

PATIENT, IMPATIENT = 60.0, 0.001  # seconds that a wait allows a rank


def features(count: int = 4, size: int = 5000) -> List[Any]:
    """Of a call, each its own."""
    return [torch.arange(size, dtype=torch.float32) * (index + 1) for index in range(count)]


class Hasher:
    """feature_hash, counted."""

    def __init__(self) -> None:
        self.features: List[Any] = []

    def __call__(self, feature: Any) -> int:
        self.features.append(feature)
        return feature_hash(feature)


@contextlib.contextmanager
def slack(seconds: float) -> Iterator[None]:
    before, hashing._SLACK = hashing._SLACK, seconds
    try:
        yield
    finally:
        hashing._SLACK = before


def hashes_of(shared: Any, given: List[Any]) -> List[int]:
    got, hashes = shared.result()
    assert all(one is other for one, other in zip(got, given))
    return hashes


def check(shared: Any, given: List[Any]) -> None:
    assert hashes_of(shared, given) == [feature_hash(feature) for feature in given]


def everywhere(value: Any) -> List[Any]:
    told: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, value)
    return told


# ---- Who hashes ------------------------------------------------------------------------------------------------------


def ranks_sharing(keyed: bool) -> None:
    given, counted = features(8), Hasher()
    given[1] = given[1].reshape(50, 100).T  # neither in order
    given[2], given[3] = given[2].numpy(), [given[3], [given[4].to(torch.bfloat16)]]
    given[5], given[6] = given[6].view(torch.complex64).conj(), b"bytes"
    with slack(PATIENT):
        shared = share_hash(given, how="hash", compute=counted, key="one" if keyed else None)
        own = len(counted.features)
        check(shared, given)
        assert len(counted.features) == own, "a hash of another rank's part was not taken"
        check(shared, given)
    assert sum(everywhere(own)) == len(given)
    assert own < len(given)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("keyed", [False, True])
def test_each_feature_is_hashed_by_one_rank(ranks, world, keyed):
    ranks.run(world, ranks_sharing, keyed)


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


@on_ranks(3)
def test_the_order_may_differ() -> None:
    given, counted = features(9), Hasher()
    turned = given[dist.get_rank() :] + given[: dist.get_rank()]
    with slack(PATIENT):
        check(share_hash(turned, how="hash", compute=counted), turned)
    assert sum(everywhere(len(counted.features))) == 9


@on_ranks(2)
def test_features_that_look_alike_have_their_own_hashes() -> None:
    """Pages with a white margin: the samples are equal."""
    given = [torch.zeros(100_000) for _ in range(6)]
    for index, feature in enumerate(given):
        feature[1] = index
    counted = Hasher()
    with slack(PATIENT):
        check(share_hash(given, how="hash", compute=counted), given)
    assert sum(everywhere(len(counted.features))) == 6


@on_ranks(2)
def test_ranks_that_make_other_calls_get_right_hashes() -> None:
    given, other = features(4), [feature + 1 for feature in features(4)]
    with slack(IMPATIENT):
        if dist.get_rank():
            check(share_hash(other, how="hash"), other)  # a call that rank 0 does not make
        for _ in range(3):
            check(share_hash(given, how="hash", compute=Hasher()), given)


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


@on_ranks(3)
def test_a_rank_that_is_stopped_holds_nobody_up() -> None:
    """However many calls: there is room in no ring towards a stopped rank, in the end."""
    given, pids, rank = features(6, 10), everywhere(os.getpid()), dist.get_rank()
    stopped: List[Any] = []

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
        else:
            check(shared, given)
    with slack(PATIENT):
        check(share_hash(given, how="hash"), given)


@on_ranks(2)
def test_frames_of_another_form_are_dropped_and_a_wrong_hash_is_taken() -> None:
    """What a hostile rank of the group can do: a wrong number under a right name, and nothing else."""
    given, rank = features(2), dist.get_rank()
    with slack(PATIENT):
        check(share_hash(given, how="hash"), given)
    state = hashing._states[dist.group.WORLD]
    assert state is not None
    meet()
    if rank:
        name = bytes(8)
        for frame in b"", b"1", bytes(8), bytes(23), hashing._HEAD.pack(float("nan")) + name + bytes(8):
            assert state._own.tell(frame)
        assert state._own.tell(hashing._HEAD.pack(1e300) + name + bytes(8))
        assert state._own.tell(hashing._HEAD.pack(-1.0))
        state._own.ring.send({"text": [1, 2, 3]}, tag=1)
        state._own.ring.send_error("no")
    meet()
    slowdown, kept = state._slowdown, dict(state._early)
    state.take_in()
    assert (state._slowdown, dict(state._early)) == (slowdown, kept)
    meet()
    with slack(PATIENT):
        check(share_hash(given, how="hash", compute=Hasher()), given)
        wrong = share_hash(given, how="hash", compute=(lambda feature: 2**64 - 1) if rank else Hasher())
        hashes = hashes_of(wrong, given)
        assert hashes.count(2**64 - 1) == 1
    with slack(PATIENT if rank else IMPATIENT):
        beyond = share_hash(given, how="hash", compute=lambda feature: 2**64 if rank else 7)
        assert sorted(hashes_of(beyond, given)) == ([7, 2**64] if rank else [7, 7]), "sent, and is no 64-bit number"


# ---- What is decided -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("told", "each"), [("local", 4), ("hash", 2)])
def test_the_first_ranks_environment_counts(ranks, told, each):
    assert ranks.run(2, ranks_told, told) == [each] * 2


def ranks_told(told: str) -> int:
    os.environ["RINGCAST_SHARE_HASH"] = told if dist.get_rank() == 0 else "hash"
    counted, given = Hasher(), features(4)
    with slack(PATIENT):
        check(share_hash(given, compute=counted), given)
    return len(counted.features)


@on_ranks(2)
def test_ranks_that_decide_differently_all_have_their_hashes() -> None:
    counted, given = Hasher(), features(4)
    with slack(IMPATIENT):
        for ways in ("local", "hash"), ("hash", "local"):
            check(share_hash(given, how=ways[dist.get_rank()], compute=counted), given)


@on_ranks(2)
def test_the_load_of_the_first_rank_reaches_the_others() -> None:
    given = features(2)
    check(share_hash(given, how="hash"), given)
    state = hashing._states[dist.group.WORLD]
    assert state is not None
    state._own_slowdown = 3.0 if dist.get_rank() == 0 else 5.0
    with slack(PATIENT):
        check(share_hash(given, how="hash", compute=Hasher()), given)
    assert 2.5 < state._slowdown <= 3.0


@on_ranks(2)
def test_bad_arguments_are_refused_on_each_rank() -> None:
    given = features(2)
    check(share_hash(given), given)
    for error, arguments in [
        (ValueError, dict(how="share")),
        (TypeError, dict(compute=3)),
        (TypeError, dict(key=3)),
        (TypeError, dict(group="world")),
        (ValueError, dict(lacking=(2,))),
        (ValueError, dict(lacking=(0, 1))),
    ]:
        text_of(error, lambda: share_hash(given, **arguments))  # noqa: B023
    assert "feature_hash takes" in text_of(TypeError, lambda: share_hash(["text"]))
    assert "must be None" in text_of(ValueError, lambda: share_hash(given, lacking=(dist.get_rank(),)))


def test_without_a_group_each_hashes_for_itself():
    given = features(2)
    check(share_hash(given), given)
    with pytest.raises(ValueError, match="lacking needs a group"):
        share_hash(given, lacking=(0,))


@on_ranks(2)
def test_after_closing_the_ranks_make_new_rings() -> None:
    given = features(2)
    for _ in range(2):
        with slack(PATIENT):
            check(share_hash(given, how="hash", compute=Hasher()), given)
        dist.barrier()
        ringcast.torch.close()
        dist.barrier()


# ---- Ranks without the features --------------------------------------------------------------------------------------


@on_ranks(3)
def test_a_rank_that_lacks_the_features_gets_them_and_hashes_nothing() -> None:
    lacks = dist.get_rank() == 1
    with slack(PATIENT):
        for number in range(4):
            counted, given = Hasher(), [feature + number for feature in features(3)]
            shared = share_hash([None] * 3 if lacks else given, compute=counted, lacking=(1,))
            got, hashes = shared.result()
            assert hashes == [feature_hash(feature) for feature in given]
            assert all(torch.equal(one, other) for one, other in zip(got, given))
            assert lacks or all(one is other for one, other in zip(got, given))
            assert bool(counted.features) is not lacks
            assert sum(everywhere(len(counted.features))) == 3
    dist.barrier()


# ---- Waiting ---------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_awaited_in_any_order() -> None:
    async def run() -> None:
        given = [[feature + number for feature in features(3)] for number in range(5)]
        shared = [
            share_hash(each, how="hash", compute=Hasher(), thread=number % 2 == 0) for number, each in enumerate(given)
        ]

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
def test_share_once_is_awaited_and_computes_in_a_thread() -> None:
    import threading

    def compute(number: int) -> Any:
        if number == 3:
            raise KeyError(number)
        return {"feature": torch.full((40_000,), float(number)), "thread": threading.current_thread().name}

    async def one(number: int, shared: Any) -> None:
        if number == 3:
            error = KeyError if shared.source == dist.get_rank() else ringcast.SendError
            with pytest.raises(error):
                await shared
            return
        value, hashes = await shared
        assert hashes["feature"] == feature_hash(value["feature"])
        assert float(value["feature"][7]) == number and value["thread"].startswith("ringcast-compute")

    async def run() -> None:
        calls = [
            share_once(lambda number=number: compute(number), 160_000, how="share", thread=True) for number in range(8)
        ]
        await asyncio.gather(*(one(number, shared) for number, shared in reversed(list(enumerate(calls)))))
        local = [share_once(lambda: compute(9), 160_000, how="local", thread=True) for _ in range(2)]
        await asyncio.gather(*(one(9, shared) for shared in local))

    asyncio.run(run())
    calls = [share_once(lambda: compute(9), 160_000, how="share", thread=True) for _ in range(40)]
    assert all(float(shared.result()[0]["feature"][1]) == 9 for shared in calls)


# ---- What is remembered ----------------------------------------------------------------------------------------------


@pytest.fixture
def remembered(monkeypatch):
    known = cache.Cache()
    monkeypatch.setattr(plan, "remembered", known)
    return known


def is_known(known: Any, feature: Any) -> bool:
    found = known.get(feature)
    assert found in (None, feature_hash(feature)), "a stale hash"
    share_hash([feature]).result()
    return found is not None


def test_a_tensor_is_hashed_once_until_it_changes(remembered):
    tensor = torch.arange(1000.0)
    assert not is_known(remembered, tensor) and is_known(remembered, tensor)
    changes: List[Callable[[], Any]] = [
        lambda: tensor.add_(1),
        lambda: tensor[3:7].zero_(),
        lambda: tensor.view(10, 100).T[4].fill_(9),
        lambda: tensor.resize_(500),
        lambda: tensor.detach().mul_(2),
        lambda: tensor.set_(torch.ones(1000)),
        lambda: torch.ones(1000, out=tensor),
    ]
    for change in changes:
        change()
        assert not is_known(remembered, tensor) and is_known(remembered, tensor)
    other = tensor.clone()
    assert not is_known(remembered, other)
    assert len(remembered._known) == 2
    del other
    assert len(remembered._known) == 1


def test_memory_that_others_write_is_hashed_anew(remembered):
    array = np.arange(1000.0)
    tensor = torch.arange(1000.0)
    for _ in range(2):
        assert not is_known(remembered, array)
        assert not is_known(remembered, torch.from_numpy(array))
        assert not is_known(remembered, bytearray(100))
        array += 1
    assert not is_known(remembered, tensor) and is_known(remembered, tensor)
    view = tensor.numpy()  # from now on NumPy writes too
    for _ in range(2):
        view += 1
        assert not is_known(remembered, tensor)
    with torch.inference_mode():
        frozen = torch.arange(10.0)
        for _ in range(2):
            assert not is_known(remembered, frozen)
            frozen += 1


def test_a_file_is_hashed_once_until_it_changes(remembered, tmp_path, monkeypatch):
    path = tmp_path / "image"
    path.write_bytes(b"1" * 5000)
    assert not is_known(remembered, path) and not is_known(remembered, path), "just written: may change unseen"
    monkeypatch.setattr(cache, "_SETTLED", -1e9)
    assert not is_known(remembered, path) and is_known(remembered, path)
    facts = os.stat(path)
    path.write_bytes(b"2" * 5000)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert not is_known(remembered, path) and is_known(remembered, path)
    other = tmp_path / "other"
    other.write_bytes(b"3" * 5000)
    os.replace(other, path)
    assert not is_known(remembered, path) and is_known(remembered, path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        share_hash([path]).result()


def test_a_change_while_hashing_is_not_remembered(remembered, monkeypatch):
    tensor = torch.arange(1000.0)

    def hash_and_change(feature: Any) -> int:
        told = feature_hash(feature)
        feature.add_(1)
        return told

    monkeypatch.setattr(plan, "feature_hash", hash_and_change)
    plan.Call([tensor], hash_and_change).hash(0)
    assert remembered.get(tensor) is None
