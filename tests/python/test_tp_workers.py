# SPDX-License-Identifier: Apache-2.0
"""The demo compares every byte, and ends with an error when something differs, dies or hangs."""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import needs
import pytest
from peers import WATCHDOG

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import ringcast
import torch

pytestmark = pytest.mark.alike

DEMO = pathlib.Path(__file__).parents[2] / "examples" / "tp_workers.py"


@pytest.fixture(scope="module")
def demo():
    sys.path.insert(0, str(DEMO.parent))
    spec = importlib.util.spec_from_file_location("tp_workers", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(DEMO.parent))
    return module


def run_demo(folder, *arguments, changed=""):
    """Runs it on two processes; `changed` is Python that each of them runs before it, and no other
    that they need: importing torch is most of what a run does."""
    demo = DEMO
    if changed:
        demo = folder / "changed.py"
        demo.write_text(CHANGED.format(folder=str(DEMO.parent), changed=changed))
    command = [sys.executable, str(demo), "--world", "2", "--steps", "6", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG, check=False)


# The ranks import the program that they were started by.
CHANGED = """
import sys
sys.path.insert(0, {folder!r})
{changed}
import tp_workers
if __name__ == "__main__":
    tp_workers.main()
"""


def one_bit(inputs):
    inputs["features"].view(torch.uint8)[1023, 2047] ^= 1


def order(inputs):
    inputs["input_ids"] = inputs.pop("input_ids")


EDITS = {
    "one bit of the features": one_bit,
    "a dtype": lambda inputs: inputs.update(block_tables=inputs["block_tables"].view(torch.uint32)),
    "a shape": lambda inputs: inputs.update(positions=inputs["positions"].unsqueeze(0)),
    "an array for a tensor": lambda inputs: inputs.update(positions=inputs["positions"].numpy()),
    "the order of the keys": order,
    "a key more": lambda inputs: inputs.update(more=None),
    "a key less": lambda inputs: inputs.pop("lora"),
    "an int for a bool": lambda inputs: inputs.update(is_prompt=int(inputs["is_prompt"])),
    "an int": lambda inputs: inputs.update(step=1),
    "a request": lambda inputs: inputs["request_ids"].__setitem__(-1, "chatcmpl"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_any_difference_is_found(demo, edit):
    inputs, wanted = demo.make_inputs(1, 0), demo.make_inputs(1, 0)
    assert demo.difference(inputs, wanted, "step") is None
    EDITS[edit](inputs)
    assert "step" in demo.difference(inputs, wanted, "step")


def test_floats_are_compared_by_their_bits(demo):
    nan, zero, minus_zero = (torch.tensor([value]) for value in (float("nan"), 0.0, -0.0))
    assert demo.difference({"x": nan}, {"x": nan.clone()}, "step") is None
    assert demo.difference({"x": minus_zero}, {"x": zero}, "step") == "step['x']: other bytes"


def test_inputs_depend_on_seed_and_step(demo):
    assert demo.difference(demo.make_inputs(1, 2), demo.make_inputs(1, 3), "step")
    assert demo.difference(demo.make_inputs(1, 2), demo.make_inputs(2, 2), "step")


def test_a_run_reports_figures_of_both_ways_and_what_was_verified(tmp_path):
    done = run_demo(tmp_path, "--format", "json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert list(summary["ways"]) == ["ringcast", "gloo"]
    for figures in summary["ways"].values():
        assert 0 < figures["median_us"] <= figures["p99_us"] and figures["steps_per_s"] > 0
    assert (summary["verified_steps"], summary["verified_workers"]) == (2 * 3 * 6, 1)


FLIP_A_BYTE = """
import ringcast.torch
broadcast = ringcast.torch.broadcast_tensor_dict
def flipping(inputs=None, src=0):
    got = broadcast(inputs, src)
    if inputs is None and got["step"] == 5:
        got["positions"][-1] ^= 1 << 40
    return got
ringcast.torch.broadcast_tensor_dict = flipping
"""

DIE = """
import os, torch.distributed
broadcast = torch.distributed.broadcast_object_list
def dying(metadata, src=0):
    if metadata != [None]:
        return broadcast(metadata, src)
    os._exit(9)
torch.distributed.broadcast_object_list = dying
"""


def test_a_flipped_bit_fails_the_run(tmp_path):
    done = run_demo(tmp_path, changed=FLIP_A_BYTE)
    assert done.returncode == 1 and done.stdout == ""
    assert (
        "rank 1: received something else than was sent: step 5 by ringcast['positions']: other "
        "bytes" in done.stderr
    )


def test_a_worker_that_dies_ends_the_run(tmp_path):
    done = run_demo(tmp_path, changed=DIE)
    assert done.returncode == 1 and done.stdout == ""
    assert "rank 1: the process died" in done.stderr or "rank 0: " in done.stderr, done.stderr


def test_the_deadline_ends_the_run(tmp_path):
    done = run_demo(tmp_path, "--steps", "0", "--deadline", "0.1")  # without an end of their own
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "no answer in time from rank 0, 1\n"


# ---- A worker is stopped -------------------------------------------------------------------------

# The deadline is over when the file is there.
DEADLINE_BY_FILE = """
import os, ranks
wait = ranks.multiprocessing.connection.wait
def wait_for_file(ready, _):
    open({waits!r}, "w").close()  # from now on Ctrl-C ends it
    while not os.path.exists({file!r}):
        if found := wait(ready, 0.02):
            return found
    return []
if __name__ == "__main__":
    ranks.multiprocessing.connection.wait = wait_for_file
"""


@contextlib.contextmanager
def endless(folder, world):
    """A run without end: the process, the pids by rank, and a call that says which ranks `ringcast
    stat` calls stopped."""
    changed = folder / "changed.py"
    waits = folder / "waits"
    over = DEADLINE_BY_FILE.format(file=str(folder / "over"), waits=str(waits))
    changed.write_text(CHANGED.format(folder=str(DEMO.parent), changed=over))
    command = [
        sys.executable,
        str(changed),
        "--world",
        str(world),
        "--steps",
        "0",
        "--deadline",
        str(WATCHDOG),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        ring = await_until(
            lambda: next(
                (ring for ring in ringcast.rings() if parent(ring.pid) == process.pid), None
            )
        )
        with ringcast.Tap(ring.handle) as tap:
            await_until(
                lambda: (
                    len(tap.peers()) == world - 1 and all(peer.stats.frames for peer in tap.peers())
                )
            )
            await_until(waits.exists)
            pids = {peer.name: peer.pid for peer in tap.peers()}
            yield (
                process,
                pids,
                lambda: [peer.name for peer in tap.peers() if peer.state == "stopped"],
            )
    finally:
        process.kill()
        process.communicate()


def parent(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def await_until(condition):
    deadline = time.monotonic() + WATCHDOG
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("end", ["deadline", "Ctrl-C"])
def test_a_stopped_worker_is_named_as_stat_names_it(tmp_path, end):
    with endless(tmp_path, 3) as (process, pids, stopped):
        os.kill(pids["rank 2"], signal.SIGSTOP)
        assert await_until(stopped) == ["rank 2"]
        if end == "deadline":
            (tmp_path / "over").touch()
        else:
            process.send_signal(signal.SIGINT)
        told, said = process.communicate(timeout=WATCHDOG)
    wanted = f"rank 2 is stopped (pid {pids['rank 2']}: by a signal or a debugger); ranks 0 and 1 wait for it\n"
    assert (process.returncode, told, said) == (
        1,
        "",
        wanted if end == "deadline" else f"interrupted: {wanted}",
    )


class Rank(subprocess.Popen):
    """As multiprocessing has a process."""

    def is_alive(self):
        return self.poll() is None

    def join(self):
        self.wait()


def test_no_rank_sees_another_die(demo):
    reading, writing = os.pipe()
    first = Rank(["sleep", "infinity"], pass_fds=[writing])
    second = Rank(["sh", "-c", "cat; echo saw"], stdin=reading, stdout=subprocess.PIPE)
    os.close(reading)
    os.close(writing)
    first.join = lambda: (first.wait(), second.wait())  # the second has time to see it
    demo.end_all([first, second])
    assert (second.stdout.read(), first.returncode, second.returncode) == (
        b"",
        -signal.SIGKILL,
        -signal.SIGKILL,
    )
    second.stdout.close()


def test_a_run_that_goes_well_ends_without_more_words(tmp_path):
    """The ranks must not see each other die."""
    with endless(tmp_path, 4) as (process, pids, _):
        process.send_signal(signal.SIGINT)
        told, said = process.communicate(timeout=WATCHDOG)
        assert (process.returncode, told, said) == (1, "", "interrupted\n")
        assert not [pid for pid in pids.values() if parent(pid)]


# ---- A worker is killed --------------------------------------------------------------------------

DEATH = (
    r"rank 2 \(pid \d+\) died at frame [34] \(position \d+\); noticed \d+\.\d ms after the kill\n"
)
KILL = ["--world", "3", "--kill", "2"]


def test_a_killed_worker_ends_the_run_and_is_named(tmp_path):
    done = run_demo(tmp_path, *KILL)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(DEATH, done.stderr), done.stderr


def test_the_others_go_on_without_a_killed_worker(tmp_path):
    done = run_demo(tmp_path, *KILL, "--on-death", "evict")
    assert done.returncode == 0 and re.fullmatch(DEATH, done.stderr), done.stderr
    summary = r"verified: 6 steps × 1 workers, all bytes equal; without rank 2, which died at frame [34]\n"
    assert re.fullmatch(summary, done.stdout), done.stdout


def test_a_run_with_a_death_can_be_read_by_a_program(tmp_path):
    done = run_demo(tmp_path, "--kill", "1", "--on-death", "evict", "--format", "json")
    summary = json.loads(done.stdout)
    assert (summary["verified_steps"], summary["verified_workers"], summary["died"]["rank"]) == (
        6,
        0,
        1,
    )


FLIP_A_BYTE_OF_RANK_1 = """
import ringcast
class Flipping:
    def __init__(self, handle, name):
        self.reader, self.name = Reader(handle, name=name), name
    def __enter__(self):
        return self
    def __exit__(self, *exception):
        self.reader.close()
    def recv(self):
        got = self.reader.recv()
        if self.name == "rank 1" and got["step"] == 5:
            got["positions"][-1] ^= 1 << 40
        return got
Reader, ringcast.Reader = ringcast.Reader, Flipping
"""


def test_a_flipped_bit_after_a_death_fails_the_run(tmp_path):
    done = run_demo(tmp_path, *KILL, "--on-death", "evict", changed=FLIP_A_BYTE_OF_RANK_1)
    assert done.returncode == 1 and done.stdout == ""
    assert (
        "received something else than was sent: rank 1: step 5['positions']: other bytes"
        in done.stderr
    )


def test_a_worker_that_fails_by_itself_ends_the_run(tmp_path):
    fail = FLIP_A_BYTE_OF_RANK_1.replace(
        'got["positions"][-1] ^= 1 << 40', 'raise LookupError("by itself")'
    )
    done = run_demo(tmp_path, *KILL, "--on-death", "evict", changed=fail)
    assert done.returncode == 1 and "rank 1 has left: its output tells why" in done.stderr, (
        done.stderr
    )


@pytest.mark.parametrize("rank", ["0", "2"])
def test_only_a_worker_can_be_killed(tmp_path, rank):
    done = run_demo(tmp_path, "--kill", rank)
    assert (
        done.returncode == 2
        and f"--kill takes the rank of a worker, from 1 to 1, not {rank}" in done.stderr
    )
