# SPDX-License-Identifier: Apache-2.0
"""The cost of an object on the way from one process to another, as counts: messages, copies, bytes
copied and system calls. vLLM's issue 4440 names three overheads of
torch.distributed.broadcast_object_list: device memory, copies, and a second broadcast for the size.

  overheads.py                prints the table
  overheads.py --vllm FOLDER  also vLLM's own queue, from an unpacked source or a folder of packages
  overheads.py --page         writes the table into docs/benchmarks.md too

The counts are over OBJECTS objects, GAP seconds apart, after OBJECTS objects to warm up.
- Messages: calls of torch.distributed.broadcast; chunks that vLLM's queue writes; frames by the
  Writer's stats().
- Bytes copied: blocks of at least an eighth of the pickle's size, by memcpy and memmove, which
  copies.c replaces (LD_PRELOAD), and the bytes that system calls move in and out of the kernel
  (strace). Writing a pickle or a frame value by value is no copy; a large value inside is.
- Copies: the bytes copied as a multiple of the pickle's size.
- System calls: of all threads, by strace. Calls that wait for or wake another thread stand apart,
  since their number depends on the gap.
"""

import argparse
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time

import ringcast

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from bench.tables import fill, table  # noqa: E402

PAGE = ROOT / "docs/benchmarks.md"
OBJECTS = 20
GAP = 0.005
LEAVING = 10  # seconds that the ranks may take to end
WAITS = set(
    "futex poll ppoll epoll_wait epoll_pwait epoll_pwait2 select pselect6 nanosleep sched_yield "
    "io_uring_enter "
    "restart_syscall rt_sigreturn sched_getaffinity".split()
)
MOVES = set(
    "read readv recvfrom recvmsg write writev sendto sendmsg process_vm_readv "
    "process_vm_writev".split()
)
LINE = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed).*?(?:= (-?\d+).*|<unfinished \.\.\.>)$")
WAYS = {
    "gloo": "`broadcast_object_list` (gloo)",
    "padded": "gloo, padded to an estimate",
    "vllm": "vLLM's queue",
    "queue": "`ringcast.vllm.MessageQueue`",
    "object": "`ringcast.torch.broadcast_object`",
}


def values():
    from bench.python import cases

    return {
        "metadata": cases.metadata(),
        "64 KiB of bytes": {"step": 1, "data": os.urandom(1 << 16)},
    }


# ---- A rank --------------------------------------------------------------------------------------


def gloo_padded(me, room):
    """The pickle, which ends itself, in one broadcast of a size known to all ranks."""
    import torch
    import torch.distributed as dist

    padded = torch.empty(room, dtype=torch.uint8)

    def send(value):
        data = pickle.dumps(value)
        padded.numpy()[: len(data)] = memoryview(data)
        dist.broadcast(padded, 0, me.group)

    def receive():
        dist.broadcast(padded, 0, me.group)
        return pickle.loads(padded.numpy())

    return receive if me.rank else send


def counted(call):
    def counting(*args, **kwargs):
        counting.calls += 1
        return call(*args, **kwargs)

    counting.calls = 0
    return counting


def rank_main(options):
    import torch.distributed as dist

    from bench.python import ways

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{options.store}", rank=options.rank, world_size=2
    )
    me = ways.Member(options.rank, 2, dist.group.WORLD, options.vllm)
    value = values()[options.value]
    size = len(pickle.dumps(value))
    call = {
        "gloo": ways.gloo_object,
        "padded": lambda me: gloo_padded(me, size + size // 16 + 64),
        "vllm": ways.vllm_queue,
        "queue": ways.ringcast_queue,
        "object": ways.ringcast_object,
    }[options.way](me)
    c10d = importlib.import_module("torch.distributed.distributed_c10d")
    c10d.broadcast = dist.broadcast = broadcasts = counted(c10d.broadcast)
    messages = [lambda: broadcasts.calls]
    if options.way == "vllm":
        queue = call.__self__
        name = "acquire_read" if options.rank else "acquire_write"
        chunks = counted(getattr(queue, name))
        setattr(queue, name, chunks)
        messages.append(lambda: chunks.calls)
    count_calls(options.rank, call, value, size, messages)
    os._exit(0)


def count_calls(rank, call, value, size, messages):
    """
    Makes the calls of a rank, and tells measure() what was counted; returns when measure() has all.
    `messages` are functions that count them; the frames of ringcast's rings are counted in any
    case.
    """
    copies = ctypes.CDLL(None).copies_count
    copies.restype, copies.argtypes = ctypes.c_uint64, [ctypes.c_size_t]

    def exchange(gap):
        for _ in range(OBJECTS):
            if rank:
                call()
            else:
                time.sleep(gap)
                call(value)

    def sent():
        return sum(count() for count in messages) + sum(end.stats().frames for end in rings)

    exchange(GAP)
    rings = [
        end
        for end in gc.get_objects()
        if type(end) in (ringcast.Writer, ringcast.Reader) and not end.closed
    ]
    print("ready", flush=True)
    sys.stdin.readline()
    time.sleep(0.2)  # until the receiver is ready
    before = sent()
    copies(size // 8)
    os.getpgid(0)  # a mark in the trace
    exchange(GAP)
    os.getpgid(0)
    found = {"bytes": copies(2**63), "messages": sent() - before, "size": size}
    print(json.dumps(found), flush=True)
    sys.stdin.readline()


# ---- Counting ------------------------------------------------------------------------------------


def read_trace(path, rank):
    """System calls, calls that wait or wake, and the bytes in and out of the kernel."""
    calls = waits = moved = marks = 0
    for line in path.read_text().splitlines():
        found = LINE.match(line)
        if not found:
            continue
        name, result = found[1], int(found[2] or 0)
        if name == "getpgid":
            marks += " resumed" not in line
        elif marks == 1:
            if name in MOVES:
                moved += max(result, 0)
            if " resumed" not in line:
                waits += name in WAITS
                calls += name not in WAITS
    assert marks == 2, f"{path}: {marks} marks"
    if rank == 0:
        calls -= OBJECTS  # the source's own sleeps, between the objects
    return calls, waits, moved


def measure(way, value, vllm):
    """The figures of the source and of the receiver."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/copies.so"
        subprocess.run(
            ["cc", "-O2", "-fPIC", "-shared", "-o", library, str(ROOT / "bench/copies.c")],
            check=True,
        )
        ranks, traces = [], []
        for rank in range(2):
            command = [
                sys.executable,
                __file__,
                "--store",
                f"{folder}/store",
                "--way",
                way,
                "--value",
                value,
            ]
            command += ["--rank", str(rank), *(["--vllm", vllm] if vllm else [])]
            env = {**os.environ, "LD_PRELOAD": library, "OMP_NUM_THREADS": "1"}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            ranks.append(subprocess.Popen(command, env=env, text=True, **pipes))
        try:
            for one in ranks:
                wait_for(one, "ready")
            for rank, one in enumerate(ranks):
                command = ["strace", "-f", "-qq", "-o", f"{folder}/{rank}", "-p", str(one.pid)]
                traces.append(subprocess.Popen(command))
                while not all(
                    traced(one.pid, task) for task in os.listdir(f"/proc/{one.pid}/task")
                ):
                    time.sleep(0.01)
            for one in ranks:
                tell(one)
            answers = [json.loads(wait_for(one, "{")) for one in ranks]
            for trace in traces:
                trace.send_signal(signal.SIGINT)
                trace.wait()
            found = []
            for rank, answer in enumerate(answers):
                calls, waits, moved = read_trace(pathlib.Path(folder, str(rank)), rank)
                # A wake-up by a pipe is no copy.
                moved = moved if moved >= answer["size"] * OBJECTS / 2 else 0
                found.append(
                    {
                        "messages": answer["messages"] / OBJECTS,
                        "bytes": (answer["bytes"] + moved) / OBJECTS,
                        "copies": (answer["bytes"] + moved) / OBJECTS / answer["size"],
                        "calls": calls / OBJECTS,
                        "waits": waits / OBJECTS,
                        "size": answer["size"],
                    }
                )
            for one in ranks:
                tell(one)
            with contextlib.suppress(subprocess.TimeoutExpired):
                for one in ranks:
                    one.wait(LEAVING)
            return found
        finally:
            for one in ranks:
                one.kill()
                one.wait()


def wait_for(process, word):
    for line in process.stdout:
        if line.startswith(word):
            return line
    raise SystemExit(f"overheads: a rank has ended: {process.wait()}")


def tell(process):
    process.stdin.write("go\n")
    process.stdin.flush()


def traced(pid, task):
    status = pathlib.Path(f"/proc/{pid}/task/{task}/status").read_text()
    return "TracerPid:\t0\n" not in status


def table_of(found):
    head = (
        "object",
        "way",
        "messages",
        "copies",
        "bytes copied",
        "system calls",
        "... that wait or wake",
    )
    rows = []
    for value, way, (source, receiver) in found:
        both = [f"{source['bytes']:,.0f} + {receiver['bytes']:,.0f}"]
        both += [f"{source[key]:.1f} + {receiver[key]:.1f}" for key in ("copies", "calls", "waits")]
        name = f"{value} ({source['size']} bytes as a pickle)"
        rows.append([name, WAYS[way], f"{source['messages']:g}", both[1], both[0], *both[2:]])
    return table(head, rows)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", metavar="FOLDER")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--way", choices=WAYS, help="only this way")
    parser.add_argument("--value", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return rank_main(options)
    ways = [options.way] if options.way else [way for way in WAYS if way != "vllm" or options.vllm]
    text = table_of(
        [(value, way, measure(way, value, options.vllm)) for value in values() for way in ways]
    )
    print(text)
    if options.page:
        PAGE.write_text(fill(PAGE.read_text(), {"overheads": text}))


if __name__ == "__main__":
    main()
