# SPDX-License-Identifier: Apache-2.0
"""The content of the JSON files, from the totals. Times are in seconds, sizes in bytes.

total_comm_time is the sum over operations that lie in no other operation. exposed_comm_time is the time in which at
least one thread was in communication (or, on a device, the stream was held up), and comm_percentage is its share of
total_time. overlapped_comm_time is the time in which none was, and asynchronous operations were under way.
"""

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List

from ringcast.profile import findings
from ringcast.profile.store import Key, Store, process_of
from ringcast.profile.totals import RANGES, Totals, merged

if TYPE_CHECKING:
    from ringcast.profile.results import Results

UNITS = {
    "times": "seconds, but for names that end in _us",
    "data": "bytes",
    "bandwidth_gbps": "gigabytes (1e9 bytes) a second: an operation's bytes by its duration (algorithm bandwidth); of "
    "ringcast's operations without the waiting for the other side",
}

# Of ringcast's calls, in the order of a call.
PHASES = ("encode", "wait_room", "copy", "publish", "wait_frame", "decode")
WHOLE, REST = "the whole call", "the rest"


def share(part: float, whole: float) -> float:
    """In per cent."""
    return 100.0 * part / whole if whole > 0 else 0.0


def counted(store: Store) -> Dict[Key, Totals]:
    """The totals of communication, without nested operations."""
    return {key: totals for key, totals in store.operations.items() if key[3] != "nested"}


def grouped(totals: Dict[Key, Totals], name_of: Callable[[Key], Any]) -> Dict[Any, Totals]:
    groups: Dict[Any, List[Totals]] = {}
    for key, each in totals.items():
        groups.setdefault(name_of(key), []).append(each)
    return {name: merged(group) for name, group in sorted(groups.items())}


def times(totals: Totals) -> Dict[str, Any]:
    return {
        "count": totals.count, "total_time": totals.total / 1e9, "avg_time": totals.mean() / 1e9,
        "std_time": totals.deviation() / 1e9, "min_time": max(totals.least, 0) / 1e9, "max_time": totals.most / 1e9,
        "p50_time": totals.quantile(0.5) / 1e9, "p99_time": totals.quantile(0.99) / 1e9,
    }  # fmt: skip


def figures(totals: Totals) -> Dict[str, Any]:
    return {
        **times(totals), "total_data": totals.bytes, "avg_bandwidth_gbps": bandwidth(totals),
        # None: no operation could tell its waiting from its working.
        "waiting_time": totals.waiting / 1e9 if totals.told else None,
        "exposed_time": totals.exposed / 1e9, "failed": totals.failed,
    }  # fmt: skip


def bandwidth(totals: Totals) -> float:
    return totals.bytes / totals.moving if totals.moving > 0 else 0.0


# ---- comm_analysis.json ----------------------------------------------------------------------------------------------


def comm_analysis(found: "Results") -> Dict[str, Any]:
    store = found.store
    all_of_them = counted(store)
    nested = {key: totals for key, totals in store.operations.items() if key not in all_of_them}
    by_type = grouped(all_of_them, lambda key: key[0])
    return {
        "summary": {**summary(found), "total_operations": sum(each.count for each in by_type.values())},
        "by_operation_type": {name: figures(each) for name, each in by_type.items()},
        "by_operation_and_size": {
            name: _by_range({key: each for key, each in all_of_them.items() if key[0] == name}) for name in by_type
        },
        "by_source": {name: figures(each) for name, each in grouped(all_of_them, lambda key: key[1]).items()},
        "bandwidth_analysis": {"by_size_range": _by_range(all_of_them)},
        "latency_analysis": latency(all_of_them),
        # Operations within the operations above, and part of their time.
        "phases": {name: _phases(store, name) for name in sorted(store.phases, reverse=True)},
        "nested": {name: figures(each) for name, each in grouped(nested, lambda key: f"{key[0]} ({key[1]})").items()},
        "units": UNITS,
    }


def summary(found: "Results") -> Dict[str, Any]:
    store = found.store
    communication = merged(counted(store).values())
    total = store.steps.total
    return {
        "total_comm_time": communication.total / 1e9,
        "exposed_comm_time": store.exposed / 1e9,
        "overlapped_comm_time": store.overlapped / 1e9,
        "comm_percentage": share(store.exposed, total),
        "compute_time": (total - store.exposed) / 1e9,
        "total_time": total / 1e9,
        "waiting_time": communication.waiting / 1e9,
        "total_data": communication.bytes,
        "steps": steps_of(found),
        "ranks": len(found.ranks),
    }


def steps_of(found: "Results") -> int:
    """The steps of the program, which each rank makes."""
    return max((rank["steps"] for rank in found.ranks), default=0)


def _phases(store: Store, name: str) -> Dict[str, Any]:
    """The whole calls of ringcast, those within other operations too; then their phases, and what lies between them."""
    calls = merged([totals for key, totals in store.operations.items() if key[:2] == (name, "ringcast")])
    found = store.phases[name]
    spent = sum(each.total for each in found.values())
    return {
        WHOLE: {**times(calls), "share_percent": 100.0},
        **{
            phase: {**times(found[phase]), "share_percent": share(found[phase].total, calls.total)}
            for phase in PHASES
            if phase in found
        },
        REST: {"total_time": (calls.total - spent) / 1e9, "share_percent": share(calls.total - spent, calls.total)},
    }


def _by_range(totals: Dict[Key, Totals]) -> Dict[str, Any]:
    return {RANGES[size]: figures(each) for size, each in grouped(totals, lambda key: key[2]).items()}


def latency(totals: Dict[Key, Totals]) -> Dict[str, Any]:
    by_size = grouped(totals, lambda key: key[2])
    with_bytes = [size for size in by_size if size > 0]
    base = by_size[with_bytes[0]] if with_bytes else Totals()
    return {
        "by_tensor_size": {
            RANGES[size]: {
                "count": each.count, "avg_latency_us": each.mean() / 1e3, "std_latency_us": each.deviation() / 1e3,
                "min_latency_us": max(each.least, 0) / 1e3, "max_latency_us": each.most / 1e3,
                "p50_latency_us": each.quantile(0.5) / 1e3, "p99_latency_us": each.quantile(0.99) / 1e3,
            }
            for size, each in by_size.items()
        },
        # The median of the smallest operations that move bytes.
        "baseline_latency_us": base.quantile(0.5) / 1e3,
        "baseline_of": RANGES[with_bytes[0]] if with_bytes else None,
    }  # fmt: skip


# ---- analysis_report.json, comprehensive_report.json -----------------------------------------------------------------


def layers(store: Store) -> Dict[str, Any]:
    """For each region: the time, the parts of operations and inner regions, and the rest as self_time."""
    return {
        name: {
            **times(region.totals),
            "self_time": max(0, region.totals.total - sum(region.parts.values())) / 1e9,
            "operations": {part: ns / 1e9 for part, ns in sorted(region.parts.items())},
            "within_another": region.inner,
        }
        for name, region in sorted(store.regions.items(), key=lambda each: natural(each[0]))
    }


def natural(name: str) -> List[Any]:
    """A key for sorting: layers.9 comes before layers.10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.replace("[", ".").split(".")]


def memory_of(found: "Results") -> Dict[str, Any]:
    told: Dict[str, Any] = {process_of(rank): rank["memory"] for rank in found.ranks}
    most = max((each["rss_max"] for each in told.values()), default=0)
    return {"by_rank": told, "rss_max": most, "device_max": max((e["device_max"] for e in told.values()), default=0)}


def comprehensive(found: "Results", notes: Iterable[str]) -> Dict[str, Any]:
    store = found.store
    communication = comm_analysis(found)
    report: Dict[str, Any] = {
        "layer_breakdown": layers(store),
        "communication_analysis": {
            **communication["summary"],
            "by_operation_type": communication["by_operation_type"],
        },  # fmt: skip
        "steps": {
            **times(store.steps),
            "count": steps_of(found),
            "skipped": store.skipped,
            "by_label": {
                label: {
                    **times(kind),
                    "count": round(kind.count * steps_of(found) / store.steps.count),
                    "comm_percentage": share(kind.exposed, kind.total),
                }
                for label, kind in sorted(store.kinds.items(), key=lambda each: -each[1].total)
            },
        },  # fmt: skip
        "memory": memory_of(found),
        "metrics": {name: metric.figures() for name, metric in sorted(store.metrics.items())},
        "ranks": found.ranks,
    }
    report["bottlenecks"] = findings.bottlenecks(found, report)
    report["advice"] = findings.advice(found, report)
    report["rating"] = findings.rating(found, report)
    return {
        "facts": found.facts,
        "comm_analysis": communication,
        "analysis_report": report,
        "detailed_timings": {"rows": len(store.rows.kept), "of": store.rows.seen, "every": store.rows.every},
        "notes": [*notes, *findings.notes(found)],
    }
