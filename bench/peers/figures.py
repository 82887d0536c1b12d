# SPDX-License-Identifier: Apache-2.0
"""From the times of the members to rows: percentiles of a step, and medians of the rounds.

A message's time one way ends when the last reader has read and decoded it: a broadcast has arrived
when all readers have the message. In the scenario "slow" the last of the fast readers counts.
"""

import csv
import statistics
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

Row = Dict[str, Any]
Lines = List[Dict[str, Any]]

KEY = ("peer", "payload", "scenario", "processes", "reading", "round")
FIGURES = (
    "p50_us", "p99_us", "write_us", "read_us", "messages_per_s", "bytes_per_s",
    "cpu_writer_s", "cpu_reader_s", "seconds", "gil_share",
)  # fmt: skip
COLUMNS = (
    "peer", "family", "language", "version", "payload", "bytes", "scenario", "processes", "reading",
    "status", "collective", "serialiser", "copying", *FIGURES, "messages", "rounds",
    "oversubscribed", "floor", "round", "note", "in_process", "line_ns", "line_after_ns",
)  # fmt: skip
WARM = 20  # messages that don't count; at most a tenth of a step's messages


def blank(**known: Any) -> Row:
    """A row with all columns; null where a value is unknown."""
    return {**dict.fromkeys(COLUMNS), **known}


def percentile(values: Sequence[float], share: float) -> Optional[float]:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def warm(count: int) -> int:
    """How many of the first messages don't count."""
    return min(WARM, max(1, count // 10)) if count > 3 else 0


def micro(ns: Optional[float]) -> Optional[float]:
    return None if ns is None else round(ns / 1000, 3)


def of_writes(spent: List[int], reads: Sequence[List[int]]) -> Optional[float]:
    """The median in us: not of the first calls, nor of calls that waited for a read."""
    calls = list(zip(spent, *reads))[warm(len(spent)) :]
    return micro(percentile([time for time, *others in calls if all(others)], 0.5))


def of_reads(reads: Sequence[List[int]]) -> Optional[float]:
    counted = [time for spent in reads for time in spent[warm(len(spent)) :] if time]
    return micro(percentile(counted, 0.5))


def of_calls(writer: Dict[str, Any], readers: Lines) -> Row:
    """A read is timed only where it begins when the message is there."""
    reads = [reader["spent"] for reader in readers]
    kept = len(writer["spent"]) - warm(len(writer["spent"]))
    write = of_writes(writer["spent"], reads)
    return {"write_us": write, "read_us": of_reads(reads), "messages": kept}


def of_stream(writer: Dict[str, Any], readers: Lines, size: int) -> Row:
    took = (max(reader["end"] for reader in readers) - writer["start"]) / 1e9
    count = min(reader["count"] for reader in readers)
    rate = count / took
    return {"messages_per_s": round(rate, 1), "bytes_per_s": round(rate * size), "messages": count}


def of_gil(writer: Dict[str, Any], readers: Lines) -> Row:
    alone, held = statistics.median(writer["alone"]), statistics.median(writer["with_gil"])
    share = round(min(1.0, max(0.0, held / alone)), 3)
    return {"gil_share": share, "write_us": micro(alone), "messages": len(writer["alone"])}


def of_times(writer: Dict[str, Any], readers: Lines) -> Row:
    arrivals = list(zip(writer["starts"], *(reader["ends"] for reader in readers)))
    times = [max(read) - start for start, *read in arrivals[warm(len(arrivals)) :]]
    return {
        "p50_us": micro(percentile(times, 0.5)),
        "p99_us": micro(percentile(times, 0.99)),
        "write_us": of_writes(writer["spent"], ()),
        "messages": len(times),
    }


def of_cpu(writer: Dict[str, Any], readers: Lines) -> Row:
    """Only where the harness does not spin."""
    if "cpu" not in writer:
        return {}
    read = round(sum(reader["cpu"] for reader in readers), 4)
    return {"cpu_writer_s": round(writer["cpu"], 4), "cpu_reader_s": read}


def note_of(scenario: str, writer: Dict[str, Any], readers: Lines) -> str:
    if any(
        2 * reader.get("held", 0) > len(reader["ends"]) for reader in readers if "held" in reader
    ):
        return "a write of this size waits for the read: such calls don't count"
    if scenario == "slow":
        fast = max(reader["ends"][-1] for reader in readers[:-1])
        late = (readers[-1]["ends"][-1] - fast) / 1e6
        longest = max(writer["spent"]) / 1e6
        return (
            f"longest write {longest:.1f} ms; the slow reader ended {late:.0f} ms after the others"
        )
    return ""


def of_step(step: Dict[str, Any], members: Lines) -> Row:
    """The figures of one step; the members are in the order of the ranks."""
    writer, *readers = members
    scenario = step["scenario"]
    row: Row = {"seconds": round(writer["took"] / 1e9, 4), **of_cpu(writer, readers)}
    if scenario == "stream":
        row.update(of_stream(writer, readers, step["bytes"]))
    elif scenario in ("call", "gil"):
        of = {"call": of_calls, "gil": of_gil}[scenario]
        row.update(of(writer, readers))
    else:
        row.update(of_times(writer, readers[:-1] if scenario == "slow" else readers))
    row["note"] = note_of(scenario, writer, readers)
    return row


# ---- Rounds --------------------------------------------------------------------------------------


def merged(rows: List[Row]) -> Row:
    """One row of the rounds of a step: the medians of the good rounds; the reason if all failed."""
    well = [row for row in rows if row["status"] == "ok"]
    if not well:
        return {**rows[0], "rounds": len(rows)}
    row = {**well[0], "rounds": len(well), "messages": sum(one["messages"] or 0 for one in well)}
    for name in FIGURES:
        values = [one[name] for one in well if one.get(name) is not None]
        row[name] = statistics.median(values) if values else None
    failed = [one["status"] for one in rows if one["status"] != "ok"]
    if failed:
        why = f"{len(failed)} of {len(rows)} rounds failed: {failed[0]}"
        row["note"] = "; ".join(filter(None, (row["note"], why)))
    return row


def merge(rows: List[Row]) -> List[Row]:
    """The rows of all rounds, a row for each step, in the order in which the steps first came."""
    found: Dict[Tuple[Any, ...], List[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(name) for name in KEY), []).append(row)
    return [merged(same) for same in found.values()]


def write_csv(path: Path, rows: List[Row]) -> None:
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
