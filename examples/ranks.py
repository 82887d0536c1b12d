# SPDX-License-Identifier: Apache-2.0
"""For tp_workers.py: starts a group's ranks as processes, and collects their results."""

import multiprocessing
import multiprocessing.connection
import os
import platform
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable, List, NoReturn, Sequence


def run_ranks(body: Callable[..., Any], arguments: Sequence[Sequence[Any]], deadline: float) -> List[Any]:
    """Calls body(rank, *arguments[rank], store) in a process for each rank; `store` is a file for init_process_group.
    Returns what each call has returned. SystemExit: a rank failed or died, or `deadline` seconds are over. No process
    is left."""
    context = multiprocessing.get_context("spawn")
    processes, answers = [], []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank, given in enumerate(arguments):
                ours, theirs = context.Pipe(duplex=False)
                whole = (body, rank, (*given, os.path.join(folder, "store")), theirs)
                processes.append(context.Process(target=_main, args=whole, daemon=True))
                processes[-1].start()
                theirs.close()  # only the rank has this end now, so the rank's death ends the pipe
                answers.append(ours)
            return _collect(answers, time.monotonic() + deadline)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _main(body: Callable[..., Any], rank: int, given: Sequence[Any], answer: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise gloo resolves the host's name
    try:
        answer.send((True, body(rank, *given)))
    except BaseException as error:
        answer.send((False, str(error) if isinstance(error, SystemExit) else traceback.format_exc()))


def _collect(answers: List[Any], deadline: float) -> List[Any]:
    results: List[Any] = [None] * len(answers)
    missing = {answer: rank for rank, answer in enumerate(answers)}
    while missing:
        ready = multiprocessing.connection.wait(list(missing), max(0, deadline - time.monotonic()))
        if not ready:
            raise SystemExit(f"no answer in time from rank {', '.join(map(str, missing.values()))}")
        for answer in ready:
            rank = missing.pop(answer)
            try:
                ok, results[rank] = answer.recv()
            except EOFError:
                ok, results[rank] = False, "the process died"
            if not ok:
                raise SystemExit(f"rank {rank}: {results[rank]}")
    return results


def exit_without(error: ModuleNotFoundError) -> NoReturn:
    """Ends the program: a module is not installed."""
    missing = (error.name or str(error)).split(".")[0]
    source = "the top folder of ringcast's sources" if missing == "ringcast" else missing
    program = os.path.basename(sys.argv[0])
    sys.exit(f"{program} needs {missing}, which is not installed here: {sys.executable} -m pip install {source}")


def cpu_model() -> str:
    found = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
