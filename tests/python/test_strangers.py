# SPDX-License-Identifier: Apache-2.0
"""
The leg between machines when somebody comes without the secret: nothing of him is kept, and he is
sent away.
"""

import contextlib
import os
import resource
import socket
import struct
import tempfile

import pytest
from peers import WATCHDOG
from receiving import Receiving

import ringcast

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed here")

import uplinks  # noqa: E402

from ringcast.vllm import zmq_hub, zmq_transport  # noqa: E402
from ringcast.vllm.zmq_transport import ReaderLink  # noqa: E402

pytestmark = pytest.mark.alike

legs = pytest.fixture(uplinks.legs)

WAYS = ["curve", "plain", "path"]
NOBODY = 65534


@pytest.fixture(params=WAYS)
def leg(request, legs, monkeypatch):
    """With one reader to come. By a path the folder is open to everybody, and so is the umask."""
    monkeypatch.setenv("RINGCAST_CURVE", str(int(request.param == "curve")))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chmod(folder, 0o755)
        before = os.umask(0)
        try:
            yield legs(
                1, ip=f"ipc://{folder}/relay" if request.param == "path" else uplinks.LOOPBACK
            )
        finally:
            os.umask(before)


def connect(leg):
    endpoint = zmq_transport.parse_address(leg.uplink.address).endpoint
    if endpoint.startswith("ipc://"):
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(endpoint[len("ipc://") :])
    else:
        stranger = socket.create_connection((uplinks.LOOPBACK, int(endpoint.rpartition(":")[2])))
    stranger.settimeout(WATCHDOG)
    return stranger


def is_sent_away(stranger):
    """By the end of the connection, however much he sends."""
    with contextlib.suppress(ConnectionError):
        while stranger.recv(1 << 16):
            pass
    return True


def a_greeting(mechanism):
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
A_PART = b"\x03" + struct.pack(">Q", 65000) + bytes(65000)
HELLO = b"\x05HELLO\x08ringcast\x20" + b"0" * 32
NONSENSE = {
    "noise": [bytes(range(256)) * 256],
    "no mechanism, and parts without an end": [
        a_greeting(b"NULL") + b"\x04" + bytes([len(READY)]) + READY
    ]
    + [A_PART] * 100,
    "a password that is wrong": [a_greeting(b"PLAIN") + b"\x04" + bytes([len(HELLO)]) + HELLO],
    "parts in place of a password": [a_greeting(b"PLAIN")] + [A_PART] * 100,
    "parts in place of a key": [a_greeting(b"CURVE")] + [A_PART] * 100,
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_who_says_another_thing_than_the_secret_is_sent_away(leg, nonsense):
    with connect(leg) as stranger:
        with contextlib.suppress(ConnectionError):
            for part in NONSENSE[nonsense]:
                stranger.sendall(part)
        assert is_sent_away(stranger)
    reader = leg.downlink()
    leg.writer.send("still")
    assert reader.recv(WATCHDOG) == "still"


def test_a_reader_with_a_wrong_secret_is_refused(leg):
    address = zmq_transport.parse_address(leg.uplink.address)
    wrong = zmq_transport.z85.decode(zmq.curve_keypair()[0]).hex()[: len(address.secret)]
    with pytest.raises(ringcast.WriterGone):
        ReaderLink(str(address._replace(secret=wrong)), False, 1)


def test_strangers_that_say_nothing_take_only_so_many_descriptors_and_only_for_a_time(
    legs, monkeypatch
):
    monkeypatch.setattr(zmq_hub, "_STRANGER_SECONDS", 4.0)
    leg = legs(2)
    first = leg.downlink(3)
    with contextlib.ExitStack() as strangers:
        strangers.enter_context(many_descriptors())  # the bound is another one
        came = []
        with pytest.raises(TimeoutError):  # nobody answers
            for _ in range(1000):
                came.append(strangers.enter_context(connect_soon(leg)))
        second = leg.downlink(4)  # comes in when they have been sent away
        assert all(is_sent_away(stranger) for stranger in came)
    leg.writer.send("still")
    assert first.recv(WATCHDOG) == second.recv(WATCHDOG) == "still"


@contextlib.contextmanager
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect_soon(leg):
    port = int(zmq_transport.parse_address(leg.uplink.address).endpoint.rpartition(":")[2])
    # TCP's next try is after 1 s: no full backlog.
    stranger = socket.create_connection((uplinks.LOOPBACK, port), 1.5)
    stranger.settimeout(WATCHDOG)
    return stranger


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("mode", [None, 0o666])
@pytest.mark.parametrize("leg", ["path"], indirect=True)
def test_another_user_does_not_come_in_by_the_path(leg, mode):
    """
    mode: None: as made; else somebody has opened the path to all, and the kernel's word on the user
    counts.
    """
    path = zmq_transport.parse_address(leg.uplink.address).endpoint[len("ipc://") :]
    if mode is None:
        assert os.stat(path).st_mode & 0o777 == 0o600
    else:
        os.chmod(path, mode)

    def come_in():
        try:
            with connect(leg) as stranger:
                return stranger.recv(1) != b""  # ZeroMQ's greeting
        except PermissionError:
            return mode is not None

    assert not as_nobody(come_in)


def as_nobody(call):
    child = os.fork()
    if not child:
        code = 2
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            code = int(call())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_writer_with_nobody_to_wait_for_does_not_wait(legs):
    leg = legs(1)
    leg.downlink()
    leg.downlinks[0].close()
    leg.writer.close()
    Receiving(lambda: leg.uplink.close(WATCHDOG + 9)).finish()
