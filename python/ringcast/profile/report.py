# SPDX-License-Identifier: Apache-2.0
"""performance_report.md: the bottleneck first, then advice, rating and figures."""

import re
from typing import Any, Dict, Iterable, List, Sequence

from ringcast.profile.store import MIB, process_of

MOST_LINES = 30
PICTURES = {
    "performance_bottlenecks.png": "where the steps' time goes",
    "compute_vs_communication.png": "computing and communication, step by step and by rank",
    "operation_time_distribution.png": "how long operations take",
    "bandwidth_analysis.png": "bandwidth by operation and size",
    "layer_performance_heatmap.png": "regions and their parts",
    "memory_usage_analysis.png": "memory over time",
}
BANDWIDTH = (
    "Bandwidth is the algorithm's: bytes by duration; of ringcast's operations without their "
    "waiting. Other "
    "durations have the waiting for the other side in them, so these bandwidths are the least."
)


def text(told: Dict[str, Any]) -> str:
    report, communication = told["analysis_report"], told["comm_analysis"]
    lines = ["# Performance report", "", *_headline(report), "", "## What to do", ""]
    lines += [f"- {plain(each['finding'])}: {each['advice']}." for each in report["advice"]]
    lines += ["", *_rating(report), *_steps(report), *_operations(communication)]
    lines += [
        *_regions(report),
        *_processes(report),
        "## Notes",
        "",
        *(f"- {plain(note)}" for note in told["notes"]),
    ]
    if not any("no pictures" in note for note in told["notes"]):
        lines += ["", *(f"![{words}]({name})" for name, words in PICTURES.items())]
    return "\n".join(lines).rstrip() + "\n"


# ---- Tables --------------------------------------------------------------------------------------


def section(
    title: str, titles: Sequence[str], rows: Iterable[Sequence[Any]], told: str = ""
) -> List[str]:
    """
    A heading and a table in Markdown, with columns of numbers on the right; nothing without rows.
    """
    made = [[plain(cell) for cell in row] for row in rows]
    if not made:
        return []
    right = [all(_is_number(row[index]) for row in made) for index in range(len(titles))]
    lines = [titles, ["---:" if each else "---" for each in right], *made]
    return [
        title,
        "",
        *(f"| {' | '.join(line)} |" for line in lines),
        "",
        *([told, ""] if told else []),
    ]


def _is_number(value: str) -> bool:
    return (
        value in ("", "-")
        or value.replace(",", "").replace(".", "", 1).replace("-", "", 1).split(" ")[0].isdigit()
    )


def plain(value: Any) -> str:
    """A name with no meaning to Markdown or HTML."""
    text = " ".join(str(value).split())
    return re.sub(r"[|<>\[\]\\]", lambda found: f"&#{ord(found[0])};", text.replace("&", "&amp;"))


def number(value: float) -> str:
    """Three significant digits, all digits of large numbers."""
    if value >= 999.5:
        return f"{value:,.0f}"
    return (
        f"{value:.3g}"
        if value < 0.1
        else f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
    )


def ms(seconds: float) -> str:
    return number(seconds * 1e3)


def times(each: Dict[str, Any], *which: str) -> List[str]:
    return [ms(each[f"{name}_time"]) for name in which]


# ---- Sections ------------------------------------------------------------------------------------


def _headline(report: Dict[str, Any]) -> List[str]:
    parts, steps = report["bottlenecks"], report["steps"]
    if not parts:
        return ["**No bottleneck**: nothing was recorded."]
    most, communication = parts[0], report["communication_analysis"]
    hidden, processes = communication["overlapped_comm_time"], communication["ranks"]
    return [
        f"**Bottleneck: {plain(most['what'])}** ({most['kind']}), {most['share_percent']:.1f} % "
        f"of the steps' time, "
        f"{number(most['ms_per_step'])} ms a step.",
        "",
        f"Communication takes {communication['comm_percentage']:.1f} % of {steps['count']} "
        f"step{'s' * (steps['count'] != 1)}"
        f"{f' on {processes} processes' if processes > 1 else ''}, of "
        f"{ms(steps['avg_time'])} ms on average ({ms(steps['min_time'])} to "
        f"{ms(steps['max_time'])})"
        + (f"; for {ms(hidden)} ms more, it went on behind computing." if hidden > 0 else "."),
    ]


def _rating(report: Dict[str, Any]) -> List[str]:
    rows = []
    for each in report["rating"]:
        unit, excellent, good = each["unit"], each["excellent_above"], each["good_from"]
        value = (
            "-"
            if each["value"] is None
            else f"{'at most ' * each['is_bound']}{each['value']:.1f} {unit}"
        )
        levels = [
            f"above {excellent} {unit}",
            f"{good} to {excellent} {unit}",
            f"below {good} {unit}",
        ]
        rows.append(
            [
                each["measure"],
                value,
                each["rating"] or "not rated",
                *levels,
                f"{each['of']}; {each['how']}",
            ]
        )
    titles = ["measure", "value", "rating", "excellent", "good", "to be improved", "of what"]
    told = (
        "The thresholds were set for two A100 with NVLink; on other machines they are a yardstick "
        "only."
    )
    return section("## Rating", titles, rows, told)


def _steps(report: Dict[str, Any]) -> List[str]:
    parts = [
        [
            part["what"],
            part["kind"],
            f"{part['share_percent']:.1f}",
            number(part["ms_per_step"]),
            part["count"],
        ]
        for part in report["bottlenecks"][:MOST_LINES]
    ]
    titles = ["what", "kind", "% of the steps", "ms a step", "count"]
    return section("## Where the time goes", titles, parts)


def _operations(communication: Dict[str, Any]) -> List[str]:
    if not communication["by_operation_type"]:
        return ["## Operations", "", "No communication was seen.", ""]
    which = ("total", "avg", "std", "min", "max")
    rows = []
    for name, each in communication["by_operation_type"].items():
        waiting = "-" if each["waiting_time"] is None else ms(each["waiting_time"])
        moved = [number(each["total_data"] / 1e6), number(each["avg_bandwidth_gbps"])]
        rows.append([name, each["count"], *times(each, *which), waiting, *moved])
    titles = ["operation", "count", *(f"{name}, ms" for name in which), "waiting, ms", "MB", "GB/s"]
    nested = [
        [name, each["count"], *times(each, "total")]
        for name, each in communication["nested"].items()
    ]
    sizes = [
        [
            f"{name}, {size}",
            each["count"],
            *times(each, *which[1:]),
            number(each["avg_bandwidth_gbps"]),
        ]
        for name, by_size in communication["by_operation_and_size"].items()
        for size, each in by_size.items()
    ]
    base = communication["latency_analysis"]
    told = (
        f"The base latency is {number(base['baseline_latency_us'])} us, the median of "
        f"{base['baseline_of']}."
    )
    return [
        *section("## Operations", titles, rows, BANDWIDTH),
        *section("Within these, and counted there:", ["operation", "count", "total, ms"], nested),
        *section(
            "## By size",
            ["operation and size", "count", *(f"{name}, ms" for name in which[1:]), "GB/s"],
            sizes,
            told if base["baseline_of"] else "",
        ),
    ]


def _regions(report: Dict[str, Any]) -> List[str]:
    layers = sorted(report["layer_breakdown"].items(), key=lambda each: -each[1]["total_time"])
    rows = []
    for name, each in layers[:MOST_LINES]:
        parts = sorted(each["operations"].items(), key=lambda part: -part[1])[:4]
        within = ", ".join(f"{part} {ms(seconds)}" for part, seconds in parts)
        rows.append([name, each["count"], *times(each, "total", "avg", "self"), within])
    left = len(layers) - MOST_LINES
    told = f"{left} regions more are in analysis_report.json." if left > 0 else ""
    titles = ["region", "count", "total, ms", "avg, ms", "its own, ms", "within, ms"]
    return section("## Regions", titles, rows, told)


def _processes(report: Dict[str, Any]) -> List[str]:
    memory = [
        [f"rank {process}" if process.isdigit() else process]
        + [number(each[name] / MIB) for name in ("rss_first", "rss_last", "rss_max", "device_max")]
        for process, each in report["memory"]["by_rank"].items()
    ]
    which = ("avg", "std", "min", "max", "last")
    metrics = [
        [name, each["count"], *(f"{each[what]:.6g}" for what in which)]
        for name, each in report["metrics"].items()
        if each["count"]
    ]
    ranks = [
        [process_of(each), each["steps"]]
        + [
            ms(each[f"{what}_time"] / max(each["steps"], 1))
            for what in ("total", "compute", "exposed_comm")
        ]
        for each in report["ranks"]
    ]
    titles = ["rank", "steps", "step, ms", "computing, ms", "communication, ms"]
    return [
        *section(
            "## Memory",
            ["process", "resident after warm-up, MiB", "last", "most", "device, most"],
            memory,
        ),
        *section("## Metrics", ["metric", "count", *which], metrics),
        *(section("## Ranks", titles, ranks) if len(ranks) > 1 else []),
    ]
