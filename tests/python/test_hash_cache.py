# SPDX-License-Identifier: Apache-2.0
"""Hashes that are remembered: of the same tensor, of the same file."""

import os
from typing import Any, Callable, List

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import numpy as np
import torch

from ringcast.sglang import cache, feature_hash, plan, share_hash

pytestmark = pytest.mark.alike


@pytest.fixture
def remembered(monkeypatch):
    known = cache.Cache()
    monkeypatch.setattr(plan, "remembered", known)
    return known


def is_known(known: Any, feature: Any) -> bool:
    found = known.get(feature)
    assert found in (None, feature_hash(feature)), "a stale hash"
    share_hash([feature], key="a", remember=True).result()
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


def test_nothing_is_remembered_unless_asked_for(remembered):
    tensor = torch.arange(1000.0)
    assert share_hash([tensor], key="a").result()[1] == [feature_hash(tensor)]
    tensor.untyped_storage()[0] = 7  # torch does not count this change
    assert share_hash([tensor], key="a").result()[1] == [feature_hash(tensor)]
    assert not remembered._known


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
    monkeypatch.setattr(cache, "_SETTLED", 1e9)
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
        share_hash([path], key="a").result()


def test_a_change_while_hashing_is_not_remembered(remembered, monkeypatch):
    tensor = torch.arange(1000.0)

    def hash_and_change(feature: Any) -> int:
        told = feature_hash(feature)
        feature.add_(1)
        return told

    monkeypatch.setattr(plan, "feature_hash", hash_and_change)
    plan.Call([tensor], hash_and_change, remember=True).hash(0)
    assert remembered.get(tensor) is None
