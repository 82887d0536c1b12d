# SPDX-License-Identifier: Apache-2.0
"""The harness of bench/peers: a way that loses, damages, crashes or hangs becomes a row that says so, and the figures
are those of the times. No speed is asserted."""

import csv
import importlib
import json
import mmap
import pathlib
import subprocess
import sys
from typing import Any, Dict, List

import pytest

# AddressSanitizer: a step has some seconds, which are too few for it on a loaded machine; what the harness calls of
# ringcast has other tests.
pytestmark = [pytest.mark.alike, pytest.mark.unwatched]
PEERS = pathlib.Path(__file__).parents[2] / "bench" / "peers"
MODULES = (
    "adapters",
    "beside",
    "board",
    "compare",
    "figures",
    "group",
    "leftovers",
    "member",
    "payloads",
    "plan",
    "run",
    "scenarios",
)

FAKES = '''
import os
import time

import scenarios
from adapters.stdlib import Pipe
scenarios.AGAIN = 2.0  # seconds that a reader may be late


class Counting(Pipe):
    """Counts the messages of the writer."""

    count = 0

    def write(self, data):
        self.count += 1
        if not self.bad(data):
            super().write(data)

    def bad(self, data):
        return False


class Lossy(Counting):
    def bad(self, data):
        return self.count % 7 == 0


class LossyAndSaysSo(Lossy):
    lossless = False


class Repeating(Counting):
    def bad(self, data):
        if self.count == 5:
            super(Counting, self).write(data)


class Damaging(Pipe):
    def read(self):
        data = bytearray(super().read())
        data[-1] ^= 1
        return data


class Crashing(Pipe):
    def read(self):
        data = super().read()
        if len(data) == 256:
            print("the last words", flush=True)
            os.abort()
        return data


class Raising(Pipe):
    def read(self):
        data = super().read()
        if len(data) == 256:
            raise RuntimeError("256 is too much")
        return data


class Hanging(Pipe):
    def read(self):
        data = super().read()
        if len(data) == 256:
            time.sleep(3600)
        return data


class Alone(Pipe):
    def initialize(self):
        if self.me.rank == 0:
            time.sleep(3600)


class Leaving(Pipe):
    def cleanup(self):
        if self.me.rank == 0:
            open(os.environ["LEAVES"], "w").write("left")


class Missing(Pipe):
    requires = ("no_module_has_this_name",)
'''


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The modules of the harness, which its own programs import by these names. Other tests have modules of such names
    (bench/engines/run.py), which are put back."""
    folder, others = tmp_path_factory.mktemp("fakes"), exchange_modules({})
    (folder / "fakes.py").write_text(FAKES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        for path in (folder, PEERS):
            patch.syspath_prepend(str(path))
        found = type("Peers", (), {name: importlib.import_module(name) for name in MODULES})
        patch.setitem(sys.modules, "adapters.fakes", importlib.import_module("fakes"))
        patch.setattr(found.plan, "WARM", 1 << 10)
        patch.setattr(found.group, "SETUP", 60.0)
        yield found
    exchange_modules(others)


def exchange_modules(others: Dict[str, Any]) -> Dict[str, Any]:
    """Takes the modules with the harness's names out, and puts others in."""
    taken = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in (*MODULES, "fakes")}
    sys.modules.update(others)
    return taken


def step(peers: Any, payload: str, scenario: str, reading: str = "bytes", messages: int = 30) -> Any:
    size = peers.payloads.bytes_of(payload)
    return peers.plan.Step(payload, scenario, reading, messages, size, 60.0, 0.01 if scenario == "idle" else 0.0)


def rows(peers: Any, monkeypatch: pytest.MonkeyPatch, way: str, steps: List[Any], processes: int = 2) -> List[Any]:
    """The rows of a way of the registry, or of the fakes."""
    if way not in peers.adapters.WAYS:
        monkeypatch.setitem(peers.adapters.WAYS, way, f"fakes:{way}")
        whole = peers.plan.spec
        monkeypatch.setattr(peers.plan, "spec", lambda *of: {**whole(*of), "where": f"fakes:{way}"})
    options = peers.run.options_of([])
    found: List[Dict[str, Any]] = peers.run.rows_of(peers.plan.Group(way, processes, steps), options)
    return found


# ---- Whole groups ----------------------------------------------------------------------------------------------------

WAYS = ["ringcast", "ringcast-copy", "ringcast-view", "mp-pipe", "mp-queue", "mp-shared-memory", "zmq-push", "zmq-pub"]
OF_ALL = [
    ("bytes-64", "one-way"), ("bytes-256Ki", "one-way"), ("bytes-64", "call"), ("bytes-4Ki", "stream"),
    ("metadata", "one-way"), ("records-100-columns", "call"), ("scheduler-1", "stream"), ("records-10-array", "cold"),
    ("metadata", "every5"), ("object-1Ki", "slow"), ("metadata", "idle"),
    ("scheduler-256", "one-way beforehand"), ("bytes-64Ki", "one-way in place"), ("records-10", "shared"),
]  # fmt: skip


def steps_of(peers: Any, way: str) -> List[Any]:
    made = []
    found = peers.adapters.find(way)
    for payload, scenario in OF_ALL:
        if scenario == "shared" and not found.again:
            continue
        usual = ["bytes"] if payload.startswith("bytes-") or scenario.endswith("beforehand") else ["objects", "typed"]
        readings = ["in-place"] if scenario.endswith("in place") else usual
        made += [
            step(peers, payload, scenario.partition(" ")[0], reading, 12)
            for reading in readings
            if reading in found.readings
        ]
    return made


@pytest.mark.parametrize("way", WAYS)
def test_every_message_of_a_way_arrives(peers: Any, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way.startswith("zmq"):
        pytest.importorskip("zmq")
    found = rows(peers, monkeypatch, way, steps_of(peers, way), 3)
    assert [row["status"] for row in found] == ["ok"] * len(found)
    assert len(found) >= 8 or way.startswith("ringcast-")
    for row in found:
        assert set(peers.figures.COLUMNS) == set(row)
        if "such calls don't count" in row["note"]:  # on a loaded machine that may be all calls
            continue
        timed = row["read_us" if row["scenario"] in ("shared", "call") else "p50_us"]
        assert (row["messages_per_s"] if row["scenario"] == "stream" else timed) > 0
        assert row["messages"] > 0 and row["rss_mb"] > 1


@pytest.mark.parametrize("way, processes", [("zmq-push", 3), ("zmq-pub", 3), ("mp-queue", 2), ("mp-queue", 3)])
def test_a_message_that_is_read_later_is_not_overwritten(
    peers: Any, monkeypatch: pytest.MonkeyPatch, way: str, processes: int
) -> None:
    if way.startswith("zmq"):
        pytest.importorskip("zmq")
    wished = [("bytes-64", "bytes", 2500), ("bytes-1Mi", "bytes", 30), ("features", "objects", 12)]
    wished += [("records-100", "objects", 700), ("records-10000-columns", "objects", 30)]
    steps = [step(peers, payload, "stream", reading, count) for payload, reading, count in wished]
    found = rows(peers, monkeypatch, way, steps, processes)
    assert [row["status"] for row in found] == ["ok"] * len(steps)
    assert (found[1]["messages"], found[2]["messages"]) == (27, 11)  # the rest warms up


def test_spares_are_few_and_of_all_variants(peers: Any) -> None:
    values = [bytes([k]) * 16 for k in range(4)]
    for size, messages, count in ((64, 20000, 1000), (65536, 3000, 64), (1 << 20, 190, 8), (1 << 20, 5, 8)):
        made = peers.scenarios.spares(values, {"scenario": "stream", "messages": messages, "bytes": size})
        assert made == values * (count // 4) and len({id(value) for value in made}) == count
    assert len(peers.scenarios.spares(values, {"scenario": "slow", "messages": 150, "bytes": 65536})) == 152


@pytest.mark.parametrize("way", ["ringcast", "mp-shared-memory", "lmdb", "iceoryx2"])
def test_messages_that_are_read_again_do_not_hold_the_writer(
    peers: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    found = peers.adapters.find(way)
    for module in found.requires:
        pytest.importorskip(module)
    assert found.again
    wished = [(payload, "shared") for payload in ("records-10", "records-100", "features", "metadata", "records-10")]
    steps = [step(peers, payload, scenario, "objects") for payload, scenario in (*wished, ("metadata", "stream"))]
    assert [row["status"] for row in rows(peers, monkeypatch, way, steps)] == ["ok"] * len(steps)


def test_a_group_at_work_is_watched_by_the_heads_of_its_lines(peers: Any) -> None:
    group = peers.group.Group({"processes": 2}, 0)
    try:
        for rank, text in enumerate(('{"version": "1"}\n{"step": 12, "took": 1}\n{"st', '{"version": "1"}\n')):
            (group.folder / f"member-{rank}.jsonl").write_text(text)
        group.look()
        assert [len(heads) for heads in group.heads] == [2, 1] and peers.group.at_work(group.heads, 0) == 0
        for rank, text in enumerate(('ep": 13, "took": 1}\n', '{"step": 12, "took": 1}\n{"end": true}\n')):
            with open(group.folder / f"member-{rank}.jsonl", "a") as file:
                file.write(text)
        group.look()
        assert [len(heads) for heads in group.heads] == [3, 3] and peers.group.at_work(group.heads, 0) == 13
        assert [line.get("step") for line in group.told()[0]] == [None, 12, 13]
    finally:
        group.end()


def test_a_way_that_loses_a_message_is_found_out(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    [row] = rows(peers, monkeypatch, "Lossy", [step(peers, "bytes-64", "stream")])
    assert "was to come, and message" in row["status"] and row["messages_per_s"] is None


def test_a_way_that_says_that_it_loses_messages_has_them_counted(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [step(peers, "bytes-64", "stream"), step(peers, "bytes-64", "one-way", messages=10)]
    stream, one_way = rows(peers, monkeypatch, "LossyAndSaysSo", steps)
    assert stream["status"] == "ok" and stream["lossless"] is False
    assert "of 27 messages were lost" in stream["note"]  # the first 3 warm up
    assert one_way["status"] == "ok" and 5 <= one_way["messages"] < 9  # messages that were written twice don't count


def test_a_repeated_message_is_found_out(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    [row] = rows(peers, monkeypatch, "Repeating", [step(peers, "bytes-64", "stream")])
    assert "was to come, and message" in row["status"]


def test_wrong_contents_are_found_out(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    [row] = rows(peers, monkeypatch, "Damaging", [step(peers, "bytes-64", "one-way")])
    assert "other contents than were written" in row["status"]


@pytest.mark.parametrize(
    "way, reason",
    [("Crashing", "signal SIGABRT"), ("Raising", "256 is too much"), ("Hanging", "no end after 3 s")],
)
def test_a_step_that_fails_is_a_reason_and_the_rest_goes_on(
    peers: Any, monkeypatch: pytest.MonkeyPatch, way: str, reason: str
) -> None:
    sizes = ("bytes-64", "bytes-256", "bytes-1Ki")
    hangs = "bytes-256" if way == "Hanging" else None
    monkeypatch.setattr(peers.group, "limit_of", lambda step, _: 3.0 if step["payload"] == hangs else 120.0)
    found = rows(peers, monkeypatch, way, [step(peers, size, "one-way", messages=5) for size in sizes])
    assert [row["status"] for row in found][::2] == ["ok", "ok"]
    assert reason in found[1]["status"]


def test_a_way_that_is_missing_or_can_not_connect_is_one_row(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [step(peers, size, "one-way") for size in ("bytes-64", "bytes-256")]
    [row] = rows(peers, monkeypatch, "Missing", steps)
    assert row["status"].startswith("needs no_module_has_this_name, which can't be imported")
    assert row["scenario"] == row["payload"] == "all"
    whole = peers.plan.spec
    monkeypatch.setattr(peers.plan, "spec", lambda *of: {**whole(*of), "limit": 1.0})
    [row] = rows(peers, monkeypatch, "Alone", steps)
    assert row["status"].startswith("not connected after 1 s")


def test_run_writes_the_results(peers: Any, tmp_path: pathlib.Path) -> None:
    native = tmp_path / "native"
    native.write_text('#!/bin/sh\necho \'{"peer": "c-pipe", "status": "ok", "scenario": "one-way", "p50_us": 5}\'\n')
    native.chmod(0o755)
    command = [sys.executable, str(PEERS / "run.py"), "--quick", "--only", "lmdb", "--only", "c-pipe"]
    done = subprocess.run([*command, "--native", str(native), "--out", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "peers: 1/3  lmdb, 2 processes" in done.stderr
    result = json.loads((tmp_path / "results.json").read_text())
    assert result["meta"]["quick"] and result["meta"]["whole"] and result["meta"]["cpus"] >= 1
    assert {row["peer"] for row in result["rows"]} == {"lmdb", "c-pipe"}
    with open(tmp_path / "results.csv") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(result["rows"]) and set(peers.figures.COLUMNS) <= set(table[0])


def test_a_run_of_single_ways_does_not_overwrite_the_results(peers: Any) -> None:
    peers_folder = peers.run.ROOT / "build" / "peers"
    assert peers.run.options_of([]).out == peers_folder
    assert peers.run.options_of(["--only", "mp-pipe"]).out == peers_folder / "only"
    assert peers.run.options_of(["--only", "mp-pipe", "--out", "here"]).out == pathlib.Path("here")


def test_the_plan_of_the_c_ways_is_run_in_every_round_or_a_row_says_why_not(peers: Any, tmp_path: pathlib.Path) -> None:
    native = tmp_path / "native"
    options = peers.run.options_of(["--native", str(native), "--rounds", "3"])
    [missing] = [work() for what, work in peers.run.jobs(options) if what == "native ways"]
    assert missing[0]["status"].startswith(f"there is no {native}") and missing[0]["language"] == "c"
    native.write_text('#!/bin/sh\necho \'{"peer": "c-pipe", "status": "ok"}\'; echo Segmentation; echo 5\n')
    native.chmod(0o755)
    found = [work() for what, work in peers.run.jobs(options) if what == "native ways"]
    assert [[row["peer"] for row in of] for of in found] == [["c-pipe", "native --plan"]] * 3
    row, why = peers.figures.merge([row for of in found for row in of])
    assert row["rounds"] == 3
    assert why["note"] == "2 of the printed lines can't be read, the first: Segmentation" and why["status"] != "ok"


def test_what_a_group_leaves_is_removed_and_counted(
    peers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(peers.leftovers, "PLACES", {str(tmp_path): ("*.zenoh",)})  # other runs leave files elsewhere
    monkeypatch.setenv("LEAVES", str(tmp_path / "left.zenoh"))
    [row] = rows(peers, monkeypatch, "Leaving", [step(peers, "bytes-64", "one-way")])
    assert row["status"] == "ok" and "left 1 file, " in row["note"]
    for name in ("old.zenoh", "new.zenoh", "open.zenoh", "mapped.zenoh", "other"):
        (tmp_path / name).write_bytes(bytes(4096))
    before = {tmp_path / "old.zenoh"}
    with open(tmp_path / "mapped.zenoh", "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    with open(tmp_path / "open.zenoh"), mapped:
        assert peers.leftovers.remove(before) == (1, 4096)
    assert {path.name for path in tmp_path.iterdir()} == {"old.zenoh", "open.zenoh", "mapped.zenoh", "other"}


# ---- Payloads --------------------------------------------------------------------------------------------------------


def test_payloads_bear_their_numbers_and_tell_values_apart(peers: Any) -> None:
    of = peers.payloads
    for name in ("bytes-64", "records-10", *of.TABLES[:2], "metadata", "scheduler-1", "object-256", "features"):
        payload = of.find(name)
        for found in (payload, of.beforehand(payload)):
            one, other = found.make(0), found.make(1)
            assert not of.same(one, other), name
            found.stamp(one, 1 << 21)
            assert found.number(one) == 1 << 21
            again = found.make(0)
            assert not of.same(one, again)
            found.stamp(again, 1 << 21)
            assert of.same(one, again)


def test_objects_have_the_sizes_of_their_names(peers: Any) -> None:
    for name in (*peers.payloads.BYTES, *peers.payloads.OBJECTS):
        assert peers.payloads.bytes_of(name) == peers.payloads.size_of(name.partition("-")[2])


# ---- Figures ---------------------------------------------------------------------------------------------------------


def member(rank: int, **times: Any) -> Dict[str, Any]:
    return {"step": 1, "took": 2_000_000_000, "rss": 10.0 + rank, **times}


def test_figures_are_those_of_the_times(peers: Any) -> None:
    count = 1000
    starts = [1_000_000 * n for n in range(count)]
    ends = [[start + 1000 * (n + 1) for n, start in enumerate(starts)], [start + 1 for start in starts]]
    ends[1][500] = 0  # lost, or written twice
    writer = member(0, starts=starts, spent=[3000] * count)
    readers = [member(rank, ends=of, spent=[2000] * count, held=0, lost=0) for rank, of in enumerate(ends, 1)]
    call, one = (
        peers.figures.of_step(step(peers, "bytes-64", scenario)._asdict(), [writer, *readers], 3)
        for scenario in ("call", "one-way")
    )
    times = [n + 1 for n in range(20, count) if n != 500]  # the first 20 warm up
    assert one["p50_us"] == times[len(times) // 2] and one["p99_us"] == times[int(0.99 * len(times))]
    assert one["mean_us"] == pytest.approx(sum(times) / len(times), abs=0.001)
    assert (one["messages"], one["rss_mb"]) == (979, 12)
    assert (call["messages"], call["write_us"], call["read_us"]) == (979, 3, 2)
    assert "p50_us" not in call  # in which a reader waits before the call
    assert one["seconds"] == 2
    assert "cpu_writer_s" not in one


def test_a_stream_is_counted_to_the_last_readers_end(peers: Any) -> None:
    writer = member(0, start=1_000_000_000, cpu=0.5)
    readers = [member(1, end=2_000_000_000, count=30, lost=0, cpu=0.25, ends=[])]
    readers.append(member(2, end=4_000_000_000, count=30, lost=0, cpu=0.5, ends=[]))
    one = peers.figures.of_step(step(peers, "bytes-4Ki", "stream")._asdict(), [writer, *readers], 3)
    assert one["messages_per_s"] == 10 and one["bytes_per_s"] == 40960
    assert one["cpu_writer_s"] == 0.5 and one["cpu_reader_s"] == 0.75


def row(peers: Any, **known: Any) -> Dict[str, Any]:
    usual = dict(peer="a", payload="bytes-64", scenario="one-way", processes=2, reading="bytes", status="ok", note="")
    made: Dict[str, Any] = peers.figures.blank(**{**usual, **known})
    return made


def test_rounds_are_merged_by_their_medians(peers: Any) -> None:
    rounds = [row(peers, p50_us=value, messages=10) for value in (4.0, 1.0, 2.0)]
    failed = row(peers, status="no end after 5 s")
    one, other = peers.figures.merge([*rounds, failed, row(peers, peer="b", status="it broke")])
    assert (one["p50_us"], one["rounds"], one["messages"], one["spread"]) == (2.0, 3, 30, 4.0)
    assert one["note"] == "1 of 4 rounds failed: no end after 5 s"
    assert other["status"] == "it broke" and other["p50_us"] is None


def test_one_round_has_no_spread_and_held_calls_leave_the_warm_up_out(peers: Any) -> None:
    [one] = peers.figures.merge([row(peers, p50_us=4.0, messages=10)])
    assert one["spread"] is None
    assert peers.figures.counted([9] * 4 + [2] * 36, [[1] * 39 + [0]]) == [2] * 35
    assert peers.figures.counted([9] * 4 + [2] * 36) == [2] * 36


def test_compare_names_what_changed(peers: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = [
        row(peers, p50_us=10.0, spread=1.05),
        row(peers, peer="noisy", p50_us=10.0, spread=3.0),
        row(peers, peer="gone", p50_us=1.0),
        row(peers, peer="broken", p50_us=1.0),
        row(peers, peer="stream", messages_per_s=100.0),
    ]
    new = [
        row(peers, p50_us=5.0, spread=1.05),
        row(peers, peer="noisy", p50_us=20.0),
        row(peers, peer="broken", status="it broke"),
        row(peers, peer="stream", messages_per_s=50.0),
    ]
    paths = []
    for name, found in (("old", old), ("new", new)):
        paths.append(str(tmp_path / name))
        (tmp_path / name).write_text(json.dumps({"meta": {"cpu": name, "cpus": 2}, "rows": found}))
    assert peers.compare.main(paths) == 0
    text = capsys.readouterr().out
    assert "2.00 x faster" in text and "2.00 x slower" in text and "noisy" not in text
    assert "gone bytes-64 one-way 2 processes bytes: was 'ok', is 'not there'" in text
    assert "was 'ok', is 'it broke'" in text and "The CPUs differ" in text
    peers.compare.main(["--all", *paths])
    assert "noisy" in capsys.readouterr().out


# ---- The plan --------------------------------------------------------------------------------------------------------


def test_the_plan_has_every_way_of_the_registry(peers: Any) -> None:
    for quick in (True, False):
        made = peers.plan.groups(peers.plan.names([]), quick)
        assert {group.way for group in made} == set(peers.adapters.WAYS)
        first, second = (peers.plan.in_order(made, turn) for turn in (0, 1))
        assert len(first) == len(made) and [group.way for group in second] != [group.way for group in first]


def test_the_plan_has_the_cells_on_which_the_claims_are_judged(peers: Any) -> None:
    made = peers.plan.groups(peers.plan.names([]), False)
    steps = {(group.way, group.processes, step.scenario, step.payload) for group in made for step in group.steps}
    assert ("ringcast", 2, "call", "records-10000-array") in steps
    for processes in (4, 8):
        of = [{key[2:] for key in steps if key[:2] == (way, processes)} for way in ("mpi4py-bcast", "mpi4py-send")]
        assert of[0] and of[0] == of[1]


def test_an_engines_classes_are_imported_only_where_a_step_needs_them(peers: Any) -> None:
    made = peers.plan.groups(peers.plan.names([]), True)
    usable = {group.way for group in made if group.steps}
    engine = {group.way for group in made for step in group.steps if step.payload.startswith("scheduler-")}
    assert engine == usable & set(peers.plan.QUICK_ENGINE)
    assert {"metadata", "records-1000"} <= {step.payload for group in made for step in group.steps}
    code = "import payloads, sys; [payloads.find(name, sys.argv[1]).make(0) for name in sys.argv[2:]]; print(found)"
    code = code.replace("found", "[name for name in sys.modules if name.partition('.')[0] in ('vllm', 'torch')]")
    command = [sys.executable, "-c", code, "a-folder", "bytes-64", "metadata", "features", "records-10-array"]
    done = subprocess.run(command, cwd=PEERS, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
