# SPDX-License-Identifier: Apache-2.0
"""Rows of `make peers`, made up, for the tests of bench/peers/report.py and its parts."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "bench" / "peers"
sys.path.append(str(FOLDER))

import report_rows  # noqa: E402

GOOD = {
    "status": "ok",
    "version": "1",
    "language": "python",
    "scenario": "one-way",
    "processes": 2,
    "lossless": True,
    "collective": False,
    "copying": True,
    "floor": False,
    "serialiser": "pickle5",
    "reading": "bytes",
    "oversubscribed": False,
    "note": "",
}
BYTES = {"bytes-16": 16, "bytes-64": 64, "bytes-64Ki": 65536, "bytes-4Mi": 4 << 20}
META = {"date": "2026-11-25T10:00:00Z", "commit": "0123456789abcdef", "cpu": "A CPU", "cpus": 2, "kernel": "6.18"}


def row(peer, payload, **other):
    family = other.pop("family", peer)
    family = "ringcast" if "ringcast" in peer else family
    return {**GOOD, "peer": peer, "family": family, "payload": payload, "bytes": BYTES.get(payload), **other}


def pair(mine, theirs, payload, figure="p50_us", peer="zmq-push", **other):
    """A row of ringcast and one of a peer in the same cell."""
    name = "c-ringcast" if other.get("language") == "c" else "ringcast"
    kind = {"reading": "typed"} if other.get("reading") == "objects" else {}
    return [row(name, payload, **{**other, figure: mine, **kind}), row(peer, payload, **{**other, figure: theirs})]


def headline(peer, times, lines=None, **other):
    """A row for each round; `lines`: the states of the rounds' lines, N, F or C (changed)."""
    cell = {"language": "c", "scenario": "headline", **other}
    found = [row(peer, "bytes-64", **cell, round=at, half_round_trip_ns=time) for at, time in enumerate(times, 1)]
    return [{**made, **LINES[state]} for made, state in zip(found, lines)] if lines else found


NEAR, FAR = {"line_ns": 25, "line_after_ns": 30}, {"line_ns": 170, "line_after_ns": 180}
LINES = {"N": NEAR, "F": FAR, "C": {"line_ns": 25, "line_after_ns": 180}}


def loaded(rows):
    return report_rows.load({"rows": rows})


IN_C = {"language": "c"}
OBJECTS = {"reading": "objects"}
CALL = {"scenario": "call", **OBJECTS}
COPYING, ZERO_COPY = {**IN_C, "copying": True}, {**IN_C, "copying": False}
