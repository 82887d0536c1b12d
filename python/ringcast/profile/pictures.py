# SPDX-License-Identifier: Apache-2.0
"""
The six pictures of a profile. Pictures need matplotlib; without matplotlib a note says so, and the
rest is there.
"""

import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

from ringcast import _files
from ringcast.profile import analysis
from ringcast.profile.report import number
from ringcast.profile.store import MIB, RANGES, Totals, process_of

if TYPE_CHECKING:
    from ringcast.profile.results import Results

# Of Okabe and Ito, which colour-blind readers tell apart; patterns and markers differ beside.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B8A800", "#777777",
)  # fmt: skip
KINDS = {"computing": (BLUE, ""), "communication": (ORANGE, "//"), "waiting": (RED, "xx")}
LINES = [
    (BLUE, "o"),
    (ORANGE, "s"),
    (GREEN, "^"),
    (RED, "D"),
    (PURPLE, "v"),
    (SKY, "P"),
    (YELLOW, "X"),
    (GREY, "*"),
]
MOST = 12  # bars
MOST_ROWS = 32  # of the heat map
DPI = 110
OLDEST = (3, 10)


def draw(found: "Results", folder: str) -> List[str]:
    """Make the pictures in the folder; return a note for each missing picture."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return ["no pictures: matplotlib is missing; after `python -m pip install matplotlib`, "
                "`python -m ringcast.profile report DIR` makes them"]  # fmt: skip
    if matplotlib.__version_info__ < OLDEST:
        return [
            f"no pictures: matplotlib {matplotlib.__version__} is too old; 3.10 or newer makes them"
        ]
    notes = []
    for name, (size, function) in PICTURES.items():
        try:
            figure = Figure(figsize=size, dpi=DPI, layout="constrained")
            function(figure, found)
            with _files.replacing(os.path.join(folder, f"{name}.png"), "wb") as file:
                figure.savefig(file, format="png")
        except Exception as error:  # the results must not be lost with a picture
            notes.append(f"no {name}.png: {error!r}")
    return notes


def _empty(axes: Any, text: str) -> None:
    axes.set_axis_off()
    axes.text(
        0.5, 0.5, text, ha="center", va="center", wrap=True, fontsize=12, transform=axes.transAxes
    )


def _logarithmic(axes: Any, which: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.margins(**{which: 0.1})
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())


def shorter(name: str, most: int = 34) -> str:
    name = "".join(letter if letter.isprintable() else " " for letter in name)
    name = (
        name
        if len(name) <= most
        else f"{name[: most // 2 - 1]}...{name[-(most - most // 2 - 2) :]}"
    )
    return name.replace("$", r"\$")  # which begins a formula in matplotlib


# ---- Where the time goes -------------------------------------------------------------------------


def bottlenecks(figure: Any, found: "Results") -> None:
    axes = figure.subplots()
    layers = analysis.layers(found.store)
    parts = analysis.bottlenecks(found, {"layer_breakdown": layers})[:MOST]
    if not parts:
        return _empty(axes, "Nothing was recorded")
    parts.reverse()
    widths = [part["share_percent"] for part in parts]
    bars = axes.barh([shorter(part["what"]) for part in parts], widths, edgecolor="white")
    for bar, part in zip(bars, parts):
        colour, pattern = KINDS[part["kind"]]
        bar.set(facecolor=colour, hatch=pattern)
        told = f" {part['share_percent']:.1f} %, {number(part['ms_per_step'])} ms"
        axes.text(
            bar.get_width(), bar.get_y() + bar.get_height() / 2, told, va="center", fontsize=9
        )
    axes.set_xlim(0, max(widths) * 1.28)
    axes.set_xlabel("share of the steps' time, %  (and ms a step)")
    axes.set_title("Where the steps' time goes")
    axes.legend(
        handles=_patches({part["kind"] for part in parts}), loc="lower right", frameon=False
    )
    axes.spines[["top", "right"]].set_visible(False)


def _patches(kinds: Any) -> List[Any]:
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=colour, hatch=pattern, edgecolor="white", label=kind)
        for kind, (colour, pattern) in KINDS.items()
        if kind in kinds
    ]


def compute_vs_communication(figure: Any, found: "Results") -> None:
    series = {process: each.kept for process, each in found.store.series.items() if each.kept}
    if not series:
        return _empty(figure.subplots(), "No step was recorded")
    grid = figure.add_gridspec(
        2, 2, width_ratios=[3, 1.4 + 0.25 * min(len(found.ranks), 8)], height_ratios=[1, 1.2]
    )
    above, right = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[:, 1])
    below = figure.add_subplot(grid[1, 0], sharex=above)
    process, rows = next(iter(series.items()))
    above.set_title("Step by step" + (f", {_of_process(process)}" if len(series) > 1 else ""))
    _durations(above, rows)
    edges = [row[0] - 0.5 for row in rows] + [rows[-1][0] + 0.5]
    computing = [100 - 100 * row[2] / max(row[1], 1) for row in rows]
    computing += computing[-1:]
    parts: List[Tuple[str, Any, Any]] = [
        ("computing", 0, computing),
        ("communication", computing, 100),
    ]
    for kind, low, high in parts:
        colour, pattern = KINDS[kind]
        below.fill_between(
            edges,
            low,
            high,
            step="post",
            facecolor=colour,
            hatch=pattern,
            edgecolor="white",
            linewidth=0,
        )
    below.set(xlabel="step", ylabel="share of a step, %", ylim=(0, 100), xlim=(edges[0], edges[-1]))
    if len(rows) < 10:
        below.set_xticks([row[0] for row in rows])
    _by_process(right, found)
    patches = _patches(("computing", "communication"))
    figure.legend(handles=patches, loc="outside lower center", ncols=2, frameon=False)


def _durations(axes: Any, rows: List[Any]) -> None:
    times = [row[1] / 1e6 for row in rows]
    axes.plot([row[0] for row in rows], times, "o-", color=GREY, linewidth=0.8, markersize=4)
    if max(times) > 8 * max(min(times), 1e-6):
        _logarithmic(axes, "y")
    else:
        axes.set_ylim(0, max(times) * 1.15 or 1)
    axes.set_ylabel("ms a step")
    axes.grid(axis="y", alpha=0.3)
    axes.tick_params(labelbottom=False)


def _by_process(axes: Any, found: "Results") -> None:
    processes = [rank for rank in found.ranks if rank["steps"]][:16]
    names = [process_of(rank).replace(" ", "\n") for rank in processes]
    computing = [100 * rank["compute_time"] / max(rank["total_time"], 1e-12) for rank in processes]
    places = list(range(len(processes)))
    axes.bar(places, computing, color=BLUE, width=0.7)
    told, (colour, pattern) = [100 - part for part in computing], KINDS["communication"]
    axes.bar(
        places, told, bottom=computing, color=colour, hatch=pattern, edgecolor="white", width=0.7
    )
    for place, part in zip(places, told):
        axes.text(place, 102, f"{part:.0f} %", ha="center", fontsize=9)
    axes.set_xticks(places, names)
    is_rank = all(name.isdigit() for name in names)
    axes.set(xlabel="rank" if is_rank else "", ylabel="share of the steps' time, %", ylim=(0, 112))
    axes.set_xlim(-0.8, max(len(processes), 2) - 0.2)
    axes.set_title("Communication's share")


def _of_process(process: str) -> str:
    return f"rank {process}" if process.isdigit() else process


# ---- Operations ----------------------------------------------------------------------------------


def distribution(figure: Any, found: "Results") -> None:
    axes = figure.subplots()
    by_type = analysis.grouped(analysis.counted(found.store), lambda key: key[0])
    if not by_type:
        return _empty(axes, "No communication was seen")
    most = sorted(by_type.items(), key=lambda each: -each[1].total)[:MOST]
    most.reverse()
    boxes = [_box(totals, f"{shorter(name)}\n{totals.count:,} times") for name, totals in most]
    drawn = axes.bxp(
        boxes, orientation="horizontal", showfliers=False, patch_artist=True, widths=0.55
    )
    for box in drawn["boxes"]:
        box.set(facecolor=SKY, edgecolor="black")
    for line in drawn["medians"]:
        line.set(color=RED, linewidth=2)
    for place, (_, totals) in enumerate(most, 1):
        axes.plot([totals.mean() / 1e3], [place], "D", color="black", markersize=4)
    _logarithmic(axes, "x")
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(
        "duration, us  (box: 25 % to 75 %; whiskers: 5 % to 95 %; line: median; diamond: mean)"
    )
    axes.set_title("How long operations take")


def _box(totals: Totals, label: str) -> Dict[str, Any]:
    low, first, median, third, high = (
        max(totals.quantile(share), 1) / 1e3 for share in (0.05, 0.25, 0.5, 0.75, 0.95)
    )
    return {"label": label, "whislo": low, "q1": first, "med": median, "q3": third, "whishi": high}


def bandwidths(figure: Any, found: "Results") -> None:
    axes = figure.subplots()
    moving = {
        key: totals
        for key, totals in analysis.counted(found.store).items()
        if totals.bytes and totals.moving > 0
    }
    if not moving:
        return _empty(axes, "No operation moved any bytes")
    sizes = sorted({key[2] for key in moving})
    by_type = analysis.grouped(moving, lambda key: key[0])
    names = sorted(by_type, key=lambda name: -by_type[name].bytes)[: len(LINES)]
    for name, (colour, marker) in zip(names, LINES):
        of_it = analysis.grouped(
            {key: each for key, each in moving.items() if key[0] == name}, lambda key: key[2]
        )
        places = [sizes.index(size) for size in of_it]
        rates = [analysis.bandwidth(each) for each in of_it.values()]
        # Waiting is part of the duration.
        is_least = any(key[1] != "ringcast" for key in moving if key[0] == name)
        axes.plot(
            places, rates, "--" if is_least else "-", marker=marker, color=colour, markersize=8,
            label=shorter(name), markerfacecolor="white" if is_least else colour,
        )  # fmt: skip
    _logarithmic(axes, "y")
    axes.set_xticks(range(len(sizes)), [_two_lines(RANGES[size]) for size in sizes])
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.grid(axis="y", alpha=0.3)
    told = (
        "size of an operation\n(hollow, dashed: the waiting for the other side is part of the "
        "duration)"
    )
    axes.set(xlabel=told, ylabel="GB/s")
    axes.set_title(
        "Bandwidth by operation and size (bytes by duration; of ringcast's without waiting)"
    )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _two_lines(name: str) -> str:
    for words in "up to ", "above ":
        if name.startswith(words):
            return name.replace(words, f"{words.rstrip()}\n")
    return name.replace(" to ", "\nto ")


# ---- Regions and memory --------------------------------------------------------------------------


def heatmap(figure: Any, found: "Results") -> None:
    axes = figure.subplots()
    rows, columns, cells = matrix(found)
    if not rows:
        return _empty(axes, 'No region was marked: with p.region("layers.0.attn"): ...')
    figure.set_size_inches(2.6 + 1.25 * len(columns) + 1.4, 1.6 + 0.32 * max(len(rows), 4))
    image = axes.imshow(cells, aspect="auto", cmap="cividis", vmin=0)
    axes.set_xticks(
        range(len(columns)),
        [shorter(name, 22) for name in columns],
        rotation=30,
        ha="right",
        rotation_mode="anchor",
    )
    axes.set_yticks(range(len(rows)), [shorter(name, 30) for name in rows])
    most = max(max(row) for row in cells) or 1.0
    for y, row in enumerate(cells):
        for x, value in enumerate(row):
            if value > 0:
                colour = "black" if value > most * 0.5 else "white"
                axes.text(x, y, f"{value:.3g}", ha="center", va="center", fontsize=8, color=colour)
    figure.colorbar(image, ax=axes, label="ms a step")
    axes.set_title("Time by region, ms a step")


def matrix(found: "Results") -> Tuple[List[str], List[str], List[List[float]]]:
    """
    Rows are regions, or, where all are called like layers.0.attn, their layers; columns are parts
    of the time.
    """
    layers = analysis.layers(found.store)
    scale = 1e3 / max(found.store.steps.count, 1)
    table: Dict[str, Dict[str, float]] = {}
    for name, region in layers.items():
        layer, _, part = name.rpartition(".")
        is_part = layer.rpartition(".")[2].isdigit()
        row = table.setdefault(layer if is_part else name, {})
        if is_part:
            row[part] = row.get(part, 0.0) + region["self_time"] * scale
        else:
            row["its own"] = row.get("its own", 0.0) + region["self_time"] * scale
        for operation, seconds in region["operations"].items():
            if operation not in layers:
                row[operation] = row.get(operation, 0.0) + seconds * scale
    names = list(table)
    if len(names) > MOST_ROWS:
        most = sorted(names, key=lambda name: -sum(table[name].values()))[:MOST_ROWS]
        names = [name for name in names if name in most]
    sums: Dict[str, float] = {}
    for name in names:
        for part, value in table[name].items():
            sums[part] = sums.get(part, 0.0) + value
    columns = [part for part in sorted(sums, key=lambda part: -sums[part])[:8] if sums[part] > 0]
    return (
        (names if columns else []),
        columns,
        [[table[name].get(part, 0.0) for part in columns] for name in names],
    )


def memory(figure: Any, found: "Results") -> None:
    axes = figure.subplots()
    series = {process: each.kept for process, each in found.store.memory.items() if each.kept}
    if not series:
        return _empty(axes, "No memory was read")
    told = [(1, "-", "resident")]
    if any(row[2] for rows in series.values() for row in rows):
        told.append((2, "--", "device"))
    for (process, rows), (colour, marker) in zip(
        series.items(), LINES * (len(series) // len(LINES) + 1)
    ):
        seconds, every = [row[0] for row in rows], max(len(rows) // 12, 1)
        for index, style, what in told:
            values, label = [row[index] / MIB for row in rows], f"{_of_process(process)}, {what}"
            axes.plot(
                seconds, values, style, color=colour, marker=marker, markevery=every, label=label
            )
    axes.set(xlabel="seconds since the profile began", ylabel="MiB")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
    axes.grid(alpha=0.3)
    axes.set_title("Memory of the processes")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


PICTURES: Dict[str, Tuple[Tuple[float, float], Callable[[Any, Any], None]]] = {
    "layer_performance_heatmap": ((8, 5), heatmap),
    "operation_time_distribution": ((9, 5), distribution),
    "compute_vs_communication": ((10, 5.4), compute_vs_communication),
    "memory_usage_analysis": ((9, 4.6), memory),
    "performance_bottlenecks": ((9.5, 5), bottlenecks),
    "bandwidth_analysis": ((9.5, 5), bandwidths),
}
