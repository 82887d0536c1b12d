# SPDX-License-Identifier: Apache-2.0
"""
The leg between machines when somebody sends what he must not: an error that names him, or nothing,
never a crash.
"""

import contextlib
import json
import os
import re
import socket
import threading
import types

import pytest
from peers import WATCHDOG
from receiving import Receiving

import ringcast

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed here")

import uplinks  # noqa: E402
from uplinks import LOOPBACK  # noqa: E402

from ringcast._group import framing, relay  # noqa: E402
from ringcast.vllm import zmq_hub, zmq_transport  # noqa: E402
from ringcast.vllm.zmq_transport import ReaderLink  # noqa: E402

pytestmark = pytest.mark.alike

legs = pytest.fixture(uplinks.legs)


def test_who_knows_the_secret_and_says_nonsense_disturbs_nobody(legs):
    leg = legs()
    address = zmq_transport.parse_address(leg.uplink.address)
    port = int(address.endpoint.rsplit(":", 1)[1])
    with socket.create_connection((LOOPBACK, port)) as plain:
        with contextlib.suppress(ConnectionError):
            plain.sendall(os.urandom(1 << 16))
    stranger = zmq_transport.Connection(address, False)
    for body in (
        b"",
        b"H",
        b"H{",
        b"H[]",
        b"H" + b"[" * 10000,
        b"A" + bytes(8),
        b"B",
        b"\xff" * 1000,
        b"F",
    ):
        stranger.sock.send(body)
        stranger.sock.send_multipart([body] * 3)
    reader = leg.downlink()
    stranger.sock.send(bytes(1 << 20))  # more than it may say: its connection is cut
    assert _wait_for_loss(stranger)
    stranger.close()
    leg.writer.send("still")
    assert reader.recv(WATCHDOG) == "still"


def _wait_for_loss(connection):
    return connection.monitor.poll(WATCHDOG * 1000) and connection.lost()


@pytest.mark.parametrize(
    "body",
    [
        b"A" + b"\xff" * 8,
        b"A",
        b"S{}",
        b"L{}",
        b'L{"text": 3}',
        b"H",
        b"?",
        b"",
        b'R{"handle": "x"}',
    ],
)
def test_a_relay_that_sends_what_it_must_not_is_dropped_and_named(legs, body):
    leg = legs()
    reader = leg.downlink()
    relay = leg.downlinks[0]._relay
    take = relay._link.take
    with reader:
        # In its own thread: no other may use the socket.
        relay._link.take = lambda: (relay._link.sock.send(body), take())[1]
        relay._wake.set()
        assert re.match(r"rank 3 \(pid \d+ on .*\) has sent an invalid message: ", leg.lost())
        with pytest.raises(ringcast.SendError, match="has sent an invalid message"):
            reader.recv(WATCHDOG)


def test_reports_without_an_end_take_one_thread_and_are_told_in_order(legs):
    told, goes_on = [], threading.Event()
    with ringcast.Writer(1 << 16) as writer:
        hub = zmq_hub.ZmqHub(
            writer.handle, 1, LOOPBACK, lambda text: (goes_on.wait(WATCHDOG), told.append(text))
        )
        for number in range(50):
            hub._report(str(number))
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "ringcast-lost")
        goes_on.set()
        hub.close(0)
        thread.join(WATCHDOG)
    assert told == [str(number) for number in range(50)]


class Damage:
    """Stands between a writer's side and a reader's, and can send the reader's what is none of
    ZeroMQ's."""

    def __init__(self, port):
        self._port = port
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [Receiving(self._serve)]

    def _serve(self):
        self.reader = self._listener.accept()[0]
        self.writer = socket.create_connection((LOOPBACK, self._port))
        for ways in (self.reader, self.writer), (self.writer, self.reader):
            self._threads.append(Receiving(lambda ways=ways: self._pass_on(*ways)))

    def _pass_on(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self):
        for end in self.reader, self.writer, self._listener:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.finish()


@pytest.mark.parametrize("curve", ["1", "0"])
def test_a_relay_survives_damage_on_the_way(legs, monkeypatch, curve):
    monkeypatch.setenv("RINGCAST_CURVE", curve)
    leg = legs()
    address = zmq_transport.parse_address(leg.uplink.address)
    with contextlib.closing(Damage(int(address.endpoint.rsplit(":", 1)[1]))) as between:
        address = address._replace(endpoint=f"tcp://{LOOPBACK}:{between.port}")
        downlink = ReaderLink(str(address), False, 3)
        leg.writer.send("before")
        assert downlink.reader.recv(WATCHDOG) == "before"
        between.reader.sendall(b"\x02" + b"\xff" * 8)  # a message of 2**64 - 1 bytes
        with pytest.raises(
            ringcast.SendError, match="has died, or its machine can't be reached any more"
        ):
            downlink.reader.recv(WATCHDOG)
        Receiving(downlink.close).finish()
    assert "rank 3" in leg.lost()


class Endless:
    """A socket on which there is always one more message."""

    def __init__(self, message):
        self.left = 100_000
        self._message = [zmq.Frame(part) for part in message]

    def recv_multipart(self, *_, **__):
        self.left -= 1
        assert self.left, "it listens for ever"
        return self._message


def test_who_does_not_stop_talking_keeps_nobody_from_other_work():
    assert not zmq_hub.ZmqHub._hear(
        types.SimpleNamespace(_router=Endless([b"somebody", b"noise"]), _processes={})
    )
    link = types.SimpleNamespace(sock=Endless([b"C"]), _lost=False)
    link.take = lambda: zmq_transport.Connection.take(link)
    assert relay.Relay._take_in(
        types.SimpleNamespace(_link=link, _why=None, _report_deaths=lambda: None)
    )


@pytest.mark.parametrize(
    "heads, data",
    [
        ([], b""),
        ([(7, 1, 1)], b"x"),
        ([(0, 2, 1)], b"xx"),
        ([(0, 1, 1)], b"xx"),
        ([(0, 1, 3), (0, 1, 2)], b"xx"),
        ([(0, 2, 3), (0, 2, 3)], b"xxxx"),
        ([(0, 1, 2), (1, 1, 2)], b"xx"),
    ],
)
def test_damaged_messages_are_refused(heads, data):
    with ringcast.Writer(1 << 16) as writer:
        inlet = framing.Inlet(writer)
        with pytest.raises(framing.Malformed):
            inlet.give(framing.pack_heads(framing.Head(*head) for head in heads), data)
            inlet.publish()
        inlet.abandon()
        writer.send("still")


def false_writer(state, messages, capacity):
    """A writer's side that gives each relay what it is told to."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    public, router.curve_secretkey = zmq.curve_keypair()
    router.curve_server = True
    router.bind("tcp://127.0.0.1:*")
    secret = zmq_transport.z85.decode(public).hex()
    state["pipe"].send(
        str(zmq_transport.Address(router.getsockopt_string(zmq.LAST_ENDPOINT), secret))
    )
    welcome = {
        "relays": [],
        "capacity": capacity,
        "spill": 0,
        "readers": 1,
        "name": "a b@1",
        "pid": 1,
        "host": "nowhere",
    }
    identity, _ = router.recv_multipart()
    router.send_multipart([identity, b"W" + json.dumps(welcome).encode()])
    router.recv_multipart()
    router.send_multipart([identity, b"D"])
    for message in messages:
        router.send_multipart([identity, *message])
    said = []
    while not said or said[-1][:1] != b"B":
        said.append(router.recv_multipart()[1])
    router.send_multipart([identity, b"D"])
    context.destroy(WATCHDOG * 1000)
    return said


def test_a_writer_that_sends_what_it_must_not_is_named_to_the_readers(crew, monkeypatch):
    uplinks.be_patient(monkeypatch)
    head = b"F" + framing.pack_heads([framing.Head(0, 1, 1 << 40)])
    for messages, text in (
        ([[b"?"]], r"the writer \(pid 1 on nowhere\) has sent an invalid message"),
        ([[b"F12", b""]], "heads of frames of a wrong length"),
        ([[b"F" + bytes(16), b"", b""]], "an invalid message"),
        ([[head, b"x"]], "rank 3 .* has failed: FrameTooLarge"),
        ([[b'E{"why": "enough", "died": false}']], "enough"),
    ):
        crew[0].start(false_writer, messages, 1 << 16)
        downlink = ReaderLink(crew[0].message(), False, 3)
        with pytest.raises(ringcast.SendError, match=text):
            downlink.reader.recv(WATCHDOG)
        said = crew[0].finish()
        assert [one[:1] for one in said] == ([b"L", b"B"] if "failed" in text else [b"B"])
        downlink.close()
