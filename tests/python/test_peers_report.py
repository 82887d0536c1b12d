# SPDX-License-Identifier: Apache-2.0
"""What `make peers` says of its rows: goals, near and far, cells that a peer wins, what is missing. The rows are made
up."""

import pytest
from peers_rows import CALL, COPYING, FAR, IN_C, LINES, NEAR, OBJECTS, ZERO_COPY, headline, loaded, pair, row

import report_goals
import report_tables
import report_wins

pytestmark = pytest.mark.alike


def verdict(rows, start):
    (found,) = [goal for goal in report_goals.goals(loaded(rows)) if goal.name.startswith(start)]
    return found


def said(rows, start):
    """The goal's line of the table, and the notes and reasons that have its name."""
    lines = report_goals.goal_table(loaded(rows)).splitlines()
    return " ".join(line for line in lines if line.startswith((f"| {start}", f"- {start}")) or f" {start}" in line)


GOALS = [
    ("64 KiB one way, C, best zero-copy", "bytes-64Ki", "p50_us", ZERO_COPY, 1.0),
    ("64 KiB one way, C, best copying", "bytes-64Ki", "p50_us", COPYING, 0.5),
    ("64 KiB one way, Python, best copying", "bytes-64Ki", "p50_us", {"copying": True}, 0.5),
    ("4 MiB in place, C", "bytes-4Mi", "p50_us", {**IN_C, "scenario": "in-place", "reading": "in-place"}, 1.1),
    ("4 MiB in place, Python", "bytes-4Mi", "p50_us", {"reading": "in-place"}, 1.1),
    ("records-10 read", "records-10", "read_us", CALL, 0.8),
    ("records-1000 read", "records-1000", "read_us", CALL, 0.8),
    ("records-10000 read", "records-10000", "read_us", CALL, 0.6),
    ("records-100 written", "records-100", "write_us", CALL, 0.5),
    ("metadata one way", "metadata", "p50_us", OBJECTS, 1.0),
    ("scheduler-256 one way", "scheduler-256", "p50_us", OBJECTS, 1.0),
]


@pytest.mark.parametrize("start, payload, figure, cell, most", GOALS, ids=[goal[0] for goal in GOALS])
@pytest.mark.parametrize("times, good", [(0.99, True), (1.01, False)])
def test_a_goal_is_reached_up_to_its_ratio_and_not_beyond(start, payload, figure, cell, most, times, good):
    found = verdict(pair(100 * most * times, 100, payload, figure, **cell), start)
    assert found.good is good
    line = said(pair(100 * most * times, 100, payload, figure, **cell), start)
    assert (
        line.endswith("| yes |" if good else "| **NO** |") and "(`zmq-push`)" in line and f"at most {most:.2f}" in line
    )


def test_goals_that_are_not_met_come_first():
    rows = pair(5, 10, "records-10", "read_us", **CALL) + pair(11, 10, "metadata", **OBJECTS)
    lines = report_goals.goal_table(loaded(rows)).splitlines()
    assert lines[2].startswith("| metadata one way |") and lines[3].startswith("| records-10 read, ")


def test_the_first_goal_is_of_the_medians_of_the_rounds():
    rows = headline("c-ringcast", [50, 52, 400]) + headline("c-other", [51, 50, 49])
    assert verdict(rows, "64 B one way").good is True and "52.0 ns" in said(rows, "64 B one way")
    assert (
        verdict(headline("c-ringcast", [60, 60, 40]) + headline("c-other", [50, 50, 50]), "64 B one way").good is False
    )


def test_lossy_ways_and_floors_do_not_count_and_threads_are_shown_beside():
    rows = headline("c-ringcast", [50]) + headline("c-other", [60])
    rows += headline("c-lossy", [10], lossless=False) + headline("c-line", [5], floor=True)
    rows += headline("c-queue", [20], note="threads of one process, one reader")
    assert verdict(rows, "64 B one way").good is True and "(`c-other`)" in said(rows, "64 B one way")
    assert "between threads of one process `c-queue` 20.0 ns, a ratio of 2.50, not counted" in said(rows, "64 B one")


def test_a_peer_without_pickle_is_no_rival_in_the_goals_of_records():
    rows = pair(5, 10, "records-10", "read_us", **CALL) + [
        row("own", "records-10", **{**CALL, "read_us": 1, "serialiser": "own"})
    ]
    assert verdict(rows, "records-10 read").good is True


@pytest.mark.parametrize("p50, good", [(100, False), (300, True)])
def test_cpu_is_compared_with_ways_within_twice_the_time(p50, good):
    cell = {"scenario": "every25", "seconds": 10.0, "cpu_reader_s": 0.0, **OBJECTS}
    rows = [
        row("ringcast", "metadata", **{**cell, "reading": "typed", "p50_us": 60, "cpu_writer_s": 0.2}),
        row("pipe", "metadata", **cell, p50_us=p50, cpu_writer_s=0.1),
        row("spinning", "metadata", **cell, p50_us=20, cpu_writer_s=10),
    ]
    assert verdict(rows, "CPU every 25 ms, Python").good is good


def test_the_ways_with_less_cpu_and_a_longer_time_are_in_the_verdict_on_cpu():
    cell = {"scenario": "every25", "seconds": 10.0, "cpu_reader_s": 0.0, **OBJECTS}
    rows = [
        row("ringcast", "metadata", **{**cell, "reading": "typed", "p50_us": 60, "cpu_writer_s": 0.2}),
        row("ringcast-view", "metadata", **{**cell, "reading": "typed", "p50_us": 90, "cpu_writer_s": 0.1}),
        row("ringcast", "metadata", **cell, p50_us=90, cpu_writer_s=0.1),  # pickled: not what a user gets
        row("pipe", "metadata", **cell, p50_us=130, cpu_writer_s=0.05),
        row("late", "metadata", **cell, p50_us=200, cpu_writer_s=0.3),
        row("spinning", "metadata", **cell, p50_us=20, cpu_writer_s=10),
    ]
    cheap = "less CPU but a longer median: `pipe` 0.500 % and 130 us"
    text = said(rows, "CPU every 25 ms, Python, metadata")
    assert "| 2.00 % (`ringcast`) | 100 % (`spinning`) | 0.02 | at most 1.00 | yes |" in text
    assert text.endswith(f"{cheap}.")
    assert f"L{cheap[1:]}." in report_tables.short_table(loaded(rows), "#ways")
    alone = rows[:-1]
    assert verdict(alone, "CPU every 25 ms, Python").good is None and f"{cheap}." in said(alone, "CPU every 25 ms")


def test_our_own_ways_are_not_among_those_with_less_cpu_and_a_longer_time():
    cell = {"scenario": "every25", "seconds": 10.0, "cpu_reader_s": 0.0, **OBJECTS}
    rows = [
        row("ringcast", "metadata", **{**cell, "reading": "typed", "p50_us": 60, "cpu_writer_s": 0.2}),
        row("ringcast-view", "metadata", **{**cell, "reading": "typed", "p50_us": 500, "cpu_writer_s": 0.1}),
        row("spinning", "metadata", **cell, p50_us=20, cpu_writer_s=10),
    ]
    assert "less CPU" not in report_goals.goal_table(loaded(rows))


@pytest.mark.parametrize("mine, good", [(71, True), (69, False)])
def test_of_batches_more_is_better(mine, good):
    cell = {**IN_C, "scenario": "batch"}
    rows = [
        row("c-ringcast", "bytes-16", **cell, messages_per_s=mine),
        row("c-queue", "bytes-16", **cell, messages_per_s=100, note="threads of one process"),
    ]
    assert verdict(rows, "16 B in batches").good is good
    assert f"| {100 / mine:.2f} |" in report_tables.short_table(loaded(rows), "#ways")  # below 1: ringcast is better
    wins = list(report_wins.wins(loaded(rows)))
    assert [(win.row["peer"], win.ratio) for win in wins] == [("c-queue", mine / 100)]


# ---- Near and far ----------------------------------------------------------------------------------------------------

KIB64 = "64 KiB one way, C, best copying"


def test_rows_of_one_state_are_compared_and_near_ones_first():
    rows = [row("c-ringcast", "bytes-64Ki", **COPYING, **FAR, p50_us=10)]
    rows += [row("c-ringcast-default", "bytes-64Ki", **COPYING, **NEAR, p50_us=4)]
    rows += [
        row("c-a", "bytes-64Ki", **COPYING, **NEAR, p50_us=9),
        row("c-b", "bytes-64Ki", **COPYING, **FAR, p50_us=5),
    ]
    text = said(rows, KIB64)
    assert "| 4.00 us (`c-ringcast-default`) | 9.00 us (`c-a`) | 0.44 |" in text and "no near row of `c-b`" in text
    assert [(win.row["peer"], win.ratio) for win in report_wins.wins(loaded(rows))] == [("c-b", 0.5)]
    cells = report_tables.matrix(loaded(rows), "p50_us", language="c")
    assert "| 5.00 us (far) |" in cells and "| 9.00 us |" in cells


@pytest.mark.parametrize("ours, theirs", ["NF", "NC", "CC"])
def test_without_a_common_state_there_is_no_verdict(ours, theirs):
    rows = pair(4, 9, "bytes-64Ki", **COPYING)
    rows = [{**rows[0], **LINES[ours]}, {**rows[1], **LINES[theirs]}]
    found = verdict(rows, KIB64)
    assert found.good is None and "No verdict, as not comparable: near and far: " in said(rows, KIB64)
    short = report_tables.short_table(loaded(rows), "#ways")
    assert "| 64 KiB one way, C | not comparable: near and far |" in short
    assert not list(report_wins.wins(loaded([{**rows[0], "p50_us": 20}, rows[1]])))


def test_ways_are_listed_from_the_best_on():
    rows = [row(name, "bytes-64", scenario="stream", messages_per_s=rate) for name, rate in (("a", 5), ("b", 9))]
    rows += [row(name, "bytes-64", p50_us=time) for name, time in (("a", 5), ("b", 9))]
    # "b" is the best wherever it has a figure, although "a" has one more.
    rows += [row("a", "bytes-16", scenario="stream", messages_per_s=1000)]
    rows += [row("c", name, scenario="stream", messages_per_s=0.1) for name in ("bytes-16", "bytes-64")]
    assert report_tables.matrix(loaded(rows), "messages_per_s", scenario="stream").splitlines()[2].startswith("| `b` |")
    assert report_tables.matrix(loaded(rows), "p50_us", scenario="one-way").splitlines()[2].startswith("| `a` |")


def test_a_verdict_of_far_rows_says_so():
    rows = [{**made, **FAR} for made in pair(4, 9, "bytes-64Ki", **COPYING)] + headline("c-line", [50], "N", floor=True)
    assert said(rows, KIB64).endswith(f"- {KIB64} peer: both far.")
    assert "The line was far in all rows in C." in report_tables.matrix(loaded(rows), "p50_us", scenario="one-way")


def test_the_headline_is_of_rounds_that_are_near_for_both_ways():
    rows = headline("c-ringcast", [300, 60, 62, 64, 90], "FNNNN") + headline("c-other", [200, 61, 59, 60, 9], "FNNNF")
    rows += headline("c-ringcast-default", [100] * 5, "FNNNN") + headline("c-cache-line", [50] * 5, "FNNNN", floor=True)
    text = said(rows, "64 B one way")
    assert "| 62.0 ns (`c-ringcast`) | 60.0 ns (`c-other`) | 1.03 | at most 1.05 | yes |" in text
    assert text.endswith(": 3 near rounds of 5; 1.24 and 1.20 of the bare line.")
    assert "| **`c-ringcast`** | 63.0 ns | 1.26 | 4 near |" in report_tables.headline_table(loaded(rows))


def test_the_headline_is_of_far_rounds_if_none_is_near():
    rows = headline("c-ringcast", [300, 310], "FF") + headline("c-other", [200, 60], "FN")
    assert "| 300 ns (`c-ringcast`) | 200 ns (`c-other`) | 1.50 |" in said(rows, "64 B one way")
    rows = headline("c-ringcast", [300, 310], "FF") + headline("c-other", [60, 60], "NN")
    assert "as not comparable: near and far: 64 B one way" in said(rows, "64 B one way")


@pytest.mark.parametrize("mine, told", [(8, "peer: floor `c-in-place` 7.00 us."), (4, "| yes |")])
def test_the_floor_is_told_where_a_goal_is_missed(mine, told):
    rows = pair(mine, 9, "bytes-64Ki", **COPYING)
    rows += [row("c-in-place", "bytes-64Ki", **COPYING, floor=True, p50_us=7)]
    assert said(rows, KIB64).endswith(told)


def test_a_lossy_way_is_no_rival_and_a_row_that_does_not_say_is_one():
    rows = pair(4, 9, "bytes-64Ki", **COPYING) + [
        row("c-slot", "bytes-64Ki", **{**COPYING, "lossless": False}, p50_us=1)
    ]
    assert "(`zmq-push`)" in said(rows, KIB64)
    rows = pair(4, 9, "bytes-64Ki", **{**COPYING, "lossless": None})
    assert "(`zmq-push`)" in said(rows, KIB64)


# ---- Wins, and what is missing ---------------------------------------------------------------------------------------


def test_a_winning_peer_is_listed_with_the_cause_or_that_it_is_not_known():
    rows = pair(10, 8, "bytes-64", peer="a-pipe") + pair(10, 12, "bytes-64Ki", peer="slower")
    rows += [row("slot", "bytes-64", p50_us=5, lossless=False), row("floor", "bytes-64", p50_us=1, floor=True)]
    text = report_tables.win_table(loaded(rows))
    (unknown,) = [line for line in text.splitlines() if "`a-pipe`" in line]
    assert "| one way: time | 64 B, 2 processes | 0.80 |" in unknown and unknown.endswith("| not known |")
    assert "overwrites" in text and "slower" not in text and "floor" not in text


def test_the_largest_loss_comes_first():
    rows = pair(10, 8, "bytes-64", peer="a-pipe") + pair(10, 2, "bytes-64Ki", peer="b-pipe")
    lines = report_tables.win_table(loaded(rows)).splitlines()
    assert lines[2].startswith("| `b-pipe` |") and lines[3].startswith("| `a-pipe` |")


def test_only_a_lossy_way_is_said_to_overwrite_and_the_gil_is_no_contest():
    cell = {"scenario": "codec", "processes": 1, "lossless": None, **OBJECTS}
    rows = [row("codec-ringcast", "metadata", **cell, write_us=2), row("codec-msgspec", "metadata", **cell, write_us=1)]
    rows += pair(0.9, 0.5, "metadata", "gil_share", scenario="gil", lossless=None, **OBJECTS)
    (win,) = report_wins.wins(loaded(rows))
    assert win.row["peer"] == "codec-msgspec" and "tuples" in win.cause
    assert "zmq-push" in report_tables.matrix(loaded(rows), "gil_share", scenario="gil")


@pytest.mark.parametrize("time, told", [(5, "assembles parts"), (12, "not known")])
def test_a_large_message_is_told_with_the_floor(time, told):
    rows = pair(18, time, "bytes-4Mi", peer="c-aeron-ipc", **IN_C)
    rows += [row("c-in-place", "bytes-4Mi", **IN_C, floor=True, p50_us=10)]
    (win,) = report_wins.wins(loaded(rows))
    assert told in win.cause and win.cause.endswith("ringcast's time is 1.80 of the floor `c-in-place`")


def test_a_spinning_peer_is_told_only_beside_a_ringcast_that_sleeps():
    cell = {"scenario": "every25", "seconds": 10.0, "cpu_reader_s": 0.0, **OBJECTS}
    rows = pair(60, 20, "metadata", **cell)
    (win,) = report_wins.wins(loaded([{**rows[0], "cpu_writer_s": 0.1}, {**rows[1], "cpu_writer_s": 10}]))
    assert "spins" in win.cause
    (win,) = report_wins.wins(loaded([{**made, "cpu_writer_s": 10} for made in rows]))
    assert win.cause == "not known"


def test_a_peer_of_another_cell_wins_nothing():
    rows = [row("ringcast", "bytes-64", p50_us=10), row("fast", "bytes-64", p50_us=1, processes=4)]
    assert "No way beats ringcast" in report_tables.win_table(loaded(rows))


def test_what_is_missing_is_listed_with_its_reason():
    rows = pair(1, 2, "bytes-64")
    rows.append(row("nccl-object", "all", scenario="all", status="there is no GPU here"))
    rows.append(row("zmq-push", "records-100", scenario="shared", status="a message is read once"))
    text = report_tables.absent_table(loaded(rows))
    assert "| nccl-object | all | there is no GPU here |" in text
    assert "| zmq-push | shared | a message is read once |" in text


def test_many_ways_with_one_reason_are_told_by_the_others():
    names = [f"way-{number}" for number in range(9)]
    rows = [row(name, "metadata", p50_us=1) for name in [*names, "lmdb"]] + [row("lmdb", "metadata", scenario="shared")]
    rows += [row(name, "metadata", scenario="shared", status="a message is read once") for name in names]
    assert "| 9 ways, all but lmdb | shared | a message is read once |" in report_tables.absent_table(loaded(rows))


def test_the_reasons_of_a_codec_are_one_line():
    cell = {"scenario": "codec", "processes": 1, "lossless": None}
    rows = [row("codec-a", "records-10", **cell, write_us=1)]
    rows += [
        row("codec-a", name, **cell, status=f"can't write it: TypeError: {name}") for name in ("metadata", "scheduler")
    ]
    assert "| codec-a | codec: metadata, scheduler | can't write it |" in report_tables.absent_table(loaded(rows))


def test_a_call_that_leaves_the_work_to_a_thread_is_no_rival():
    calls = {"ringcast": 5.0, "mp-queue": 1.0, "mp-pipe": 20.0}
    rows = [row(name, "records-100", write_us=took, read_us=9.0, **CALL) for name, took in calls.items()]
    found = verdict(rows, "records-100 written")
    assert found.found.peer["peer"] == "mp-pipe" and found.good
