# SPDX-License-Identifier: Apache-2.0
"""ringcast.sglang in the place of SGLang's hash function; SGLang's modules are stubs."""

import os
import sys
from types import SimpleNamespace
from typing import Any, Callable, List

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
import torch.distributed as dist
from sglang_stubs import FEATURES, load, write_stubs

from ringcast.sglang import ahead, feature_hash, install, sharing, uninstall

pytestmark = pytest.mark.alike


def item(feature: Any, **more: Any) -> Any:
    given = dict(
        feature=feature,
        precomputed_embeddings=None,
        hash=None,
        pad_value=None,
        is_valid=lambda: True,
    )
    return SimpleNamespace(**{**given, **more})


def request(rid: str, *items: Any) -> Any:
    return SimpleNamespace(rid=rid, mm_inputs=SimpleNamespace(mm_items=list(items)))


def features(count: int) -> List[Any]:
    return [torch.arange(5000.0) * (index + 1) for index in range(count)]


def in_sglang(folder: str, body: Callable[[Any, List[Any]], None]) -> None:
    """body(scheduler, the features that SGLang's own function has hashed here), with ringcast in
    place."""
    sys.path.insert(0, folder)
    try:
        module = load(FEATURES)
        assert install()
        body(load("srt.managers.scheduler").Scheduler(dist.group.WORLD), module.hashed)
    finally:
        uninstall()
        sys.path.remove(folder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
            del sys.modules[name]


def sum_of(number: int) -> int:
    total = torch.tensor(number)
    dist.all_reduce(total)
    return int(total)


def ranks_hashing_a_list(folder: str) -> None:
    os.environ["RINGCAST_SGLANG"] = "1,share=hash"
    sharing.SLACK = 60.0

    def body(scheduler: Any, hashed: List[Any]) -> None:
        for _ in range(3):
            given = features(7)
            known = item(given[6], hash=5)
            requests = [
                request("a", *map(item, given[:3])),
                request("b"),
                request("c", *map(item, given[3:6]), known),
            ]
            hashed.clear()
            scheduler.process_input_requests(requests)
            assert [each.hash for one in requests for each in one.mm_inputs.mm_items] == [
                *map(feature_hash, given[:6]),
                5,
            ]
            assert len(hashed) < 6 and sum_of(len(hashed)) == 6, (
                "a feature was hashed twice, or a known one"
            )
            assert not ahead._begun
            assert load(FEATURES).hash_feature(given[0]) == feature_hash(given[0])
            assert hashed[-1] is given[0]

    try:
        in_sglang(folder, body)
    finally:
        sharing.SLACK = 0.005


@pytest.mark.parametrize("world", [2, 3])
def test_each_feature_of_a_list_of_requests_is_hashed_by_one_rank(ranks, tmp_path, world):
    write_stubs(tmp_path)
    ranks.run(world, ranks_hashing_a_list, str(tmp_path))


def ranks_without_sharing(folder: str) -> None:
    def fail(*given: Any, **named: Any) -> Any:
        raise OSError("no memory")

    def body(scheduler: Any, hashed: List[Any]) -> None:
        for skips in False, True:
            given = features(3)
            if skips:
                os.environ["SGLANG_MM_SKIP_COMPUTE_HASH"] = "1"
            scheduler.process_input_requests([request("a", *map(item, given))])
            assert all(one is other for one, other in zip(hashed[-3:], given)), (
                "SGLang's own function hashes"
            )

    original, ahead.share_hash = ahead.share_hash, fail
    try:
        in_sglang(folder, body)
    finally:
        ahead.share_hash = original


def test_sglang_hashes_where_the_hashes_can_not_be_shared(ranks, tmp_path):
    write_stubs(tmp_path)
    ranks.run(2, ranks_without_sharing, str(tmp_path))


def ranks_one_failing(folder: str) -> None:
    """The lists of a rank that fails have the same keys as before; in the first list the rings are
    made. The other rank waits for the failed one again when it has heard it."""
    os.environ["RINGCAST_SGLANG"] = "1,share=hash"
    original = ahead._features_of

    def fail(request: Any) -> Any:
        raise OSError("no memory")

    def body(scheduler: Any, hashed: List[Any]) -> None:
        for number in range(6):
            fails = number % 3 == 0
            ahead._features_of = fail if fails and dist.get_rank() else original
            sharing.SLACK = 0.001 if fails else 60.0
            given = features(6)
            hashed.clear()
            scheduler.process_input_requests([request("a", *map(item, given))])
            assert number % 3 < 2 or sum_of(len(hashed)) == 6
            dist.barrier()

    try:
        in_sglang(folder, body)
    finally:
        sharing.SLACK = 0.005


def test_a_rank_that_fails_shares_again(ranks, tmp_path):
    write_stubs(tmp_path)
    ranks.run(2, ranks_one_failing, str(tmp_path))


def ranks_without_the_shared_hash(folder: str) -> None:
    os.environ["RINGCAST_SGLANG"] = "1,share=hash"

    def fail(shared: Any, index: int) -> int:
        raise RuntimeError("the ring is in use")

    def body(scheduler: Any, hashed: List[Any]) -> None:
        given = features(3)
        asked = request("a", *map(item, given))
        scheduler.process_input_requests([asked])
        assert [each.hash for each in asked.mm_inputs.mm_items] == [*map(feature_hash, given)]

    original, sharing.SharedHashes.hash_at = sharing.SharedHashes.hash_at, fail
    try:
        in_sglang(folder, body)
    finally:
        sharing.SharedHashes.hash_at = original


def test_sglang_hashes_where_a_shared_hash_can_not_be_had(ranks, tmp_path):
    write_stubs(tmp_path)
    ranks.run(2, ranks_without_the_shared_hash, str(tmp_path))


def test_what_sglang_would_not_hash_on_the_cpu_is_left_alone():
    good, batch = features(1)[0], SimpleNamespace(batch=[request("x", item(torch.ones(3)))])
    items = [
        item(good),
        item(None, precomputed_embeddings=[good, good]),
        item(good, pad_value=3),
        item(good, is_valid=lambda: False),
        item(None),
        item([]),
        item(object()),
        item(torch.empty(3, device="meta")),
    ]
    found = list(ahead._features_of(request("a", *items)))
    assert found[0] is good and found[1] == [good, good] and len(found) == 2
    assert len(list(ahead._features_of(batch))) == 1
    for other in SimpleNamespace(), SimpleNamespace(mm_inputs=None), "text":
        assert list(ahead._features_of(other)) == []
