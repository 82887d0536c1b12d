# SPDX-License-Identifier: Apache-2.0
"""The example of multimodal inputs runs, checks what it gets, and says what it has measured."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch

pytestmark = pytest.mark.alike

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "multimodal.py"


def run_example(folder, *arguments):
    command = [sys.executable, str(EXAMPLE), "--requests", "4", "--mb", "1", "--wait", "1", "--ranks", "2", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_it_measures_three_ways_and_draws_them(tmp_path):
    done = run_example(tmp_path, "--format", "json", "--picture", "build/picture.svg", "--how", "share")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert [case["ranks"] for case in summary["cases"]] == [2, 2]
    for case in summary["cases"]:
        assert list(case["ways"]) == ["alone", "gloo", "ringcast"]
        assert case["ways"]["ringcast"]["shared"] == 1 and case["ways"]["alone"]["of_alone"] == 1
        assert all(figure > 0 for way in case["ways"].values() for name, figure in way.items() if name != "shared")
    if importlib.util.find_spec("matplotlib"):
        assert "ringcast" in (tmp_path / "build" / "picture.svg").read_text()
    else:
        assert "no picture: matplotlib is not installed" in done.stderr


def test_features_that_are_not_those_of_the_request_end_it(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    spec = importlib.util.spec_from_file_location("multimodal", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    (request,) = example.make_requests(1, 1600)[:1]
    example.check("rank 0", request, request.feature.clone(), request.hash)
    other = request.feature.clone()
    other.view(torch.uint8)[0] ^= 1
    for feature, hash_ in (other, request.hash), (request.feature, request.hash + 1):
        with pytest.raises(SystemExit, match="rank 0: received something else"):
            example.check("rank 0", request, feature, hash_)


@pytest.mark.parametrize("bad", [["--ranks", "1"], ["--wait", "-1"]])
def test_what_it_cannot_do_is_refused(tmp_path, bad):
    done = run_example(tmp_path, *bad)
    assert done.returncode == 2 and bad[0] in done.stderr
