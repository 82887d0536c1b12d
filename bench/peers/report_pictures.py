# SPDX-License-Identifier: Apache-2.0
"""The three pictures of docs/peers.md, from rows: first the plain data, then the drawing."""

import collections

from report_rows import (
    OBJECTS,
    SCHEDULER,
    best,
    cpu_percent,
    label,
    lossy,
    ns,
    one_state,
    ours,
    ranked,
    ratio,
    select,
    size_of,
    spent_us,
)

RED, GREY, INK = "#b22222", "#7f8c8d", "#2c3e50"
COLORS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#7a7a00", "#4b5d78", "#c49c94"]
MARKS = "osv^D<>pXP"
BARS = 5  # ways beside ringcast in the picture of objects


# ---- Data of pictures ------------------------------------------------------------------------------------------------


def by_way(rows, key, value):
    """{way: {key of a row: value of the row}}, without missing values."""
    found = collections.defaultdict(dict)
    for row in rows:
        if value(row) is not None:
            found[label(row)][key(row)] = value(row)
    return found


def p50(row):
    return row.get("p50_us")


def bytes_lines(rows, language):
    """{name: (points, kind)} of a way of each family; points: [(bytes, us)]; kind: ours, peer, floor or in-place."""
    plain = select(rows, floors=True, language=language, scenario="one-way", processes=2, reading=["bytes", None])
    plain = one_state([row for row in plain if str(row.get("payload")).startswith("bytes-")])
    in_place = one_state(select(rows, language=language, scenario="in-place", processes=2))
    lines, families = {}, collections.defaultdict(list)
    for row in plain:
        families[row["peer"] if row.get("floor") else row["family"]].append(row)
    for found in families.values():
        ways = by_way(found, lambda row: row["bytes"], p50)
        if ways:
            name = ranked(ways)[0]
            kind = "floor" if found[0].get("floor") else "ours" if ours(found[0]) else "peer"
            more = " (lossy)" if lossy(found[0]) and kind != "floor" else ""
            lines[name + more] = sorted(ways[name].items()), kind
    for is_ours in (True, False):
        ways = by_way([row for row in in_place if ours(row) is is_ours], lambda row: row["bytes"], p50)
        if ways:
            name = ranked(ways)[0]
            lines[f"{name}, in place"] = sorted(ways[name].items()), "in-place"
    return lines


def object_bars(rows):
    """(payloads, {way: {payload: times of pickle over the best transport}}), ringcast first."""
    found = select(rows, scenario="call", processes=2, language="python", reading="objects")
    found = [row for row in found if row.get("payload") in OBJECTS + SCHEDULER]
    mine = by_way([row for row in found if ours(row)], lambda row: row["payload"], spent_us)
    pickled = [row for row in found if not ours(row) and row.get("serialiser") == "pickle5"]
    least = {}
    for payload in OBJECTS + SCHEDULER:
        row = best([row for row in pickled if row["payload"] == payload], "spent_us")
        if row:
            least[payload] = spent_us(row)
    others = by_way([row for row in found if not ours(row)], lambda row: row["payload"], spent_us)
    families, names = {label(row): row["family"] for row in found}, []
    for name in ranked(others):
        if families[name] not in [families[other] for other in names]:
            names.append(name)
    bars = {}
    for ways, wanted in ((mine, ranked(mine)[:1]), (others, names[:BARS])):
        for name in wanted:
            bars[name] = {payload: time / least[payload] for payload, time in ways[name].items() if payload in least}
    return [payload for payload in OBJECTS + SCHEDULER if payload in least], bars


def pause_payload(rows, scenario="every25"):
    """The payload of the rows with pauses: the metadata if there are such rows."""
    found = {row["payload"] for row in select(rows, scenario=scenario, processes=2, language="python") if ours(row)}
    return "metadata" if "metadata" in found else min(found, default=None)


def cpu_points(rows):
    """[(way, p50 in us, % of a CPU, ours)] with a message every 25 ms."""
    found = select(rows, scenario="every25", processes=2, language="python", payload=pause_payload(rows))
    found = [row for row in found if p50(row) and cpu_percent(row) is not None]
    points = {}
    for row in found:
        points[label(row)] = (label(row), p50(row), max(cpu_percent(row), 0.01), ours(row))
    return sorted(points.values(), key=lambda point: point[1])


# ---- Drawing ---------------------------------------------------------------------------------------------------------


def apart(places, least):
    """The places, moved as little as needed for a distance of `least`; in the order of the input."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    groups = [[places[index], 1] for index in order]  # [middle, how many labels]
    merged = []
    for group in groups:
        merged.append(group)
        while len(merged) > 1 and merged[-1][0] - merged[-2][0] < least * (merged[-1][1] + merged[-2][1]) / 2:
            last, before = merged.pop(), merged.pop()
            count = last[1] + before[1]
            merged.append([(last[0] * last[1] + before[0] * before[1]) / count, count])
    found = [middle + least * (number - (count - 1) / 2) for middle, count in merged for number in range(count)]
    result = [0.0] * len(places)
    for index, place in zip(order, found):
        result[index] = place
    return result


def begin():
    import matplotlib

    matplotlib.use("svg")
    style = {"svg.hashsalt": "ringcast", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
    colors = {key: INK for key in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")}
    matplotlib.rcParams.update({**style, **colors, "axes.spines.top": False, "axes.spines.right": False})
    from matplotlib import pyplot

    return pyplot


def save(figure, pyplot, svg, png):
    """With a white background, also on a dark page."""
    figure.savefig(svg, metadata={"Date": None, "Creator": None}, facecolor="white")
    figure.savefig(png, dpi=110, facecolor="white")
    pyplot.close(figure)


def label_lines(axes, lines, colors):
    """The name of each line beside the line's end, with a thread where the name had to move. The names of ways with a
    single size are in the corner below."""
    into = axes.transAxes.inverted()
    for kind in ("line", "point"):
        names = [name for name, (points, _) in lines.items() if (len(points) > 1) is (kind == "line")]
        ends = [into.transform(axes.transData.transform(lines[name][0][-1])) for name in names]
        places = apart([y for _, y in ends], 0.042)
        over = max([*places, 0.99]) - 0.99
        for number, (name, (x, y), place) in enumerate(zip(names, ends, places)):
            bold, look = lines[name][1] == "ours", {"color": colors[name], "transform": axes.transAxes}
            left, place = (1.02, place - over) if kind == "line" else (0.1, 0.03 + 0.042 * number)
            axes.plot([x, left - 0.005], [y, place], linewidth=0.5, clip_on=False, **look)
            axes.text(left, place, name, fontsize=8, fontweight="bold" if bold else "normal", va="center", **look)


def draw_bytes(rows, svg, png):
    pyplot = begin()
    figure, panels = pyplot.subplots(1, 2, figsize=(12.5, 5.6))
    figure.subplots_adjust(left=0.07, right=0.86, wspace=0.5, top=0.9, bottom=0.1)
    for axes, language, title in zip(panels, ("c", "python"), ("C", "Python")):
        lines = bytes_lines(rows, language)
        colors, lively = {}, 0
        for name, (points, kind) in lines.items():
            mine = name.startswith(("ringcast", "c-ringcast"))
            colors[name] = RED if mine else GREY if kind == "floor" else COLORS[lively % len(COLORS)]
            style = {"floor": "--", "in-place": ":"}.get(kind, f"-{MARKS[(lively + lively // 10) % len(MARKS)]}")
            width, lively = 3 if kind == "ours" else 1.2, lively + (not mine and kind != "floor")
            style = style if len(points) > 1 else "x"
            axes.loglog(*zip(*points), style, color=colors[name], linewidth=width, markersize=4, zorder=2 + mine)
        sizes = [1 << power for power in range(6, 27, 4)]
        axes.set_xticks(sizes, map(size_of, sizes))
        axes.set_yticks([10.0**power for power in range(-2, 6)], [ns(10.0 ** (power + 3)) for power in range(-2, 6)])
        axes.minorticks_off()
        times = [time for points, _ in lines.values() for _, time in points] or [0.1, 10]
        axes.set(xlabel="bytes of a message", title=title, xlim=(50, 1e8), ylim=(min(times) / 5, max(times) * 2))
        axes.grid(True, color="#ecf0f1")
        label_lines(axes, lines, colors)
    panels[0].set_ylabel("one way, p50")
    figure.suptitle("From one process to another: written, sent and read; dashed: floors; dotted: no copy", fontsize=10)
    save(figure, pyplot, svg, png)


def draw_objects(rows, svg, png):
    pyplot = begin()
    payloads, bars = object_bars(rows)
    figure, axes = pyplot.subplots(figsize=(12.5, 4.8))
    wide = 0.84 / max(1, len(bars))
    for number, (name, found) in enumerate(bars.items()):
        xs = [index + (number - (len(bars) - 1) / 2) * wide for index, item in enumerate(payloads) if item in found]
        heights = [found[item] for item in payloads if item in found]
        tops, color = [height - 1 for height in heights], COLORS[number - 1] if number else RED
        drawn = axes.bar(xs, tops, 0.9 * wide, bottom=1, color=color, label=name)
        axes.bar_label(drawn, [ratio(height) for height in heights], fontsize=6.5, rotation=90, padding=2)
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_yscale("log")
    values = [height for found in bars.values() for height in found.values()] or [1]
    axes.set_ylim(min(0.4, min(values)) / 1.6, 6 * max(values))
    axes.minorticks_off()
    low, high = axes.get_ylim()
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low < tick < high]
    axes.set_yticks(ticks, map("{:g}".format, ticks))
    axes.set_xticks(range(len(payloads)), payloads)
    axes.set_title("Objects written and read; 1: pickle over the transport that is best with it", fontsize=10)
    axes.legend(ncols=6, fontsize=8, frameon=False, loc="upper center")
    figure.tight_layout()
    save(figure, pyplot, svg, png)


OFFSETS = [(7, 0), (-7, 0), (0, 9), (0, -9), (9, 10), (-9, 10), (9, -10), (-9, -10), (12, 22), (-12, 22), (12, -22)]
OFFSETS += [(-12, -22), (14, 34), (-14, 34), (14, -34), (-14, -34), (30, 46), (-30, 46), (30, -46), (-30, -46)]


def draw_cpu(rows, svg, png):
    pyplot = begin()
    figure, axes = pyplot.subplots(figsize=(9, 5.4))
    points = cpu_points(rows)
    for number, (_, time, cpu, mine) in enumerate(points):
        color = RED if mine else COLORS[number % len(COLORS)]
        axes.loglog([time], [cpu], "o", color=color, markersize=10 if mine else 6, zorder=3)
    times, shares = [point[1] for point in points] or [1, 100], [point[2] for point in points] or [1, 100]
    axes.set_xticks([10.0**power for power in range(0, 5)], [ns(10.0 ** (power + 3)) for power in range(0, 5)])
    axes.set_yticks([0.1, 1, 10, 100], ["0.1 %", "1 %", "10 %", "100 %"])
    axes.set_xlim(min(times) / 3, max(times) * 6)
    axes.set_ylim(min(shares) / 2.5, max(shares) * 2.5)
    axes.minorticks_off()
    axes.grid(True, color="#ecf0f1")
    axes.set(xlabel="one way, p50", ylabel="CPU of writer and reader, % of one CPU")
    axes.set_title("A message every 25 ms: best is below and to the left", fontsize=10)
    figure.tight_layout()
    figure.canvas.draw()
    taken = [axes.transData.transform(point[1:3]) for point in points]
    boxes = [(x - 5, y - 5, x + 5, y + 5) for x, y in taken]
    for number, (name, time, cpu, mine) in enumerate(points):
        label_free(axes, boxes, name, (time, cpu), mine, RED if mine else COLORS[number % len(COLORS)])
    save(figure, pyplot, svg, png)


def label_free(axes, boxes, name, point, mine, color):
    """The label at the first free place around the point."""
    x, y = axes.transData.transform(point)
    scale = axes.figure.dpi / 72
    wide, high = 6.0 * len(name) * scale, 11 * scale
    for across, up in OFFSETS:
        left = x + across * scale - (0 if across > 0 else wide if across < 0 else wide / 2)
        box = (left, y + up * scale - high / 2, left + wide, y + up * scale + high / 2)
        if not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in boxes):
            break
    boxes.append(box)
    thread = {"arrowstyle": "-", "color": color, "linewidth": 0.5} if abs(up) > 9 else None
    place = {"xytext": (across, up), "textcoords": "offset points", "arrowprops": thread, "va": "center"}
    align = "left" if across > 0 else "right" if across < 0 else "center"
    axes.annotate(name, point, **place, ha=align, color=color, fontsize=8, fontweight="bold" if mine else "normal")


PICTURES = {"bytes": draw_bytes, "objects": draw_objects, "cpu": draw_cpu}


def draw(rows, pages, beside):
    """The SVG files go beside the pages, the PNG files beside the results."""
    for name, drawing in PICTURES.items():
        drawing(rows, pages / f"peers-{name}.svg", beside / f"peers-{name}.png")
