# SPDX-License-Identifier: Apache-2.0
"""What `make engines` says of its runs, and its scripts with a stand-in engine; the engines themselves are too large to
run here."""

import dataclasses
import functools
import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "engines"))

import report
import run
import session


def rows(*found):
    """(way, round, fields that differ from those of a good row)."""
    good = {"engine": "vllm", "case": "1 request", "p50_ms": 10.0, "token_hash": "a", "ok": True}
    return [{**good, "way": way, "round": number, **other} for way, number, other in found]


PAIR = [("own", 0, {}), ("ringcast", 0, {})]


@pytest.mark.parametrize(
    "others, good",
    [
        ([], True),
        ([("own", 1, {"token_hash": "b"})], False),
        ([("ringcast", 1, {"token_hash": "b"})], False),
        ([("ringcast", 1, {"ok": False})], False),
    ],
)
def test_rows_are_ok_with_the_same_tokens_everywhere(others, good):
    found = run.medians(rows(*PAIR, *others))
    assert all(row["ok"] for row in found) is good


def test_a_case_that_ran_one_way_alone_is_not_compared():
    assert [row["ok"] for row in run.medians(rows(("own", 0, {})))] == [True]


@pytest.mark.parametrize(
    "times, good",
    [
        ([(10.0, 10.1), (10.0, 10.1)], True),
        ([(10.0, 10.5), (10.0, 10.5)], False),
        ([(10.0, 10.5), (11.0, 11.5)], True),  # the rounds of its own way differ by more
    ],
)
def test_a_step_is_held_against_the_noise_of_the_engines_own_rounds(times, good):
    pairs = [
        (way, number, {"p50_ms": pair[side]})
        for number, pair in enumerate(times)
        for side, way in enumerate(run.registry.WAYS)
    ]
    rounds = rows(*pairs)
    (line,) = report.verdicts({"rows": run.medians(rounds), "rounds": rounds})
    assert line.endswith("yes" if good else "NO")


def test_all_rows_are_told():
    found = run.medians(rows(*PAIR))
    assert report.text(found).count("1 request") == 2
    assert "| 1 request | 10 / 10 |" in report.of_engine(found, "vllm")


# ---- The scripts, with a stand-in engine -----------------------------------------------------------------------------


class EngineDead(Exception):
    pass


class StandIn:
    """One rank, a process that sleeps, and a token for each step. raises: what a step after the rank's death does."""

    errors, error_seconds = [f"{__name__}.EngineDead"], 300

    def __init__(self, raises=None):
        self.raises = raises
        self.rank = subprocess.Popen(["sleep", "600"])

    def workers(self):
        return [self.rank.pid] * run.registry.RANKS

    def generate(self, prompts, tokens, each_step=None):
        began = time.perf_counter()
        arrivals = []
        for step in range(1, tokens + 1):
            arrivals.append(time.perf_counter())
            if each_step:
                each_step(step)
            if self.raises and step == session.AFTER:
                raise self.raises
        return run.registry.Generation([[1] * tokens for _ in prompts], began, arrivals)

    def close(self):
        self.rank.kill()
        self.rank.wait()


@pytest.fixture
def stand_in():
    made = []

    def make(*arguments):
        made.append(StandIn(*arguments))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.mark.parametrize(
    "raised, seconds, good",
    [
        (EngineDead("rank 1"), 300, True),
        (KeyError("a fault of the script's"), 300, False),
        (EngineDead("too late"), -1, False),
        (None, 300, False),
    ],
)
def test_a_killed_rank_must_raise_an_error_of_the_engines_in_time(stand_in, raised, seconds, good):
    engine = stand_in(raised)
    engine.error_seconds = seconds
    assert session.killed(engine, 16)["ok"] is good


@pytest.fixture
def stops_at_once(monkeypatch):
    """A signal takes effect after kill(2) returns: here it has by then."""
    kill = os.kill

    def kill_and_wait(pid, number):
        kill(pid, number)
        while number == signal.SIGSTOP and not session.usage.is_stopped(pid):
            pass

    monkeypatch.setattr(session, "STOPPED", 0.01)
    monkeypatch.setattr(session.os, "kill", kill_and_wait)


@pytest.mark.parametrize("sent", [True, False])
def test_a_rank_that_was_not_stopped_while_idle_is_told(stand_in, stops_at_once, monkeypatch, sent):
    engine = stand_in()
    if not sent:
        monkeypatch.setattr(session.os, "kill", lambda *_: None)
    found = session.stopped_while_idle(engine, 2)
    assert found["ok"] == sent and ("the rank was not stopped" in found["note"]) != sent
    assert not session.usage.is_stopped(engine.rank.pid)


def test_a_token_that_is_late_after_a_stop_while_idle_is_no_success(stand_in, stops_at_once, monkeypatch):
    engine, late = stand_in(), run.registry.Generation([[1]], 0.0, [session.STALL + 1])
    monkeypatch.setattr(engine, "generate", lambda *_: late)
    found = session.stopped_while_idle(engine, 1)
    assert not found["ok"] and found["note"].endswith("a token was held up")


def test_tokens_that_differ_after_a_stop_while_idle_are_no_success(stand_in, monkeypatch):
    monkeypatch.setattr(session, "STOPPED", 0.01)
    engine, calls = stand_in(), itertools.count()
    monkeypatch.setattr(engine, "generate", lambda *_: run.registry.Generation([[next(calls)]], 0.0, [0.1]))
    assert not session.stopped_while_idle(engine, 2)["ok"]


@pytest.mark.parametrize(
    "used, found",
    [
        ([(100, 5), (100, 6), (100, 5), (100, 5)], []),  # one that was open for a moment
        ([(100, 5), (100, 9), (100, 5), (100, 6)], []),
        ([(number * (1 << 20), 5) for number in range(100)], ["memory grew"]),
        ([(100, 5 + number // 3) for number in range(12)], ["descriptors grew"]),
        ([(100, 5), (100, 5), (100, 6), (100, 7)], ["descriptors grew"]),
        ([(100, 5), (100, 5), (100 + (64 << 20), 5), (100 + (65 << 20), 5)], ["memory grew"]),
        ([(100, 5)], ["too short to say what grows"]),
    ],
)
def test_a_soak_says_what_grew(used, found):
    assert session.growth(used) == found


def test_a_soak_watches_the_first_and_the_last_step(stand_in):
    late = run.registry.Generation([[1]], 0.0, [20.0, 20.1, 20.2])
    assert session.longest(late) == 20.0


class Soaked:
    """What a soak needs of a session: a clock that only sleep() moves, stops of milliseconds, and what is used."""

    def __init__(self, monkeypatch, engine):
        self.now, self.used, self.engine = 0.0, [], engine
        self.generations = []
        clock = types.SimpleNamespace(monotonic=lambda: self.now, perf_counter=time.perf_counter, sleep=self.sleep)
        monkeypatch.setattr(session, "time", clock)
        monkeypatch.setattr(session, "STOPS", (0.001, 0.002))
        monkeypatch.setattr(session.usage, "memory", lambda root: self.memory())
        monkeypatch.setattr(session.usage, "descriptors", lambda root: 5)
        monkeypatch.setattr(engine, "generate", functools.partial(self.generate, engine.generate))

    def memory(self):
        return 100 << 20

    def sleep(self, seconds):
        self.now += seconds

    def generate(self, original, *args):
        self.generations.append(original(*args))
        return self.change(self.generations[-1])

    def change(self, generation):
        return generation

    def run(self):
        return session.soak(self.engine, 2000)


def test_a_soak_stops_ranks_and_lets_them_go_on(stand_in, monkeypatch):
    soaked = Soaked(monkeypatch, stand_in())
    found = soaked.run()
    assert found["ok"] and found["p50_ms"] >= 0 and soaked.now >= 2000
    times, stops = re.match(r"(\d+) times, a rank stopped in (\d+);", found["note"]).groups()
    assert int(times) == len(soaked.generations) - 1 and 0 < int(stops) < int(times)
    assert not session.usage.is_stopped(soaked.engine.rank.pid)


def late(generation):
    *before, last = generation.arrivals
    return dataclasses.replace(generation, arrivals=[*before, last + session.STALL + 1])


def other(generation):
    return dataclasses.replace(generation, tokens=[[2] * len(each) for each in generation.tokens])


@pytest.mark.parametrize(
    "wrong, text",
    [(late, r"\d+\.\d s without an output after \d+ s"), (other, r"tokens differ after \d+ s"), (None, "memory grew")],
)
def test_what_goes_wrong_in_a_soak_once_is_no_success(stand_in, monkeypatch, wrong, text):
    soaked = Soaked(monkeypatch, stand_in())
    if wrong is None:
        soaked.memory = lambda: int(soaked.now) << 20
    else:
        soaked.change = lambda made: wrong(made) if len(soaked.generations) == 9 else made
    found = soaked.run()
    assert not found["ok"] and re.search(f"; {text}$", found["note"])


def test_a_generation_with_too_few_tokens_ends_a_session(stand_in):
    engine = stand_in()
    engine.generate = lambda prompts, tokens, each_step: run.registry.Generation([[1]] * len(prompts), 0.0, [0.1])
    with pytest.raises(RuntimeError, match=r"\[1, 1\] tokens, not 4 of each of 2 requests"):
        session.generate(engine, 2, 4)


@pytest.mark.parametrize("stall, good", [(0, True), (session.STALL + 1, False)])
def test_a_step_after_a_stop_that_comes_too_late_is_no_success(stand_in, monkeypatch, stall, good):
    monkeypatch.setattr(session, "STOPPED", 0.001)
    engine = stand_in()
    times = [0.001 * number for number in range(8)] + [0.01 + stall + number for number in range(8)]
    stop = engine.generate

    def generate(prompts, tokens, each_step):
        return dataclasses.replace(stop(prompts, tokens, each_step), arrivals=times)

    monkeypatch.setattr(engine, "generate", generate)
    assert session.stopped(engine, 16)["ok"] is good


@pytest.mark.parametrize("way, ringed, good", [("ringcast", 1, True), ("ringcast", 0, False), ("own", 1, False)])
def test_rings_are_where_ringcast_is_in_place_alone(monkeypatch, way, ringed, good):
    monkeypatch.setattr(session.usage, "has_ring", lambda pid: bool(ringed))
    told = []
    session.started(lambda case, **fields: told.append((case, fields["ok"])), 0.0, [1, 2], way)
    assert told == [("start", good)]


@pytest.mark.parametrize("script", ["serve_vllm.py", "transport_vllm.py", "session.py"])
def test_each_script_looks_whether_ringcast_is_in_place(script):
    text = (pathlib.Path(session.__file__).parent / script).read_text()
    assert re.search(r"\bstarted\(tell, began, .*workers.*, arguments\.way\)", text)


# What a script of run.py does here: maps a segment, tells it in a row, and leaves it.
LEAVES = """
import mmap, os, pathlib, sys
sys.path.insert(0, {here!r})
sys.argv[0] = "session.py"
import session
arguments, tell = session.begin("")
path = pathlib.Path("/dev/shm", {prefix!r} + str(os.getpid()))
path.write_bytes(bytes(4096))
with open(path, "r+b") as file:
    kept = mmap.mmap(file.fileno(), 4096)
tell("start", ok=True)
"""


@pytest.fixture
def runs_here(tmp_path, monkeypatch):
    """run.py starts scripts with this Python, and writes into a folder of the test's: the folder."""
    monkeypatch.setattr(run, "BUILD", tmp_path)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "python", lambda name: sys.executable)
    (tmp_path / "logs").mkdir()
    return tmp_path


@pytest.fixture
def leaving(runs_here, monkeypatch):
    """Runs a script that leaves a segment, as a part of so many runs at a time: the rows."""
    prefix = f"ringcast-test-{os.getpid()}-"
    script = runs_here / "leaves.py"
    script.write_text(LEAVES.format(here=str(pathlib.Path(session.__file__).parent), prefix=prefix))

    def rows_of(copies, way="ringcast", known=""):
        engine = run.registry.engine("vllm")
        monkeypatch.setattr(engine, "SEGMENTS", {"own": known or "-", "ringcast": "-"})
        monkeypatch.setattr(run, "PARTS", {"leaves": run.Part(str(script), copies=copies)})
        return run.rows_of("vllm", way, "leaves", False)

    yield rows_of, prefix
    for path in pathlib.Path("/dev/shm").glob(prefix + "*"):
        path.unlink()


@pytest.mark.parametrize("copies", [1, 2])
def test_a_segment_left_by_each_of_the_runs_is_found(leaving, copies):
    rows_of, prefix = leaving
    ends = [row for row in rows_of(copies) if row["case"].endswith("end")]
    assert len(ends) == copies
    assert all(not row["ok"] and prefix in row["note"] for row in ends)


@pytest.mark.parametrize("way, good", [("own", True), ("ringcast", False)])
def test_what_the_engines_own_way_leaves_is_not_excused_with_ringcast(leaving, way, good):
    rows_of, prefix = leaving
    (end,) = [row for row in rows_of(1, way, prefix + r"\d+") if row["case"].endswith("end")]
    assert end["ok"] is good


def test_segments_of_a_row_are_not_told_again(leaving):
    assert all("segments" not in row for row in leaving[0](1))


# What the session of a part does whose engines live at the same time; the stand-in says in each row which of all the
# processes of its run is stopped. At "dies" it does.
TAKES_TURNS = """
import os, sys
sys.path.insert(0, {here!r})
sys.argv[0] = "session.py"
import session, usage
arguments, tell = session.begin("", cases=["one"])
tell("start", ok=True, pid=os.getpid())
for line in sys.stdin:
    if line.strip() == "dies":
        sys.exit(3)
    others = [int(pid) for pid in open({others!r}).read().split() if int(pid) != os.getpid()]
    tell(line.strip(), ok=True, stopped=[usage.is_stopped(pid) for pid in others])
tell("descriptors", ok=True)
"""


@pytest.fixture
def taking_turns(runs_here, monkeypatch):
    """Runs cases so often, by case, with an engine of each way: [(way, round, row)]."""
    script, others = runs_here / "takes_turns.py", runs_here / "others"
    script.write_text(TAKES_TURNS.format(here=str(pathlib.Path(session.__file__).parent), others=str(others)))

    def rows_of(cases):
        spec = run.Part(str(script), cases=list(cases), rounds=cases, together=True)
        monkeypatch.setattr(run, "PARTS", {"turns": spec})
        found = []
        for entry in run.together("vllm", "turns", None, False):
            found.append(entry)
            if "pid" in entry[2]:
                others.write_text(f"{others.read_text() if others.exists() else ''} {entry[2]['pid']}")
        return found

    return rows_of


def test_the_load_is_taken_before_the_runs(runs_here, monkeypatch):
    done = []
    monkeypatch.setattr(sys, "argv", ["run.py", "--engine", "vllm"])
    monkeypatch.setattr(run, "RESULTS", runs_here / "results.json")
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    monkeypatch.setattr(report, "machine", lambda: done.append("machine"))
    monkeypatch.setattr(run, "turns", lambda *_: done.append("turns") or rows(*PAIR))
    assert run.main() == 0 and done == ["machine", "turns"]


def test_engines_that_live_at_the_same_time_take_turns(taking_turns):
    found = taking_turns({"one": 2, "two": 1})
    ways = [(way, number, row["case"]) for way, number, row in found if row["case"] in ("one", "two")]
    assert ways == [
        *[("own", 0, "one"), ("ringcast", 0, "one"), ("own", 0, "two"), ("ringcast", 0, "two")],
        *[("ringcast", 1, "one"), ("own", 1, "one")],
    ]
    assert all(row["ok"] for _, _, row in found)
    assert [row["stopped"] for _, _, row in found if "stopped" in row] == [[True]] * 6
    assert [row["case"] for _, _, row in found][-4:] == ["descriptors", "end"] * 2


def test_an_engine_that_dies_in_its_turn_is_told(taking_turns):
    found = [row for _, _, row in taking_turns({"one": 1, "dies": 1})]
    assert [row["ok"] for row in found if row["case"] == "one"] == [True, True]
    assert [row["note"].startswith("did not end, see logs") for row in found if row["case"] == "dies"] == [True, True]
    assert [(row["case"], row["ok"]) for row in found[-2:]] == [("end", False)] * 2


# ---- The end of runs, by a clock of the test's -----------------------------------------------------------------------


class Ending(run.Run):
    """A run whose program ends at one time, and what it has started at another."""

    def __init__(self, clock, ends, goes):
        self.name, self.way, self.mark, self.log = "vllm", "own", goes, "its log"
        self.segments, self.ended, self.gone, self.descriptor = set(), None, None, ends
        self.process = types.SimpleNamespace(poll=lambda: 0 if clock.now >= ends else None)

    def kill(self):
        pass


@pytest.fixture
def clock(monkeypatch):
    made = types.SimpleNamespace(now=0.0)
    made.monotonic = lambda: made.now

    def rest(ends, seconds):
        made.now = min(made.now + seconds, *ends)

    monkeypatch.setattr(run, "time", made)
    monkeypatch.setattr(run, "rest", lambda ends, seconds: rest([*ends, float("inf")], seconds))
    monkeypatch.setattr(run.usage, "marked", lambda goes: [1] if made.now < goes else [])
    monkeypatch.setattr(run.usage, "mapped", lambda pids: set())
    monkeypatch.setattr(run.usage, "name", lambda pid: "one that stays")
    return made


@pytest.mark.parametrize("order", [1, -1])
def test_each_of_the_runs_at_a_time_has_its_own_time_to_its_end(clock, order):
    runs = [Ending(clock, 10.02, 13), Ending(clock, 21.03, 21.9)][::order]
    run.wait_for(runs)
    ends = [one.end() for one in runs][::order]
    assert [round(end["p50_ms"] / 1000) for end in ends] == [3, 1] and all(end["ok"] for end in ends)


def test_a_process_that_stays_is_waited_for_and_named(clock):
    runs = [Ending(clock, 1, 100), Ending(clock, 2, 2)]
    run.wait_for(runs)
    end = runs[0].end()
    assert not end["ok"] and "left processes: one that stays" in end["note"]
    assert round(end["p50_ms"] / 1000) == run.ENDS == round(clock.now - 1)


def test_a_run_that_does_not_end_is_no_success(clock):
    runs = [Ending(clock, 1e9, 1e9)]
    run.wait_for(runs)
    assert "still runs" in runs[0].end()["note"] and clock.now >= run.SECONDS
