# SPDX-License-Identifier: Apache-2.0
"""Network namespaces as machines: each has a network, processes, and a name of its own.

    with machines.machines(2) as (a, b):
        job = b.start(function, a.address, 3)   # function(a.address, 3), in a new process of machine b
        job.send("go"); job.recv()              # in the function: machines.link().recv() and .send("there")
        job.result()                            # what it returned; AssertionError: what it raised
        a.run(function, ...)                    # start(...).result()

The machines are joined by a switch; `address` (10.77.0.x) is bound to `interface` ("eth0") of each,
and `host` is what it is called. They share nothing else with each other or with the machine the
tests run on, no route, no PID: a process of one can't attach to a ring of another. `unplug()` takes
a machine's cable out: its packets just go nowhere. A job has the `pid` that it sees itself.

Whatever happens, nothing is left: the processes die with the machine, which dies with the block or
with the tests' process, and the namespaces go with their last process. A job that hangs shows
where, and is ended, after WATCHDOG seconds. Where namespaces can't be had the test is skipped.
"""

import contextlib
import faulthandler
import functools
import multiprocessing
import multiprocessing.connection
import multiprocessing.reduction
import os
import shutil
import socket
import subprocess
import sys
import traceback

import pytest

WATCHDOG = 100
_NETWORK = "10.77.0"
_UNSHARE = ["unshare", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]


@functools.lru_cache(maxsize=None)
def why_not():
    """Why namespaces can't be had here, or None."""
    for tool in "ip", "unshare":
        if shutil.which(tool) is None:
            return f"there is no {tool} here (Debian: iproute2, util-linux)"
    script = "ip link add switch type bridge && ip link add one type veth peer name two"
    tried = subprocess.run([*_UNSHARE, "sh", "-c", script], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


@contextlib.contextmanager
def machines(number, hosts=None):
    """`number` machines that can reach each other. hosts: their names (default: machine1, machine2,
    ...)."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(contextlib.closing(Machine("switch")))
        switch.ip("link", "add", "switch", "type", "bridge")
        switch.ip("link", "set", "switch", "up")
        made = []
        for index in range(1, number + 1):
            host = hosts[index - 1] if hosts else f"machine{index}"
            machine = stack.enter_context(contextlib.closing(Machine(host, index)))
            machine.join(switch)
            made.append(machine)
        yield made


class Machine:
    interface = "eth0"

    def __init__(self, host, index=0):
        self.host = host
        self.address = f"{_NETWORK}.{index}"
        self._port = f"port{index}"
        self._switch = None
        self._jobs = []
        # A socket pair: descriptors can be sent over it.
        self._agent, theirs = multiprocessing.Pipe()
        # The first process of the PID namespace; all others end with it.
        script = "import sys, machines; sys.exit(machines._serve(int(sys.argv[1]), sys.argv[2]))"
        path = os.pathsep.join(filter(None, [os.path.dirname(__file__), *sys.path]))
        self._process = subprocess.Popen(
            [*_UNSHARE, sys.executable, "-c", script, str(theirs.fileno()), host],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": path},
        )
        theirs.close()
        self._ask("ip", "link", "set", "lo", "up")

    def join(self, switch):
        self._switch = switch
        # Unshare itself is in the network namespace.
        near, far = (
            str(self._process.pid),
            str(switch._process.pid),
        )
        _call(
            "ip",
            "link",
            "add",
            "eth0",
            "netns",
            near,
            "type",
            "veth",
            "peer",
            "name",
            self._port,
            "netns",
            far,
        )
        self.ip("address", "add", f"{self.address}/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")
        switch.ip("link", "set", self._port, "master", "switch", "up")

    def ip(self, *arguments):
        """ip(8), on this machine."""
        self._ask("ip", *arguments)

    def tc(self, *arguments):
        """tc(8), on this machine."""
        self._ask("tc", *arguments)

    def unplug(self):
        self._switch.ip("link", "set", self._port, "nomaster")

    def start(self, function, *args):
        """A new process, which calls a function that can be found by its name in a module."""
        ours, theirs = multiprocessing.Pipe()
        self._agent.send(("start", None))
        multiprocessing.reduction.send_handle(self._agent, theirs.fileno(), None)
        theirs.close()
        job = Job(ours, self._answer())
        self._jobs.append(job)
        ours.send((function, args))
        return job

    def kill(self, job):
        """The process is dead when this returns."""
        self._agent.send(("kill", job.pid))
        self._answer()

    def run(self, function, *args):
        return self.start(function, *args).result()

    def close(self):
        for job in self._jobs:
            job._pipe.close()
        self._agent.close()  # at which the first process ends, and the others by the kernel
        self._process.kill()  # that too, by --kill-child, if it hangs
        self._process.wait()

    def _ask(self, *command):
        self._agent.send(("call", command))
        return self._answer()

    def _answer(self):
        assert self._agent.poll(WATCHDOG), "the machine says nothing"
        succeeded, value = self._agent.recv()
        assert succeeded, value
        return value


class Job:
    def __init__(self, pipe, pid):
        self._pipe = pipe
        self.pid = pid

    def send(self, value):
        self._pipe.send(("message", value))

    def recv(self):
        """The next thing that the function sends by link().send()."""
        kind, value = self._next()
        assert kind == "message", f"the function has ended: {value}"
        return value

    def result(self):
        kind, value = self._next()
        assert kind != "message", f"a message that nobody received: {value}"
        assert kind == "returned", value
        self.await_end()
        return value

    def await_end(self):
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                assert self._pipe.poll(WATCHDOG), "the job does not end"
                self._pipe.recv()

    def _next(self):
        assert self._pipe.poll(WATCHDOG), "the job says nothing"
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionError):
            return "died", "the process ended; see its output"


def _call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


# ---- Inside of a machine -------------------------------------------------------------------------

_link = None


def link():
    """The other end of this process's Job: has send() and recv()."""
    return _link


class _Link:
    def __init__(self, pipe):
        self._pipe = pipe

    def send(self, value):
        self._pipe.send(("message", value))

    def recv(self):
        return self._pipe.recv()[1]


def _serve(descriptor, host):
    """The machine's first process, which starts the others."""
    socket.sethostname(host)
    tests = multiprocessing.connection.Connection(descriptor)
    context = multiprocessing.get_context("spawn")
    processes = {}
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            what, argument = tests.recv()
            try:
                if what == "start":
                    pipe = multiprocessing.connection.Connection(
                        multiprocessing.reduction.recv_handle(tests)
                    )
                    process = context.Process(target=_work, args=(pipe,))
                    process.start()
                    pipe.close()
                    answer = process.pid
                    processes[answer] = process
                elif what == "kill":
                    processes[argument].kill()
                    answer = processes[argument].join()
                else:
                    answer = _call(*argument)
                tests.send((True, answer))
            except Exception:
                tests.send((False, traceback.format_exc()))
    os._exit(0)  # not after its jobs: with them


def _work(pipe):
    global _link
    faulthandler.dump_traceback_later(WATCHDOG, exit=True)
    _link = _Link(pipe)
    try:
        function, args = pipe.recv()
        result = "returned", function(*args)
    except BaseException:
        result = "raised", traceback.format_exc()
    pipe.send(result)
