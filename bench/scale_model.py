# SPDX-License-Identifier: Apache-2.0
"""The model of docs/scale.md: the time of a broadcast, by readers, cores, sockets and machines. Times are ns, sizes
bytes. scale.py measures the constants, and compares the model with figures that no constant comes from.

On one machine, a frame of n bytes for R readers on C cores:

    latency      one_way + n hand                  the readers spin, a core for each
    period       stream + n flow                   a stream for one reader
    period       (write + R read) / C              a stream, R + 1 > C: all share the cores; write and read grow with n
    slowest      rouse + (R - 1) each              the readers sleep; the writer's commit grows in the same way
    room         slots 2 line / frames of half a ring    the writer's pass over the readers' cursors, for each frame

Over M machines, the writer's counted, each other one with R readers, by the relay's star, with B bits a second out of
the writer's machine:

    last         first + (R - 1) each + max((M - 2) send, (M - 1) 8 n / B)
    last, C cores for all machines: (send + take) / C + (R - 1) each in the place of send, if larger

`send` is the CPU time of the writer's process for a further machine, `take` the CPU time of the machine. A further
reader is one more that sleeps at the ring of its machine: `each` is the ring's.
"""

import math
from typing import NamedTuple

SMALL, LARGE = 64, 65536  # frames: the constants of a ring come from these sizes
SHORT, LONG = 1024, 1 << 20  # messages: the same for the relay
FEW, MORE = 2, 4  # sleeping readers: the same

# Published figures, for distances beyond an L3 cache. A line in turn between two cores:
# github.com/nviennot/core-to-core-latency, README at 0dddf509: AMD EPYC 7R13 and Intel Xeon Platinum 8375C.
LINES = {
    "EPYC 7R13, one L3 cache": 23.0,
    "EPYC 7R13, one socket": 107.0,
    "EPYC 7R13, two sockets": 197.0,
    "Xeon 8375C, one socket": 51.0,
    "Xeon 8375C, two sockets": 108.0,
}
# A further reader of the same line: github.com/MengRao/SPMC_Queue, README at 0b5c878c, Intel Xeon Gold 6144.
FURTHER_READER = 11.4
# Transfers of a line in the way of a small frame: docs/benchmarks.md, (219 - 57) ns / (150 - 30) ns, far and near.
TRANSFERS = 1.35
HALF_RING = 4 << 20  # bytes from pass to pass over the cursors: half a ring of 8 MiB


class Line(NamedTuple):
    """A cost by size or by readers."""

    base: float
    slope: float

    def at(self, value):
        return self.base + self.slope * value


def through(one, other):
    """The line through two points (x, y)."""
    slope = (other[1] - one[1]) / (other[0] - one[0])
    return Line(one[1] - slope * one[0], slope)


class Ring(NamedTuple):
    """The constants of one machine. burst: the writer's time of a frame, a core for each process;
    `write` and `read`: CPU time where all share the cores, of a frame, and of a frame and reader."""

    cores: int
    line: float
    latency: Line
    period: Line
    burst: Line
    write: Line
    read: Line
    commit: Line
    slowest: Line


class Legs(NamedTuple):
    """The constants of a way between machines. `writer`: the CPU time of the writer's process for a single
    machine."""

    first: Line
    writer: Line
    send: Line
    take: Line


# ---- Constants from raw figures -------------------------------------------------------------------------------------


def ring_of(raw):
    def at_sizes(figure):
        return through(*((size, figure(str(size))) for size in (SMALL, LARGE)))

    def shared(size):
        """CPU time of a frame by the readers, where all share the cores. A negative fit of the
        writer's part is taken as 0, and then the line misses its points."""
        points = [(n, cores * 1e9 / raw["stream"][size][str(n)]) for n in (cores, 2 * cores)]
        line = through(*points)
        return line if line.base >= 0 else Line(0, sum(time / n for n, time in points) / 2)

    def woken(key):
        return through(*((n, raw["wake"][str(n)][key]["p50"] * 1e3) for n in (FEW, MORE)))

    cores = raw["machine"]["cores"]
    return Ring(
        cores,
        raw["latency"][str(SMALL)]["line_ns"]["p50"],
        at_sizes(lambda size: raw["latency"][size]["one_way_ns"]["p50"]),
        at_sizes(lambda size: 1e9 / raw["stream"][size]["1"]),
        at_sizes(lambda size: raw["burst"][size]),
        at_sizes(lambda size: shared(size).base),
        at_sizes(lambda size: shared(size).slope),
        woken("commit_us"),
        woken("slowest_us"),
    )


def legs_of(runs):
    """From the runs of a way: 2 and 4 machines with a reader each."""

    def figure(machines, size, key):
        return next(
            found[key]
            for run in runs
            if (run["machines"], run["each"], run["rate"]) == (machines, 1, None)
            for found in run["found"]
            if found["size"] == size
        )

    def at_sizes(value):
        return through(*((size, value(size)) for size in (SHORT, LONG)))

    return Legs(
        at_sizes(lambda size: figure(2, size, "last_ns")),
        at_sizes(lambda size: figure(2, size, "cpu_ns")),
        at_sizes(lambda size: (figure(4, size, "cpu_ns") - figure(2, size, "cpu_ns")) / 2),
        at_sizes(lambda size: (figure(2, size, "machine_cpu_ns") + figure(4, size, "machine_cpu_ns")) / 2),
    )


# ---- One machine ----------------------------------------------------------------------------------------------------


def period(ring, size, readers):
    """From frame to frame of a stream, to the slowest reader."""
    if readers < ring.cores:
        return ring.period.at(size)
    return (ring.write.at(size) + readers * ring.read.at(size)) / ring.cores


def latencies(ring, size, readers, line):
    """From the writer to the last of many spinning readers, at the distance `line`: if all readers take a line at once;
    by the published cost of a further reader (a single line only, else None); if the readers take turns."""
    first = ring.latency.at(size) + TRANSFERS * (line - ring.line)
    further = (readers - 1) * FURTHER_READER if size <= SMALL else None
    in_turn = (readers - 1) * max(line, size * ring.latency.slope / 2)  # half of `hand` is the reader's
    return first, further and first + further, first + in_turn


def room(ring, size, slots):
    """The writer's pass over the cursors, for each frame."""
    frame = math.ceil((size + 16) / 128) * 128
    return slots * 2 * ring.line * frame / HALF_RING


# ---- Many machines --------------------------------------------------------------------------------------------------


def beside(ring, readers):
    """The time that a machine's last reader wakes after the first."""
    return (readers - 1) * ring.slowest.slope


def star(legs, size, machines, rate=math.inf, later=0, cores=None):
    """Until the last reader of `machines` has the message, the writer's machine counted. later: as `beside` says, of
    each machine's readers. cores: that all share."""
    far, step = machines - 1, legs.send.at(size)
    if cores:
        step = max(step, (step + legs.take.at(size)) / cores + later)
    return legs.first.at(size) + later + max((far - 1) * step, far * size * 8e9 / rate)


def cost(legs, size, machines):
    """CPU time of the writer's process, by the star."""
    return legs.writer.at(size) + (machines - 2) * legs.send.at(size)


def tree(legs, size, machines, rate=math.inf):
    """The same with a reader on each machine, by a tree of relays, which ringcast does not have: (time, fan-out) of the
    best fan-out."""
    return min((tree_of(legs, size, machines, fan, rate), fan) for fan in range(2, 65))


def tree_of(legs, size, machines, fan, rate):
    reached, depth = 1, 0
    while reached < machines:
        depth += 1
        reached += fan**depth
    return depth * star(legs, size, fan + 1, rate)


def crossing(legs, size, rate=math.inf, most=1 << 14):
    """From so many machines on a tree is faster than the star; None: from more than `most`."""
    fewest = None
    for machines in range(2, most):
        if tree(legs, size, machines, rate)[0] >= star(legs, size, machines, rate):
            fewest = None
        elif fewest is None:
            fewest = machines
        if fewest and machines > 4 * fewest:
            break
    return fewest
