# SPDX-License-Identifier: Apache-2.0
"""Measures all peers, and ringcast, with one harness, and writes results.json and results.csv.

    run.py                          the whole matrix
    run.py --quick                  a small part of the matrix, for a look
    run.py --only zmq-push c-pipe   only the named ways

A way that can't be had here, fails or hangs has a row with the reason as the status. The results are written anew after
each group: a stopped run keeps the results so far.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import figures  # noqa: E402
import plan  # noqa: E402
from adapters import WAYS, find  # noqa: E402
from adapters.base import LeftOut, Way  # noqa: E402
from figures import Row  # noqa: E402
from group import Outcome, run_group  # noqa: E402

ROOT = HERE.parents[1]
ALL = "all"  # the payload, scenario and reading of the row of an unusable way
BESIDE = ("codec.py", "gil.py", "counts.py", "adapters/gpu.py")  # separate measurements: each prints a list of rows
LIMIT = 900  # seconds for each such script, and for the program of the native ways
CPUS = len(os.sched_getaffinity(0))


# ---- The machine -----------------------------------------------------------------------------------------------------


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def ringcast_version() -> Optional[str]:
    try:
        import ringcast
    except ImportError:
        return None
    return ringcast.__version__


def facts(options: argparse.Namespace) -> Dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": output_of("git", "rev-parse", "HEAD") or None,
        "cpu": cpu_model(),
        "cpus": CPUS,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "ringcast": ringcast_version(),
        "quick": options.quick,
        "rounds": options.rounds,
        "seconds": 0.0,
        "load_before": os.getloadavg()[0],
        "whole": False,
    }


# ---- Rows of the Python ways -----------------------------------------------------------------------------------------


def way_row(name: str, processes: int, version: str = "") -> Row:
    """The way's part of a row."""
    try:
        way = find(name)
    except LeftOut:
        way = Way
    return figures.blank(
        peer=name, family=way.family or name, language="python", version=version or None, processes=processes,
        lossless=way.lossless, collective=way.collective, copying=way.copying, oversubscribed=processes > CPUS,
        floor=False, note="",
    )  # fmt: skip


def serialiser(way: str, reading: str) -> str:
    if reading in ("bytes", "in-place"):
        return "none"
    if reading == "objects":
        return find(way).serialiser
    return "ringcast" if find(way).family == "ringcast" else "own"


def not_at_all(group: plan.Group, why: str) -> List[Row]:
    row = way_row(group.way, group.processes)
    return [{**row, "payload": ALL, "scenario": ALL, "reading": ALL, "status": why}]


def step_row(group: plan.Group, step: plan.Step, version: str) -> Row:
    return {
        **way_row(group.way, group.processes, version), "payload": step.payload, "bytes": step.bytes,
        "scenario": step.scenario, "reading": step.reading, "serialiser": serialiser(group.way, step.reading),
    }  # fmt: skip


def note_of(way: str, scenario: str, note: str) -> str:
    found = find(way)
    waits = "read_us includes the write, as a write waits for the reads" if found.collective else ""
    return "; ".join(part for part in (note, waits if scenario == "call" else "", found.note) if part)


def rows_of(group: plan.Group, options: argparse.Namespace) -> List[Row]:
    if group.left_out:
        return not_at_all(group, group.left_out)
    told = {"vllm": options.vllm, "sglang": options.sglang, "spin": group.processes <= CPUS}
    runs = any(not step.status for step in group.steps)
    outcome = run_group(plan.spec(group, told)) if runs else Outcome("", "", [])
    if outcome.left_out:
        return not_at_all(group, outcome.left_out)
    rows, results = [], iter(outcome.results[1:])
    for step in group.steps:
        row = {**step_row(group, step, outcome.version), "status": step.status}
        if not step.status:
            result = next(results)
            row["status"] = result.status
            if result.status == "ok":
                row.update(figures.of_step(step._asdict(), result.members, group.processes))
            row["note"] = note_of(group.way, step.scenario, row["note"])
        rows.append(row)
    if outcome.left[0]:
        rows[0]["note"] = "; ".join(filter(None, (rows[0]["note"], left_behind(*outcome.left))))
    return rows


def left_behind(files: int, size: int) -> str:
    return f"left {files} file{'s' if files > 1 else ''}, {size / (1 << 20):.3g} MiB behind in /dev/shm"


# ---- Further rows ----------------------------------------------------------------------------------------------------


def printed(command: List[str]) -> Tuple[str, str]:
    """The output of a program, and the reason of a failure, if any."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired as late:
        text = late.stdout or ""
        return text.decode() if isinstance(text, bytes) else text, f"no end after {LIMIT} s"
    except OSError as error:
        return "", f"can't be started: {error}"
    return done.stdout, "" if done.returncode == 0 else f"ended with status {done.returncode}"


def failed(peer: str, language: str, why: str) -> Row:
    return figures.blank(
        peer=peer, family=peer, language=language, payload=ALL, scenario=ALL, reading=ALL, processes=2, status=why
    )


def native_rows(program: str, what: List[str], only: List[str]) -> List[Row]:
    """The rows printed by the program of the C ways, a JSON object a line."""
    text, why = printed([program, *what])
    rows, unread = [], []
    for line in text.splitlines():
        try:
            rows.append({**figures.blank(language="c", rounds=1), **json.loads(line)})
        except (TypeError, ValueError):
            unread.append(line)
    if "--headline" in what:
        rows = [{**row, "scenario": "headline"} for row in rows]
    rows = [row for row in rows if not only or row["peer"] in only]
    note = f"{len(unread)} of the printed lines can't be read, the first: {unread[0][:80]}" if unread else ""
    return rows + (
        [{**failed("native " + what[0], "c", why or "lines are missing"), "note": note}] if why or note else []
    )


def no_native(program: Optional[str]) -> List[Row]:
    """The row in place of the C ways' rows."""
    what = f"there is no {program}" if program else "no program was given by --native"
    return [failed("native ways", "c", f"{what}: was it built? build/peers/native.log has the compiler's words")]


def beside_rows(script: str, options: argparse.Namespace) -> List[Row]:
    command = [sys.executable, str(HERE / script), "--json"]
    command += ["--vllm", options.vllm] if options.vllm else []
    command += ["--quick"] if options.quick else []
    text, why = printed(command)
    try:
        rows = [{**figures.blank(language="python", rounds=1), **row} for row in json.loads(text)]
    except ValueError:
        return [failed(script, "python", why or "no list of rows was printed")]
    return rows


# ---- The run ---------------------------------------------------------------------------------------------------------


def progress(done: int, of: int, what: str, since: float) -> None:
    took = int(time.monotonic() - since)
    text = f"peers: {done}/{of}  {what}  {took // 60}:{took % 60:02}"
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="" if done < of else "\n", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def write_results(folder: Path, meta: Dict[str, Any], rows: List[Row]) -> Path:
    """results.json and results.csv, whole at any moment."""
    text = json.dumps({"meta": meta, "rows": rows}, indent=1)
    part = folder / ".results.json"
    part.write_text(text + "\n")
    os.replace(part, folder / "results.json")
    figures.write_csv(folder / ".results.csv", rows)
    os.replace(folder / ".results.csv", folder / "results.csv")
    return folder / "results.json"


def keep(folder: Path, meta: Dict[str, Any]) -> Path:
    """A copy of the results by date, commit and CPU."""
    slug = re.sub(r"[^a-z0-9]+", "-", meta["cpu"].lower()).strip("-")
    date = re.sub(r"[^0-9T]", "", meta["date"])
    path = folder / "kept" / f"{date}-{(meta['commit'] or 'unknown')[:7]}-{slug}.json"
    path.parent.mkdir(exist_ok=True)
    shutil.copy(folder / "results.json", path)
    return path


def jobs(options: argparse.Namespace) -> Iterator[Tuple[str, Any]]:
    """The jobs, in order: the text of the progress line, and the function that gives the rows."""
    groups = plan.groups(plan.names(options.only), options.quick, options.vllm)
    native = bool(options.native) and Path(options.native).exists()
    if native_wanted(options) and not native:
        yield "native ways", lambda: no_native(options.native)
    for turn in range(options.rounds):
        for group in plan.in_order(groups, turn):
            yield f"{group.way}, {group.processes} processes", lambda group=group: rows_of(group, options)
        if native:
            for what, way in planned(options):
                yield what, lambda way=way: native_rows(options.native, way, options.only)
    if native and native_wanted(options):
        yield "64 B, native", lambda: native_rows(options.native, ["--headline"], options.only)
    for script in BESIDE:
        if not options.only and (HERE / script).exists():
            yield script, lambda script=script: beside_rows(script, options)


def planned(options: argparse.Namespace) -> List[Tuple[str, List[str]]]:
    """The plan of the C ways: a job for all ways, or a job for each named way."""
    plan_of = ["--plan", "quick" if options.quick else "full"]
    if options.only:
        return [(name, [*plan_of, "--way", name]) for name in native_wanted(options)]
    return [("native ways", plan_of)]


def native_wanted(options: argparse.Namespace) -> List[str]:
    return [name for name in options.only if name not in WAYS] if options.only else [ALL]


def run(options: argparse.Namespace) -> Path:
    meta, since = facts(options), time.monotonic()
    rows: List[Row] = []
    todo = list(jobs(options))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.json"
    for count, (what, work) in enumerate(todo, 1):
        progress(count, len(todo), what, since)
        rows += work()
        meta.update(seconds=round(time.monotonic() - since, 1), whole=count == len(todo))
        path = write_results(options.out, meta, figures.merge(rows))
    if not options.only:
        keep(options.out, meta)
    return path


def options_of(arguments: Optional[List[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small part, in minutes")
    parser.add_argument("--rounds", type=int, default=1, help="of everything: medians of N runs (1)")
    parser.add_argument("--only", action="extend", nargs="+", default=[], metavar="WAY", help="only these ways")
    parser.add_argument("--vllm", metavar="FOLDER", help="vLLM's source, for its queue and the classes of its messages")
    parser.add_argument("--sglang", metavar="FOLDER", help="SGLang's source, for its queue")
    parser.add_argument("--native", metavar="PROGRAM", help="the program of the C ways")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="(default: build/peers; with --only build/peers/only)"
    )
    options = parser.parse_args(arguments)
    options.out = options.out or ROOT / "build" / "peers" / ("only" if options.only else "")
    for name in ("vllm", "sglang", "native"):
        value = getattr(options, name)
        if value:
            setattr(options, name, str(Path(value).resolve()))
    unknown = [] if options.native else [name for name in options.only if name not in WAYS]
    if unknown:
        parser.error(f"no way is named {', '.join(unknown)}; the ways are: {', '.join(WAYS)}")
    return options


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the group and removes its folder, as Ctrl-C does
    try:
        print(run(options_of()))
    except KeyboardInterrupt:
        print("\npeers: stopped; the groups so far are in results.json", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
