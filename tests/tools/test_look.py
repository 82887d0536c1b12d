# SPDX-License-Identifier: Apache-2.0
"""The commands that look at rings, with the processes of ring_actor.c to look at.

test_look.py <path of the tool> <folder of the tests' own CUDA drivers> <path of ring_actor>
[unittest's arguments]
"""

import unittest

from test_completion import Completion  # noqa: F401
from test_hz import Hz  # noqa: F401
from test_list import List  # noqa: F401
from test_stat import Hostile, Prometheus, Stat  # noqa: F401
from test_top import Screen, Top  # noqa: F401
from test_watch import Watch  # noqa: F401

if __name__ == "__main__":
    unittest.main()
