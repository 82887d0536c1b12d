# SPDX-License-Identifier: Apache-2.0
"""Facts of the machine, and figures as text that fits 100 columns."""

import os
import platform
import re
import sys
from importlib import metadata
from operator import itemgetter
from typing import Any, Callable, Dict, List, Optional, Tuple

import ringcast


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def version(package: str) -> Optional[str]:
    """Of an installed package, or None. It is not imported: torch takes seconds."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def machine() -> Dict[str, Any]:
    """What the figures depend on, and nothing of whose machine it is."""
    cpu = re.search(r"^model name\s*: (.*)$", read("/proc/cpuinfo"), re.M)
    kernel = re.match(r"[0-9.]*[0-9]", platform.release())
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "linux": kernel[0] if kernel else platform.release(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "torch": version("torch"),
        "ringcast": ringcast.__version__,
    }


def say(text: str) -> None:
    print(f"ringcast.bench: {text}", file=sys.stderr, flush=True)


# ---- As text ---------------------------------------------------------------------------------------------------------


def number(value: Optional[float]) -> str:
    """Three digits that count, or three behind the point; all of a whole number; nothing of None."""
    if value is None:
        return ""
    if isinstance(value, int) or value >= 99.95:
        return f"{value:,.0f}"
    if value < 0.0995:
        return f"{value:.3f}"
    return f"{value:.{2 if value < 9.995 else 1}f}"


# Its title; that of the group which begins with it; its width; its value.
Column = Tuple[str, str, int, Callable[[Dict[str, Any]], Optional[float]]]


def of(way: str, what: str) -> Callable[[Dict[str, Any]], Optional[float]]:
    def value(figures: Dict[str, Any]) -> Optional[float]:
        return figures[way].get(what)  # type: ignore[no-any-return]

    return value


CODEC: List[Column] = [
    (way, title if way == "ringcast" else "", width, of(way, what))
    for title, what in (("encode, us", "encode_us"), ("decode, us", "decode_us"), ("both, us", "encode_decode_us"))
    for way, width in (("ringcast", 10), ("pickle", 8))
]
CODEC += [
    ("ratio", "", 7, of("ratio", "encode_decode")),
    ("ringcast", "bytes", 11, of("ringcast", "bytes")),
    ("pickle", "", 11, of("pickle", "bytes")),
]

ONE_WAY: List[Column] = [
    ("p50", "ringcast, us", 9, of("ringcast", "one_way_p50_us")),
    ("p99", "", 9, of("ringcast", "one_way_p99_us")),
    ("p50", "pickle, us", 9, of("pickle", "one_way_p50_us")),
    ("p99", "", 9, of("pickle", "one_way_p99_us")),
    ("ratio", "", 6, of("ratio", "one_way")),
]
OBJECT: List[Column] = [
    *ONE_WAY,
    ("alone, us", "pickle", 11, of("pickle_alone", "dumps_loads_us")),
    ("ratio", "", 6, of("ratio", "to_pickle_alone")),
    ("ringcast", "objects/s", 11, of("ringcast", "objects_per_s")),
    ("pickle", "", 10, of("pickle", "objects_per_s")),
]
TENSORS: List[Column] = [
    *ONE_WAY,
    ("ringcast", "GB/s", 10, of("ringcast", "gb_per_s")),
    ("pickle", "", 8, of("pickle", "gb_per_s")),
]
DROPIN: List[Column] = [
    ("p50", "one way, us", 11, itemgetter("p50_us")),
    ("p99", "", 9, itemgetter("p99_us")),
    ("source", "CPU, us", 11, itemgetter("cpu_source_us")),
    ("a reader", "", 10, itemgetter("cpu_reader_us")),
    ("ratio", "", 9, itemgetter("ratio")),
]


def table(cases: Dict[str, Dict[str, Any]], columns: List[Column]) -> List[str]:
    """Two lines of titles, then a line for each case."""
    first = max(len("case"), *(len(name) for name in cases))
    groups, titles = " " * first, f"{'case':{first}}"
    for title, group, width, _ in columns:
        # A group's title may reach over its other columns.
        start = len(titles) + width - len(title)
        groups = f"{groups:{start}}{group}" if group else groups
        titles += f"{title:>{width}}"
    rows = [
        f"{name:{first}}" + "".join(f"{number(value(figures)):>{width}}" for _, _, width, value in columns)
        for name, figures in cases.items()
    ]
    return [groups, titles, *rows]


def text(found: Dict[str, Any], columns: List[Column], note: str) -> str:
    facts = found["machine"]
    cores = f"{facts['cores']} CPU{'s' if facts['cores'] > 1 else ''}"
    head = [
        f"ringcast {facts['ringcast']} on {facts['cpu']}, {cores}, Linux {facts['linux']}",
        f"Python {facts['python']}, NumPy {facts['numpy']}, torch {facts['torch'] or 'not installed'}; load average "
        f"{facts['load_average']:.1f}",
        note,
        "",
    ]
    tail = [f"{name} left out: {why}" for name, why in found["left_out"].items()]
    return "\n".join([*head, *table(found["cases"], columns), *tail])


def flat(found: Dict[str, Any], prefix: str = "") -> List[str]:
    """A line for each figure, whatever there is."""
    lines = []
    for name, value in found.items():
        if isinstance(value, dict):
            lines += flat(value, f"{prefix}{name} ")
        else:
            shown = number(value) if isinstance(value, (int, float)) else value
            lines.append(f"{prefix + name:40} {shown}")
    return lines
