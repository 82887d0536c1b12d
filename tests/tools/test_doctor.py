# SPDX-License-Identifier: Apache-2.0
"""ringcast doctor, but for what it says of GPUs."""

import ctypes
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest.mock

from case import CPUS, TOOL, Case, run

LEVELS = {"ok", "note", "problem"}
NAMES = set(
    "ring,large frames,attach,dumpable,kernel,huge pages,shmem huge,container memory,open "
    "files,NUMA,cores,CPU wait,"
    "pidfd,io_uring,environment".split(",")
)
# Variables; the line that is about them; its level; what is found.
VARIABLES = (
    ({"RINGCAST_MEMORY": "frobnicate"}, "ring", "problem", "frobnicate"),
    ({"RINGCAST_DISABLE": "spin,io-uring"}, "ring", "problem", "'io-uring'.*io_uring"),
    ({"RINGCAST_WAIT": "fast"}, "ring", "problem", "'fast'.* power"),
    ({"RINGCAST_MEMROY": "pages", "RINGCAST_MEMORY": "pages"}, "environment", "note",
     "RINGCAST_MEMORY=pages.*unknown.*RINGCAST_MEMROY"),
    ({"RINGCAST_VLLM": "1"}, "environment", "ok", "^RINGCAST_VLLM=1 "),
    ({"RINGCAST_SGLANG": "strict"}, "environment", "ok", "^RINGCAST_SGLANG=strict "),
    ({"RINGCAST_SGLANG": "1,share=local"}, "environment", "ok", "share=local "),
    ({"RINGCAST_VLLM": "true"}, "environment", "note", "RINGCAST_VLLM=true"),
)  # fmt: skip


def fork_as_user(body):
    """
    A child that is not root's, since what is closed to a user is open to root. It does not return.
    """
    if (pid := os.fork()) == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            body()
        finally:
            os._exit(1)
    return pid


class Doctor(Case):
    def lines(self, **environment):
        return {line["name"]: line for line in self.json("doctor", **environment)["lines"]}

    def problems(self, **environment):
        """The lines of a doctor that finds something to be wrong."""
        done = run("doctor", "--format", "json", **environment)
        self.assertEqual(done.returncode, 1)
        found = json.loads(done.stdout)
        self.assertIs(found["healthy"], False)
        return {line["name"]: line for line in found["lines"]}

    def test_json_has_every_line_with_its_level(self):
        found = self.json("doctor")
        self.assertIs(found["healthy"], True)
        names = [line["name"] for line in found["lines"]]
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual(NAMES, set(names))
        for line in found["lines"]:
            self.assertIn(line["level"], LEVELS)
            self.assertTrue(line["found"])
            self.assertIsInstance(line["mend"], str)
            self.assertTrue(all(isinstance(value, int) for value in line["facts"].values()), line)

    def test_text_and_json_tell_the_same(self):
        text = self.succeed("doctor")
        for line in self.json("doctor")["lines"]:
            self.assertRegex(text, rf"(?m)^{line['level']} +{re.escape(line['name'])} ")

    def test_facts_are_the_kernels(self):
        facts = {name: line["facts"] for name, line in self.lines().items()}
        self.assertEqual(facts["cores"]["allowed"], len(CPUS))
        self.assertEqual(facts["cores"]["online"], os.sysconf("SC_NPROCESSORS_ONLN"))
        self.assertEqual(
            [facts["kernel"]["major"], facts["kernel"]["minor"]],
            [int(part) for part in re.findall(r"\d+", os.uname().release)[:2]],
        )
        self.assertGreater(facts["ring"]["capacity"], 0)
        self.assertGreater(facts["ring"]["files"], 0)

    def check_nothing_is_concluded(self, lines):
        self.assertEqual(lines["ring"]["level"], "problem")
        for name in ("huge pages", "shmem huge"):
            if "has no pool" not in lines[name]["found"]:
                self.assertIn("because no ring could be made", lines[name]["found"])
            self.assertEqual(lines[name]["mend"], "")
        self.assertEqual(lines["shmem huge"]["facts"]["works"], -1)

    def test_what_no_ring_could_show_is_not_concluded(self):
        self.check_nothing_is_concluded(self.problems(RINGCAST_SPIN_US="x"))

    def test_a_process_that_is_not_dumpable_is_listed(self):
        (ready, tell), (wait, end) = os.pipe(), os.pipe()

        def be_closed():
            os.close(end)
            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
            os.write(tell, b"x")
            os.read(wait, 1)

        closed = fork_as_user(be_closed)
        os.read(ready, 1)
        with tempfile.TemporaryFile() as found, open(TOOL, "rb") as tool:
            command = ["ringcast", "doctor", "--format", "json"]
            doctor = fork_as_user(
                lambda: (os.dup2(found.fileno(), 1), os.execve(tool.fileno(), command, os.environ))
            )
            self.assertEqual(os.waitpid(doctor, 0)[1], 0)
            found.seek(0)
            lines = json.load(found)["lines"]
        for fd in (ready, tell, wait, end):
            os.close(fd)
        os.waitpid(closed, 0)
        line = next(line for line in lines if line["name"] == "dumpable")
        self.assertEqual(line["level"], "note")
        self.assertGreaterEqual(line["facts"]["closed"], 1)
        if line["facts"]["closed"] < 6:  # the first ones are named
            self.assertIn(str(closed), line["found"])

    def test_too_few_files_are_not_told_as_something_else(self):
        told = set()
        for files in range(5, 10):  # each ends in another step
            done = subprocess.run(
                ["sh", "-c", f'ulimit -n {files} && exec "$0" doctor --format json', TOOL],
                capture_output=True,
                text=True,
                timeout=60,
            )
            lines = {line["name"]: line for line in json.loads(done.stdout)["lines"]}
            if done.returncode == 0:
                continue
            ring = lines["ring"]["found"]
            if "can't make a ring" in ring:
                self.check_nothing_is_concluded(lines)
                self.assertIn("Too many open files", ring)
                self.assertIn("ulimit -n", ring)
                self.assertNotIn("needs /proc", ring)
                told.add(ring)
        self.assertTrue(any("/proc/self/stat" in ring for ring in told), told)

    def test_what_variables_do_is_told(self):
        for environment, name, level, found in VARIABLES:
            with self.subTest(name=name, **environment), unittest.mock.patch.dict(os.environ):
                for variable in [x for x in os.environ if x.startswith("RINGCAST_")]:
                    del os.environ[variable]
                ask = self.problems if level == "problem" else self.lines
                line = ask(**environment)[name]
                self.assertEqual(line["level"], level)
                self.assertRegex(line["found"], found)
                if level == "ok":
                    self.assertEqual(line["mend"], "")

    def test_the_variables_of_the_sources_are_known(self):
        package = pathlib.Path(__file__).parents[2] / "python" / "ringcast"
        names = {
            name
            for path in package.rglob("*.py")
            for name in re.findall(r"RINGCAST_[A-Z_]+", path.read_text())
        }
        for folder in ("shm", "channel", "gpu", "python/extension"):
            for path in (package.parents[1] / folder).rglob("*.c"):
                names.update(re.findall(r'\("(RINGCAST_[A-Z_]+)"', path.read_text()))
        self.assertLess({"RINGCAST_VLLM", "RINGCAST_WAIT", "RINGCAST_TRACE"}, names)
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("RINGCAST_")
        }
        environment = {**inherited, **dict.fromkeys(names, "1")}  # which not all of them can be
        done = subprocess.run(
            [TOOL, "doctor", "--format", "json"],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
        line = next(
            line for line in json.loads(done.stdout)["lines"] if line["name"] == "environment"
        )
        self.assertEqual(line["facts"]["unknown"], 0, line["found"])

    def test_what_is_switched_off_is_told_and_not_used(self):
        names = {
            "hugetlb": "huge pages",
            "shmem-huge": "shmem huge",
            "numa": "NUMA",
            "cpu_wait": "CPU wait",
            "pidfd": "pidfd",
            "io_uring": "io_uring",
            "retain": "copy-on-write",
        }
        for switches in ([], *([switch] for switch in names), list(names)):
            with self.subTest(switches=switches):
                lines = self.lines(RINGCAST_DISABLE=",".join(switches))
                told = {
                    switch
                    for switch, name in names.items()
                    if "RINGCAST_DISABLE" in lines[name]["found"]
                }
                self.assertEqual(told, set(switches))
                for switch in {"cpu_wait", "pidfd", "io_uring"} & told:
                    self.assertEqual(lines[names[switch]]["facts"]["used"], 0)
                if "retain" in told:
                    self.assertEqual(lines["copy-on-write"]["facts"]["works"], 0)
                for switch in {"hugetlb", "shmem-huge", "retain"} & told:
                    self.assertEqual(
                        lines[names[switch]]["mend"], "", "what is not wanted is not to be mended"
                    )

    def test_io_uring_is_used_where_all_is_there_that_it_takes(self):
        facts = {name: line["facts"] for name, line in self.lines(RINGCAST_DISABLE="").items()}
        there = (
            facts["pidfd"]["used"]
            and facts["io_uring"]["futex_wait"]
            and facts["io_uring"]["liburing"]
        )
        self.assertEqual(facts["io_uring"]["used"], there)
        line = self.lines(RINGCAST_DISABLE="pidfd")["io_uring"]
        self.assertEqual(line["facts"]["used"], 0)
        self.assertIn("a helper thread", line["found"])
        if there:
            self.assertIn("not used without pidfds", line["found"])

    def test_whether_large_frames_can_be_kept_is_found_out_by_keeping_one(self):
        line = self.lines(RINGCAST_DISABLE="")["copy-on-write"]
        can = os.access("/proc/self/pagemap", os.R_OK) and os.sysconf("SC_PAGESIZE") == 4096
        self.assertEqual(line["facts"]["works"], int(can))
        self.assertEqual(line["level"], "ok" if can else "note")

    def test_the_ring_is_as_the_environment_asks(self):
        for asked, got in ("0", 0), ("1", 2 << 20), ("1073741824", 1 << 30):
            lines = self.lines(RINGCAST_SPILL_BYTES=asked, RINGCAST_MEMORY="pages")
            self.assertEqual(lines["large frames"]["facts"]["spill_bytes"], got)
            self.assertEqual(lines["large frames"]["level"], "ok" if got else "note")
            self.assertEqual(lines["ring"]["facts"]["page_size"], os.sysconf("SC_PAGESIZE"))
