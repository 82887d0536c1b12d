# SPDX-License-Identifier: Apache-2.0
"""The serialisers alone, in one process: pickle of protocol 5, msgpack, msgspec, pyfory and ringcast.

    codec.py [--json] [--quick] [--vllm FOLDER]

The value read back is compared with the given value. If a serialiser can't take a value, or gives back a wrong value,
the row's status says so. All take turns at each payload: further load of the machine meets all alike. A time is the
median of the turns, and each turn the mean of as many calls as the turn's share of the time allows; a result is dropped
within the time. Turns and calls are as in ringcast.bench. msgspec reads a dataclass by the annotations.
"""

import importlib
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import beside  # noqa: E402
import payloads  # noqa: E402
from adapters.base import LeftOut, needs  # noqa: E402

from ringcast.bench import codec  # noqa: E402
from beside import Row  # noqa: E402
from ringcast.bench.harness import in_turns  # noqa: E402

PAYLOADS = [*payloads.RECORDS, *payloads.TABLES, "metadata", *payloads.SCHEDULER, *payloads.OBJECTS, "features"]
QUICK = ["records-10", "records-1000", "records-1000-columns", "records-1000-array", "metadata", "scheduler-64"]
SECONDS, SECONDS_QUICK = 1.5, 0.3  # of a payload
TIMES = {"write_us": "encode_us", "read_us": "decode_us"}


class Peer(NamedTuple):
    """A serialiser, by the name in ringcast.bench.codec."""

    codec: str
    version: Callable[[], str]


def version_of(name: str) -> str:
    from importlib.metadata import version

    needs(name)
    return version(name)


def of_msgpack(_: Any) -> Dict[str, Any]:
    msgpack = importlib.import_module("msgpack")
    return {"packb": msgpack.packb, "unpackb": msgpack.unpackb}


codec.CODECS["msgpack"] = codec.Codec("packb({})", "unpackb({})", of_msgpack)
PEERS = {
    "pickle5": Peer("pickle", lambda: f"Python {sys.version.split()[0]}"),
    "msgpack": Peer("msgpack", partial(version_of, "msgpack")),
    "msgspec": Peer("msgspec", partial(version_of, "msgspec")),
    "pyfory": Peer("pyfory", partial(version_of, "pyfory")),
    "ringcast": Peer("ringcast", partial(version_of, "ringcast")),
}


def blank(name: str, payload: str) -> Row:
    return {
        "peer": f"codec-{name}", "family": name, "language": "python", "payload": payload, "scenario": "codec",
        "processes": 1, "reading": "objects", "serialiser": name, "status": "ok",
    }  # fmt: skip


def size_of(frame: Any) -> int:
    return int(memoryview(frame).nbytes)


def tried(name: str, value: Any) -> int:
    """The size of the value in the serialiser's form; LeftOut if the serialiser can't carry the value."""
    of = codec.CODECS[PEERS[name].codec]
    names, doing = {"value": value}, "take"
    try:
        names.update(of.functions(value))
        doing = "write"
        names["frame"] = eval(of.encode.format("value"), names)
        doing = "read"
        received = eval(of.decode.format("frame"), names)
    except Exception as error:  # each serialiser raises different errors
        text = " ".join(str(error).split())
        raise LeftOut(f"can't {doing} it: {type(error).__name__}: {text[:120]}") from None
    if not payloads.same(value, received):
        raise LeftOut(f"gives back another value: {difference(value, received)}")
    return size_of(names["frame"])


def difference(sent: Any, received: Any, where: str = "") -> str:
    """In words, the first place where a value differs."""
    if type(sent) is not type(received):
        return f"{type(received).__name__} for {type(sent).__name__}{where}"
    if isinstance(sent, dict) and list(sent) == list(received):
        for key in sent:
            if not payloads.same(sent[key], received[key]):
                return difference(sent[key], received[key], f" at {key!r}")
    if hasattr(sent, "dtype") and sent.dtype != received.dtype:
        return f"an array of {received.dtype} for one of {' '.join(str(sent.dtype).split())[:60]}{where}"
    return f"not equal{where}"


def rows_of(payload: str, seconds: float, vllm: str) -> List[Row]:
    """A row for each serialiser."""
    value = payloads.find(payload, vllm).make(0)
    rows, ways = {}, {}
    for name, peer in PEERS.items():
        rows[name] = blank(name, payload)
        try:
            rows[name].update(version=peer.version(), bytes=tried(name, value))
        except LeftOut as why:
            rows[name]["status"] = str(why)
            continue
        for time, what in TIMES.items():
            ways[name, time] = partial(codec.run, peer.codec, what, value)
    turns = in_turns(ways, seconds)
    for (name, time), found in turns.items():
        rows[name][time] = round(statistics.median(found) * 1e6, 3)
        rows[name].update(rounds=len(found), spread=round(max(found) / min(found), 3))
    for row in rows.values():
        if row["status"] == "ok":
            row["p50_us"] = round(sum(row[time] for time in TIMES), 3)
    return list(rows.values())


def main() -> None:
    options = beside.options_of(__doc__, "a few payloads, for seconds")
    names, seconds = (QUICK, SECONDS_QUICK) if options.quick else (PAYLOADS, SECONDS)
    beside.tell((rows_of(name, seconds, options.vllm) for name in names), line, options.json)


def line(row: Row) -> str:
    head = f"{row['payload']:22} {row['family']:10}"
    if row["status"] != "ok":
        return f"{head} {row['status']}"
    return f"{head} write {row['write_us']:10.2f} us  read {row['read_us']:10.2f} us  {row['bytes']:9} bytes"


if __name__ == "__main__":
    main()
