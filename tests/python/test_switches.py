# SPDX-License-Identifier: Apache-2.0
"""
RINGCAST_DISABLE, by what the process does: each thing that it names is not used. The suite is run
again under each name: this shows that such a run does force what it says.
"""

import contextlib
import os
import subprocess
import sys

import pytest

import ringcast

DISABLED = set(os.environ.get("RINGCAST_DISABLE", "").replace(",", " ").split())


def test_a_ring_is_of_memory_that_is_not_switched_off():
    with ringcast.Writer(4 << 20) as writer:
        assert writer.memory not in DISABLED
        assert writer.memory == os.environ.get("RINGCAST_TEST_MEMORY", writer.memory)
    for memory in DISABLED & {"hugetlb", "shmem-huge"}:
        with pytest.raises(ringcast.Error, match="RINGCAST_DISABLE"):
            ringcast.Writer(4 << 20, memory=memory)


# A filter for seccomp that ends the process with SIGSYS at one system call.
FORBID = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
program = struct.pack(
    "=" + 4 * "HBBI",
    *(0x20, 0, 0, 0),  # load the number of the call
    *(0x15, 0, 1, int(sys.argv[1])),  # another one: over the next line
    *(0x06, 0, 0, 0x80000000),  # kill the process
    *(0x06, 0, 0, 0x7FFF0000),  # allow
)
code = ctypes.create_string_buffer(program)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, struct.pack("@HP", 4, ctypes.addressof(code)), 0, 0):
    sys.exit("no seccomp")
"""
SLEEP = """
import ringcast
with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle) as reader:
    try:
        reader.recv(0.001)
    except TimeoutError:
        print("slept")
"""
NUMBERS = {"pidfd": {"x86_64": 434, "aarch64": 434}}  # of pidfd_open


@pytest.mark.parametrize("switch", NUMBERS)
def test_who_goes_to_sleep_makes_the_call_unless_switched_off(switch):
    number = NUMBERS[switch].get(os.uname().machine)
    if number is None:
        pytest.skip("the numbers of system calls are not known here")
    command = [sys.executable, "-c", FORBID + SLEEP, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.stderr.strip() == "no seccomp":
        pytest.skip("no seccomp here")
    if switch in DISABLED:
        assert (done.returncode, done.stdout) == (0, "slept\n"), done.stderr
    else:
        assert (done.returncode, done.stdout) == (-31, ""), done.stderr  # SIGSYS


def test_a_descriptor_is_served_by_a_thread_where_io_uring_is_switched_off(ring):
    _, reader = ring
    reader.fileno()
    threads = set()
    for task in os.listdir("/proc/self/task"):
        # One may end.
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as name:
            threads.add(name.read().strip())
    rings = [number for number in os.listdir("/proc/self/fd") if "io_uring" in read_link(number)]
    assert ("ringcast-poller" in threads) == (not rings)
    if "io_uring" in DISABLED:
        assert not rings


def read_link(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:  # the one that listed them
        return ""
