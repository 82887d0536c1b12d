# SPDX-License-Identifier: Apache-2.0
"""The pipeline has equal results in all modes, and ends with an error when a stage fails, a result differs, a worker
dies or hangs."""

import copy
import csv
import importlib.util
import json
import math
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from peers import WATCHDOG

pytestmark = pytest.mark.alike

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SMALL = ["--subgraphs", "4", "--edges", "600", "--width", "8", "--hidden", "16"]
MODES = ["sequential", "threads", "asyncio", "processes"]


@pytest.fixture(scope="module")
def parts():
    """The modules of the example."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        names = ("graph", "modes", "figures", "measure", "report")
        yield {name: importlib.import_module(f"pipeline_{name}") for name in names}
    finally:
        sys.path.remove(str(EXAMPLES))


# The processes of a run import the program that they were started by, so each of them has the change.
CHANGED = """
import multiprocessing, os, sys, time
sys.path.insert(0, {folder!r})
import pipeline_measure
import pipeline_graph
import pipeline_modes
SHORT = {{"rounds": (1,) * 7, "stage_ms": {{gil: [1.0] * 7 for gil in ("hold", "release")}},
         "gil_held": {{gil: [0.0] * 7 for gil in ("hold", "release")}},
         "mapping": {{"loop_ms": 1.0, "vectorised_ms": 0.01, "ratio": 100.0}}}}
pipeline_measure.measure = lambda settings: SHORT
{changed}
import pipeline_processes
pipeline_processes.GRACE = 60  # seconds: a process may stand still before it says why it ends
import pipeline
if __name__ == "__main__":
    sys.exit(pipeline.main())
"""


def run_pipeline(*arguments):
    return run_program(EXAMPLES / "pipeline.py", *arguments)


def run_changed(folder, changed, *arguments):
    """Runs it with `changed`, Python that each process runs before, and without the first measurements."""
    program = folder / "changed.py"
    program.write_text(CHANGED.format(folder=str(EXAMPLES), changed=changed))
    return run_program(program, *arguments)


def run_program(program, *arguments):
    command = [sys.executable, str(program), *SMALL, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG, check=False)


# ---- Runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of all modes with both kinds of stages: what it printed, and its CSV."""
    path = tmp_path_factory.mktemp("pipeline") / "blocks.csv"
    done = run_pipeline("--format", "json", "--csv", path)
    assert done.returncode == 0, done.stderr
    with open(path, newline="") as file:
        return json.loads(done.stdout), list(csv.DictReader(file))


def test_all_modes_have_equal_results_with_both_kinds_of_stages(whole):
    found, _ = whole
    assert list(found["gil"]) == ["hold", "release"]
    for each in found["gil"].values():
        assert list(each["modes"]) == [*MODES, "bare"]
        assert each["equal"]["pairs"] == 10 and each["equal"]["unequal"] == []


def test_a_run_reports_times_waits_memory_and_communication(whole):
    found, _ = whole
    for each in found["gil"].values():
        assert 1 <= each["theory"]["cores"] <= each["theory"]["devices"] < 3
        for mode, figures in each["modes"].items():
            assert figures["seconds"] > 0 and figures["speedup"] > 0 and figures["efficiency"] > 0
            assert figures["of_bare"] > 0 and list(figures["plan_seconds"]) == ["A", "B"]
            assert list(figures["blocks"]) == ["A1", "A2", "B1", "B2"]
            for block in figures["blocks"].values():
                assert block["execution_ms"] > 0 and block["cpu_ms"] > 0
                assert block["gil_wait_ms"] + block["cpu_wait_ms"] <= block["execution_ms"] + 1e-6
            assert len(figures["processes"]) == {"processes": 7, "bare": 2}.get(mode, 1)
            assert 0 < figures["pss"] <= figures["rss"]
            assert (figures["sent_bytes"] > 0) is (mode == "processes")
    goals = {goal["goal"] for goal in found["goals"]}
    assert len(goals) == 4 and all(goal["found"] > 0 for goal in found["goals"])


@pytest.mark.parametrize(
    "turns, seconds, met, note",
    [
        (5, 2.0, {True, False}, "Of 4 goals 3 are met; medians of 5 turns."),
        (1, 2.0, {None}, "Not judged: there is one turn (--repeat 5 makes five)."),
        (5, 0.02, {None}, "Not judged: the sequential run took 0.02 s, less than 1."),
        (1, 0.02, {None}, "five), and the sequential run took 0.02 s, less than 1."),
    ],
)
def test_goals_are_judged_by_several_turns_of_a_usual_size(parts, whole, turns, seconds, met, note):
    found = copy.deepcopy({**whole[0], "repeat": turns})
    found["mapping"]["ratio"] = 49
    for each in found["gil"].values():
        each["modes"]["sequential"]["seconds"] = seconds
        for mode, speedup, of_bare in ("threads", 1.0, 0.9), ("processes", 2.0, 0.95):
            each["modes"][mode] |= {"speedup": speedup, "of_bare": of_bare}
    found["goals"] = parts["figures"].goals(found)
    assert {goal["met"] for goal in found["goals"]} == met
    (table,) = parts["report"].tables(found)["goals"]
    assert table.notes[0].endswith(note)
    assert {row[-1] for row in table.rows} == ({"yes", "no"} if None not in met else {"-"})
    answer = parts["report"].answer(found)
    assert "reach 95.0 % of the speed-up of processes that share nothing (threads: 90.0 %)" in answer


def test_the_bytes_sent_are_those_of_the_results(whole):
    found, _ = whole
    settings = found["settings"]
    rows = settings["subgraphs"] * settings["nodes"]
    least = rows * (settings["hidden"] + settings["width"]) * 4  # from block to block, and to the driver
    frames = settings["subgraphs"] * 3
    for each in found["gil"].values():
        assert least <= each["modes"]["processes"]["sent_bytes"] <= least + frames * 1024


def test_the_csv_has_a_row_for_each_mode_and_block(whole):
    found, rows = whole
    assert len(rows) == 2 * 5 * 4
    wanted = found["gil"]["hold"]["modes"]["threads"]["blocks"]["A1"]["execution_ms"]
    (row,) = [row for row in rows if (row["gil"], row["mode"], row["block"]) == ("hold", "threads", "A1")]
    assert float(row["execution_ms"]) == pytest.approx(wanted)


def test_text_has_tables_and_a_gantt_chart_and_a_picture_needs_matplotlib(tmp_path):
    there = importlib.util.find_spec("matplotlib") is not None
    path = tmp_path / "gantt.png"
    done = run_changed(tmp_path, "", "--mode", "threads", "--gil", "release", "--bare", "0", "--picture", path)
    assert done.returncode == (0 if there else 1), done.stderr
    assert path.exists() is there
    lines = done.stdout.splitlines()
    wanted = ["A1 CPU", "A1 GPU", "A2 NPU", "B1 CPU", "B2 GPU", "B2 NPU"]  # a line of each, below that of its mode
    start = next(number for number, line in enumerate(lines) if line.startswith("threads, "))
    assert [line[2:8] for line in lines[start + 1 : start + 7]] == wanted
    assert not any("bare processes" in line for line in lines)


def test_without_matplotlib_the_error_says_what_to_install(tmp_path):
    arguments = ["--mode", "sequential", "--gil", "hold", "--bare", "0", "--picture", tmp_path / "gantt.svg"]
    done = run_changed(tmp_path, "sys.modules['matplotlib'] = None", *arguments)
    assert done.returncode == 1 and "matplotlib is not installed" in done.stderr
    assert "Stages that hold the GIL" in done.stdout


@pytest.mark.parametrize("plan", ["a", "b"])
def test_a_worker_without_nodes_and_loading_in_a_loop(tmp_path, plan):
    arguments = ["--edges", "3", "--nodes", "1", "--plans", plan, "--prepare", "runtime", "--mapping", "loop"]
    arguments += ["--mode", "threads,processes", "--gil", "release", "--bare", "0", "--format", "json"]
    done = run_changed(tmp_path, "", *arguments)
    assert done.returncode == 0, done.stderr
    (each,) = json.loads(done.stdout)["gil"].values()
    assert list(each["modes"]) == ["sequential", "threads", "processes"]
    assert each["equal"]["pairs"] == 3
    first = f"{plan.upper()}1"
    assert all(figures["blocks"][first]["load_ms"] > 0 for figures in each["modes"].values())


def test_markdown_and_the_steps_of_the_story(tmp_path):
    done = run_changed(tmp_path, "", "--story", "--gil", "hold", "--format", "markdown", "--repeat", "1")
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 6 and "published elsewhere" in rows[0][-1]
    assert "84.8 %" in rows[3][-1] and rows[2][2] == "1.00"
    assert "hold: 0 of 15 pairs of results differ." in done.stdout


@pytest.mark.parametrize(
    "bad",
    [
        ["--subgraphs", "1"],
        ["--edges", "0"],
        ["--nodes", "0"],
        ["--repeat", "0"],
        ["--deadline", "0"],
        ["--mode", "fibres"],
        ["--picture", "gantt.pdf"],
    ],
)
def test_bad_options_are_named(bad, parts, capsys):
    import pipeline

    with pytest.raises(SystemExit) as ended:
        pipeline.parse(bad)
    assert ended.value.code == 2 and bad[0] in capsys.readouterr().err


def test_a_page_is_filled_in_its_places_or_left_as_it_was(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured: story -->\nold\n<!-- end -->\nafter\n")
    arguments = ["--gil", "release", "--bare", "0", "--page", page]
    done = run_changed(tmp_path, "", "--mode", "sequential", *arguments)
    assert (
        done.returncode == 1 and "is as before: the page has no place between '<!-- measured: run -->'" in done.stderr
    )
    assert "\nold\n" in page.read_text()


def test_each_section_of_a_run_has_its_place_on_the_page(parts, whole):
    page = (EXAMPLES.parent / "docs" / "pipeline.md").read_text(encoding="utf-8")
    names = [*parts["report"].tables(whole[0]), "run", "answer", "gantt", "story"]
    filled = parts["report"].fill(page, {name: f"section {name}" for name in names})
    assert all(f"<!-- measured: {name} -->\nsection {name}\n<!-- end -->" in filled for name in names)
    assert filled.count("<!-- measured:") == page.count("<!-- measured:") == len(names)


# ---- What goes wrong -------------------------------------------------------------------------------------------------

BREAK = """
run, compute, started = pipeline_graph.Releasing.run, pipeline_modes.compute, []
def broken(self, stage):
    if started and stage == {stage} and multiprocessing.current_process().name == {process!r}:
        {action}
    run(self, stage)
def computing(*arguments):
    started.append(True)
    return compute(*arguments)
pipeline_graph.Releasing.run, pipeline_modes.compute = broken, computing
"""


def run_broken(folder, mode, process, stage, action, *arguments):
    """A run of a mode in which a stage, in the process of that name, does something else first; not in its warm-up."""
    changed = BREAK.format(process=process, stage=stage, action=action)
    return run_changed(folder, changed, "--mode", mode, "--gil", "release", "--bare", "0", *arguments)


@pytest.mark.parametrize(
    ("mode", "process", "stage", "worker"),
    [
        ("threads", "threads", 3, "A1 [CG]PU"),  # others wait for its result
        ("asyncio", "asyncio", 3, "A1 [CG]PU"),
        ("processes", "A1 GPU", 3, "A1 GPU"),  # others lose its ring, and may say so first
    ],
)
def test_a_broken_stage_fails_the_run_and_is_named(tmp_path, mode, process, stage, worker):
    done = run_broken(tmp_path, mode, process, stage, "raise LookupError('no such node')")
    assert done.returncode == 1 and done.stdout == ""
    assert re.search(f"{mode}: {worker}, subgraph 0, stage {stage}: LookupError: no such node", done.stderr)


def test_a_result_that_differs_fails_the_run_and_names_the_pair(tmp_path):
    done = run_broken(tmp_path, "threads", "threads", 6, "self.nodes.current[-1, 0] += 0.5")
    assert done.returncode == 1
    assert "the results of sequential and threads differ by more than 0.0001" in done.stderr


@pytest.mark.parametrize(("victim", "stage"), [("B1 CPU", 2), ("A2 NPU", 6)])
def test_a_killed_worker_is_named(tmp_path, victim, stage):
    done = run_broken(tmp_path, "processes", victim, stage, "os.kill(os.getpid(), 9)")
    assert done.returncode == 1 and done.stdout == ""
    assert f"processes: {victim}: the process (pid " in done.stderr and "was killed by signal 9" in done.stderr


def test_the_deadline_ends_the_run_and_leaves_no_process(tmp_path):
    pids = tmp_path / "pids"
    pids.mkdir()
    changed = f"open(os.path.join({str(pids)!r}, str(os.getpid())), 'w').close()\n"
    late = tmp_path / "late"
    changed += BREAK.format(process="A2 NPU", stage=6, action=f"open({str(late)!r}, 'w').close(), time.sleep(1000)")
    arguments = ["--mode", "processes", "--gil", "release", "--bare", "0", "--deadline"]
    for deadline in (1.5, 6, 24, 60):  # on a busy machine the workers may not be at work by then
        done = run_changed(tmp_path, changed, *arguments, deadline)
        assert done.returncode == 1 and "processes: no answer in time from " in done.stderr
        if late.exists():
            break
    assert re.search("processes: no answer in time from .*A2 NPU", done.stderr)
    until = time.monotonic() + WATCHDOG
    while alive := [path.name for path in pids.iterdir() if is_alive(path.name)]:
        assert time.monotonic() < until, f"{alive} are left"
        time.sleep(0.01)


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# ---- Parts -----------------------------------------------------------------------------------------------------------


def test_both_mappings_give_the_same_local_edges(parts):
    graph = parts["graph"]
    settings = graph.Settings(subgraphs=3, edges=500, nodes=40, width=4)
    dataset = graph.make_dataset(settings, [1])
    plan = graph.make_plans(settings)[0]
    loop, vectorised = (
        graph.load(dataset, settings._replace(mapping=name), plan, 1) for name in ("loop", "vectorised")
    )
    for key in loop:
        np.testing.assert_array_equal(loop[key], vectorised[key])
    part = dataset["parts"][1]
    np.testing.assert_array_equal(part["nodes"][loop["edges"]], part["edges"])
    first, middle, last = loop["starts"]
    assert (first, last) == (0, 500)
    assert loop["edges"][1, middle - 1] < 20 <= loop["edges"][1, middle]


def test_the_aggregate_is_the_mean_of_the_messages_to_each_node(parts):
    graph = parts["graph"]
    kernel = graph.Releasing(graph.Settings(edges=6, nodes=4, width=3, hidden=5))
    edges = np.array([[0, 1, 2, 3, 0, 1], [1, 1, 1, 3, 3, 5]])
    kernel.begin(np.ones((4, 3), np.float32), edges, 1, 6)
    kernel.sums = np.zeros((5, 3), np.float32)
    kernel.messages.current = np.arange(18, dtype=np.float32).reshape(6, 3)
    kernel.aggregate(0)
    np.testing.assert_allclose(kernel.sums, [[3, 4, 5], [0, 0, 0], [10.5, 11.5, 12.5], [0, 0, 0], [15, 16, 17]])


def test_joined_copies_only_what_lies_in_several_parts(parts):
    rows = np.arange(10).reshape(10, 1)
    pieces = [(0, rows[:4]), (4, rows[4:])]
    joined = parts["graph"].joined
    assert joined(pieces, 0, 10).ravel().tolist() == list(range(10))
    inside = joined(pieces, 5, 8)
    assert inside.ravel().tolist() == [5, 6, 7] and np.shares_memory(inside, rows)
    assert joined(pieces, 10, 10).shape == (0, 1)


def spans_of(parts, worker, *fields):
    span = parts["modes"].Span
    return [span(worker, worker.split()[0], *what) for what in fields]


def test_what_a_block_waits_for_is_divided_into_cpu_and_gil(parts):
    spans = spans_of(parts, "A1 CPU", ("block", 0, 0, 1.0, 2.0, 0.4, 0.1), ("wait", 0, 0, 0.5, 1.0, 0.0, 0.0))
    found = parts["figures"].of_block(spans, 1)
    wanted = {"execution_ms": 1000, "input_wait_ms": 500, "cpu_ms": 400, "cpu_wait_ms": 100, "gil_wait_ms": 500}
    assert {key: round(found[key]) for key in wanted} == wanted


def test_theory_is_the_pipeline_with_a_device_for_each_worker(parts):
    settings = parts["graph"].Settings(subgraphs=4, plans="a")
    stages = [("stage", number, stage, 0.0, 1.0, 1.0, 0.0) for number in range(2) for stage in range(1, 8)]
    spans = [span for what in stages for span in spans_of(parts, "A1" if what[2] <= 5 else "A2", what)]
    found = parts["figures"].theory(spans, settings, cores=2)
    assert found["devices"] == pytest.approx(14 / 7)  # 2.5, then 2.5 beside 2, then 2
    assert found["cores"] == pytest.approx(14 / 7)
    assert parts["figures"].theory(spans, settings, cores=1)["cores"] == pytest.approx(1)


def test_in_theory_a_plan_begins_when_the_first_block_of_the_plan_before_has_ended(parts):
    settings = parts["graph"].Settings(subgraphs=4)
    spans = [
        span
        for block in ("A1", "B1")
        for stage in range(1, 8)
        for span in spans_of(parts, block, *[("stage", 0, stage, 0.0, 1.0, 1.0, 0.0)] * 2)
    ]
    found = parts["figures"].theory(spans, settings, cores=4)
    assert found["devices"] == pytest.approx(28 / 15.1)  # plan A: 5 and 7; plan B begins at 5: 13 and 15.1


def test_a_gantt_chart_shows_who_works_waits_and_hands_over_when(parts):
    spans = spans_of(
        parts,
        "A1 CPU",
        ("wait", 3, 0, 10.0, 10.25, 0.0, 0.0),
        ("block", 3, 0, 10.25, 10.75, 0.5, 0.0),
        ("send", 3, 0, 10.75, 11.0, 0.1, 0.0),
    )
    outcome = parts["modes"].Outcome(1.0, 0.0, 10.0, {}, spans, [], 0, 0.0)
    columns = parts["report"].COLUMNS
    (line,) = parts["report"].gantt(outcome, ["A1 CPU"]).splitlines()
    assert line.split()[-1] == "." * (columns // 4) + "3" * (columns // 2) + "~" * (columns // 4)


@pytest.mark.parametrize("wrong", [1.0 + 2e-4, math.nan])
def test_a_difference_above_the_limit_is_found(parts, wrong):
    outcome = parts["modes"].Outcome
    one, other = (outcome(1.0, 0.0, 0.0, {0: np.ones((2, 2))}, [], [], 0, 0.0) for _ in range(2))
    (pair,) = parts["figures"].compare({"threads": one, "asyncio": other})
    assert pair == {"pair": ["threads", "asyncio"], "difference": 0.0, "equal": True}
    other.results[0][1, 1] = wrong
    (pair,) = parts["figures"].compare({"threads": one, "asyncio": other})
    assert pair["difference"] > 1e-4 and not pair["equal"]
    (pair,) = parts["figures"].compare({"threads": one, "asyncio": other._replace(results={})})
    assert not pair["equal"]


def test_a_stage_that_holds_the_gil_is_told_from_one_that_releases_it(parts):
    class Stage:
        def __init__(self, work):
            self.work = work

        def run(self, stage):
            self.work()

    measure = parts["measure"]
    until = time.monotonic() + WATCHDOG
    buffer = np.ones(1 << 20)
    while True:  # a busy machine can spoil a look
        hold = measure.gil_share(Stage(lambda: sum(range(100_000))), 1)
        release = measure.gil_share(Stage(lambda: np.sqrt(buffer, out=buffer)), 1)
        if hold > 0.3 > release:
            break
        assert time.monotonic() < until, (hold, release)
