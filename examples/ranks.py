# SPDX-License-Identifier: Apache-2.0
"""For tp_workers.py and tp_model.py: starts a group's ranks as processes, and collects their results."""

import multiprocessing
import multiprocessing.connection
import os
import platform
import re
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, NoReturn, Sequence

LAST_WORDS = 2.0  # seconds for the other ranks to answer or to die when a rank has failed


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
            until = time.monotonic() + deadline
            results = _collect(answers, processes, until)
            for process in processes:
                process.join(max(0, until - time.monotonic()))  # a profile or a trace is written at exit
            return results
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


def _collect(answers: List[Any], processes: List[Any], deadline: float) -> List[Any]:
    """A rank that dies makes the others fail, maybe before its death is seen here: then both are told, deaths first."""
    results: List[Any] = [None] * len(answers)
    missing = {answer: rank for rank, answer in enumerate(answers)}
    failed: Dict[int, str] = {}
    dead: List[str] = []
    while missing:
        ready = multiprocessing.connection.wait(list(missing), max(0, deadline - time.monotonic()))
        if not ready and not failed:
            raise SystemExit(f"no answer in time from rank {', '.join(map(str, missing.values()))}")
        if not ready:
            break
        for answer in ready:
            rank = missing.pop(answer)
            try:
                ok, results[rank] = answer.recv()
                if not ok:
                    failed[rank] = f"rank {rank}: {results[rank]}"
            except EOFError:
                failed[rank] = f"rank {rank}: the process died ({_end_of(processes[rank])})"
                dead.append(failed[rank])
        if failed and not dead:
            deadline = min(deadline, time.monotonic() + LAST_WORDS)
        elif failed:
            break
    if failed:
        raise SystemExit("\n".join(dict.fromkeys([*dead, next(iter(failed.values()))])))
    return results


def _end_of(process: Any) -> str:
    process.join(LAST_WORDS)
    status = process.exitcode
    return signal.Signals(-status).name if status is not None and status < 0 else f"exit status {status}"


def exit_without(error: ModuleNotFoundError) -> NoReturn:
    """Ends the program: a module is not installed."""
    missing = (error.name or str(error)).split(".")[0]
    source = "the top folder of ringcast's sources" if missing == "ringcast" else missing
    program = os.path.basename(sys.argv[0])
    sys.exit(f"{program} needs {missing}, which is not installed here: {sys.executable} -m pip install {source}")


def cpu_model() -> str:
    found = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
