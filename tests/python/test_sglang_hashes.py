# SPDX-License-Identifier: Apache-2.0
"""ringcast.sglang in the place of SGLang's hash function; SGLang's modules are stubs."""

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
    given = dict.fromkeys(("precomputed_embeddings", "hash", "pad_value"))
    return SimpleNamespace(**{"feature": feature, **given, "is_valid": lambda: True, **more})


def request(rid: str, *items: Any) -> Any:
    return SimpleNamespace(rid=rid, mm_inputs=SimpleNamespace(mm_items=list(items)))


def features(count: int) -> List[Any]:
    return [torch.arange(5000.0) * (index + 1) for index in range(count)]


def fail(*given: Any, **named: Any) -> Any:
    raise OSError("no memory")


def sum_of(number: int) -> int:
    total = torch.tensor(number)
    dist.all_reduce(total)
    return int(total)


def each_is_hashed_once(scheduler: Any, hashed: List[Any], patch: Any) -> None:
    for _ in range(3):
        given = features(7)
        known = item(given[6], hash=5)
        first, last = map(item, given[:3]), map(item, given[3:6])
        requests = [request("a", *first), request("b"), request("c", *last, known)]
        hashed.clear()
        scheduler.process_input_requests(requests)
        found = [each.hash for one in requests for each in one.mm_inputs.mm_items]
        assert found == [*map(feature_hash, given[:6]), 5]
        assert len(hashed) < 6 and sum_of(len(hashed)) == 6, "one was hashed twice, or a known one"
        assert not ahead._begun
        assert load(FEATURES).hash_feature(given[0]) == feature_hash(given[0])
        assert hashed[-1] is given[0]


def sglang_hashes(scheduler: Any, hashed: List[Any], patch: Any) -> None:
    """Where the hashes can't be shared, or SGLang skips them."""
    patch.setattr(ahead, "share_hash", fail)
    for skips in "0", "1":
        patch.setenv("SGLANG_MM_SKIP_COMPUTE_HASH", skips)
        given = features(3)
        scheduler.process_input_requests([request("a", *map(item, given))])
        assert all(one is other for one, other in zip(hashed[-3:], given, strict=True))


def a_rank_that_fails_shares_again(scheduler: Any, hashed: List[Any], patch: Any) -> None:
    """The lists of a rank that fails have the same keys as before; in the first list the rings are
    made. The other rank waits for the failed one again when it has heard it."""
    original = ahead._features_of
    for number in range(6):
        fails = number % 3 == 0
        patch.setattr(ahead, "_features_of", fail if fails and dist.get_rank() else original)
        patch.setattr(sharing, "SLACK", 0.001 if fails else 60.0)
        hashed.clear()
        scheduler.process_input_requests([request("a", *map(item, features(6)))])
        assert number % 3 < 2 or sum_of(len(hashed)) == 6
        dist.barrier()


def a_shared_hash_can_not_be_had(scheduler: Any, hashed: List[Any], patch: Any) -> None:
    patch.setattr(sharing.SharedHashes, "hash_at", fail)
    given = features(3)
    asked = request("a", *map(item, given))
    scheduler.process_input_requests([asked])
    assert [each.hash for each in asked.mm_inputs.mm_items] == [*map(feature_hash, given)]


def ranks_in_sglang(folder: str, body: Callable[[Any, List[Any], Any], None]) -> None:
    """body(scheduler, the features that SGLang's own function has hashed here, a patch), with
    ringcast in place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGCAST_SGLANG", "1,share=hash")
        patch.setattr(sharing, "SLACK", 60.0)
        patch.syspath_prepend(folder)
        try:
            hashed = load(FEATURES).hashed
            assert install()
            body(load("srt.managers.scheduler").Scheduler(dist.group.WORLD), hashed, patch)
        finally:
            uninstall()
            for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
                del sys.modules[name]


# What the ranks do, and how many they are.
BODIES = [
    (each_is_hashed_once, 2),
    (each_is_hashed_once, 3),
    (sglang_hashes, 2),
    (a_rank_that_fails_shares_again, 2),
    (a_shared_hash_can_not_be_had, 2),
]


@pytest.mark.parametrize("body, world", BODIES)
def test_the_features_of_a_list_of_requests_are_hashed(ranks, tmp_path, body, world):
    write_stubs(tmp_path)
    ranks.run(world, ranks_in_sglang, str(tmp_path), body)


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
