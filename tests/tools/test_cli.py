# SPDX-License-Identifier: Apache-2.0
"""The command line, run as people run it: its words and options, and all that the other files here
have.

test_cli.py <path of the tool> <folder of the tests' own CUDA drivers> <path of ring_actor>
[unittest's arguments]
"""

import os
import re
import subprocess
import unittest

from case import TOOL, Case
from test_doctor import Doctor  # noqa: F401
from test_gpu import DoctorOfGpus, PerfOfGpus  # noqa: F401
from test_perf import Perf  # noqa: F401

MEASUREMENTS = ["latency", "throughput", "wake", "cadence", "gpu"]


class CommandLine(Case):
    def test_version_is_the_librarys(self):
        header = os.path.join(os.path.dirname(__file__), "../../include/ringcast/version.h")
        with open(header, encoding="utf-8") as file:
            version = re.search(r'#define RINGCAST_VERSION +"(.*)"', file.read())[1]
        self.assertEqual(self.succeed("--version"), f"ringcast {version}\n")

    def test_help_names_every_command_and_gives_examples(self):
        for arguments in (["--help"], ["-h"], ["help"], ["help", "help"], ["help", "--help"]):
            text = self.succeed(*arguments)
            for word in ("doctor", "perf", "python -m ringcast config"):
                self.assertIn(word, text)

    def test_each_command_has_its_options_in_its_help(self):
        for arguments in (["perf", "--help"], ["help", "perf"], ["perf", "latency", "--help"]):
            text = self.succeed(*arguments)
            for word in ("usage: ringcast perf", "--size", "--format", "ringcast(1)"):
                self.assertIn(word, text)

    def test_bad_usage_is_refused_with_the_usage(self):
        self.refused(says="no command")
        self.refused("frobnicate", says="frobnicate")
        self.refused("help", "frobnicate", says="frobnicate")
        self.refused("config", "--libs", says="python -m ringcast config")
        for command in ("perf", "doctor", "help"):
            self.refused("help", command, "frobnicate", says="frobnicate")
        self.refused("--frobnicate", says="--frobnicate")
        self.refused("perf", says="what to measure")
        self.refused("perf", "frobnicate", says="frobnicate")

    def test_unknown_options_and_words_are_refused(self):
        for command in (["doctor"], *(["perf", name] for name in MEASUREMENTS)):
            self.refused(*command, "--frobnicate", says="--frobnicate")
            self.refused(*command, "--format", "xml", says="--format")
            self.refused(*command, "--format", says="--format")
            self.refused(*command, "frobnicate", says="frobnicate")

    def test_values_that_will_not_do_are_refused(self):
        for measurement, option, values in (
            ("latency", "--size", ["0", "-1", "x", "4Q", "99999999999G", "", "7", "8000000000G"]),
            ("latency", "--readers", ["0", "-1", "257", "x", "1.5"]),
            ("latency", "--seconds", ["0", "-1", "nan", "inf", "x"]),
            ("latency", "--capacity", ["-1", "x"]),
            ("latency", "--gap", ["5"]),
            ("latency", "--sizes", ["1K"]),
            ("cadence", "--gap", ["0", "x", "60001"]),
            ("gpu", "--sizes", ["", "0", "1K,", ",1K", "1K,x", ",".join(["8"] * 33)]),
            ("gpu", "--size", ["1K"]),
        ):
            for value in values:
                with self.subTest(measurement=measurement, option=option, value=value):
                    self.refused("perf", measurement, option, value, says=option)

    def test_output_that_can_not_be_written_is_a_failure(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(
                [TOOL, "doctor"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
            )
        self.assertEqual(done.returncode, 1)
        self.assertIn("can't write", done.stderr)


if __name__ == "__main__":
    unittest.main()
