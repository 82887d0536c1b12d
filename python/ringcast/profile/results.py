# SPDX-License-Identifier: Apache-2.0
"""The folder of a profile: written, read again, merged over ranks.

profile.json has the totals, from which the other files are made; detailed_timings.csv has single
records. In a group each rank writes into a folder rank<r>, and rank 0 merges the folders.
"""

import csv
import json
import os
import time
from typing import Any, Dict, Iterable, List, Optional

import ringcast
from ringcast import _files
from ringcast.profile import analysis, pictures, report
from ringcast.profile.store import COLUMNS, Store, process_of

FORMAT = 2
STATE, ROWS = "profile.json", "detailed_timings.csv"


class Results:
    """A rank's results, or merged results. `ranks` has facts of each rank."""

    def __init__(
        self, facts: Dict[str, Any], store: Store, ranks: Optional[List[Dict[str, Any]]] = None
    ) -> None:
        self.facts, self.store = facts, store
        mine = {**facts, **_summary(store)}
        self.ranks = [mine] if ranks is None else ranks

    def state(self) -> Dict[str, Any]:
        return {
            "format": FORMAT, "made_by": f"ringcast.profile "
                                         f"{ringcast.__version__}", "facts": self.facts,
            "ranks": self.ranks, "store": self.store.state(),
        }  # fmt: skip


def _summary(store: Store) -> Dict[str, Any]:
    return {
        "steps": store.steps.count, "total_time": store.steps.total / 1e9,
        "exposed_comm_time": store.exposed / 1e9,
        "compute_time": (store.steps.total - store.exposed) / 1e9,
    }  # fmt: skip


# ---- Writing -------------------------------------------------------------------------------------


def check_folder(folder: str) -> None:
    """Refuse a folder that can't be written, at the start and not after hours."""
    try:
        _files.make_folder(folder)
    except OSError as error:
        raise OSError(
            f"the folder {folder} for the profile can't be made: {error.strerror}; name another one"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(
            f"no file can be made in {folder}, the folder for the profile; name another one"
        )


def write(
    found: Results, folder: Optional[str], apart: Optional[str], draw: bool, timeout: float
) -> Dict[str, Any]:
    """Write the files of a process, and on rank 0 those of the group; return
    comprehensive_report.json's content.

    apart: the folder, within `folder`, of a process without a rank. timeout: 0 does not merge.
    """
    if folder is None:
        return analysis.comprehensive(found, [])
    world = found.facts["world"]
    if world < 2:
        return _write_alone(found, folder, apart, draw)
    rank = found.facts["rank"]
    told = write_folder(found, _files.make_inner_folder(folder, f"rank{rank}"), False)
    if rank == 0 and timeout > 0:
        _await_ranks(folder, world, found.facts["started"], timeout)
        return write_folder(merge_folder(folder, found.facts["started"]), folder, draw)
    return told


def _write_alone(found: Results, folder: str, apart: Optional[str], draw: bool) -> Dict[str, Any]:
    is_empty = not (found.store.operations or found.store.regions or found.store.metrics)
    if apart is not None:
        return (
            {} if is_empty else write_folder(found, _files.make_inner_folder(folder, apart), False)
        )
    started = found.facts["started"]
    if not folders_of_processes(folder, started):
        return write_folder(found, folder, draw)
    # The process that started the others ends after them.
    if not is_empty:
        write_folder(found, _files.make_inner_folder(folder, f"process{found.facts['pid']}"), False)
    merged = merge_folder(folder, started)
    if is_empty:
        merged.facts["left_out"].insert(0, process_of(found.facts))
    return write_folder(merged, folder, draw)


def write_folder(found: Results, folder: str, draw: bool) -> Dict[str, Any]:
    _files.make_folder(folder)
    notes = (
        pictures.draw(found, folder)
        if draw
        else ["no pictures: python -m ringcast.profile report DIR makes them"]
    )
    told = analysis.comprehensive(found, notes)
    _write_rows(os.path.join(folder, ROWS), found.store.rows.kept)
    _write_json(folder, "comm_analysis.json", told["comm_analysis"])
    _write_json(folder, "analysis_report.json", told["analysis_report"])
    _write_json(folder, "comprehensive_report.json", told)
    _write_text(os.path.join(folder, "performance_report.md"), report.text(told))
    # Last: the other files are complete when this one is there.
    _write_json(folder, STATE, found.state())
    return told


def _write_json(folder: str, name: str, value: Any) -> None:
    indent = None if name == STATE else 2
    _write_text(
        os.path.join(folder, name),
        json.dumps(value, indent=indent, allow_nan=False, default=float) + "\n",
    )


def _write_text(path: str, text: str) -> None:
    with _files.replacing(path, encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def _without_nul(value: Any) -> Any:
    """The csv module refuses NUL before Python 3.11."""
    return value.replace("\0", "\\x00") if isinstance(value, str) else value


def _write_rows(path: str, rows: Iterable[List[Any]]) -> None:
    with _files.replacing(path, encoding="utf-8", errors="backslashreplace", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *(map(_without_nul, row) for row in rows)])


def _await_ranks(folder: str, world: int, started: float, timeout: float) -> None:
    """Wait for the results of all ranks."""
    until = time.monotonic() + timeout
    ranks = [os.path.join(folder, f"rank{rank}", STATE) for rank in range(world)]
    while not all(_is_new(path, started) for path in ranks) and time.monotonic() < until:
        time.sleep(0.01)


def _is_new(path: str, started: float) -> bool:
    try:
        return os.stat(path).st_mtime >= started - 0.02  # a file's time is that of the last tick
    except OSError:
        return False


# ---- Reading -------------------------------------------------------------------------------------


class NoProfile(ValueError):
    """The folder has no profile, or the profile can't be read."""


def load(folder: str) -> Results:
    path = os.path.join(folder, STATE)
    try:
        with open(path, encoding="utf-8") as file:
            state = json.load(file)
        if state["format"] != FORMAT:
            raise NoProfile(
                f"{path} has the format {state['format']}; this ringcast reads {FORMAT}: take the "
                f"other one"
            )
        return Results(
            state["facts"],
            Store.of(state["store"], _read_rows(os.path.join(folder, ROWS))),
            state["ranks"],
        )
    except FileNotFoundError:
        text = f"there is no {STATE} in {folder}: name a folder that ringcast.profile has written"
        if folders_of_processes(folder):
            text += f", or merge the ranks first: python -m ringcast.profile merge {folder}"
        raise NoProfile(text) from None
    except (OSError, KeyError, TypeError, AttributeError, ValueError, csv.Error) as error:
        if isinstance(error, NoProfile):
            raise
        raise NoProfile(
            f"{path} can't be read as a profile ({error!r}): take the profile anew"
        ) from None


def _read_rows(path: str) -> List[List[str]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.reader(file))[1:]
    except FileNotFoundError:
        return []


def folders_of_processes(folder: str, since: float = 0.0) -> List[str]:
    """The folders of ranks, and then those of processes without a rank, that were written after
    `since`."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = [
        (start, int(name[len(start) :]), os.path.join(folder, name))
        for start in ("rank", "process")
        # fmt: skip
        for name in names
        if name.startswith(start) and name[len(start) :].isdigit()
    ]
    return [path for start, _, path in sorted(found, key=lambda each: (each[0] != "rank", each[1]))
            if _is_new(os.path.join(path, STATE), since)]  # fmt: skip


def merge_folder(folder: str, since: float = 0.0) -> Results:
    """Merge the ranks of the latest run; without ranks, the processes that communicated."""
    loaded = [load(path) for path in folders_of_processes(folder, since)]
    if not loaded:
        raise NoProfile(
            f"there is nothing to merge in {folder}: no rank has written a profile.json there"
        )
    world = max(loaded, key=lambda each: (each.facts["rank"] >= 0, each.facts["started"])).facts[
        "world"
    ]
    ranks = [each for each in loaded if each.facts["rank"] >= 0 and each.facts["world"] == world]
    taken = ranks or [each for each in loaded if each.store.operations] or loaded
    store = Store(max(each.store.rows.most for each in taken))
    for each in taken:
        store.merge(each.store)
    missing = set(range(world)) - {each.facts["rank"] for each in ranks} if ranks else set()
    left_out = [
        process_of(each.facts) for each in loaded if each not in taken and each.facts["rank"] < 0
    ]
    facts = {
        **taken[0].facts,
        "rank": -1,
        "merged": len(taken),
        "missing_ranks": sorted(missing),
        "left_out": left_out,
    }
    facts["seconds"] = max(each.facts["seconds"] for each in taken)
    return Results(facts, store, [rank for each in taken for rank in each.ranks])
