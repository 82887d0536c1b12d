# SPDX-License-Identifier: Apache-2.0
"""Hashes that are remembered, by key."""

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
from _dist import on_ranks
from hash_sharing import PATIENT, features, slack

from ringcast.sglang import feature_hash, share_hash, sharing

pytestmark = pytest.mark.alike


@pytest.fixture(autouse=True)
def nothing_remembered():
    sharing._remembered.clear()


def hash_of(tensor: torch.Tensor, key: str, remember: bool = True) -> int:
    return share_hash([tensor], key=key, remember=remember).result()[1][0]


def test_a_key_is_hashed_once():
    first = torch.arange(1000.0)
    other, longer = first + 1, torch.arange(1001.0)
    told = feature_hash(first)
    assert hash_of(first, "a") == told == hash_of(other, "a"), "the key tells, and nothing else"
    assert hash_of(other, "b") == hash_of(other, "a", remember=False) == feature_hash(other)
    assert hash_of(longer, "a") == feature_hash(longer), "of another form"
    assert share_hash([first], key="a", compute=lambda _: 7, remember=True).result()[1] == [7]


def test_nothing_is_remembered_unless_asked_for():
    hash_of(torch.ones(10), "a", remember=False)
    assert hash_of(torch.zeros(10), "a") == feature_hash(torch.zeros(10))


def test_the_latest_keys_are_remembered(monkeypatch):
    monkeypatch.setattr(sharing, "_MOST_REMEMBERED", 3)
    for number in range(5):
        hash_of(torch.ones(1), f"key {number}")
    assert [key for key, _ in sharing._remembered] == ["key 2", "key 3", "key 4"]


@on_ranks(2)
def test_hashes_of_another_rank_are_remembered_too() -> None:
    given = features(4)
    with slack(PATIENT):
        told = share_hash(given, key="a", how="hash", remember=True).result()[1]
    assert told == [feature_hash(feature) for feature in given]
    assert (
        share_hash(
            [feature + 1 for feature in given], key="a", how="local", remember=True
        ).result()[1]
        == told
    )
