# SPDX-License-Identifier: Apache-2.0
"""The decision of `auto` as a map of this machine: size of a request × ranks."""

import argparse
import json
from typing import Any, Dict, List

from ringcast.sglang import rule

SIZES = tuple(base * 10**power for power in range(4, 9) for base in (1, 3)) + (10**9,)
RANKS = (2, 3, 4, 6, 8, 16)
WAYS = ("local", "hash", "share")
MEANING = "local: each rank for itself; hash: share_hash; share: share_once"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, action="append", metavar="BYTES", help="of a request; may be repeated")
    parser.add_argument("--tp", type=int, action="append", metavar="N", help="ranks; may be repeated")
    parser.add_argument("--waiting", type=float, action="append", metavar="N", help="requests at once; default: 1, 8")
    seconds = "what making a request's value takes beside hashing, which only share spares; default: 0"
    parser.add_argument("--seconds", type=float, default=0.0, metavar="S", help=seconds)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def maps(rates: rule.Rates, options: argparse.Namespace) -> Dict[str, Any]:
    """The map for each number of waiting requests: a cell for each size and number of ranks."""
    sizes, ranks = sorted(set(options.size or SIZES)), sorted(set(options.tp or RANKS))
    made = []
    for waiting in options.waiting or (1.0, 8.0):
        cells = []
        for nbytes in sizes:
            for count in ranks:
                cost = rule.costs(rates, count, nbytes, "sha256", options.seconds, waiting)
                cells.append(
                    {
                        "nbytes": nbytes,
                        "ranks": count,
                        "way": rule.best(cost, WAYS),
                        "ms": {way: cost[way] * 1e3 for way in WAYS},
                    }
                )
        made.append({"waiting": waiting, "cells": cells})
    facts = {name: value * 1e9 for name, value in (("put", rates.put), ("get", rates.get), *rates.hash.items())}
    return {"cpus": rates.cpus, "ns_per_byte": facts, "seconds": options.seconds, "maps": made}


def _size(nbytes: int) -> str:
    for unit, name in (10**9, "GB"), (10**6, "MB"), (10**3, "kB"):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def _rows(cells: List[Dict[str, Any]]) -> Dict[int, List[Dict[str, Any]]]:
    rows: Dict[int, List[Dict[str, Any]]] = {}
    for cell in cells:
        rows.setdefault(cell["nbytes"], []).append(cell)
    return rows


def text(found: Dict[str, Any]) -> str:
    rates = ", ".join(f"{name} {value:.2f}" for name, value in found["ns_per_byte"].items())
    lines = [f"{found['cpus']} CPUs; ns a byte: {rates}", f"{MEANING}. In brackets: of local's time."]
    for each in found["maps"]:
        rows = _rows(each["cells"])
        lines += ["", f"{each['waiting']:g} request(s) at once", f"{'':>9}"]
        lines[-1] += "".join(f"{'TP ' + str(cell['ranks']):>14}" for cell in next(iter(rows.values())))
        for nbytes, row in rows.items():
            shares = [cell["ms"][cell["way"]] / (cell["ms"]["local"] or 1) for cell in row]
            words = [
                "local" if cell["way"] == "local" else f"{cell['way']} ({share:.2f})"
                for cell, share in zip(row, shares)
            ]
            lines.append(f"{_size(nbytes):>9}" + "".join(f"{word:>14}" for word in words))
    return "\n".join(lines)


def run(options: argparse.Namespace) -> int:
    found = maps(rule.measure(), options)
    print(json.dumps(found, indent=1) if options.format == "json" else text(found))
    return 0
