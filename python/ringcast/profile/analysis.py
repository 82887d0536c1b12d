# SPDX-License-Identifier: Apache-2.0
"""The content of the JSON files, from the totals. Times are in seconds, sizes in bytes.

total_comm_time is the sum over operations that lie in no other operation. exposed_comm_time is the
time in which at least one thread was in communication, and comm_percentage is its share of
total_time. overlapped_comm_time is the time in which none was, and asynchronous operations were
under way.
"""

import re
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Tuple,
)

from ringcast.profile.store import MIB, RANGES, Key, Store, Totals, merged, process_of

if TYPE_CHECKING:
    from ringcast.profile.results import Results

UNITS = {
    "times": "seconds, but for names that end in _us",
    "data": "bytes",
    "bandwidth_gbps": "gigabytes (1e9 bytes) a second: an operation's bytes by its duration "
    "(algorithm bandwidth); of "
    "ringcast's operations without the waiting for the other side",
}


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
        "std_time": totals.deviation() / 1e9, "min_time": max(totals.least, 0) / 1e9,
        "max_time": totals.most / 1e9,
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


# ---- comm_analysis.json --------------------------------------------------------------------------


def comm_analysis(found: "Results") -> Dict[str, Any]:
    store = found.store
    all_of_them = counted(store)
    nested = {key: totals for key, totals in store.operations.items() if key not in all_of_them}
    by_type = grouped(all_of_them, lambda key: key[0])
    return {
        "summary": {
            **summary(found),
            "total_operations": sum(each.count for each in by_type.values()),
        },
        "by_operation_type": {name: figures(each) for name, each in by_type.items()},
        "by_operation_and_size": {
            name: _by_range({key: each for key, each in all_of_them.items() if key[0] == name})
            for name in by_type
        },
        "by_source": {
            name: figures(each) for name, each in grouped(all_of_them, lambda key: key[1]).items()
        },
        "bandwidth_analysis": {"by_size_range": _by_range(all_of_them)},
        "latency_analysis": latency(all_of_them),
        # Operations within the operations above, and part of their time.
        "nested": {
            name: figures(each)
            for name, each in grouped(nested, lambda key: f"{key[0]} ({key[1]})").items()
        },
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


def _by_range(totals: Dict[Key, Totals]) -> Dict[str, Any]:
    return {
        RANGES[size]: figures(each) for size, each in grouped(totals, lambda key: key[2]).items()
    }


def latency(totals: Dict[Key, Totals]) -> Dict[str, Any]:
    by_size = grouped(totals, lambda key: key[2])
    with_bytes = [size for size in by_size if size > 0]
    base = by_size[with_bytes[0]] if with_bytes else Totals()
    which = ("avg", "std", "min", "max", "p50", "p99")
    return {
        "by_tensor_size": {
            RANGES[size]: {
                "count": each.count,
                **{f"{name}_latency_us": 1e6 * times(each)[f"{name}_time"] for name in which},
            }
            for size, each in by_size.items()
        },
        # The median of the smallest operations that move bytes.
        "baseline_latency_us": base.quantile(0.5) / 1e3,
        "baseline_of": RANGES[with_bytes[0]] if with_bytes else None,
    }


# ---- analysis_report.json, comprehensive_report.json ---------------------------------------------


def layers(store: Store) -> Dict[str, Any]:
    """
    For each region: the time, the parts of operations and inner regions, and the rest as self_time.
    """
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
    return [
        (int(part), "") if part.isdigit() else (-1, part)
        for part in name.replace("[", ".").split(".")
    ]


def memory_of(found: "Results") -> Dict[str, Any]:
    told: Dict[str, Any] = {process_of(rank): rank["memory"] for rank in found.ranks}
    most = max((each["rss_max"] for each in told.values()), default=0)
    return {
        "by_rank": told,
        "rss_max": most,
        "device_max": max((e["device_max"] for e in told.values()), default=0),
    }


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
        },  # fmt: skip
        "memory": memory_of(found),
        "metrics": {name: metric.figures() for name, metric in sorted(store.metrics.items())},
        "ranks": found.ranks,
    }
    report["bottlenecks"] = bottlenecks(found, report)
    report["advice"] = advice(found, report)
    report["rating"] = rating(found, report)
    return {
        "facts": found.facts,
        "comm_analysis": communication,
        "analysis_report": report,
        "detailed_timings": {
            "rows": len(store.rows.kept),
            "of": store.rows.seen,
            "every": store.rows.every,
        },
        "notes": [*notes, *notes_of(found)],
    }


Report = Dict[str, Any]
Told = Optional[Tuple[str, str]]  # finding and advice
OBJECTS = (
    "broadcast_object_list",
    "broadcast_object",
    "broadcast_pyobj",
    "broadcast_tensor_dict",
    "all_gather_object",
)


# ---- Where the time goes -------------------------------------------------------------------------


def bottlenecks(found: "Results", report: Report) -> List[Dict[str, Any]]:
    """
    All parts of the steps' time, the largest first. The parts of several threads may add up to more
    than 100 %.
    """
    parts = [*_communication(found.store), *_regions(report["layer_breakdown"])]
    total = found.store.steps.total / 1e9
    if total <= 0:
        return []
    computing = sum(part["seconds"] for part in parts if part["kind"] == "computing")
    rest = total - found.store.exposed / 1e9 - computing
    if rest > 0:
        what = (
            "computing outside of all regions" if computing else "computing (no region was marked)"
        )
        parts.append(
            {"what": what, "kind": "computing", "seconds": rest, "count": found.store.steps.count}
        )
    steps = max(found.store.steps.count, 1)
    for part in parts:
        part["share_percent"] = share(part["seconds"], total)
        part["ms_per_step"] = 1e3 * part["seconds"] / steps
    return sorted(
        (part for part in parts if part["seconds"] > 0), key=lambda part: -part["seconds"]
    )


def _communication(store: Store) -> Iterator[Dict[str, Any]]:
    for name, totals in grouped(counted(store), lambda key: key[0]).items():
        waiting = min(totals.waiting, totals.exposed)
        what = f"{name}: waiting" if waiting else name
        if waiting:
            yield {"what": what, "kind": "waiting", "seconds": waiting / 1e9, "count": totals.count}
        seconds = (totals.exposed - waiting) / 1e9
        yield {"what": name, "kind": "communication", "seconds": seconds, "count": totals.count}


def _regions(layers: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """The regions of all layers, grouped by their names without numbers."""
    groups: Dict[str, List[Dict[str, Any]]] = {}
    for name, region in layers.items():
        groups.setdefault(re.sub(r"\d+", "*", name), []).append(region)
    for name, regions in groups.items():
        what = f"{name} ({len(regions)} regions)" if len(regions) > 1 else name
        seconds = sum(region["self_time"] for region in regions)
        count = sum(region["count"] for region in regions)
        yield {"what": what, "kind": "computing", "seconds": seconds, "count": count}


# ---- Advice --------------------------------------------------------------------------------------


def advice(found: "Results", report: Report) -> List[Dict[str, str]]:
    """For each rule that applies: the finding and the advice."""
    made: List[Dict[str, str]] = []
    for rule in (_waiting, _busy, _small, _objects, _ranks, _jitter, _growth):
        told = rule(found, report)
        if told is not None:
            made.append({"finding": told[0], "advice": told[1]})
    if not made:
        text = (
            f"communication takes {report['communication_analysis']['comm_percentage']:.1f} % of "
            "the steps"
        )
        made.append({"finding": text, "advice": "nothing stands out; look at the computing first"})
    return made


def _kinds(report: Report, what: str, kind: str) -> float:
    parts = report["bottlenecks"]
    return float(
        sum(p["share_percent"] for p in parts if p["what"].startswith(what) and p["kind"] == kind)
    )


def _waiting(found: "Results", report: Report) -> Told:
    frame, room = (_kinds(report, f"ringcast.{name}", "waiting") for name in ("recv", "send"))
    if room >= 5:
        text = (
            f"{room:.1f} % of the steps' time goes by in ringcast's send, waiting for room in the "
            "ring"
        )
        return (
            text,
            "a reader is behind: `ringcast stat RING` names it; a larger ring helps against "
            "bursts only",
        )
    if frame >= 10:
        text = f"{frame:.1f} % of the steps' time goes by in ringcast's recv, waiting for a frame"
        return (
            text,
            "the sender is late, not the ring slow: profile the sender's step, or send before "
            "computing",
        )
    return None


def _busy(found: "Results", report: Report) -> Told:
    part = report["communication_analysis"]["comm_percentage"]
    if part < 20:
        return None
    parts = [p for p in report["bottlenecks"] if p["kind"] != "computing"]
    most = f", most of that in {parts[0]['what']}" if parts else ""
    text = f"communication takes {part:.1f} % of the steps{most}"
    return (text, "start it earlier (async_op=True, wait() where the result is needed), make "
                  "batches larger, or "
                 "use fewer ranks for this model")  # fmt: skip


def _small(found: "Results", report: Report) -> Told:
    totals = grouped(counted(found.store), lambda key: key[2])
    small = merged(
        [each for size, each in totals.items() if 0 < size <= RANGES.index("1 KiB to 16 KiB")]
    )
    steps = max(found.store.steps.count, 1)
    if not found.facts["steps_seen"]:
        return None
    if small.count < 20 * steps or share(small.exposed, found.store.steps.total) < 5:
        return None
    text = (
        f"{small.count / steps:.0f} operations a step move at most 16 KiB each, "
        f"{small.mean() / 1e3:.0f} us apiece"
    )
    return (
        text,
        "their latency counts and not their bytes: put several into one (a dict of tensors, "
        "send_many)",
    )


def _objects(found: "Results", report: Report) -> Told:
    by_type = grouped(counted(found.store), lambda key: key[0])
    slow = {name: each for name, each in by_type.items() if name in OBJECTS}
    total = sum(each.exposed for each in slow.values())
    if share(total, found.store.steps.total) < 3:
        return None
    text = (
        f"objects go by {', '.join(slow)}: {total / 1e6 / max(found.store.steps.count, 1):.2f} ms "
        "a step"
    )
    return (text, "ringcast.torch, RINGCAST_VLLM=1 or RINGCAST_SGLANG=1 send them by shared memory")


def _ranks(found: "Results", report: Report) -> Told:
    ranks = [
        rank for rank in found.ranks if rank["steps"] and rank["steps_seen"] and rank["rank"] >= 0
    ]
    times = [rank["compute_time"] / rank["steps"] for rank in ranks]
    if len(ranks) < 2 or max(times) < 1.2 * min(times) or max(times) <= 0:
        return None
    slowest = max(ranks, key=lambda rank: rank["compute_time"] / rank["steps"])
    text = (
        f"rank {slowest['rank']} computes {1e3 * max(times):.2f} ms a step, the quickest rank "
        f"{1e3 * min(times):.2f}"
    )
    return (
        text,
        f"the others wait for rank {slowest['rank']}: share the work evenly, or look at its CPU "
        f"and clock",
    )


def _jitter(found: "Results", report: Report) -> Told:
    steps = report["steps"]
    if steps["count"] < 100 or steps["p99_time"] <= 2 * steps["p50_time"]:
        return None
    p50, p99 = 1e3 * steps["p50_time"], 1e3 * steps["p99_time"]
    text = f"1 % of the steps take {p99:.1f} ms or more, half of them at most {p50:.1f}"
    return (text, "detailed_timings.csv has single operations: see which are long there (a prefill "
                 "among decode steps, other load, GC, a swap)")  # fmt: skip


def _growth(found: "Results", report: Report) -> Told:
    ranks = [rank["memory"] for rank in found.ranks if rank["steps_seen"]]
    grown = max((memory["rss_last"] - memory["rss_first"] for memory in ranks), default=0)
    first = max((memory["rss_first"] for memory in ranks), default=0)
    if grown < 64 * MIB or grown < first / 4:
        return None
    text = f"a rank's memory grew by {grown / MIB:,.0f} MiB after the warm-up"
    return (
        text,
        "memory_usage_png shows whether that goes on; if so, something keeps what it received",
    )


# ---- Rating --------------------------------------------------------------------------------------


class Measure(NamedTuple):
    name: str
    of: str
    unit: str
    excellent: float
    good: float
    metric: str


# The thresholds suit two A100 with NVLink.
MEASURES = [
    Measure("TP scaling efficiency", "speed-up over one rank, divided by the ranks", "%", 75, 50,
            "tp_efficiency_percent"),
    Measure("PP scaling efficiency", "speed-up over one stage, divided by the stages", "%", 60, 40,
            "pp_efficiency_percent"),
    Measure("P2P bandwidth", "one device to another, 1 MiB and "
                             "more", "GB/s", 200, 100, "p2p_bandwidth_gbps"),
    Measure("NVLink utilisation", "of the links' peak", "%", 50, 30, "nvlink_utilisation_percent"),
]  # fmt: skip
POINT_TO_POINT = ("send", "recv", "isend", "irecv")
OF_TENSOR_PARALLEL = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gatherv",
    "gather",
    "reduce_scatter",
    # fmt: skip
    "reduce_scatter_tensor",
    "reduce_scatterv",
    "fused_allreduce_rmsnorm",
)


def rating(found: "Results", report: Report) -> List[Dict[str, Any]]:
    return [_rated(found, report, measure) for measure in MEASURES]


def _rated(found: "Results", report: Report, measure: Measure) -> Dict[str, Any]:
    metric = report["metrics"].get(measure.metric)
    value: Optional[float] = None
    is_bound = False
    how = f"not measured: tell by p.metric({measure.metric!r}, ...)"
    if metric is not None:
        value, how = metric["avg"], f"by p.metric({measure.metric!r}, ...)"
    elif measure.metric == "tp_efficiency_percent":
        by_type = report["communication_analysis"]["by_operation_type"]
        names = [name for name in OF_TENSOR_PARALLEL if name in by_type]
        if names:
            is_bound, seconds = True, sum(by_type[name]["exposed_time"] for name in names)
            value = max(0.0, 100 - share(seconds, report["steps"]["total_time"]))
            how = (
                f"at most: 100 % less the share of {', '.join(names)}; a run with one rank gives "
                "the true figure"
            )
    elif measure.metric == "p2p_bandwidth_gbps":
        value = _point_to_point(found.store)
        how = (
            "send and recv between devices"
            if value is not None
            else "not measured: no tensor went between devices"
        )
    rated = None
    # A bound rates where it is low alone.
    if value is not None and not (is_bound and value >= measure.good):
        rated = (
            "excellent"
            if value > measure.excellent
            else "good"
            if value >= measure.good
            else "to be improved"
        )
    return {
        "measure": measure.name, "of": measure.of, "unit": measure.unit, "value": value,
        "is_bound": is_bound,
        "rating": rated, "how": how,
        "excellent_above": measure.excellent, "good_from": measure.good,
    }  # fmt: skip


def _point_to_point(store: Store) -> Optional[float]:
    large = RANGES.index("1 MiB to 16 MiB")
    found = [
        t
        for key, t in store.operations.items()
        if key[0] in POINT_TO_POINT and key[3] == "device" and key[2] >= large
    ]
    return bandwidth(merged(found)) if found else None


# ---- Notes ---------------------------------------------------------------------------------------


def notes_of(found: "Results") -> List[str]:
    """Facts without which the figures would mislead."""
    made, facts, store = [], found.facts, found.store
    if not store.steps.count:
        made.append(
            f"nothing was recorded: {facts['steps_seen']} steps, of which "
            f"{facts['options']['warmup']} are warm-up"
        )
    elif not facts["steps_seen"]:
        made.append("step() was never called: the whole time is one step, warm-up included")
    if store.skipped:
        made.append(f"{store.skipped} steps were left out by sample={facts['options']['sample']}")
    if facts.get("missing_ranks"):
        missing = ", ".join(str(rank) for rank in facts["missing_ranks"])
        made.append(
            f"rank {missing} had written nothing in time; later: python -m ringcast.profile merge "
            f"DIR"
        )
    if len(store.rows.kept) < store.rows.seen:
        made.append(
            f"detailed_timings.csv has {len(store.rows.kept):,} records of {store.rows.seen:,}, "
            f"spread evenly"
        )
    if store.lost:
        made.append(f"{store.lost:,} records with ever new names are together under (other)")
    lost = {name: metric.not_finite for name, metric in store.metrics.items() if metric.not_finite}
    made += [
        f"metric {name}: {count:,} values were no finite numbers" for name, count in lost.items()
    ]
    if facts.get("left_out"):
        made.append(
            f"left out of the figures, without a rank or without communication: "
            f"{', '.join(facts['left_out'])}"
        )
    if len(found.ranks) > 1:
        made.append(f"times are sums over {len(found.ranks)} processes; shares are of that sum")
    return made
