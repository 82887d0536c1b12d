# SPDX-License-Identifier: Apache-2.0
"""What `make engines` says of the rows of its runs; the engines themselves are too large to run here."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "engines"))

import report
import run


def rows(*found):
    """(way, round, fields that differ from those of a good row)."""
    good = {"engine": "vllm", "case": "1 request", "p50_ms": 10.0, "token_hash": "a", "ok": True}
    return [{**good, "way": way, "round": number, **other} for way, number, other in found]


PAIR = [("own", 0, {}), ("ringcast", 0, {})]


@pytest.mark.parametrize(
    "others, good",
    [
        ([], True),
        ([("own", 1, {"token_hash": "b"})], False),
        ([("ringcast", 1, {"token_hash": "b"})], False),
        ([("ringcast", 1, {"ok": False})], False),
    ],
)
def test_rows_are_ok_with_the_same_tokens_everywhere(others, good):
    found = run.together(rows(*PAIR, *others))
    assert all(row["ok"] for row in found) is good


def test_a_case_that_ran_one_way_alone_is_not_compared():
    assert [row["ok"] for row in run.together(rows(("own", 0, {})))] == [True]


@pytest.mark.parametrize(
    "times, good",
    [
        ([(10.0, 10.1), (10.0, 10.1)], True),
        ([(10.0, 10.5), (10.0, 10.5)], False),
        ([(10.0, 10.5), (11.0, 11.5)], True),  # the rounds of its own way differ by more
    ],
)
def test_a_step_is_held_against_the_noise_of_the_engines_own_rounds(times, good):
    pairs = [
        (way, number, {"p50_ms": pair[side]})
        for number, pair in enumerate(times)
        for side, way in enumerate(run.registry.WAYS)
    ]
    rounds = rows(*pairs)
    (line,) = report.verdicts({"rows": run.together(rounds), "rounds": rounds})
    assert line.endswith("yes" if good else "NO")


def test_all_rows_are_told():
    found = run.together(rows(*PAIR))
    assert report.text(found).count("1 request") == 2
    assert "| 1 request | 10 / 10 |" in report.of_engine(found, "vllm")
