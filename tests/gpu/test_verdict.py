# SPDX-License-Identifier: Apache-2.0
"""The verdict on what a GPU has shown: each line of it can be met, not met, and not run."""

import contextlib
import copy
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import verdict  # noqa: E402


def probe(name, result="ok", why="", **figures):
    return {"probe": name, "result": result, "why": why, "figures": figures}


def of_device(name, **figures):
    return probe(f"scenario probes: {name}", **figures)


def run(readers):
    def size(count):
        pool = {"completion_us": 40.0, "send_us": 2.0, "receive_us": 3.0}
        return {"bytes": count, "pool": pool, "inline": {"completion_us": 30.0}}

    def copies(count):
        rates = {"writer_copy_bytes_per_s": 2e12, "reader_copy_bytes_per_s": 2e12}
        return {"bytes": count, **rates, "device_to_device_bytes_per_s": 2.06e12, "ratio": 0.97}

    writer = {"pool_frames": 900, "inline_frames": 1, "syncs": 1}
    inline = {"registered": True, "inline_frames": 90, "syncs": 2}
    return {
        "readers": readers,
        "pool": True,
        "why": "",
        "sizes": [size(1024), size(16 << 20), size(256 << 20)],
        "copies": [copies(1024), copies(16 << 20), copies(256 << 20)],
        "device_shared_by": "time slices",
        "device_free_bytes": {"before": 9 << 30, "open": 8 << 30},
        "ring_without": {"writer": inline, "readers": inline},
        "ring_with_pool": {"writer": writer, "readers": {"opens": readers, "syncs": 0, "registered": True}},
    }


GOOD = {
    "probes.jsonl": [
        *(of_device(name) for name in (*verdict.FEW, *verdict.MANY)),
        of_device("what each call costs", write_host_us_p50=0.8, write_device_us_p50=1.1, get_current_host_us_p50=0.04),
        of_device(
            "how many operations a stream takes", operations=1022, a_call_blocked=1, another_stream_blocked_too=0
        ),
        of_device("a kernel of the writer faults", close_us=30.0),
        of_device("a kernel of a reader faults", close_us=30.0),
        of_device(
            "what contexts of other processes cost", free_mib_alone=80000, free_mib_with_three=78500, open_us_p50=2e5
        ),
        of_device("a store of the host ends a wait", store_to_write_us_p50=3.0, store_to_write_us_max=9.0),
        probe("scenario writer: a lease is of one stream"),
    ],
    "python.jsonl": [probe("torch_arrives_as_it_was_sent"), probe("torch_written_to_again_at_once")],
    "perf.json": [run(1), run(3)],
}


def changed(*path, **figures):
    def change(found):
        for step in path:
            found = found[step]
        found.update(figures)

    return change


class Verdict(unittest.TestCase):
    def judge(self, change=lambda found: None, *flags):
        """The exit status, and the verdict and figures of each line."""
        found = copy.deepcopy(GOOD)
        change(found)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
            for name, content in found.items():
                lines = [content] if isinstance(content, str) else content
                text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
                pathlib.Path(folder, name).write_text(text, encoding="utf-8")
            status = verdict.main(folder, *flags)
        lines = [(line[:36].strip(), line[37:50].strip(), line[51:]) for line in printed.getvalue().splitlines()]
        return status, {what: (word, text) for what, word, text in lines}

    def one(self, what, word, text, change, status, *flags):
        got, lines = self.judge(change, *flags)
        self.assertEqual((got, lines[what][0]), (status, word), lines[what])
        self.assertIn(text, lines[what][1])

    def test_all_is_met(self):
        status, lines = self.judge(lambda found: None, "--strict")
        self.assertEqual((status, {word for word, _ in lines.values()}), (0, {"met"}))
        self.assertEqual(len(lines), len(verdict.MUST_SHOW))

    def test_a_slow_figure_is_told_and_no_failure(self):
        def slow(figure, value, which):
            return changed("perf.json", which, "sizes", 1, "pool", **{figure: value})

        for figure in ("send_us", "receive_us"):
            for which in (0, 1):
                self.one("host cost of a tensor, 5 us at most", "NOT MET", "5.01", slow(figure, 5.01, which), 0)
        ratio = changed("perf.json", 0, "copies", 1, ratio=0.949)
        self.one("0.95 of a plain copy's bandwidth", "NOT MET", "0.949", ratio, 0)
        of_a_small_one = changed("perf.json", 0, "copies", 0, ratio=0.1)
        self.one("0.95 of a plain copy's bandwidth", "met", "0.970", of_a_small_one, 0)

        not_pinned = changed("perf.json", 1, "ring_without", "readers", registered=False, syncs=90)
        self.one("INLINE by pinned memory", "NOT MET", "3 readers NOT by pinned memory, 90 waits in 90", not_pinned, 0)

    def test_a_wrong_count_is_a_failure(self):
        def ring(side, figure, value):
            return changed("perf.json", 1, "ring_with_pool", side, **{figure: value})

        self.one("one open for each reader", "NOT MET", "4 opens of 3", ring("readers", "opens", 4), 1)
        self.one("no call waits for the device", "NOT MET", "2 times", ring("writer", "syncs", 2), 1)
        self.one("no call waits for the device", "NOT MET", "1 times", ring("readers", "syncs", 1), 1)

    def test_a_probe_that_failed_is_a_failure(self):
        for number, what in (
            (0, "two processes on the device"),
            (2, "four processes on the device"),
            (0, "right under a delayed producer"),
            (6, "a kernel that faults"),
            (8, "memory and contexts"),
            (9, "a store ends a wait, how soon"),
            (10, "scenarios of the library's tests"),
            (3, "every probe"),
        ):
            crashed = changed("probes.jsonl", number, result="crashed", why="status 0xb")
            self.one(what, "NOT MET", "crashed: status 0xb", crashed, 1)
        failed = changed("python.jsonl", 1, result="failed", why="other bytes")
        self.one("tensors through Python", "NOT MET", "other bytes", failed, 1)

    def test_what_is_not_there_is_not_measured(self):
        for name in GOOD:

            def gone(found, name=name):
                found.pop(name)

            status, lines = self.judge(gone)
            self.assertEqual(status, 0)
            self.assertIn("not run", {word for word, _ in lines.values()}, name)
            strict, _ = self.judge(gone, "--strict")
            self.assertEqual(strict, 0 if name == "python.jsonl" else 1)
        skipped = changed("probes.jsonl", 0, result="skipped", why="no PTX")
        self.one("two processes on the device", "not run", "no PTX", skipped, 0)
        no_pool = changed("perf.json", 0, pool=False, why="217")
        self.one("0.95 of a plain copy's bandwidth", "not run", "217", no_pool, 0)
        none = changed("perf.json", 0, copies=[])
        self.one("0.95 of a plain copy's bandwidth", "not run", "alone", none, 0)

    def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(self):
        def cut_perf(found):
            found["perf.json"] = "\n".join(json.dumps(run, indent=1) for run in found["perf.json"])[:-200]

        self.one("one open for each reader", "met", "1 of 1 readers in 900 frames", cut_perf, 0)
        self.one("two processes on the device", "met", "", cut_perf, 0)
        self.assertEqual(self.judge(lambda found: found["probes.jsonl"].append('{"probe": "pool_beh'))[0], 0)
        strange = changed("perf.json", 0, device_free_bytes=None)
        self.one("memory and contexts", "NOT MET", "not as expected", strange, 1)


if __name__ == "__main__":
    unittest.main()
