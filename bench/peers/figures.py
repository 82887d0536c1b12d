# SPDX-License-Identifier: Apache-2.0
"""From the times of the members to rows: percentiles of a step, and medians of the rounds.

A message's time one way ends when the last reader has read and decoded the message: a broadcast has arrived when all
readers have the message. In the scenario "slow" the last of the fast readers counts.
"""

import csv
import statistics
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

Row = Dict[str, Any]

KEY = ("peer", "payload", "scenario", "processes", "reading")
FIGURES = (
    "p50_us", "p99_us", "mean_us", "write_us", "read_us", "messages_per_s", "bytes_per_s", "cpu_writer_s",
    "cpu_reader_s", "seconds", "rss_mb", "gil_share",
)  # fmt: skip
COLUMNS = (
    "peer", "family", "language", "version", "payload", "bytes", "scenario", "processes", "reading", "status",
    "lossless", "collective", "serialiser", "copying", *FIGURES, "messages", "rounds", "spread", "oversubscribed",
    "floor", "round", "note",
)  # fmt: skip
WARM = 20  # messages that don't count; at most a tenth of a step's messages
NOTES = 3  # different notes of the rounds in a row


def percentile(values: Sequence[float], share: float) -> Optional[float]:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def warm(count: int) -> int:
    """How many of the first messages don't count."""
    return min(WARM, max(1, count // 10)) if count > 3 else 0


def micro(ns: Optional[float]) -> Optional[float]:
    return None if ns is None else round(ns / 1000, 3)


def one_way(starts: List[int], ends: List[List[int]]) -> List[int]:
    """The times of the messages that arrived everywhere, in ns. Lost messages or messages written twice don't count."""
    first = warm(len(starts))
    return [
        max(read) - start for start, *read in list(zip(starts, *ends))[first:] if start and all(read)
    ]  # fmt: skip


def counted(spent: List[int], others: Sequence[List[int]] = ()) -> List[int]:
    """The times of the calls that count: not the first calls, and no call that waited for a call of the other side."""
    return [time for time, *rest in list(zip(spent, *others))[warm(len(spent)) :] if time and all(rest)]


def lines_of(members: List[Dict[str, Any]], processes: int) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """The writer's and the readers'; the members are in the order of the ranks."""
    assert len(members) == processes
    return members[0], members[1:]


def of_calls(writer: Dict[str, Any], readers: List[Dict[str, Any]], scenario: str) -> Row:
    """The calls alone: of a read only where the read begins when the message is there."""
    reads = [reader["spent"] for reader in readers if "spent" in reader]
    if scenario == "shared":
        return {"read_us": micro(percentile([time for spent in reads for time in counted(spent)], 0.5))}
    if "spent" not in writer:
        return {}
    held = reads if scenario == "call" else ()
    found = {"write_us": micro(percentile(counted(writer["spent"], held), 0.5))}
    if scenario == "call":
        found["read_us"] = micro(percentile([time for spent in reads for time in counted(spent)], 0.5))
    return found


def of_stream(writer: Dict[str, Any], readers: List[Dict[str, Any]], size: int) -> Row:
    took = (max(reader["end"] for reader in readers) - writer["start"]) / 1e9
    rate = min(reader["count"] - reader["lost"] for reader in readers) / took
    return {"messages_per_s": round(rate, 1), "bytes_per_s": round(rate * size)}


def of_times(writer: Dict[str, Any], readers: List[Dict[str, Any]]) -> Row:
    times = one_way(writer["starts"], [reader["ends"] for reader in readers])
    return {
        "p50_us": micro(percentile(times, 0.5)),
        "p99_us": micro(percentile(times, 0.99)),
        "mean_us": micro(statistics.fmean(times) if times else None),
        "messages": len(times),
    }


def of_cpu(writer: Dict[str, Any], readers: List[Dict[str, Any]]) -> Row:
    """Only where the harness does not spin."""
    if "cpu" not in writer:
        return {}
    found = {"cpu_writer_s": round(writer["cpu"], 4)}
    if all("cpu" in reader for reader in readers):
        found["cpu_reader_s"] = round(sum(reader["cpu"] for reader in readers), 4)
    return found


def notes_of(step: Dict[str, Any], writer: Dict[str, Any], readers: List[Dict[str, Any]]) -> List[str]:
    notes = []
    lost = [reader.get("lost", 0) for reader in readers]
    if any(lost):
        count = readers[0].get("count", step["messages"])
        notes.append(f"last value only, or lossy: {max(lost)} of {count} messages were lost")
    if any(2 * reader.get("held", 0) > len(reader["ends"]) for reader in readers if "held" in reader):
        notes.append("a write of this size waits for the read: such calls don't count")
    if step["scenario"] == "slow":
        late = (readers[-1]["ends"][-1] - max(reader["ends"][-1] for reader in readers[:-1])) / 1e6
        notes.append(
            f"longest write {max(writer['spent']) / 1e6:.1f} ms; the slow reader ended {late:.0f} ms after the others"
        )
    return notes


def of_step(step: Dict[str, Any], members: List[Dict[str, Any]], processes: int) -> Row:
    """The figures of one step."""
    writer, readers = lines_of(members, processes)
    scenario = step["scenario"]
    row: Row = {"seconds": round(writer["took"] / 1e9, 4)}
    peaks = [line["rss"] for line in members if line["rss"]]
    row["rss_mb"] = round(max(peaks), 1) if peaks else None
    row.update(of_calls(writer, readers, scenario))
    row.update(of_cpu(writer, readers))
    if scenario == "stream":
        row.update(of_stream(writer, readers, step["bytes"]))
        row["messages"] = min(reader["count"] for reader in readers)
    elif scenario == "shared":
        row["messages"] = min(len(reader["spent"]) for reader in readers)
    else:
        times = of_times(writer, readers[:-1] if scenario == "slow" else readers)
        row.update({"messages": times["messages"]} if scenario == "call" else times)  # a reader waits before a call
    row["note"] = "; ".join(notes_of(step, writer, readers))
    return row


# ---- Rounds ----------------------------------------------------------------------------------------------------------


def key_of(row: Row) -> Tuple[Any, ...]:
    return tuple(row.get(name) for name in KEY) + (row.get("round"),)


def blank(**known: Any) -> Row:
    """A row with all columns; null where a value is unknown."""
    return {**dict.fromkeys(COLUMNS), **known}


def merged(rows: List[Row]) -> Row:
    """One row of the rounds of a step: the medians of the good rounds; the reason if all failed."""
    well = [row for row in rows if row["status"] == "ok"]
    if not well:
        return {**rows[0], "rounds": len(rows)}
    row = {**well[0], "rounds": len(well)}
    for name in FIGURES:
        values = [one[name] for one in well if one.get(name) is not None]
        row[name] = statistics.median(values) if values else None
    row["messages"] = sum(one["messages"] or 0 for one in well) or None
    row["spread"] = spread(well)
    notes = list(dict.fromkeys(one["note"] for one in well if one.get("note")))[:NOTES]
    failed = [one["status"] for one in rows if one["status"] != "ok"]
    if failed:
        notes.append(f"{len(failed)} of {len(rows)} rounds failed: {failed[0]}")
    row["note"] = "; ".join(notes)
    return row


def spread(rows: List[Row]) -> Optional[float]:
    """Of the rounds: the largest of the row's main figure, over the smallest; None: there is one round."""
    for name in ("p50_us", "messages_per_s", "read_us", "write_us"):
        values = [row[name] for row in rows if row.get(name)]
        if len(values) > 1:
            return round(max(values) / min(values), 3)
    return None


def merge(rows: List[Row]) -> List[Row]:
    """The rows of all rounds, a row for each step, in the order in which the steps first came."""
    found: Dict[Tuple[Any, ...], List[Row]] = {}
    for row in rows:
        found.setdefault(key_of(row), []).append(row)
    return [merged(same) for same in found.values()]


def write_csv(path: Path, rows: List[Row]) -> None:
    more = list(dict.fromkeys(name for row in rows for name in row if name not in COLUMNS))  # such as counts.py's
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, [*COLUMNS, *more])
        table.writeheader()
        table.writerows(rows)
