# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a sleeping receiver's wake-up measures each way that there is."""

import pytest
from loops import uvloop

pytestmark = pytest.mark.alike

wakeup = pytest.importorskip("ringcast.bench.wakeup")


def test_each_way_has_a_median():
    found = wakeup.run(3)
    assert found["rounds"] == 3
    assert set(found["median_us"]) == {"recv", "arecv_asyncio", "arecv_uvloop"}
    for way, median in found["median_us"].items():
        assert median is None if (way, uvloop) == ("arecv_uvloop", None) else median > 0


def test_no_rounds_are_refused():
    with pytest.raises(ValueError, match="rounds"):
        wakeup.run(0)
