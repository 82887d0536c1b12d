# SPDX-License-Identifier: Apache-2.0
"""Messages, copies, bytes copied and system calls of an object from writer to reader, counted as in bench/overheads.py,
for the best known of the ways.

    counts.py [--json] [--quick] [--way NAME] [--vllm FOLDER]

The numbers are for an object, of the writer's process and of the single reader's: bench/overheads.py defines a copy. A
message is a frame of ringcast's, a broadcast of gloo's, a block of vLLM's ring, and elsewhere a write. No payload has
1 MiB: from there on ringcast copies by a loop past the cache, which would not be counted. Needs strace and a C
compiler; where the machine lacks either, each row says so.
"""

import argparse
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))

import beside  # noqa: E402
import overheads  # noqa: E402
import payloads  # noqa: E402
from adapters import find, way_class  # noqa: E402
from adapters.base import Member, Way  # noqa: E402
from beside import Row  # noqa: E402
from member import reason  # noqa: E402

WAYS = [
    "ringcast", "zmq-push", "gloo-object", "gloo-padded", "vllm-queue", "mp-pipe", "mp-shared-memory", "lmdb", "pynng",
    "iceoryx2",
]  # fmt: skip
PAYLOADS = ["metadata", "bytes-64Ki", "records-10000-array"]
QUICK = ["metadata"]
NEEDED = {"strace": "strace", "cc": "a C compiler, cc"}


# ---- A rank ----------------------------------------------------------------------------------------------------------


def calls_of(way: Way, payload: str) -> Tuple[Callable[[Any], None], Callable[[], Any]]:
    if payload.startswith("bytes-"):
        return way.write, way.read
    typed = "typed" in way.readings
    return (way.write_typed, way.read_typed) if typed else (way.write_object, way.read_object)


def count_messages(way: Way, rank: int) -> List[Callable[[], int]]:
    """Makes the way count messages: functions that give the count. The frames of ringcast are counted anyway."""
    if way.family == "ringcast":
        return []
    if way.family == "gloo":
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        broadcasts = overheads.counted(distributed_c10d.broadcast)
        distributed_c10d.broadcast = dist.broadcast = broadcasts
        return [lambda: broadcasts.calls]
    holder, name = way, "read" if rank else "write"
    if way.family == "vllm":
        holder, name = way.queue, "acquire_read" if rank else "acquire_write"  # type: ignore[attr-defined]
    call = overheads.counted(getattr(holder, name))
    setattr(holder, name, call)
    return [lambda: call.calls]


def rank_main(options: argparse.Namespace) -> None:
    folder, status = Path(options.folder), 1
    try:
        value = payloads.find(options.payload, options.vllm).make(0)
        size = len(value) if options.payload.startswith("bytes-") else len(pickle.dumps(value, 5))
        way = way_class(options.way)(Member(options.rank, 2, size + 4096, folder, options.vllm))
        way.initialize()
        messages = count_messages(way, options.rank)
        call = calls_of(way, options.payload)[options.rank]
        overheads.count_calls(options.rank, call, value, size, messages)
        way.cleanup()
        status = 0
    except BaseException as error:
        (folder / "why").write_text(reason(error))
    os._exit(status)


# ---- All of them -----------------------------------------------------------------------------------------------------


def missing() -> str:
    """The missing programs, in words; "" if all are there."""
    gone = [text for program, text in NEEDED.items() if shutil.which(program) is None]
    return "needs " + " and ".join(gone) if gone else ""


def blank(way: str, payload: str) -> Row:
    family = find(way).family
    typed = "typed" if family == "ringcast" else "objects"
    return {
        "peer": way, "family": family, "language": "python", "payload": payload, "scenario": "counts", "processes": 2,
        "reading": "bytes" if payload.startswith("bytes-") else typed, "status": "ok",
    }  # fmt: skip


def counted(way: str, payload: str, library: str, options: argparse.Namespace) -> Row:
    """The figures of a row, or the status."""
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="peers-", dir=shared, ignore_cleanup_errors=True) as folder:
        command = [sys.executable, __file__, "--way", way, "--payload", payload, "--folder", folder]
        command += ["--vllm", options.vllm] if options.vllm else []
        try:
            ranks = overheads.measure([[*command, "--rank", str(rank)] for rank in range(2)], library)
        except (SystemExit, AssertionError, OSError) as error:
            why = Path(folder, "why")
            return {"status": why.read_text() if why.exists() else reason(error)}
    row: Row = {"bytes": ranks[0]["size"], "messages_each": round(ranks[0]["messages"], 2)}
    for of, rank in zip(("writer", "reader"), ranks):
        row[f"copies_{of}"] = round(rank["copies"], 2)
        row[f"copied_{of}_bytes"] = round(rank["bytes"])
        row[f"calls_{of}"] = round(rank["calls"], 2)
        row[f"waits_{of}"] = round(rank["waits"], 2)
    return row


def rows_of(options: argparse.Namespace) -> Iterator[List[Row]]:
    ways = [options.way] if options.way else WAYS
    why = missing()
    with tempfile.TemporaryDirectory() as folder:
        library = "" if why else overheads.library_in(folder)
        for payload in QUICK if options.quick else PAYLOADS:
            for way in ways:
                found = {"status": why} if why else counted(way, payload, library, options)
                yield [{**blank(way, payload), **found}]


def line(row: Row) -> str:
    head = f"{row['payload']:12} {row['peer']:18}"
    if row["status"] != "ok":
        return f"{head} {row['status']}"
    parts = [
        f"{name} {row[f'{name}_writer']:6.1f} + {row[f'{name}_reader']:6.1f}" for name in ("copies", "calls", "waits")
    ]
    return f"{head} messages {row['messages_each']:4.1f}  {'  '.join(parts)}"


def main() -> None:
    options = beside.options_of(__doc__, "one payload", WAYS)
    if options.rank is not None:
        return rank_main(options)
    beside.tell(rows_of(options), line, options.json)


if __name__ == "__main__":
    main()
