# SPDX-License-Identifier: Apache-2.0
"""What processes use and what processes leave behind, read from /proc and /dev/shm."""

import collections
import os
import pathlib
import time

TICKS = os.sysconf("SC_CLK_TCK")
MARK = (
    "RINGCAST_ENGINES_RUN"  # in the environment of each process of a run; the value names the run
)


def _stat(pid):
    """The fields of /proc/PID/stat after the name, or None if the process is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def is_stopped(pid):
    stat = _stat(pid)
    return stat is not None and stat[0] == "T"


def processes():
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def family(root):
    """The process and its descendants."""
    children = collections.defaultdict(list)
    for pid in processes():
        stat = _stat(pid)
        if stat:
            children[int(stat[1])].append(pid)
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def name(pid):
    """
    The title that the process gave itself (without spaces at its end), or else the last part of its
    command.
    """
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    first = words[0].decode(errors="replace").strip()
    if "::" in first:
        return first
    text = b" ".join(words).decode(errors="replace")
    return "resource_tracker" if "resource_tracker" in text else first.rpartition("/")[2]


def cpu_seconds(pids):
    """Seconds of CPU by process, without those that are gone."""
    stats = {pid: _stat(pid) for pid in pids}
    return {pid: (int(stat[11]) + int(stat[12])) / TICKS for pid, stat in stats.items() if stat}


class Meter:
    """
    with Meter(root) as meter: ...; then meter.seconds, meter.percent and meter.by_process (percent
    of one CPU).
    """

    def __init__(self, root):
        self.root = root

    def __enter__(self):
        self.began, self.before = time.monotonic(), cpu_seconds(family(self.root))
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.began
        by_process = collections.Counter()
        for pid, used in cpu_seconds(family(self.root)).items():
            by_process[name(pid)] += 100 * (used - self.before.get(pid, 0)) / self.seconds
        self.by_process = {who: round(percent, 1) for who, percent in sorted(by_process.items())}
        self.percent = round(sum(by_process.values()), 1)


def descriptors(root):
    """How many descriptors the process and its descendants have open."""
    count = 0
    for pid in family(root):
        try:
            count += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            pass
    return count


def memory(root):
    """Bytes that the process and its descendants take, shared ones divided by their users."""
    total = 0
    for pid in family(root):
        try:
            lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def has_ring(pid):
    """Whether a ring of ringcast's is mapped there."""
    try:
        return "memfd:ringcast" in pathlib.Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


# ---- What is left behind -------------------------------------------------------------------------


def marked(mark):
    """The processes of the run that live, zombies left out."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in processes():
        try:
            if (
                wanted in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                and _stat(pid)[0] != "Z"
            ):
                found.append(pid)
        except (OSError, TypeError):
            pass
    return found


def mapped(pids):
    """The names in /dev/shm that at least one of the processes maps."""
    found = set()
    for pid in pids:
        try:
            lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        found |= {line.partition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line}
    return found


def unused(names):
    """The names still in /dev/shm without a process that maps the segment."""
    return sorted((names & set(os.listdir("/dev/shm"))) - mapped(processes()))
