# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/scale.md, from the raw figures of scale.py: predictions beside measurements, and predictions for
machines that were not at hand."""

import math
import statistics

import scale_model as model
from tables import ns, ratio, size_of, table

SIZES = [64, 4096, 65536, 1 << 20]
RELAYED = [1024, 65536, 1 << 20]  # sizes of a message between machines
READERS = [1, 2, 3, 4, 8, 12, 16]  # of a stream
WAYS = {"zmq": "ZeroMQ", "curve": "ZeroMQ with CURVE", "torch": "gloo"}
NETWORK = 100 * 10**9  # bits a second, for what is derived
EACH = 8  # readers on a machine, for what is derived
USED = " *"  # marks a figure that a constant comes from

# ---- Predictions beside measurements --------------------------------------------------------------------------------


def compared(raw):
    """For each measured figure: (subject, key of the row, size, predicted, measured, whether a constant comes from
    the figure). A stream is "apart" where each process has a core, and else "shared"."""
    ring, rows = model.ring_of(raw), []
    ends = model.SMALL, model.LARGE
    for text, found in raw["latency"].items():
        size = int(text)
        rows.append(("latency", "one way", size, ring.latency.at(size), found["one_way_ns"]["p50"], size in ends))
    for text, by_readers in raw["stream"].items():
        for readers, rate in by_readers.items():
            size, count = int(text), int(readers)
            used = size in ends and count in (1, ring.cores, 2 * ring.cores)
            subject = "apart" if count < ring.cores else "shared"
            rows.append((subject, count, size, model.period(ring, size, count), 1e9 / rate, used))
    for text, found in raw["wake"].items():
        readers = int(text)
        used = readers in (model.FEW, model.MORE)
        for key in ("commit", "slowest"):
            rows.append((key, readers, 0, getattr(ring, key).at(readers), found[f"{key}_us"]["p50"] * 1e3, used))
    for run in raw["machines"]:
        legs = legs_by_way(raw)[run["way"]]
        for found in run["found"]:
            size, machines, each, rate = found["size"], run["machines"], run["each"], run["rate"]
            predicted = model.star(legs, size, machines, rate or float("inf"), model.beside(ring, each), ring.cores)
            used = size in (model.SHORT, model.LONG) and not rate and (machines, each) == (2, 1)
            key = run["way"], rate, machines, each
            rows.append(("machines", key, size, predicted, found["last_ns"], used))
            if not rate and each == 1:
                used = size in (model.SHORT, model.LONG) and machines in (2, 4)
                rows.append(("writer", key, size, model.cost(legs, size, machines), found["cpu_ns"], used))
    return rows


def legs_by_way(raw):
    ways = {run["way"] for run in raw["machines"]}
    return {way: model.legs_of([run for run in raw["machines"] if run["way"] == way]) for way in WAYS if way in ways}


def cell(row):
    return f"{ns(row[3])} / {ns(row[4])}, {ratio(row[3] / row[4])}{USED if row[5] else ''}"


def grid(rows, head, columns, name=str):
    """A row for each key, a column for each size or subject. The column of a row is row[column]."""
    found = {}
    for row in rows:
        found.setdefault(row[1], {})[row[0] if row[2] == 0 else row[2]] = cell(row)
    lines = [[name(key), *(cells.get(column, "") for column in columns)] for key, cells in found.items()]
    return table([head, *(size_of(column) if isinstance(column, int) else column for column in columns)], lines)


def of(raw, *subjects):
    return [row for row in compared(raw) if row[0] in subjects]


def machines_name(key):
    way, rate, machines, each = key
    link = f", {rate / 1e9:g} Gbit/s" if rate else ""
    return f"{WAYS[way]}{link}, {machines} machines" + (f", {each} readers on each" if each > 1 else "")


def accuracy(raw):
    lines = []
    for title, subjects in {
        "one machine, sizes": ["latency", "apart"],
        "one machine, readers that share the cores": ["shared"],
        "one machine, readers asleep": ["commit", "slowest"],
        "several machines, until the last reader": ["machines"],
        "several machines, CPU time of the writer's process": ["writer"],
    }.items():
        # A figure that a constant comes from is exact, or else the constant was clamped, and the figure is a miss.
        found = [(row[3] / row[4], row[5]) for row in of(raw, *subjects)]
        ratios = [value for value, used in found if not used or not math.isclose(value, 1)]
        near = [sum(1 / most <= value <= most for value in ratios) for most in (1.25, 2)]
        lines.append(
            [
                title,
                str(len(ratios)),
                ratio(statistics.median(ratios)),
                f"{ratio(min(ratios))} to {ratio(max(ratios))}",
                *(f"{count} of {len(ratios)}" for count in near),
            ]
        )
    head = ["what", "predictions", "median of predicted / measured", "range", "within 25 %", "within a factor of 2"]
    return table(head, lines)


# ---- Tables ---------------------------------------------------------------------------------------------------------


def facts(raw):
    machine = raw["machine"]
    kind = "a virtual machine" if machine["virtual"] else "a machine"
    caches = ", ".join(f"{level} {size_of(size)}" for level, size in machine["caches"].items())
    return (
        f"{raw['date']}: ringcast {machine['ringcast']} on {machine['cpu']} (family {machine['family']}, model "
        f"{machine['model']}), {machine['cores']} CPUs of {kind}, {caches}; Linux {machine['linux']}; Python "
        f"{machine['python']}, torch {machine['torch']}. The load average was {machine['load_average']:.1f} when the "
        "run began."
    )


def per_kib(line, size=model.SMALL):
    return [ns(line.at(size)), ns(line.slope * 1024)]


def constants(raw):
    ring = model.ring_of(raw)
    rows = [
        ["`line`: a cache line in turn between two cores", ns(ring.line), ""],
        ["`one_way`, `hand`: one way of 64 B, both sides spin; each KiB more", *per_kib(ring.latency)],
        ["`stream`, `flow`: a stream of 64 B, a core each; each KiB more", *per_kib(ring.period)],
        ["the writer's time of these 64 B; each KiB more", *per_kib(ring.burst)],
        ["`write`: CPU time of 64 B, all share the cores; each KiB more", *per_kib(ring.write)],
        ["`read`: CPU time of 64 B for each reader; each KiB more", *per_kib(ring.read)],
        ["the writer's commit, one reader asleep; each reader more", ns(ring.commit.at(1)), ns(ring.commit.slope)],
        ["`rouse`, `each`: until the last reader runs", ns(ring.slowest.at(1)), ns(ring.slowest.slope)],
    ]
    legs, keys = legs_by_way(raw), ("first", "writer", "send", "take")
    far = [
        [WAYS[way], *(" + ".join(per_kib(getattr(of_way, key), model.SHORT)) for key in keys)]
        for way, of_way in legs.items()
    ]
    head = ["1 KiB + each KiB more", "`first`: to one machine", "`writer`", "`send`", "`take`"]
    return f"{table(['one machine', 'first', 'more'], rows)}\n\n{table(head, far)}"


def sockets(raw):
    ring, rows = model.ring_of(raw), []
    places = [("8 readers, ", "EPYC 7R13, one L3 cache", 8)]
    places += [("64 readers, ", place, 64) for place in model.LINES if "L3" not in place]
    for label, place, readers in places:
        line = model.LINES[place]
        small, large = (model.latencies(ring, size, readers, line) for size in (64, 65536))
        rows.append([label + place, ns(line), *map(ns, small), ns(large[0]), ns(large[2])])
    head = ["place", "line", "64 B: all at once", "published", "in turn", "64 KiB: all at once", "in turn"]
    asleep = ", ".join(f"{readers}: {ns(ring.commit.at(readers))}" for readers in (8, 64, 256))
    rooms = ", ".join(f"{size_of(size)}: {ns(model.room(ring, size, 64))}" for size in (64, 65536, 1 << 20))
    return (
        f"{table(head, rows)}\n\nThe writer's pass over 64 cursors adds, to each frame of {rooms}. If the readers "
        f"sleep, the commit takes, by the readers: {asleep}."
    )


def many(raw):
    rows, later = [], model.beside(model.ring_of(raw), EACH)
    for way, legs in legs_by_way(raw).items():
        for size in (1024, 1 << 20):
            stars = [ns(model.star(legs, size, machines, NETWORK, later)) for machines in (8, 64, 1000)]
            best, fan = model.tree(legs, size, 1000, NETWORK)
            wire = ns(999 * size * 8e9 / NETWORK)
            spent = ns(998 * legs.send.at(size))
            crossed = model.crossing(legs, size, NETWORK)
            rows.append(
                [f"{WAYS[way]}, {size_of(size)}", *stars, spent, wire, f"{ns(best + later)}, {fan}", str(crossed)]
            )
    head = ["way, message", "star: 8 machines", "64", "1,000", "of that, the writer's CPU"]
    head += ["the link, 100 Gbit/s", "a tree: 1,000, fan-out", "a tree is faster from"]
    return table(head, rows)


def one_machine(raw):
    return grid(of(raw, "latency", "apart", "shared"), "readers", SIZES)


def asleep(raw):
    return grid(of(raw, "commit", "slowest"), "readers", ["commit", "slowest"])


def machines(raw):
    lasts = grid(of(raw, "machines"), "until the last reader", RELAYED, machines_name)
    spent = grid([row for row in of(raw, "writer") if row[1][2] == 8], "writer's CPU time", RELAYED, machines_name)
    return f"{lasts}\n\n{spent}"


BLOCKS = {
    "facts": facts,
    "accuracy": accuracy,
    "constants": constants,
    "one-machine": one_machine,
    "asleep": asleep,
    "machines": machines,
    "sockets": sockets,
    "many": many,
}
