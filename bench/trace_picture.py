#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws one step of a trace of ringcast (RINGCAST_TRACE) as SVG or PNG: docs/trace.svg.

A row is a process. A grey bar is a call, the colours are the phases, and an arrow goes from the publish to each
receipt. Needs matplotlib.
"""

import argparse
import json
from typing import Any, Dict, List

COLOURS = {"encode": "#4c78a8", "copy": "#f58518", "publish": "#e45756", "decode": "#54a24b"}
COLOURS.update(wait_room="#d8d8d8", wait_frame="#d8d8d8")
Event = Dict[str, Any]


def step_of(events: List[Event], number: int) -> List[Event]:
    """The slices of one frame: of the send with the number, and of the receipts."""
    slices = [event for event in events if event["ph"] == "X"]
    sends = sorted((one for one in slices if one["name"] == "send" and one["args"]["position"] >= 0), key=starts)
    if not -len(sends) <= number < len(sends):
        raise SystemExit(f"the trace has {len(sends)} sends: give --send a number below that")
    frame = sends[number]["args"]["ring"], sends[number]["args"]["position"]
    return [one for one in slices if (one["args"]["ring"], one["args"]["position"]) == frame]


def starts(event: Event) -> float:
    return float(event["ts"])


def draw(events: List[Event], step: List[Event], path: str) -> None:
    import matplotlib

    matplotlib.rcParams.update({"svg.hashsalt": "ringcast", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import patches, pyplot

    names = {event["pid"]: event["args"]["name"].split(",")[0] for event in events if event["name"] == "process_name"}
    sender = next(one for one in step if one["name"] == "send")
    rows = [sender["pid"], *sorted({one["pid"] for one in step} - {sender["pid"]}, key=lambda pid: names[pid])]
    begin, end = sender["ts"], max(one["ts"] + one["dur"] for one in step)
    margin = (end - begin) / 20
    figure, axes = pyplot.subplots(figsize=(9.5, 0.8 + 0.65 * len(rows)), layout="constrained")
    for one in sorted(step, key=starts):
        is_call = one["name"] in ("send", "recv")
        start, row = max(one["ts"] - begin, -margin), rows.index(one["pid"])
        span = start, one["ts"] + one["dur"] - begin - start
        if is_call:
            axes.broken_barh([span], (row - 0.36, 0.72), facecolor="#f2f2f2", edgecolor="#909090", linewidth=0.6)
            axes.text(start + margin / 8, row - 0.22, one["name"], va="center", fontsize=7, color="#404040")
        else:
            axes.broken_barh([span], (row - 0.06, 0.36), facecolor=COLOURS[one["name"]], zorder=2)
    publish = next(one for one in step if one["name"] == "publish")
    for one in step:
        if one["name"] == "decode":
            at = (publish["ts"] - begin, 0.3), (one["ts"] - begin, rows.index(one["pid"]) - 0.06)
            style = {"arrowstyle": "-|>", "color": "#202020", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", at[1], at[0], arrowprops=style, zorder=3)
    axes.set(xlim=(-margin, end - begin + margin), ylim=(len(rows) - 0.5, -0.5), xlabel="µs")
    axes.set_yticks(range(len(rows)), [names[pid] for pid in rows])
    axes.spines[["top", "right", "left"]].set_visible(False)
    shown = [("wait", COLOURS["wait_frame"]), *list(COLOURS.items())[:4]]
    key = [patches.Patch(color=colour, label=name) for name, colour in shown]
    figure.legend(handles=key, loc="outside upper right", ncols=len(key), frameon=False)
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.endswith(".svg") else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="the file that RINGCAST_TRACE named")
    parser.add_argument("picture", help="the picture: .svg or .png")
    parser.add_argument("--send", type=int, default=-1, help="which send, from 0; from the end if negative (-1)")
    options = parser.parse_args()
    with open(options.trace, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    draw(events, step_of(events, options.send), options.picture)


if __name__ == "__main__":
    main()
