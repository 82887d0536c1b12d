# SPDX-License-Identifier: Apache-2.0
"""
For tp_workers.py and tp_model.py: starts a group's ranks as processes, and collects their results.
"""

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
from typing import Any, Callable, Iterable, List, NoReturn, Sequence, Tuple

LAST_WORDS = 2.0  # seconds for the other ranks to answer or to die when a rank has failed


def run_ranks(
    body: Callable[..., Any], arguments: Sequence[Sequence[Any]], deadline: float
) -> List[Any]:
    """Calls body(rank, *arguments[rank], store) in a process for each rank; `store` is a file for
    init_process_group. Returns what each call has returned. SystemExit: a rank failed or died,
    `deadline` seconds are over, or Ctrl-C. No process is left."""
    context = multiprocessing.get_context("spawn")
    processes, answers = [], []
    with tempfile.TemporaryDirectory() as folder:
        # As the ranks inherit it: they are ended below.
        at_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for rank, given in enumerate(arguments):
                ours, theirs = context.Pipe(duplex=False)
                whole = (body, rank, (*given, os.path.join(folder, "store")), theirs)
                processes.append(context.Process(target=_main, args=whole, daemon=True))
                processes[-1].start()
                theirs.close()  # only the rank has this end now, so the rank's death ends the pipe
                answers.append(ours)
            signal.signal(signal.SIGINT, at_interrupt)
            until = time.monotonic() + deadline
            results = _collect(answers, processes, until)
            for process in processes:
                # A profile or a trace is written at exit.
                process.join(max(0, until - time.monotonic()))
            return results
        except KeyboardInterrupt:
            raise SystemExit(
                ": ".join(filter(None, ["interrupted", who_is_stopped(enumerate(processes))]))
            ) from None
        finally:
            signal.signal(signal.SIGINT, at_interrupt)
            end_all(processes)


def end_all(processes: Iterable[Any]) -> None:
    """
    Kills the processes. All are stopped first: a rank that sees another die prints tracebacks, or
    aborts.
    """
    living = [process for process in processes if process.is_alive()]
    for end in signal.SIGSTOP, signal.SIGKILL:
        for process in living:
            os.kill(process.pid, end)  # a process that is not joined keeps its pid
    for process in living:
        process.join()


def who_is_stopped(processes: Iterable[Tuple[int, Any]]) -> str:
    """Of ranks that have not answered, with their processes: which are stopped or dead, and so keep
    the others waiting. "" if none is."""
    states = {rank: _state_of(process.pid) for rank, process in processes}
    culprits = [f"rank {rank} is {state}" for rank, state in states.items() if state]
    others = [str(rank) for rank, state in states.items() if not state]
    if culprits and others:
        several = f"ranks {', '.join(others[:-1])} and {others[-1]} wait"
        waiting = several if len(others) > 1 else f"rank {others[0]} waits"
        culprits[-1] += f"; {waiting} for {'it' if len(culprits) == 1 else 'them'}"
    return ", ".join(culprits)


def _state_of(pid: int) -> str:
    """Why a process does nothing, by proc(5); "" if it runs or sleeps."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        letter = "X"
    if letter in "Tt":
        return f"stopped (pid {pid}: by a signal or a debugger)"
    return f"dead (pid {pid})" if letter in "ZX" else ""


def _main(body: Callable[..., Any], rank: int, given: Sequence[Any], answer: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise gloo resolves the host's name
    try:
        answer.send((True, body(rank, *given)))
    except BaseException as error:
        text = str(error) if isinstance(error, SystemExit) else traceback.format_exc()
        answer.send((False, (time.monotonic(), text)))


def _collect(answers: List[Any], processes: List[Any], deadline: float) -> List[Any]:
    """A rank that fails makes the others fail: the first failure is told. So does a rank that dies,
    maybe before its death is seen here: then both are told, deaths first."""
    results: List[Any] = [None] * len(answers)
    missing = {answer: rank for rank, answer in enumerate(answers)}
    failed: List[Tuple[float, str]] = []  # when, by the clock of all processes, and the text
    dead: List[str] = []
    while missing:
        ready = multiprocessing.connection.wait(list(missing), max(0, deadline - time.monotonic()))
        if not ready and not failed:
            stopped = who_is_stopped((rank, processes[rank]) for rank in missing.values())
            raise SystemExit(
                stopped or f"no answer in time from rank {', '.join(map(str, missing.values()))}"
            )
        if not ready:
            break
        for answer in ready:
            rank = missing.pop(answer)
            try:
                ok, results[rank] = answer.recv()
                if not ok:
                    when, text = results[rank]
                    failed.append((when, f"rank {rank}: {text}"))
            except EOFError:
                dead.append(f"rank {rank}: the process died ({_end_of(processes[rank])})")
        if dead:
            break
        if failed:
            deadline = min(deadline, time.monotonic() + LAST_WORDS)
    if dead or failed:
        raise SystemExit("\n".join([*dead, *(text for _, text in sorted(failed)[:1])]))
    return results


def _end_of(process: Any) -> str:
    process.join(LAST_WORDS)
    status = process.exitcode
    return (
        signal.Signals(-status).name
        if status is not None and status < 0
        else f"exit status {status}"
    )


def exit_without(error: ModuleNotFoundError) -> NoReturn:
    """Ends the program: a module is not installed."""
    missing = (error.name or str(error)).split(".")[0]
    source = "the top folder of ringcast's sources" if missing == "ringcast" else missing
    program = os.path.basename(sys.argv[0])
    sys.exit(
        f"{program} needs {missing}, which is not installed here: {sys.executable} -m pip install "
        f"{source}"
    )


def cpu_model() -> str:
    found = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
