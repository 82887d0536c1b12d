# SPDX-License-Identifier: Apache-2.0
"""Facts of the machine, and figures as text that fits 100 columns."""

import glob
import os
import platform
import re
import sys
from importlib import metadata
from typing import Any, Dict, List, Optional, Tuple

import ringcast


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def version(package: str) -> Optional[str]:
    """The version of an installed package, or None, without an import: torch takes seconds."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def machine() -> Dict[str, Any]:
    """Facts that the figures depend on, without a name of the machine."""
    lines = (line.partition(":") for line in read("/proc/cpuinfo").splitlines())
    cpu = {key.strip(): value.strip() for key, _, value in lines}
    kernel = re.match(r"[0-9.]*[0-9]", platform.release())
    memory = re.search(r"MemTotal: +(\d+)", read("/proc/meminfo"))
    caches = {}
    for index in sorted(glob.glob("/sys/devices/system/cpu/cpu0/cache/index*")):
        kind, level, size = (read(f"{index}/{name}").strip() for name in ("type", "level", "size"))
        if kind != "Instruction" and size.endswith("K"):
            caches[f"L{level}"] = int(size[:-1]) << 10
    return {
        "cpu": cpu.get("model name", platform.machine()),
        "family": cpu.get("cpu family", ""),
        "model": cpu.get("model", ""),
        "virtual": "hypervisor" in cpu.get("flags", "").split(),
        "cores": len(os.sched_getaffinity(0)),
        "caches": caches,
        "memory_bytes": int(memory[1]) << 10 if memory else 0,
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


def number(value: Any) -> str:
    """Three significant digits, or three behind the point; all digits of an int; words as they are; "" for None."""
    if value is None or isinstance(value, (bool, str)):
        return value if isinstance(value, str) else {None: "", True: "yes", False: "NO"}[value]
    if isinstance(value, int) or value >= 99.95:
        return f"{value:,.0f}"
    if value < 0.0995:
        return f"{value:.3f}"
    return f"{value:.{2 if value < 9.995 else 1}f}"


CALLS = {"empty_us": "an empty one", "send_bytes_us": "send_bytes of 64 bytes", "send_us": "send of `metadata`"}

# Title; the title of the group of columns that begins here; width; the figure, a path of keys.
Column = Tuple[str, str, int, str]


def figure_of(figures: Any, path: str) -> Any:
    """The figure at a path of keys, such as "ratio.one_way"; None if there is none."""
    for key in path.split("."):
        figures = figures.get(key) if figures else None
    return figures


ONE_WAY: List[Column] = [
    ("p50", "one way, us", 11, "p50_us"),
    ("p99", "", 9, "p99_us"),
    ("source", "CPU, us", 11, "cpu_source_us"),
    ("a reader", "", 10, "cpu_reader_us"),
    ("ratio", "", 9, "ratio"),
]
COLUMNS: Dict[str, List[Column]] = {
    "codec": [
        ("ringcast", "encode, us", 9, "ringcast.encode_us"),
        ("pickle", "", 7, "pickle.encode_us"),
        ("ringcast", "decode, us", 9, "ringcast.decode_us"),
        ("pickle", "", 7, "pickle.decode_us"),
        ("ringcast", "both, us", 9, "ringcast.encode_decode_us"),
        ("pickle", "", 7, "pickle.encode_decode_us"),
        ("ratio", "", 6, "ratio.encode_decode"),
        ("msgspec", "", 8, "msgspec.encode_decode_us"),
        ("ormsgpack", "", 10, "ormsgpack.encode_decode_us"),
        ("pyfory", "", 7, "pyfory.encode_decode_us"),
    ],
    "codec, cold": [
        ("ringcast", "hot, us", 9, "ringcast.encode_decode_us"),
        ("ratio", "", 6, "ratio.encode_decode"),
        ("ringcast", "after 5 ms of sleep, us", 9, "asleep.ringcast.encode_decode_us"),
        ("pickle", "", 7, "asleep.pickle.encode_decode_us"),
        ("ratio", "", 6, "asleep.ratio.encode_decode"),
        ("ringcast", "caches evicted, us", 9, "evicted.ringcast.encode_decode_us"),
        ("pickle", "", 7, "evicted.pickle.encode_decode_us"),
        ("ratio", "", 6, "evicted.ratio.encode_decode"),
    ],
    "codec, bytes": [
        ("ringcast", "bytes", 12, "ringcast.bytes"),
        ("pickle", "", 12, "pickle.bytes"),
        ("msgspec", "", 12, "msgspec.bytes"),
        ("ormsgpack", "", 12, "ormsgpack.bytes"),
        ("pyfory", "", 12, "pyfory.bytes"),
        ("classes", "", 20, "classes"),
    ],
    "object": [*ONE_WAY, ("objects/s", "", 11, "objects_per_s")],
    "tensors": [*ONE_WAY, ("GB/s", "", 8, "gb_per_s")],
    "dropin": ONE_WAY,
    "cadence": [
        ("p50", "one way, us", 11, "p50_us"),
        ("p99", "", 9, "p99_us"),
        ("of all, %", "CPU", 11, "cpu_percent"),
        ("p50", "ratio of", 10, "ratio.p50_us"),
        ("p99", "", 8, "ratio.p99_us"),
        ("CPU", "", 8, "ratio.cpu_percent"),
        ("messages", "", 10, "messages"),
    ],
    "batch": [
        ("send", "values/s", 13, "send_per_s"),
        ("send_bytes", "", 13, "send_bytes_per_s"),
        ("send_many", "", 13, "send_many_per_s"),
        ("ratio", "", 8, "ratio"),
    ],
    "death": [
        ("kills", "", 7, "kills"),
        ("p50", "ms until all others know", 9, "p50_ms"),
        ("max", "", 9, "max_ms"),
        ("named", "", 7, "all_named"),
        ("error", "", 14, "error"),
    ],
    "compose": [
        ("total", "us", 11, "total_us"),
        ("source", "", 11, "source_us"),
        ("in", "copies", 8, "copies_in"),
        ("out", "", 6, "copies_out"),
        ("MiB", "", 8, "mib_copied"),
        ("ratio", "", 8, "ratio"),
    ],
    "packed": [("sends, us", "", 11, "send_us"), ("packed, us", "", 12, "pack_us"), ("ratio", "", 8, "ratio")],
    "asyncio": [("p50, us", "", 10, "p50_us"), ("slept", "", 8, "slept")],
}


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
        f"{name:{first}}" + "".join(f"{number(figure_of(figures, path)):>{width}}" for _, _, width, path in columns)
        for name, figures in cases.items()
    ]
    return [groups, titles, *rows]


def tail_of(found: Dict[str, Any]) -> List[str]:
    """What stands in no table of the codec's."""
    kept = figure_of(found["cases"], "multimodal.ringcast.recv_retained_us")
    lines = [f"multimodal received with retain=True: {number(kept)} us"] if kept else []
    for how, figures in found["calls"].items():
        each = ", ".join(f"{what} {number(figures[key])}" for key, what in CALLS.items())
        lines.append(f"calls, {how}, us: {each}")
    return lines


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
    more: List[str] = []
    if columns is COLUMNS["codec"]:
        for name in ("codec, cold", "codec, bytes"):
            more += ["", *table(found["cases"], COLUMNS[name])]
        more += ["", *tail_of(found)]
    return "\n".join([*head, *table(found["cases"], columns), *more, *tail])
