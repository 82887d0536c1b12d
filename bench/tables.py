# SPDX-License-Identifier: Apache-2.0
"""Figures and tables, for a terminal and as Markdown has them, and the blocks of a page that a run
writes."""

import re

# ---- Words and numbers ---------------------------------------------------------------------------


def three(value):
    """Three digits: 1.23, 12.3, 123, 1,230."""
    if value == 0:
        return "0"
    power = int(f"{value:e}".split("e")[1])
    return f"{round(value, 2 - power):,.{max(0, 2 - power)}f}"


def ns(value):
    for unit, scale in (("ns", 1), ("us", 1e3), ("ms", 1e6)):
        if value < 1000 * scale:
            return f"{three(value / scale)} {unit}"
    return f"{three(value / 1e9)} s"


def us(value):
    return f"{three(value)} us"


def gb(value):
    return f"{value / 1e9:.2f}"


ratio = "{:.2f}".format
percent = "{:.3f} %".format


def size_of(count):
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if int(count) >= 1 << shift and int(count) % (1 << shift) == 0:
            return f"{int(count) >> shift} {unit}"
    return f"{count} B"


def rate_of(per_second):
    return f"{three(per_second / 1e6)} million" if per_second >= 1e6 else three(per_second)


def any_of(value):
    """Three digits of a float, all of an int, words as they are."""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int):
        return f"{value:,}"
    return three(value) if isinstance(value, float) else str(value)


# ---- Tables --------------------------------------------------------------------------------------


def table(head, rows):
    """Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def text(head, rows):
    """Columns for a terminal, all but the first to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    first, rest = widths[0], widths[1:]
    return "\n".join(
        "  ".join([line[0].ljust(first), *map(str.rjust, line[1:], rest)]).rstrip()
        for line in lines
    )


def figure_of(figures, path):
    """The figure at a path of keys, such as "ratio.one_way"; None if there is none."""
    for key in path.split("."):
        figures = figures.get(key) if isinstance(figures, dict) else None
    return figures


def table_of(label, columns, found, name=str, draw=table):
    """A row for each measurement: its name, and the figures of the columns (title, path of keys or
    function, and the form if not any_of); or why figures are missing."""

    def cell(figures, path, form=any_of):
        value = figure_of(figures, path) if isinstance(path, str) else path(figures)
        return "" if value is None else form(value)

    rows = [
        [name(key), f"not measured: {figures['skipped']}", *[""] * (len(columns) - 1)]
        if "skipped" in figures
        else [name(key), *(cell(figures, *rest) for _, *rest in columns)]
        for key, figures in found.items()
    ]
    return draw([label, *(title for title, *_ in columns)], rows)


# ---- Pages ---------------------------------------------------------------------------------------


def fill(page, blocks):
    """
    The page's text with the blocks, by name, from <!-- measured: NAME --> to <!-- end -->. A block
    without its one place is a ValueError.
    """
    for name, block in blocks.items():
        new = f"<!-- measured: {name} -->\n{block}\n<!-- end -->"
        page, count = re.subn(
            rf"<!-- measured: {name} -->.*?<!-- end -->", lambda _, new=new: new, page, flags=re.S
        )
        if count != 1:
            raise ValueError(f"{count} places for the block '{name}'")
    return page
