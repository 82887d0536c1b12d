# SPDX-License-Identifier: Apache-2.0
"""A launcher for ways with handles that only a fork hands on: makes the handles, then forks the members of the group.

    forked.py MODULE PROCESSES PYTHON MEMBER.PY FOLDER

The adapter's function before_fork(processes) makes the handles, and leaves the handles in the module.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import List

PEERS = Path(__file__).resolve().parents[1]


def command(module: str, processes: int) -> List[str]:
    """What Way.launcher() returns."""
    return [sys.executable, str(Path(__file__).resolve()), module, str(processes)]


def fork_members(module: str, processes: int, arguments: List[str]) -> int:
    from member import start

    importlib.import_module(module).before_fork(processes)
    for rank in range(processes):
        if os.fork() == 0:
            start(arguments, rank)
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(processes)]
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.path[0] = str(PEERS)
    sys.exit(fork_members(sys.argv[1], int(sys.argv[2]), sys.argv[5:]))
