# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share; the program's first three arguments are taken here
(test_cli.py)."""

import json
import math
import os
import subprocess
import sys
import unittest

TOOL, FAKES, ACTOR = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
CPUS = sorted(os.sched_getaffinity(0))


def run(*arguments, stdout=subprocess.PIPE, **environment):
    return subprocess.run(
        [TOOL, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


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
