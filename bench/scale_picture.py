# SPDX-License-Identifier: Apache-2.0
"""The picture of docs/scale.md: lines are the model, marks were measured."""

import scale_model as model
from scale_tables import EACH, NETWORK, WAYS, compared, legs_by_way
from tables import ns, size_of

INK, GRID = "#2c3e50", "#ecf0f1"
COLORS = ["#1f77b4", "#2ca02c", "#ff7f0e", "#b22222"]


def shared_cores(axes, raw):
    ring, counts = model.ring_of(raw), range(1, 17)
    rows = [row for row in compared(raw) if row[0] in ("apart", "shared")]
    sizes = sorted({row[2] for row in rows})
    for size, color in zip(sizes, COLORS):
        axes.plot(counts, [model.period(ring, size, readers) for readers in counts], color=color)
        axes.plot(*zip(*sorted((row[1], row[4]) for row in rows if row[2] == size)), "o", color=color, markersize=4)
        label_end(axes, counts[-1], model.period(ring, size, counts[-1]), size_of(size), color)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.set(xlabel="readers", title=f"A stream, {ring.cores} cores: time of a frame")


def machines_here(axes, raw):
    cores, rows = raw["machine"]["cores"], [row for row in compared(raw) if row[0] == "machines"]
    lines = [("zmq", None, 1024), ("zmq", None, 1 << 20), ("torch", None, 1 << 20), ("zmq", 10**9, 1 << 20)]
    for (way, rate, size), color in zip(lines, COLORS):
        legs = legs_by_way(raw)[way]
        label = f"{WAYS[way]}, {size_of(size)}" + (f", {rate / 1e9:g} Gbit/s" if rate else "")
        times = [model.star(legs, size, count, rate or float("inf"), 0, cores) for count in range(2, 9)]
        axes.plot(range(2, 9), times, color=color, label=label)
        found = [(row[1][2], row[4]) for row in rows if (*row[1][:2], row[1][3], row[2]) == (way, rate, 1, size)]
        axes.plot(*zip(*sorted(found)), "o", color=color, markersize=4)
    axes.set_xticks([2, 4, 8])
    axes.set(xlabel=f"machines: namespaces that share {cores} cores", title="Until the last machine has the message")
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def machines_afar(axes, raw):
    counts, later = [round(2 ** (power / 4)) for power in range(4, 41)], model.beside(model.ring_of(raw), EACH)
    for (way, size), color in zip([("zmq", 1024), ("zmq", 1 << 20), ("torch", 1 << 20)], COLORS):
        legs = legs_by_way(raw)[way]
        star = [model.star(legs, size, count, NETWORK, later) for count in counts]
        axes.plot(counts, star, color=color, label=f"{WAYS[way]}, {size_of(size)}")
        tree = [model.tree(legs, size, count, NETWORK)[0] + later for count in counts]
        axes.plot(counts, tree, ":", color=color)
    axes.plot([], [], ":", color=INK, label="a tree of relays, which ringcast does not have")
    axes.axvline(8, color="#bdc3c7", linewidth=0.8, zorder=0)
    text = " up to here measured, on shared cores"
    axes.annotate(text, (8, 0.02), xycoords=("data", "axes fraction"), fontsize=8, color="#7f8c8d")
    axes.set_xscale("log")
    axes.set_xticks([10, 100, 1000], ["10", "100", "1,000"])
    axes.set(
        xlabel=f"machines of {EACH} readers, each machine with cores of its own",
        title="The same, derived, at 100 Gbit/s",
    )
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def label_end(axes, x, y, text, color):
    axes.annotate(text, (x, y), xytext=(5, -3), textcoords="offset points", fontsize=8, color=color)


def draw(raw, file):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "ringcast", "svg.fonttype": "none", "font.family": "sans-serif"})
    matplotlib.rcParams.update({"axes.titlesize": 10, "axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8})
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(3, 1, figsize=(7.5, 11))
    for axes, plot in zip(panels, (shared_cores, machines_here, machines_afar)):
        plot(axes, raw)
        axes.set_yscale("log")
        axes.set_yticks([10**power for power in range(11)], [ns(10**power) for power in range(11)])
        axes.minorticks_off()
        low, high = axes.dataLim.intervaly
        axes.set_ylim(low / 2, high * (2 if plot is shared_cores else 30))
        axes.grid(True, color=GRID)
        axes.set_axisbelow(True)
    panels[0].set_xlim(0.9, 30)
    figure.tight_layout()
    figure.savefig(file, facecolor="white", metadata={"Date": None, "Creator": None})
