# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a sleeping receiver's wake-up measures each way that there is."""

import pytest
from loops import uvloop

pytestmark = pytest.mark.alike

wakeup = pytest.importorskip("ringcast.bench.wakeup")


def test_each_way_has_a_median():
    found = wakeup.run(3)
    assert list(found["cases"]) == ["recv", "arecv_asyncio", *(["arecv_uvloop"] if uvloop else [])]
    assert list(found["left_out"]) == ([] if uvloop else ["arecv_uvloop"])
    assert all(measured["p50_us"] > 0 for measured in found["cases"].values())
    assert 0 <= found["cases"]["recv"]["slept"] <= 1


def test_no_rounds_are_refused():
    with pytest.raises(ValueError, match="rounds"):
        wakeup.run(0)
