# SPDX-License-Identifier: Apache-2.0
"""For report.py: the ways without a figure and the reasons, and the ways that beat ringcast and the causes."""

import collections

from report_rows import (
    DECIDES,
    FIGURES,
    FLOOR,
    LINE,
    best,
    cell,
    cpu_percent,
    in_process,
    lossy,
    ours,
    payload_name,
    ratio,
    select,
    value_of,
)

MANY = 8  # names; of a longer list the report gives the exceptions
NOISE = 0.95  # from this ratio on two ways are alike
FAR_FROM_FLOOR = 1.3
KI, MI = 1 << 10, 1 << 20
PAUSED = ("every5", "every25", "idle")


def absent(rows):
    """[(ways, where, reason)]: the ways without a good row, then single scenarios and payloads."""
    has = {row["peer"] for row in rows if row.get("status") == "ok"}
    whole, parts = collections.defaultdict(set), collections.defaultdict(set)
    for row in rows:
        if row.get("status") == "ok":
            continue
        reason = row["status"] or "no reason given"
        if row["peer"] not in has:
            whole[reason].add(row["peer"])
        else:
            where = f"{row.get('scenario')}{many(row)}"
            # A codec's reasons are the messages of exceptions, a different one for each payload.
            reason = reason.partition(":")[0] if row["scenario"] == "codec" else reason
            parts[where, reason, payloads(rows, row)].add(row["peer"])
    lines = [(", ".join(sorted(names)), "all", reason) for reason, names in whole.items()]
    for (where, reason, sizes), names in parts.items():
        scenario = where.partition(",")[0]
        others = {row["peer"] for row in rows if row["scenario"] == scenario and row["peer"] in has} - names
        lines.append((listed(names, others), where + (sizes and f": {sizes}"), reason))
    return sorted(lines, key=lambda line: (line[1] != "all", line[1], line[0]))


def many(row):
    return f", {row['processes']} processes" if (row.get("processes") or 2) > 2 else ""


def payloads(rows, row):
    """The payloads with this reason, if the way has figures, or other reasons, for more payloads of the scenario."""
    alike = [other for other in rows if other["peer"] == row["peer"] and other["scenario"] == row["scenario"]]
    if all(other["status"] == row["status"] for other in alike):
        return ""
    first = str(row["status"]).partition(":")[0]
    names = [payload_name(other) for other in alike if str(other["status"]).partition(":")[0] == first]
    return ", ".join(dict.fromkeys(names))


def listed(names, others):
    if len(names) <= MANY or len(others) >= len(names):
        return ", ".join(sorted(names))
    return f"{len(names)} ways" + (f", all but {', '.join(sorted(others))}" if others else "")


def large_causes(row):
    """Of messages of MiB: how the reader begins before the writer has ended."""
    peer = row["peer"]
    if peer == "c-aeron-ipc":
        return "the message is split, and the reader assembles parts while the writer writes more"
    if peer == "c-unix-socket-polled":
        return "the reader copies what is there while the writer writes more; a ringcast message is published whole"
    if row["language"] == "c" and row["family"] in ("openmpi", "mpich", "ucx"):
        return "one copy from process to process, or two that overlap; a ringcast message is published whole"
    return None


def cause(row, figure, mine):
    """Why a way wins against our row, if known. Each cause can be seen in the adapter or in the peer's code."""
    peer, family, scenario = row["peer"], row["family"], row["scenario"]
    paused = scenario in PAUSED
    large = (row.get("bytes") or 0) >= MI and scenario == "one-way"
    spins = (cpu_percent(row) or 0) > 50 >= (cpu_percent(mine) or 0)
    small_log = peer == "c-aeron-ipc" and scenario == "stream" and (row.get("bytes") or 0) < 64 * KI
    sleeps = paused and peer.startswith(("mp-p", "mp-q", "faster", "c-pipe", "c-unix-socket")) and "polled" not in peer
    known = [
        (in_process(row), "threads of one process, and messages of one size"),
        (lossy(row), "the writer overwrites, and waits for no reader: messages may be lost"),
        (scenario == "in-place" and family == "iceoryx2", "a place for each message, handed over by its index"),
        (family == "lmdb" and scenario in ("call", "shared"), "a read is a look into a mapped file, without a queue"),
        (family == "pyzmq" and figure in ("write_us", "messages_per_s"), "a thread of ZeroMQ does the rest meanwhile"),
        (large and large_causes(row), large_causes(row)),
        (
            peer == "ecal" and figure == "read_us",
            "a thread of eCAL has taken the message before the call",
        ),
        (
            family == "mpi4py" and row.get("oversubscribed"),
            "MPI's processes poll and yield all the time; ringcast's readers sleep, and have to be woken",
        ),
        (small_log, "a poll takes up to 16 messages and stores the reader's position once"),
        (sleeps and figure == "cpu", "the reader sleeps at once"),
        (paused and figure == "p50_us" and spins, "a process spins between the messages"),
        (
            peer == "codec-msgspec",
            "no frame of typed items; tuples and sets come back as lists, arrays are refused",
        ),
        (peer == "codec-msgpack", "MessagePack has fewer types, and no object twice"),
    ]
    return next((text for fits, text in known if fits), "not known")


def below_line(rows, row):
    """Whether a way with pauses is faster than the bare cache line in the same cell: then the pauses differed, as
    further threads of the way keep the writer's CPU awake."""
    if row["scenario"] not in PAUSED or row["language"] != "c" or row.get("floor"):
        return False
    lines = [one for one in select(rows, floors=True, peer=LINE) if cell(one) == cell(row)]
    return any(row["p50_us"] < one["p50_us"] for one in lines if None not in (row["p50_us"], one["p50_us"]))


Win = collections.namedtuple("Win", "row figure ratio cause")


def wins(rows):
    """Each way with a better figure than the best of ours in the same cell and state. Ratio: below 1, the way's time to
    ours, or ours to the way's where more is better."""
    cells, floors = collections.defaultdict(list), {}
    for row in select(rows, floors=True):
        if row["peer"] == FLOOR:
            floors[cell(row)] = row
        elif not row.get("floor") and row.get("state") != "changed":
            cells[cell(row)].append(row)
    for key, found in cells.items():
        for figure in DECIDES.get(found[0]["scenario"], ["p50_us"]):
            mine = best([row for row in found if ours(row)], figure)
            for row in found:
                value = value_of(row, figure)
                if mine is None or value is None or ours(row) or (figure == "p50_us" and below_line(rows, row)):
                    continue
                pair = value, value_of(mine, figure)
                less, more = reversed(pair) if FIGURES[figure][1] else pair
                if less < more:
                    yield Win(row, figure, less / more, told_cause(row, figure, mine, floors.get(key)))


def told_cause(row, figure, mine, floor):
    """The cause, and for large messages how far ringcast is from the same bytes without a queue. A peer at the floor
    wins by that distance, so the peer's mechanism is no cause."""
    if floor is None or (mine.get("bytes") or 0) < MI or not value_of(floor, figure):
        return cause(row, figure, mine)
    shares = [value_of(one, figure) / value_of(floor, figure) for one in (mine, row)]
    mine_share, share = [1 / share for share in shares] if FIGURES[figure][1] else shares
    if mine_share <= FAR_FROM_FLOOR:
        return cause(row, figure, mine)
    told = cause(row, figure, mine) if share < NOISE else "not known"
    return f"{told}; ringcast's time is {ratio(mine_share)} of the floor `{FLOOR}`"
