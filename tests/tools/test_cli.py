# SPDX-License-Identifier: Apache-2.0
"""The command line, run as people run it. Says nothing of how fast: only that the figures are there and make sense.

test_cli.py <path of the tool> <folder of the tests' own CUDA drivers> [unittest's arguments]
"""

import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

TOOL = FAKES = None
CPUS = sorted(os.sched_getaffinity(0))
SHORT = ["--seconds", "0.05", "--capacity", "1M"]
LEVELS = {"ok", "note", "problem"}
MEASUREMENTS = {"latency": "40", "throughput": "64K", "wake": "40", "scale": "40"}


def run(*arguments, **environment):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


class Case(unittest.TestCase):
    def succeed(self, *arguments, **environment):
        done = run(*arguments, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def json(self, *arguments, **environment):
        return json.loads(self.succeed(*arguments, "--format", "json", **environment))

    def refused(self, *arguments, says):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, done)
        self.assertEqual(done.stdout, "")
        self.assertIn("usage: ringcast", done.stderr)
        self.assertIn(says, done.stderr)

    def positive(self, value):
        self.assertIsInstance(value, (int, float))
        self.assertNotIsInstance(value, bool)
        self.assertTrue(math.isfinite(value) and value > 0, value)

    def ratio(self, value, above, below):
        """The printed figures are rounded to four digits, at the most."""
        self.positive(value)
        self.assertAlmostEqual(value / (above / below), 1, delta=0.002)


class CommandLine(Case):
    def test_version_is_the_librarys(self):
        header = os.path.join(os.path.dirname(__file__), "../../include/ringcast/version.h")
        with open(header, encoding="utf-8") as file:
            version = re.search(r'#define RINGCAST_VERSION "(.*)"', file.read())[1]
        self.assertEqual(self.succeed("--version"), f"ringcast {version}\n")

    def test_help_names_every_command_and_gives_examples(self):
        for arguments in (["--help"], ["-h"], ["help"], ["help", "help"], ["help", "--help"]):
            text = self.succeed(*arguments)
            for word in ("doctor", "perf", "EXAMPLES"):
                self.assertIn(word, text)

    def test_each_command_has_help_with_defaults_and_examples(self):
        for arguments in (["doctor", "--help"], ["help", "doctor"]):
            text = self.succeed(*arguments)
            for word in ("usage: ringcast doctor", "(default text)", "EXIT STATUS", "EXAMPLES"):
                self.assertIn(word, text)
        for arguments in (["perf", "--help"], ["help", "perf"], ["perf", "latency", "--help"]):
            text = self.succeed(*arguments)
            for word in ("usage: ringcast perf", "(default 40;", "(default text)", "(default 2;", "EXAMPLES"):
                self.assertIn(word, text)
            for option in ("size", "readers", "seconds", "capacity", "cpus", "format"):
                self.assertRegex(text, rf"--{option} .*\n?.*default")

    def test_bad_usage_is_refused_with_the_usage(self):
        self.refused(says="no command")
        self.refused("frobnicate", says="frobnicate")
        self.refused("help", "frobnicate", says="frobnicate")
        for command in ("perf", "doctor", "help"):
            self.refused("help", command, "frobnicate", says="'frobnicate' is one word too many")
        self.refused("--frobnicate", says="--frobnicate")
        self.refused("perf", says="what to measure")
        self.refused("perf", "frobnicate", says="frobnicate")

    def test_unknown_options_and_words_are_refused(self):
        for command in (["doctor"], *(["perf", name] for name in [*MEASUREMENTS, "gpu"])):
            self.refused(*command, "--frobnicate", says="--frobnicate")
            self.refused(*command, "--format", "xml", says="'xml' will not do for --format: it takes text or json")
            self.refused(*command, "--format", says="--format needs a value")
            self.refused(*command, "frobnicate", says="frobnicate")

    def test_values_that_will_not_do_are_refused(self):
        for option, values, takes in (
            ("--size", ["0", "-1", "x", "4Q", "99999999999G", ""],
             "a number of bytes, at least 8, such as 40, 64K or 1M"),
            ("--readers", ["0", "-1", "257", "x", "1.5"], "a whole number, 1 to 256"),
            ("--seconds", ["0", "-1", "nan", "inf", "x"], "a number of seconds, 0.001 to 86400"),
            ("--capacity", ["-1", "x"], "a number of bytes, such as 64K or 1M; 0: the library's own default"),
            ("--cpus", ["", "x", "a,b", f"{CPUS[0]},", f"{CPUS[0]} ", "-1"],
             "numbers of CPUs with commas between them"),
        ):
            for value in values:
                with self.subTest(option=option, value=value):
                    self.refused("perf", "latency", option, value,
                                 says=f"'{value}' will not do for {option}: it takes {takes}")
        for value in ("", "0", "1K,", ",1K", "1K,x", ",".join(["8"] * 33)):
            self.refused("perf", "gpu", "--sizes", value,
                         says=f"'{value}' will not do for --sizes: it takes up to 32 numbers of bytes with commas")
        self.refused("perf", "latency", "--sizes", "1K", says="--sizes is for gpu")
        for other in (["--size", "1K"], ["--cpus", str(CPUS[0])]):
            self.refused("perf", "gpu", *other, says="gpu takes --sizes, and no --size; nor --cpus")
        self.refused("perf", "latency", "--size", "7", says="--size is at least 8")
        self.refused("perf", "latency", "--size", "8000000000G", says="--size is at most")

    def test_cpus_that_will_not_do_are_told_apart(self):
        first, everyone = str(CPUS[0]), ",".join(map(str, CPUS))
        for value, says in (
            (f"{first},{first}", f"it names CPU {first} twice"),
            (f"{everyone},{first}", f"it names CPU {first} twice"),
            ("4095", f"there is no CPU 4095 among the {len(CPUS)} that this process may use"),
            ("99999999999999999999", "there is no CPU"),
            (f"{everyone},4095", f"it names more CPUs than the {len(CPUS)} that this process may use"),
            (first, "the writer and 1 readers need 2"),
        ):
            with self.subTest(value=value):
                self.refused("perf", "latency", "--cpus", value, says=says)

    def test_output_that_can_not_be_written_is_a_failure(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([TOOL, "doctor"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("can't write", done.stderr)


class Doctor(Case):
    def test_json_has_every_line_with_its_level(self):
        found = self.json("doctor")
        self.assertIs(found["healthy"], True)
        names = [line["name"] for line in found["lines"]]
        self.assertEqual(len(names), len(set(names)))
        for name in ("ring", "large frames", "attach", "kernel", "huge pages", "shmem huge", "container memory",
                     "locked memory", "open files", "/dev/shm", "NUMA", "cores", "CPU wait", "membarrier", "pidfd",
                     "io_uring", "/proc", "seccomp", "ptrace_scope", "environment"):
            self.assertIn(name, names)
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
        facts = {line["name"]: line["facts"] for line in self.json("doctor")["lines"]}
        self.assertEqual(facts["cores"]["allowed"], len(CPUS))
        self.assertEqual(facts["cores"]["online"], os.sysconf("SC_NPROCESSORS_ONLN"))
        self.assertEqual([facts["kernel"]["major"], facts["kernel"]["minor"]],
                         [int(part) for part in re.findall(r"\d+", os.uname().release)[:2]])
        self.assertGreater(facts["ring"]["capacity"], 0)
        self.assertGreater(facts["ring"]["files"], 0)

    def test_a_machine_that_can_make_no_ring_is_a_problem(self):
        done = run("doctor", "--format", "json", RINGCAST_MEMORY="frobnicate")
        self.assertEqual(done.returncode, 1)
        found = json.loads(done.stdout)
        self.assertIs(found["healthy"], False)
        lines = {line["name"]: line for line in found["lines"]}
        self.assertEqual(lines["ring"]["level"], "problem")
        self.assertIn("frobnicate", lines["ring"]["found"])
        self.assertIn("RINGCAST_MEMORY=frobnicate", lines["environment"]["found"])

    def test_a_switch_that_there_is_not_is_a_problem(self):
        done = run("doctor", "--format", "json", RINGCAST_DISABLE="spin,io-uring")
        self.assertEqual(done.returncode, 1)
        line = next(line for line in json.loads(done.stdout)["lines"] if line["name"] == "ring")
        self.assertEqual(line["level"], "problem")
        self.assertIn("RINGCAST_DISABLE has 'io-uring': it must be a list of any of", line["found"])
        self.assertIn("io_uring", line["found"])

    def check_nothing_is_concluded(self, lines):
        self.assertEqual(lines["ring"]["level"], "problem")
        for name in ("huge pages", "shmem huge"):
            if "has no pool" not in lines[name]["found"]:
                self.assertIn("because no ring could be made", lines[name]["found"])
            self.assertEqual(lines[name]["mend"], "")
        self.assertEqual(lines["shmem huge"]["facts"]["works"], -1)

    def test_what_no_ring_could_show_is_not_concluded(self):
        done = run("doctor", "--format", "json", RINGCAST_SPIN_US="x")
        self.assertEqual(done.returncode, 1)
        self.check_nothing_is_concluded({line["name"]: line for line in json.loads(done.stdout)["lines"]})

    def test_too_few_files_are_not_told_as_something_else(self):
        told = set()
        for files in range(5, 10):  # each ends in another step
            done = subprocess.run(["sh", "-c", f'ulimit -n {files} && exec "$0" doctor --format json', TOOL],
                                  capture_output=True, text=True, timeout=60)
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

    def test_unknown_variables_are_told_as_such(self):
        line = next(line for line in self.json("doctor", RINGCAST_MEMROY="pages", RINGCAST_MEMORY="pages")["lines"]
                    if line["name"] == "environment")
        self.assertEqual(line["level"], "note")
        known, unknown = line["found"].split("unknown to ringcast: ")
        self.assertIn("RINGCAST_MEMORY=pages", known)
        self.assertIn("RINGCAST_MEMROY", unknown)
        self.assertGreaterEqual(line["facts"]["unknown"], 1)

    def test_the_variables_of_the_python_package_are_known(self):
        package = pathlib.Path(__file__).parents[2] / "python" / "ringcast"
        names = {name for path in package.rglob("*.py") for name in re.findall(r"RINGCAST_[A-Z_]+", path.read_text())}
        self.assertIn("RINGCAST_VLLM", names)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RINGCAST_")}
        environment = {**inherited, **dict.fromkeys(names, "1")}  # which not all of them can be
        done = subprocess.run([TOOL, "doctor", "--format", "json"], capture_output=True, text=True, timeout=60,
                              env=environment)
        line = next(line for line in json.loads(done.stdout)["lines"] if line["name"] == "environment")
        self.assertEqual(line["facts"]["unknown"], 0, line["found"])

    def test_the_ring_is_as_the_environment_asks(self):
        facts = {line["name"]: line["facts"] for line in self.json("doctor", RINGCAST_MEMORY="pages")["lines"]}
        self.assertEqual(facts["ring"]["page_size"], os.sysconf("SC_PAGESIZE"))

    def lines_without(self, switches):
        return {line["name"]: line for line in self.json("doctor", RINGCAST_DISABLE=switches)["lines"]}

    def test_what_is_switched_off_is_told_and_not_used(self):
        names = {"hugetlb": "huge pages", "shmem-huge": "shmem huge", "numa": "NUMA", "cpu_wait": "CPU wait",
                 "membarrier": "membarrier", "pidfd": "pidfd", "io_uring": "io_uring", "cow": "copy-on-write"}
        for switches in ([], *([switch] for switch in names), list(names)):
            with self.subTest(switches=switches):
                lines = self.lines_without(",".join(switches))
                told = {switch for switch, name in names.items() if "RINGCAST_DISABLE" in lines[name]["found"]}
                self.assertEqual(told, set(switches))
                for switch in {"cpu_wait", "membarrier", "pidfd", "io_uring"} & told:
                    self.assertEqual(lines[names[switch]]["facts"]["used"], 0)
                if "cow" in told:
                    self.assertEqual(lines["copy-on-write"]["facts"]["works"], 0)
                for switch in {"hugetlb", "shmem-huge", "cow"} & told:
                    self.assertEqual(lines[names[switch]]["mend"], "", "what is not wanted is not to be mended")

    def test_io_uring_is_used_where_all_is_there_that_it_takes(self):
        facts = {name: line["facts"] for name, line in self.lines_without("").items()}
        there = (facts["membarrier"]["used"] and facts["pidfd"]["used"] and facts["io_uring"]["futex_wait"]
                 and facts["io_uring"]["liburing"])
        self.assertEqual(facts["io_uring"]["used"], there)
        for switch in ("membarrier", "pidfd"):
            line = self.lines_without(switch)["io_uring"]
            self.assertEqual(line["facts"]["used"], 0)
            self.assertIn("a helper thread", line["found"])
            if there:
                self.assertIn("not used without membarrier and pidfds", line["found"])

    def test_whether_large_frames_can_be_kept_is_found_out_by_keeping_one(self):
        line = self.lines_without("")["copy-on-write"]
        can = os.access("/proc/self/pagemap", os.R_OK) and os.sysconf("SC_PAGESIZE") == 4096
        self.assertEqual(line["facts"]["works"], int(can))
        self.assertEqual(line["level"], "ok" if can else "note")

    def test_spill_memory_is_as_the_environment_asks(self):
        for asked, got, level in (("0", 0, "note"), ("1", 2 << 20, "ok"), ("1073741824", 1 << 30, "ok")):
            line = next(line for line in self.json("doctor", RINGCAST_SPILL_BYTES=asked)["lines"]
                        if line["name"] == "large frames")
            self.assertEqual(line["facts"]["spill_bytes"], got)
            self.assertEqual(line["level"], level)


def fake(folder="new", **environment):
    """The environment in which a CUDA driver of the tests' own is found."""
    path = os.pathsep.join(filter(None, [os.path.join(FAKES, folder), os.environ.get("LD_LIBRARY_PATH")]))
    return {"LD_LIBRARY_PATH": path, **environment}


class DoctorOfGpus(Case):
    """No GPU, nor what is wrong with one, is a problem: rings can be made."""

    def gpu_lines(self, **environment):
        found = self.json("doctor", **environment)
        self.assertIs(found["healthy"], True)
        return {line["name"]: line for line in found["lines"] if line["name"].startswith("GPU")}

    def inline(self, says, name="GPU tensors", **environment):
        lines = self.gpu_lines(**fake(**environment))
        line = lines[name]
        self.assertEqual(line["level"], "note", line)
        self.assertTrue(line["found"].startswith("INLINE: 4 tensors"), line)
        self.assertIn(says, line["found"])
        self.assertEqual((line["facts"]["pool_frames"], line["facts"]["inline_frames"]), (0, 4))
        return lines

    def test_a_device_is_told_and_tensors_of_it_go_by_the_pool(self):
        lines = self.gpu_lines(**fake())
        self.assertEqual(list(lines), ["GPU", "GPU 0", "GPU tensors"])
        self.assertEqual({line["level"] for line in lines.values()}, {"ok"})
        self.assertEqual({line["mend"] for line in lines.values()}, {""})
        self.assertEqual(lines["GPU"]["found"], "1 device, a driver for CUDA 12.4")
        self.assertEqual(lines["GPU"]["facts"], {"ready": 1, "version": 12040, "devices": 1, "result": 0})
        for fact in ("words64", "words32", "registers", "registers_read_only", "exports"):
            self.assertEqual(lines["GPU 0"]["facts"][fact], 1)
        self.assertGreater(lines["GPU 0"]["facts"]["total_bytes"], 0)
        self.assertRegex(lines["GPU 0"]["found"], r"^Fake GPU 0, GPU-[0-9a-f]{8}, 16\.0 GiB")
        facts = lines["GPU tensors"]["facts"]
        self.assertEqual((facts["pool_frames"], facts["inline_frames"], facts["registered"]), (3, 1, 1))
        self.assertEqual(facts["word_bits"], 64)
        self.assertIn("POOL: of 4 tensors, 3 went", lines["GPU tensors"]["found"])

    def test_why_there_is_no_gpu_is_a_note(self):
        for says, environment in (
            ("switched off by RINGCAST_DISABLE=cuda", fake(RINGCAST_DISABLE="cuda")),
            ("the driver finds no device", fake(FAKE_CUDA_INIT="100")),
            ("is a toolkit's stub", fake(FAKE_CUDA_INIT="34")),
            ("the driver does not start", fake(FAKE_CUDA_INIT="999")),
            ("cuIpcOpenMemHandle", fake("lacking")),
        ):
            with self.subTest(says=says):
                lines = self.gpu_lines(**environment)
                self.assertEqual(list(lines), ["GPU"])
                self.assertEqual(lines["GPU"]["level"], "note")
                self.assertTrue(lines["GPU"]["found"].startswith("none is used: "), lines)
                self.assertIn(says, lines["GPU"]["found"])
                self.assertEqual(lines["GPU"]["facts"]["ready"], 0)

    def test_two_devices_are_tried_with_each_other(self):
        lines = self.gpu_lines(**fake(FAKE_CUDA_DEVICES="2"))
        self.assertEqual(list(lines), ["GPU", "GPU 0", "GPU 1", "GPU tensors", "GPU 0 to 1"])
        self.assertEqual(lines["GPU 0 to 1"]["level"], "ok")
        lines = self.inline("217", name="GPU 0 to 1", FAKE_CUDA_DEVICES="2", FAKE_CUDA_NO_PEER="1")
        self.assertEqual(lines["GPU tensors"]["level"], "ok")

    def test_what_is_switched_off_is_told(self):
        lines = self.inline("RINGCAST_DISABLE", RINGCAST_DISABLE="cuda_pool")
        self.assertIn("exporting was not tried (RINGCAST_DISABLE=cuda_pool)", lines["GPU 0"]["found"])
        self.assertEqual((lines["GPU 0"]["mend"], lines["GPU tensors"]["mend"]), ("", ""))
        lines = self.inline("cuda_register", RINGCAST_DISABLE="cuda_register")
        self.assertIn("was not tried (RINGCAST_DISABLE=cuda_register)", lines["GPU 0"]["found"])
        self.assertIn("whether its streams can wait for words of host memory was not tried", lines["GPU 0"]["found"])
        self.assertEqual((lines["GPU 0"]["mend"], lines["GPU tensors"]["mend"]), ("", ""))
        lines = self.gpu_lines(**fake(RINGCAST_DISABLE="cuda_words64"))
        self.assertIn("words of 32 bits (those of 64 are switched off by RINGCAST_DISABLE)", lines["GPU 0"]["found"])
        self.assertEqual(lines["GPU tensors"]["facts"]["word_bits"], 32)
        self.assertEqual(lines["GPU tensors"]["facts"]["pool_frames"], 3)

    def check_mend(self, line, mend, **environment):
        """One of the two lines says how to mend it: that of the device, or else that of the way."""
        lines = self.inline("", **environment)
        other = {"GPU 0": "GPU tensors", "GPU tensors": "GPU 0"}[line]
        self.assertIn(mend, lines[line]["mend"])
        self.assertEqual(lines[other]["mend"], "")
        return lines

    def test_what_the_driver_refuses_leaves_the_ring_and_is_told(self):
        self.inline("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", FAKE_CUDA_FAIL="cuIpcOpenMemHandle:0:217")
        lines = self.check_mend("GPU 0", "no process share", FAKE_CUDA_FAIL="cuIpcGetMemHandle:0:801")
        self.assertNotEqual(lines["GPU 0"]["facts"]["exports"], 1)
        self.assertEqual(lines["GPU 0"]["level"], "note")
        lines = self.check_mend("GPU 0", "ulimit -l", FAKE_CUDA_FAIL="cuMemHostRegister:0:2")
        self.assertNotEqual(lines["GPU 0"]["facts"]["registers"], 1)
        self.check_mend("GPU 0", "registers no host memory", FAKE_CUDA_FAIL="cuMemHostRegister:0:801")
        lines = self.check_mend("GPU 0", "another version of the driver", FAKE_CUDA_STUCK_WORDS="1")
        self.assertIn("its streams can't wait for words of host memory: the host's store wakes none",
                      lines["GPU 0"]["found"])
        lines = self.check_mend("GPU 0", "no stream operations", folder="old")
        self.assertIn("its streams can't wait for words of host memory;", lines["GPU 0"]["found"])
        self.check_mend("GPU 0", "CUDA 12.0 or newer", folder="old", FAKE_CUDA_VERSION="11040")

    def test_how_to_mend_it_is_told_by_what_the_driver_said(self):
        for result, mend in (
            (1, "IPC and one PID namespace"), (201, "one PID namespace for both"), (205, "IPC and one PID namespace"),
            (208, "close what else"), (217, "nvidia-smi topo"), (400, "IPC and one PID namespace"),
            (711, "so many peers"), (801, "no process share"), (999, "docs/gpu.md"),
        ):
            with self.subTest(result=result):
                self.check_mend("GPU tensors", mend, FAKE_CUDA_FAIL=f"cuIpcOpenMemHandle:0:{result}")

    def test_the_environment_is_checked_as_the_library_does(self):
        lines = self.inline_by_setting(RINGCAST_GPU_POOL_BYTES="0")
        self.assertEqual(lines["GPU tensors"]["found"], "INLINE: RINGCAST_GPU_POOL_BYTES is 0")
        for name, bad, says in (
            ("RINGCAST_GPU_POOL_BYTES", "1G", "must be a whole number of bytes"),
            ("RINGCAST_GPU_POOL_BYTES", "-1", "must be a whole number of bytes"),
            ("RINGCAST_GPU_POOL_BYTES", str(1 << 63), "must be a whole number of bytes"),
            ("RINGCAST_GPU", "yes", "must be 0 or 1"),
        ):
            with self.subTest(name=name, bad=bad):
                done = run("doctor", "--format", "json", **fake(**{name: bad}))
                self.assertEqual(done.returncode, 1)
                (line,) = (line for line in json.loads(done.stdout)["lines"] if line["name"] == "GPU settings")
                self.assertEqual(line["level"], "problem")
                self.assertIn(f"{name} is '{bad}': it {says}", line["found"])
        self.assertNotIn("GPU settings", self.gpu_lines(**fake(RINGCAST_GPU="1", RINGCAST_GPU_POOL_BYTES="2097152")))
        lines = self.gpu_lines(**fake(RINGCAST_GPU_POOL_BYTES=str(1 << 36)))     # of 16 GiB
        self.assertIn("a pool takes 65536.0 MiB, which is more than is free", lines["GPU 0"]["found"])
        self.assertIn("a smaller RINGCAST_GPU_POOL_BYTES", lines["GPU 0"]["mend"])
        self.assertEqual((lines["GPU 0"]["level"], lines["GPU 0"]["facts"]["pool_bytes"]), ("note", 1 << 36))
        lines = self.gpu_lines(**fake(RINGCAST_GPU="0"))
        self.assertIn("RINGCAST_GPU is 0", lines["GPU settings"]["found"])

    def inline_by_setting(self, **environment):
        lines = self.gpu_lines(**fake(**environment))
        self.assertEqual((lines["GPU tensors"]["level"], lines["GPU tensors"]["mend"]), ("note", ""))
        self.assertEqual(lines["GPU tensors"]["facts"]["pool_frames"], 0)
        return lines

    def test_a_device_that_can_not_be_used_is_a_note(self):
        lines = self.gpu_lines(**fake(FAKE_CUDA_FAIL="cuDevicePrimaryCtxRetain:0:2"))
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", lines["GPU 0"]["found"])
        self.assertIn("let go of memory of the device", lines["GPU 0"]["mend"])
        for name in ("GPU 0", "GPU tensors"):
            self.assertEqual(lines[name]["level"], "note")
        lines = self.gpu_lines(**fake(FAKE_CUDA_FAIL="cuMemcpyHtoDAsync:3:700"))
        self.assertIn("tensors can't be sent: cuMemcpyHtoDAsync: CUDA_ERROR_ILLEGAL_ADDRESS (700)",
                      lines["GPU tensors"]["found"])


class PerfOfGpus(Case):
    SHORT = ["--sizes", "1K,64K", "--seconds", "0.02", "--capacity", "1M"]

    def test_both_ways_are_measured_beside_plain_copies(self):
        for readers in (1, 2):
            found = self.json("perf", "gpu", *self.SHORT, "--readers", str(readers), **fake())
            self.assertEqual((found["measurement"], found["readers"], found["pool"]), ("gpu", readers, True))
            self.assertEqual(found["device"], "Fake GPU 0")
            self.assertEqual([size["bytes"] for size in found["sizes"]], [1024, 65536])
            for size in found["sizes"]:
                for way in ("pool", "inline", "device_to_device", "host_to_device"):
                    for figure in ("send_us", "completion_us", "bytes_per_s"):
                        self.positive(size[way][figure])
                    self.assertGreaterEqual(size[way]["rounds"], 5)
                for way in ("pool", "inline"):
                    self.positive(size[way]["receive_us"])
                copies = [size["pool"]["writer_copy_bytes_per_s"], size["pool"]["reader_copy_bytes_per_s"]]
                plain = size["device_to_device"]["copy_bytes_per_s"]
                for figure in (*copies, plain):
                    self.positive(figure)
                self.assertAlmostEqual(size["pool"]["ratio_to_device_to_device"] / (min(copies) / plain), 1, delta=0.01)
            self.check_crossover(found)
            writer, reader = found["ring_with_pool"]["writer"], found["ring_with_pool"]["readers"]
            self.assertGreater(writer["pool_frames"], 10)
            self.assertEqual(reader["opens"], readers, "each reader opens the pool once")
            self.assertLessEqual(writer["syncs"], writer["inline_frames"], "only what goes INLINE waits for the device")
            self.assertEqual(found["ring_without"]["writer"]["pool_frames"], 0)
            free = found["device_free_bytes"]
            self.assertLess(free["open"], free["before"])
            self.assertEqual(free["after"], free["before"], "all is given back")

    def check_crossover(self, found):
        faster = [size["pool"]["completion_us"] < size["inline"]["completion_us"] for size in found["sizes"]]
        wanted = {(False, False): (-1, -1), (True, False): (-1, -1), (False, True): (65536, 1024),
                  (True, True): (1024, 0)}
        self.assertEqual((found["pool_from_bytes"], found["inline_most"]), wanted[tuple(faster)])

    def test_without_a_pool_only_what_there_is_is_measured(self):
        found = self.json("perf", "gpu", *self.SHORT, **fake(FAKE_CUDA_FAIL="cuIpcOpenMemHandle:0:217"))
        self.assertIs(found["pool"], False)
        self.assertIn("217", found["why"])
        self.assertNotIn("pool", found["sizes"][0])
        self.positive(found["sizes"][0]["inline"]["completion_us"])
        self.assertEqual((found["pool_from_bytes"], found["inline_most"]), (-1, -1))

    def test_text_has_the_figures_too(self):
        text = self.succeed("perf", "gpu", *self.SHORT, **fake())
        for word in ("POOL", "INLINE", "within the device", "host to device", "completion, us", "handles opened"):
            self.assertIn(word, text)

    def test_without_a_gpu_nothing_is_measured_and_it_says_why(self):
        done = run("perf", "gpu", *self.SHORT, RINGCAST_DISABLE="cuda")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, "")
        self.assertIn("nothing was measured, as no GPU is used: switched off by RINGCAST_DISABLE=cuda", done.stderr)

    def test_a_tensor_that_does_not_fit_is_told(self):
        done = run("perf", "gpu", "--sizes", "64M", **fake(RINGCAST_SPILL_BYTES=str(8 << 20)))
        self.assertEqual(done.returncode, 1)
        self.assertIn("RINGCAST_SPILL_BYTES", done.stderr)


class Perf(Case):
    def measure(self, name, *arguments):
        found = self.json("perf", name, *SHORT, *arguments)
        self.assertEqual(found["measurement"], name)
        self.assertTrue(found["version"] and found["cpu"] and found["memory"])
        self.assertEqual(found["capacity"], 1 << 20)
        self.assertTrue(set(found["cpus"]) <= set(CPUS) and found["cpus"])
        self.assertIsInstance(found["pinned"], bool)
        return found

    def test_latency(self):
        if len(CPUS) < 2:
            done = run("perf", "latency", *SHORT)
            self.assertEqual(done.returncode, 1)
            self.assertIn("needs a CPU for each", done.stderr)
            return
        found = self.measure("latency")
        self.assertIs(found["pinned"], True)
        self.assertEqual(found["cpus"], [CPUS[0], CPUS[-1]])
        for key in ("one_way_ns", "floor_ns", "line_ns"):
            for percentile in ("p50", "p99", "p999"):
                self.positive(found[key][percentile])
            self.assertLessEqual(found[key]["p99"], found[key]["p999"])  # p50 is of other trips
        self.ratio(found["ratio"], found["one_way_ns"]["p50"], found["floor_ns"]["p50"])
        self.ratio(found["ratio_line"], found["one_way_ns"]["p50"], found["line_ns"]["p50"])
        self.assertGreater(found["round_trips"], 0)
        self.assertIsInstance(found["clusters"], list)

    def test_latency_refuses_more_processes_than_cpus(self):
        done = run("perf", "latency", *SHORT, "--readers", str(min(len(CPUS), 256)))
        self.assertEqual(done.returncode, 1)
        self.assertIn("needs a CPU for each", done.stderr)

    def test_throughput(self):
        for size in ("8", "40", "64K", "100003"):
            found = self.measure("throughput", "--size", size)
            if found["frames_per_s"] < 20000:  # a busy machine: so few that the faults of starting are one for each
                found = self.measure("throughput", "--size", size, "--seconds", "1")
            for key in ("frames_per_s", "bytes_per_s", "memcpy_bytes_per_s", "memcpy_alone_bytes_per_s"):
                self.positive(found[key])
            self.assertAlmostEqual(found["bytes_per_s"] / (found["frames_per_s"] * found["size"]), 1, delta=0.01)
            self.ratio(found["ratio"], found["bytes_per_s"], found["memcpy_bytes_per_s"])
            for key in ("writer_faults_per_frame", "reader_faults_per_frame"):
                self.assertLess(found[key], 1, "the memory of a ring is there before the first frame")

    def test_throughput_of_frames_that_fill_half_the_ring(self):
        found = self.measure("throughput", "--size", str((1 << 19) - 80))
        self.ratio(found["ratio"], found["bytes_per_s"], found["memcpy_bytes_per_s"])

    def test_throughput_with_more_readers_than_cpus(self):
        found = self.measure("throughput", "--readers", str(min(len(CPUS), 8)))
        self.positive(found["frames_per_s"])

    def test_a_frame_that_does_not_fit_is_told(self):
        done = run("perf", "throughput", "--size", "1G", "--capacity", "64K", "--seconds", "0.05",
                   RINGCAST_SPILL_BYTES=str(64 << 20))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, "")
        self.assertIn("RINGCAST_SPILL_BYTES", done.stderr)

    def test_a_capacity_that_is_told_for_a_frame_is_enough(self):
        def throughput(capacity):
            return run("perf", "throughput", "--size", "1M", "--seconds", "0.05", "--capacity", capacity,
                       RINGCAST_SPILL_BYTES="0")

        for capacity in ("1M", "2M"):
            done = throughput(capacity)
            self.assertEqual(done.returncode, 1)
            self.assertIn("--capacity to more than twice the frame, by 1K or so", done.stderr)
        self.assertEqual(throughput(str((2 << 20) + 1024)).returncode, 0)

    def test_wake(self):
        for readers in (1, 3):
            found = self.measure("wake", "--readers", str(readers))
            self.assertEqual(found["readers"], readers)
            for key in ("wake_us", "futex_us"):
                self.positive(found[key]["p50"])
                self.assertLessEqual(found[key]["p50"], found[key]["p99"])
            self.ratio(found["ratio"], found["wake_us"]["p50"], found["futex_us"]["p50"])
            self.assertGreaterEqual(found["idle_cpu_percent"], 0)
            self.assertLessEqual(found["idle_cpu_percent"], 100)
            self.assertGreater(found["wakes"], 0)

    def test_scale(self):
        readers = min(len(CPUS), 4)  # the last step has more readers than CPUs, where there are few
        found = self.measure("scale", "--readers", str(readers))
        self.assertEqual([step["readers"] for step in found["scale"]], list(range(1, readers + 1)))
        for step in found["scale"]:
            self.positive(step["writer_ns_per_frame"])
            self.positive(step["frames_per_s"])
            self.assertEqual(step["pinned"], step["readers"] < len(CPUS))
            self.assertEqual(step.get("note"), None if step["pinned"] else "more readers than CPUs")

    def test_text_has_the_figures_too(self):
        words = {"latency": "ratio to the floor", "throughput": "GB/s", "wake": "% of a CPU", "scale": "ns per frame"}
        for name, word in words.items():
            if name != "latency" or len(CPUS) > 1:
                self.assertIn(word, self.succeed("perf", name, *SHORT))

    def test_given_cpus_are_used(self):
        if len(CPUS) > 1:
            found = self.measure("wake", "--cpus", f"{CPUS[1]},{CPUS[0]}")
            self.assertEqual(found["cpus"], [CPUS[1], CPUS[0]])
        else:
            self.refused("perf", "wake", "--cpus", str(CPUS[0]), says="--cpus")

    def test_an_interrupt_ends_it_and_its_readers(self):
        process = subprocess.Popen([TOOL, "perf", "wake", "--seconds", "600", "--readers", "2"], stderr=subprocess.PIPE)
        children = f"/proc/{process.pid}/task/{process.pid}/children"
        readers = []
        while len(readers) < 2 and process.poll() is None:
            with open(children, encoding="ascii") as file:
                readers = file.read().split()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGINT)
        self.assertIn(b"interrupted", said)
        for reader in readers:
            await_end(int(reader))


def await_end(pid):
    """Returns when the process is gone; a process that never goes ends the test by its time limit."""
    while True:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                if file.read().rsplit(")", 1)[1].split()[0] in "ZX":
                    return
        except (FileNotFoundError, ProcessLookupError):
            return


if __name__ == "__main__":
    TOOL, FAKES = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    unittest.main()
