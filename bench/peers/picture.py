# SPDX-License-Identifier: Apache-2.0
"""
The picture of docs/peers.md and README.md: time of one way by the size of the message, in C and in
Python.
"""

import collections
import math
from html import escape

from rows import ranked, select
from bench.tables import ns, size_of

WIDTH, HEIGHT, LEFT, TOP, PLOT = 960, 470, 60, 46, 245  # a panel's plot is PLOT wide
DOWN = HEIGHT - TOP - 44  # the height of a plot
RED, GREY, INK = "#b22222", "#7f8c8d", "#2c3e50"
COLORS = "#1f77b4 #ff7f0e #2ca02c #9467bd #8c564b #d45fb0 #17a2b8 #7a7a00 #4b5d78 #c49c94".split()
SIZES = [1 << power for power in range(6, 27, 4)]
STEP = 15  # between two names


def lines_of(rows, language):
    """{name: ([(bytes, us)], kind)}: the best way of each family, and each floor."""
    wanted = {"language": language, "processes": 2, "reading": "bytes", "scenario": "one-way"}
    families = collections.defaultdict(lambda: collections.defaultdict(dict))
    for row in select(rows, floors=True, **wanted):
        if str(row["payload"]).startswith("bytes-") and row["state"] in ("near", None):
            family = row["peer"] if row["floor"] else row["family"]
            families[family][row["peer"]][row["bytes"]] = row["p50_us"]
    found = {}
    for family, ways in families.items():
        name = ranked(ways)[0]
        if len(ways[name]) > 1:
            kind = (
                "ours"
                if family == "ringcast"
                else "floor"
                if family == name and "c-" in name
                else ""
            )
            found[name] = sorted(ways[name].items()), kind
    return found


def apart(places):
    """The heights of the names, moved down as little as needed."""
    result = []
    for place in places:
        result.append(max([place] + [last + STEP for last in result[-1:]]))
    over = max([*result, TOP + DOWN]) - TOP - DOWN
    return [place - over for place in result]


def panel(rows, language, left):
    lines = lines_of(rows, language)
    times = [time for points, _ in lines.values() for _, time in points] or [1.0]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def across(size):
        return left + PLOT * (math.log2(size) - 6) / 20

    def down(time):
        return TOP + DOWN * (high - math.log10(time)) / max(1, high - low)

    title = {"c": "C", "python": "Python"}[language]
    yield f'<text x="{left + PLOT / 2}" y="{TOP - 12}" text-anchor="middle">{title}</text>'
    for size in SIZES:
        x = across(size)
        yield f'<path class="grid" d="M{x:.0f} {TOP}V{TOP + DOWN}"/>'
        yield f'<text x="{x:.0f}" y="{TOP + DOWN + 16}" text-anchor="middle">{size_of(size)}</text>'
    for power in range(low, high + 1):
        y = down(10.0**power)
        yield f'<path class="grid" d="M{left} {y:.0f}H{left + PLOT}"/>'
        text = ns(10.0 ** (power + 3)).replace(".00", "").replace(".0 ", " ")
        yield f'<text x="{left - 5}" y="{y + 4:.0f}" text-anchor="end">{text}</text>'
    names = sorted(lines, key=lambda name: down(lines[name][0][-1][1]))
    places = apart([down(lines[name][0][-1][1]) for name in names])
    for number, (name, place) in enumerate(zip(names, places)):
        points, kind = lines[name]
        color = {"ours": RED, "floor": GREY}.get(kind, COLORS[number % len(COLORS)])
        path = " ".join(f"{across(size):.0f},{down(time):.0f}" for size, time in points)
        end = (
            f"{across(points[-1][0]):.0f},{down(points[-1][1]):.0f} {left + PLOT + 12},{place:.0f}"
        )
        more = {"ours": ' stroke-width="3"', "floor": ' stroke-dasharray="5 3"'}.get(kind, "")
        yield f'<polyline stroke="{color}"{more} points="{path}"/>'
        yield f'<polyline stroke="{color}" stroke-width="0.5" points="{end}"/>'
        bold = ' font-weight="bold"' if kind == "ours" else ""
        text = f'<text x="{left + PLOT + 15}" y="{place + 4:.0f}" fill="{color}"{bold}>'
        yield f"{text}{escape(name)}</text>"


def draw(rows):
    """The SVG's text."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
    style = "text{font:11px sans-serif}polyline{fill:none}.grid{stroke:#dfe4e6}"
    title = "One way from process to process, p50, by bytes of the message; dashed: floors"
    lines = [
        f'{head} fill="{INK}"><style>{style}</style>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="16" text-anchor="middle">{title}</text>',
        *panel(rows, "c", LEFT),
        *panel(rows, "python", LEFT + WIDTH // 2),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
