# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of docs/scale.md: what a broadcast takes by readers, sockets and machines, from measured constants.

    python bench/scale/scale.py

The formulas and where the constants are from: docs/scale.md. Times are ns, sizes are bytes.
"""

# One machine: 64 B, and each KiB more.
LINE = 24.3  # a cache line in turn between two cores
ONE_WAY, HAND = 76.9, 54.5
COMMIT, AWAKENING = 12_500, 575  # the writer's commit for one sleeping reader, for each further one
ROUSE, EACH = 22_100, 3_400  # until the last of the sleeping readers runs
FURTHER = 11.4  # one reader more of a line, published
FAR = 1.35  # times that a line crosses in the way of a small frame
# A line in turn between two cores, published.
PLACES = {
    ("EPYC 7R13", "one L3 cache", 8): 23.0,
    ("EPYC 7R13", "one socket", 64): 107.0,
    ("EPYC 7R13", "two sockets", 64): 197.0,
    ("Xeon 8375C", "one socket", 64): 51.0,
    ("Xeon 8375C", "two sockets", 64): 108.0,
}
# Between machines: of 1 KiB, and of each KiB more. `first` machine, CPU time of the writer for each further one.
LEGS = {
    "ZeroMQ": ((172e3, 682), (20.5e3, 277)),
    "ZeroMQ with CURVE": ((208e3, 1420), (18.3e3, 1480)),
    "gloo": ((187e3, 943), (111e3, 582)),
}
LINK = 100e9  # bits a second


def spinning(kib, readers, line):
    """From the writer to the last of the readers: all take a line at once, or one after the other."""
    first = ONE_WAY + kib * HAND + FAR * (line - LINE)
    return first, first + (readers - 1) * max(line, kib * HAND / 2)


def star(way, kib, machines, readers):
    """Until the last of `readers` on the last machine has the message; the writer's machine is counted."""
    (first, more), (send, each) = LEGS[way]
    step = max(send + (kib - 1) * each, kib * 8192e9 / LINK)
    return first + (kib - 1) * more + (machines - 2) * step + (readers - 1) * EACH


def tree(way, kib, machines):
    """(time, fan-out) of a tree of such legs, which ringcast does not have."""
    return min((depth_of(machines, fan) * star(way, kib, fan + 1, 1), fan) for fan in range(2, 65))


def depth_of(machines, fan):
    depth, reached = 0, 1
    while reached < machines:
        depth += 1
        reached += fan**depth
    return depth


def time(ns):
    for unit, scale in (("ns", 1), ("us", 1e3), ("ms", 1e6), ("s", 1e9)):
        if ns < 1000 * scale or unit == "s":
            return f"{ns / scale:.3g} {unit}"


def table(head, rows):
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


table(
    ["readers that spin", "line", "64 B: all at once", "in turn", "64 KiB: all at once", "in turn"],
    [
        [f"{readers}, {cpu}, {place}", time(line)]
        + [time(ns) for kib in (0, 64) for ns in spinning(kib, readers, line)]
        for (cpu, place, readers), line in PLACES.items()
    ],
)
table(
    ["readers that sleep", "the writer's commit", "the last reader runs"],
    [[str(n), time(COMMIT + (n - 1) * AWAKENING), time(ROUSE + (n - 1) * EACH)] for n in (1, 8, 64, 256)],
)
table(
    ["way, message", "star: 8 machines", "64", "1,000", "a tree: 1,000, fan-out"],
    [
        [f"{way}, {kib} KiB"]
        + [time(star(way, kib, machines, 8)) for machines in (8, 64, 1000)]
        + ["{}, {}".format(time(found[0] + 7 * EACH), found[1])]
        for way in LEGS
        for kib in (1, 1024)
        for found in [tree(way, kib, 1000)]
    ],
)
