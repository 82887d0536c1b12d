# SPDX-License-Identifier: Apache-2.0
"""performance_report.md: the bottleneck first, then advice, rating and figures."""

import re
from typing import Any, Dict, Iterable, List, Sequence

from ringcast.profile.store import process_of
from ringcast.profile.totals import MIB

MOST_LINES = 30
PICTURES = [
    ("performance_bottlenecks.png", "where the steps' time goes"),
    ("compute_vs_communication.png", "computing and communication, step by step and by rank"),
    ("operation_time_distribution.png", "how long operations take"),
    ("bandwidth_analysis.png", "bandwidth by operation and size"),
    ("layer_performance_heatmap.png", "regions and their parts"),
    ("memory_usage_analysis.png", "memory over time"),
]


def text(told: Dict[str, Any]) -> str:
    report, communication = told["analysis_report"], told["comm_analysis"]
    lines = ["# Performance report", "", *_headline(report), "", *_advice(report), *_rating(report)]
    lines += (
        _bottlenecks(report)
        + _kinds(report)
        + _operations(communication)
        + _nested(communication)
        + _phases(communication)
        + _sizes(communication)
    )
    lines += _layers(report) + _memory(report) + _metrics(report) + _ranks(report) + _notes(told)
    return "\n".join(lines).rstrip() + "\n"


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> List[str]:
    """A table in Markdown; columns of numbers are on the right."""
    made = list(rows)
    right = [
        all(isinstance(row[i], (int, float)) or _is_number(str(row[i])) for row in made) for i in range(len(titles))
    ]
    bars = "| " + " | ".join("---:" if each else "---" for each in right) + " |"
    return ["| " + " | ".join(titles) + " |", bars, *("| " + " | ".join(map(plain, row)) + " |" for row in made), ""]


def _is_number(value: str) -> bool:
    return value in ("", "-") or value.replace(",", "").replace(".", "", 1).replace("-", "", 1).split(" ")[0].isdigit()


def plain(value: Any) -> str:
    """A name with no meaning to Markdown or HTML."""
    text = " ".join(str(value).split())
    return re.sub(r"[|<>\[\]\\]", lambda found: f"&#{ord(found[0])};", text.replace("&", "&amp;"))


def number(value: float) -> str:
    """Three significant digits, all digits of large numbers."""
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 0.1 else f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def ms(seconds: float) -> str:
    return number(seconds * 1e3)


def us(seconds: float) -> str:
    return number(seconds * 1e6)


def _headline(report: Dict[str, Any]) -> List[str]:
    parts, steps = report["bottlenecks"], report["steps"]
    if not parts:
        return ["**No bottleneck**: nothing was recorded."]
    most = parts[0]
    communication = report["communication_analysis"]
    hidden, processes = communication["overlapped_comm_time"], communication["ranks"]
    return [
        f"**Bottleneck: {plain(most['what'])}** ({most['kind']}), {most['share_percent']:.1f} % of the steps' time, "
        f"{number(most['ms_per_step'])} ms a step.",
        "",
        f"Communication takes {communication['comm_percentage']:.1f} % of {steps['count']} "
        f"step{'s' * (steps['count'] != 1)}{f' on {processes} processes' if processes > 1 else ''}, of "
        f"{ms(steps['avg_time'])} ms on average ({ms(steps['min_time'])} to {ms(steps['max_time'])})"
        + (f"; for {ms(hidden)} ms more, it went on behind computing." if hidden > 0 else "."),
    ]


def _advice(report: Dict[str, Any]) -> List[str]:
    lines = ["## What to do", ""]
    return [*lines, *(f"- {plain(each['finding'])}: {each['advice']}." for each in report["advice"]), ""]


def _rating(report: Dict[str, Any]) -> List[str]:
    rows = []
    for each in report["rating"]:
        unit = each["unit"]
        value = "-" if each["value"] is None else f"{'at most ' * each['is_bound']}{each['value']:.1f} {unit}"
        rows.append([
            each["measure"], value, each["rating"] or "not rated", f"above {each['excellent_above']} {unit}",
            f"{each['good_from']} to {each['excellent_above']} {unit}", f"below {each['good_from']} {unit}",
            f"{each['of']}; {each['how']}",
        ])  # fmt: skip
    titles = ["measure", "value", "rating", "excellent", "good", "to be improved", "of what"]
    told = "The thresholds were set for two A100 with NVLink; on other machines they are a yardstick only."
    return ["## Rating", "", *table(titles, rows), told, ""]


def _bottlenecks(report: Dict[str, Any]) -> List[str]:
    parts = report["bottlenecks"]
    rows = [
        [p["what"], p["kind"], f"{p['share_percent']:.1f}", number(p["ms_per_step"]), p["count"]]
        for p in parts[:MOST_LINES]
    ]
    if not rows:
        return []
    return ["## Where the time goes", "", *table(["what", "kind", "% of the steps", "ms a step", "count"], rows)]


def _kinds(report: Dict[str, Any]) -> List[str]:
    rows = [
        [label, each["count"], *(ms(each[f"{which}_time"]) for which in ("total", "avg", "min", "p50", "p99", "max")),
         f"{each['comm_percentage']:.1f}"]
        for label, each in report["steps"]["by_label"].items()
    ]  # fmt: skip
    titles = ["steps", "count", *(f"{which}, ms" for which in ("total", "avg", "min", "p50", "p99", "max"))]
    return ["## Kinds of steps", "", *table([*titles, "communication, %"], rows)] if rows else []


def _operations(communication: Dict[str, Any]) -> List[str]:
    rows = [_operation(name, each) for name, each in communication["by_operation_type"].items()]
    if not rows:
        return ["## Operations", "", "No communication was seen.", ""]
    titles = ["operation", "count", *(f"{what}, ms" for what in ("total", "avg", "std", "min", "max", "waiting")), "MB",
              "GB/s"]  # fmt: skip
    told = "Bandwidth is the algorithm's: bytes by duration; of ringcast's operations without their waiting. Other " \
           "durations have the waiting for the other side in them, so these bandwidths are the least."  # fmt: skip
    return ["## Operations", "", *table(titles, rows), told, ""]


def _operation(name: str, each: Dict[str, Any]) -> List[Any]:
    times = [ms(each[f"{which}_time"]) for which in ("total", "avg", "std", "min", "max")]
    waiting = "-" if each["waiting_time"] is None else ms(each["waiting_time"])
    return [name, each["count"], *times, waiting, number(each["total_data"] / 1e6), number(each["avg_bandwidth_gbps"])]


def _nested(communication: Dict[str, Any]) -> List[str]:
    rows = [[name, each["count"], ms(each["total_time"])] for name, each in communication["nested"].items()]
    if not rows:
        return []
    return ["Within these, and counted there:", "", *table(["operation", "count", "total, ms"], rows)]


def _phases(communication: Dict[str, Any]) -> List[str]:
    rows = [
        [call, phase, each.get("count", "-"), ms(each["total_time"]),
         *(us(each[f"{which}_time"]) if f"{which}_time" in each else "-" for which in ("avg", "p50", "p99")),
         f"{each['share_percent']:.1f}"]
        for call, phases in communication["phases"].items()
        for phase, each in phases.items()
    ]  # fmt: skip
    if not rows:
        return []
    titles = ["call", "phase", "count", "total, ms", "avg, us", "p50, us", "p99, us", "% of the call"]
    told = "The count is of the calls that had the phase. wait_room and wait_frame are the waiting for the other side."
    return ["## ringcast, by phase", "", *table(titles, rows), told, ""]


def _sizes(communication: Dict[str, Any]) -> List[str]:
    rows = [
        [f"{name}, {size}", each["count"], *(ms(each[f"{which}_time"]) for which in ("avg", "std", "min", "max")),
         number(each["avg_bandwidth_gbps"])]
        for name, sizes in communication["by_operation_and_size"].items()
        for size, each in sizes.items()
    ]  # fmt: skip
    if not rows:
        return []
    base = communication["latency_analysis"]
    told = f"The base latency is {number(base['baseline_latency_us'])} us, the median of {base['baseline_of']}."
    titles = ["operation and size", "count", "avg, ms", "std, ms", "min, ms", "max, ms", "GB/s"]
    return ["## By size", "", *table(titles, rows), *([told, ""] if base["baseline_of"] else [])]


def _layers(report: Dict[str, Any]) -> List[str]:
    layers = sorted(report["layer_breakdown"].items(), key=lambda each: -each[1]["total_time"])
    rows = [
        [name, each["count"], ms(each["total_time"]), ms(each["avg_time"]), ms(each["self_time"]), _parts(each)]
        for name, each in layers[:MOST_LINES]
    ]
    if not rows:
        return []
    left = len(layers) - MOST_LINES
    more = [f"{left} regions more are in analysis_report.json.", ""] if left > 0 else []
    titles = ["region", "count", "total, ms", "avg, ms", "its own, ms", "within, ms"]
    return ["## Regions", "", *table(titles, rows), *more]


def _parts(layer: Dict[str, Any]) -> str:
    parts = sorted(layer["operations"].items(), key=lambda each: -each[1])
    return ", ".join(f"{name} {ms(seconds)}" for name, seconds in parts[:4])


def _memory(report: Dict[str, Any]) -> List[str]:
    rows = [
        [f"rank {process}" if process.isdigit() else process,
         *(number(each[name] / MIB) for name in ("rss_first", "rss_last", "rss_max", "device_max"))]
        for process, each in report["memory"]["by_rank"].items()
    ]  # fmt: skip
    titles = ["process", "resident after warm-up, MiB", "last", "most", "device, most"]
    return ["## Memory", "", *table(titles, rows)]


def _metrics(report: Dict[str, Any]) -> List[str]:
    rows = [
        [name, each["count"], *(f"{each[which]:.6g}" for which in ("avg", "std", "min", "max", "last"))]
        for name, each in report["metrics"].items()
        if each["count"]
    ]
    return ["## Metrics", "", *table(["metric", "count", "avg", "std", "min", "max", "last"], rows)] if rows else []


def _ranks(report: Dict[str, Any]) -> List[str]:
    rows = [
        [process_of(each), each["steps"], *(ms(each[f"{which}_time"] / max(each["steps"], 1))
         for which in ("total", "compute", "exposed_comm"))]
        for each in report["ranks"]
    ]  # fmt: skip
    if len(rows) < 2:
        return []
    titles = ["rank", "steps", "step, ms", "computing, ms", "communication, ms"]
    return ["## Ranks", "", *table(titles, rows)]


def _notes(told: Dict[str, Any]) -> List[str]:
    lines = ["## Notes", "", *(f"- {plain(note)}" for note in told["notes"])]
    if not any("no pictures" in note for note in told["notes"]):
        lines += ["", *(f"![{words}]({name})" for name, words in PICTURES)]
    return lines
