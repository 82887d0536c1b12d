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


# ---- What is compared ----------------------------------------------------------------------------


def one_bit(inputs):
    inputs["features"].view(torch.uint8)[1023, 2047] ^= 1


EDITS = {
    "one bit of the features": one_bit,
    "a dtype": lambda inputs: inputs.update(block_tables=inputs["block_tables"].view(torch.uint32)),
    "a shape": lambda inputs: inputs.update(positions=inputs["positions"].unsqueeze(0)),
    "an array for a tensor": lambda inputs: inputs.update(positions=inputs["positions"].numpy()),
    "the order of the keys": lambda inputs: inputs.update(input_ids=inputs.pop("input_ids")),
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
    assert "step['x']" in demo.difference({"x": minus_zero}, {"x": zero}, "step")


def test_inputs_depend_on_seed_and_step(demo):
    for seed, step in (1, 3), (2, 2):
        assert demo.difference(demo.make_inputs(1, 2), demo.make_inputs(seed, step), "step")


# ---- A run ---------------------------------------------------------------------------------------

# The ranks import the program that they were started by.
CHANGED = """
import sys
sys.path.insert(0, {folder!r})
{changed}
import tp_workers
if __name__ == "__main__":
    tp_workers.main()
"""
FLIP = """
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
FLIP_AFTER_A_DEATH = """
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
FAIL_AFTER_A_DEATH = FLIP_AFTER_A_DEATH.replace(
    'got["positions"][-1] ^= 1 << 40', 'raise LookupError("by itself")'
)
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


def command(folder, *arguments, changed=""):
    """On two processes; `changed` is Python that each of them runs before it, and no other that
    they need: importing torch is most of what a run does."""
    program = DEMO
    if changed:
        program = folder / "changed.py"
        program.write_text(CHANGED.format(folder=str(DEMO.parent), changed=changed))
    return [sys.executable, str(program), "--world", "2", "--steps", "6", *arguments]


def run(*args, **named):
    return subprocess.run(
        command(*args, **named), capture_output=True, text=True, timeout=WATCHDOG, check=False
    )


def test_a_run_reports_figures_of_both_ways_and_what_was_verified(tmp_path):
    done = run(tmp_path, "--format", "json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert list(summary["ways"]) == ["ringcast", "gloo"]
    for figures in summary["ways"].values():
        assert 0 < figures["median_us"] <= figures["p99_us"] and figures["steps_per_s"] > 0
    assert (summary["verified_steps"], summary["verified_workers"]) == (2 * 3 * 6, 1)


KILL = "--world 3 --kill 2"
EVICT = f"{KILL} --on-death evict"
DEATH = r"rank 2 \(pid \d+\) died at frame [34] \(position \d+\); noticed \d+\.\d ms"
# Arguments, what the ranks do otherwise, the exit status, and what is told.
ENDS = {
    "a flipped bit": ("", FLIP, 1, r"rank 1: .* ringcast\['positions'\]"),
    "a death by itself": ("", DIE, 1, "rank 1: the process died|rank 0: "),
    "a deadline": ("--steps 0 --deadline 0.1", "", 1, "no answer in time from rank 0, 1"),
    "a kill": (KILL, "", 1, DEATH),
    "a kill, and the others go on": (EVICT, "", 0, DEATH),
    "a flipped bit after a kill": (EVICT, FLIP_AFTER_A_DEATH, 1, r"rank 1: step 5\['positions'\]"),
    "an error after a kill": (EVICT, FAIL_AFTER_A_DEATH, 1, "rank 1 has left"),
    "a kill of the source": ("--kill 0", "", 2, "--kill takes"),
    "a kill of nobody": ("--kill 2", "", 2, "--kill takes"),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_a_run_is_told(tmp_path, end):
    arguments, changed, status, told = ENDS[end]
    done = run(tmp_path, *arguments.split(), changed=changed)
    assert done.returncode == status and re.search(told, done.stderr), done.stderr
    if status == 0:
        assert "6 steps × 1 workers" in done.stdout and "without rank 2" in done.stdout
    else:
        assert done.stdout == ""


def test_a_run_with_a_death_can_be_read_by_a_program(tmp_path):
    done = run(tmp_path, *"--kill 1 --on-death evict --format json".split())
    summary = json.loads(done.stdout)
    verified = summary["verified_steps"], summary["verified_workers"], summary["died"]["rank"]
    assert verified == (6, 0, 1)


# ---- A worker is stopped -------------------------------------------------------------------------


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


@contextlib.contextmanager
def endless(folder, world):
    """A run without end: the process, the pids by rank, and the ring's Tap."""
    waits = folder / "waits"
    over = DEADLINE_BY_FILE.format(file=str(folder / "over"), waits=str(waits))
    options = ["--world", str(world), "--steps", "0", "--deadline", str(WATCHDOG)]
    process = subprocess.Popen(
        command(folder, *options, changed=over),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def its_ring():
        return next((ring for ring in ringcast.rings() if parent(ring.pid) == process.pid), None)

    def all_receive():
        return [bool(peer.stats.frames) for peer in tap.peers()] == [True] * (world - 1)

    try:
        with ringcast.Tap(await_until(its_ring).handle) as tap:
            await_until(all_receive)
            await_until(waits.exists)
            yield process, {peer.name: peer.pid for peer in tap.peers()}, tap
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("end", ["deadline", "Ctrl-C", "Ctrl-C, none is stopped"])
def test_a_stopped_worker_is_named_and_no_rank_sees_another_die(tmp_path, end):
    with endless(tmp_path, 3) as (process, pids, tap):
        told = "interrupted\n"
        if "none" not in end:
            os.kill(pids["rank 2"], signal.SIGSTOP)
            await_until(lambda: [peer.name for peer in tap.peers() if peer.state == "stopped"])
            told = f"rank 2 is stopped (pid {pids['rank 2']}"
        if end == "deadline":
            (tmp_path / "over").touch()
        else:
            process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=WATCHDOG)
        assert (process.returncode, out) == (1, "") and told in said and said.count("\n") == 1
        assert not [pid for pid in pids.values() if parent(pid)]
