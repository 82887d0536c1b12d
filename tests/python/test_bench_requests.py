# SPDX-License-Identifier: Apache-2.0
"""python -m ringcast.bench requests: every way is measured, and what the ranks prepare is right. How long anything
takes is not looked at."""

import json
import subprocess
import sys
from types import SimpleNamespace

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

from ringcast import sglang
from ringcast.bench import __main__ as command_line
from ringcast.bench import report, requests, standin
from ringcast.sglang import feature_hash

pytestmark = pytest.mark.alike

SMALL = ["requests", "--ranks", "2", "--megabytes", "0.1", "--requests", "5", "--rounds", "1", "--offered", "1"]


def test_every_way_prepares_the_requests_and_has_its_phases():
    command = [sys.executable, "-m", "ringcast.bench", *SMALL, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (case,) = found["cases"]
    assert set(case["at_once"]) == set(requests.WAYS) == set(case["offered"][0]["ways"])
    assert all(figure > 0 for way in case["at_once"].values() for figure in way.values())
    assert case["ratios"][requests.EACH] == 1 and case["bound"] == 2
    phases = case["phases_ms"]
    assert set(phases) == {requests.EACH, "gloo", "drop-in, broadcast", "share_hash"}
    for way in phases.values():
        assert way["hash"] > 0 and way["sum"] == pytest.approx(sum(way[key] for key in requests.PHASES))
    assert phases["gloo"]["pickle"] > 0 and phases["gloo"]["unpickle"] > 0
    assert phases[requests.EACH]["pickle"] == phases[requests.EACH]["transport"] == 0
    lines = requests.text(found).splitlines()
    shared = [line for line in lines if line.startswith("share_hash")]
    assert [line.endswith("of 2 at once, per request") for line in shared] == [True, False]


def test_the_stand_in_hashes_as_sglang():
    import numpy as np
    import torch

    with standin.in_place():
        feature = torch.arange(100.0).reshape(10, 10).T
        assert standin.load("managers.mm_utils").hash_feature(feature) == feature_hash(feature)
        assert feature_hash(np.ones(3)) == feature_hash(torch.ones(3, dtype=torch.float64))
    assert not [name for name in sys.modules if name.partition(".")[0] == "sglang"]


def test_without_the_drop_in_in_place_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(sglang, "install", lambda: True)
    with standin.in_place(), pytest.raises(SystemExit, match="not in the place of SGLang's functions"):
        with requests.Rank.scheduler(SimpleNamespace(), "drop-in"):
            pass


@pytest.mark.parametrize("bad", [["--megabytes", "0"], ["--offered", "0"], ["--ranks", "1"]])
def test_what_can_not_be_measured_is_refused(bad, capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main(["requests", *bad])
    assert ended.value.code == 2 and bad[0] in capsys.readouterr().err


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(report, "version", lambda package: None)
    with pytest.raises(SystemExit, match="pip install torch"):
        command_line.main(SMALL)
