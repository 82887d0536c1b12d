# SPDX-License-Identifier: Apache-2.0
"""The decision of `auto` as a map of this machine: size of a request × ranks."""

import argparse
import importlib
import json
import os
import sys
from typing import Any, Dict, List

from ringcast import _files
from ringcast.sglang import rule

SIZES = tuple(base * 10**power for power in range(4, 9) for base in (1, 3)) + (10**9,)
RANKS = (2, 3, 4, 6, 8, 16)
WAYS = ("local", "hash", "share")
MEANING = "local: each rank for itself; hash: share_hash; share: share_once"
_COLOURS = {"local": "#c9ccd1", "hash": "#2f6f9f", "share": "#d98c5f"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, action="append", metavar="BYTES", help="of a request; may be repeated")
    parser.add_argument("--tp", type=int, action="append", metavar="N", help="ranks; may be repeated")
    parser.add_argument("--waiting", type=float, action="append", metavar="N", help="requests at once; default: 1, 8")
    seconds = "what making a request's value takes beside hashing, which only share spares; default: 0"
    parser.add_argument("--seconds", type=float, default=0.0, metavar="S", help=seconds)
    parser.add_argument("--picture", metavar="PATH", help="also draw the maps, .svg or .png; needs matplotlib")
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


def draw(found: Dict[str, Any], path: str) -> None:
    # By name: matplotlib may be missing, where the types are checked too.
    names = "", ".colors", ".patches", ".pyplot"
    matplotlib, colors, patches, pyplot = [importlib.import_module("matplotlib" + name) for name in names]
    matplotlib.use("Agg")
    count = len(found["maps"])
    figure, axes = pyplot.subplots(1, count, figsize=(5 * count, 5), squeeze=False)
    palette = colors.ListedColormap([_COLOURS[way] for way in WAYS])
    for axis, each in zip(axes[0], found["maps"]):
        rows = _rows(each["cells"])
        grid = [[WAYS.index(cell["way"]) for cell in row] for row in rows.values()]
        axis.imshow(grid, cmap=palette, vmin=0, vmax=len(WAYS) - 1, aspect="auto", origin="lower")
        axis.set_yticks(range(len(rows)), [_size(nbytes) for nbytes in rows])
        ranks = [cell["ranks"] for cell in next(iter(rows.values()))]
        axis.set_xticks(range(len(ranks)), [f"TP {count}" for count in ranks])
        axis.set_title(f"{each['waiting']:g} request(s) at once")
    axes[0][0].legend(handles=[patches.Patch(color=_COLOURS[way], label=way) for way in WAYS], loc="upper left")
    folder = os.path.dirname(path)
    if folder:
        _files.make_folder(folder)
    figure.tight_layout()
    kind = os.path.splitext(path)[1][1:]
    with _files.replacing(path if kind else f"{path}.png", "wb") as file:
        figure.savefig(file, format=kind or "png")


def run(options: argparse.Namespace) -> int:
    found = maps(rule.measure(), options)
    print(json.dumps(found, indent=1) if options.format == "json" else text(found))
    if options.picture:
        try:
            draw(found, options.picture)
        except ModuleNotFoundError as error:
            print(f"no picture: {error.name} is not installed: pip install matplotlib", file=sys.stderr)
            return 1
    return 0
