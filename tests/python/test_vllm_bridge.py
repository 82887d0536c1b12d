# SPDX-License-Identifier: Apache-2.0
"""The leg between machines, on loopback: all processes are of one machine, so the relay's ring is
shared."""

import json
import multiprocessing.util
import os
import re
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from peers import WATCHDOG, Peer, in_a_fork
from receiving import Receiving

import ringcast

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed here")

import uplinks  # noqa: E402
from queues import the_watching_thread  # noqa: E402, F401
from uplinks import LOOPBACK, Leg  # noqa: E402

from ringcast._group import relay  # noqa: E402
from ringcast.vllm import MessageQueue, zmq_hub, zmq_transport  # noqa: E402
from ringcast.vllm.zmq_hub import ZmqHub  # noqa: E402
from ringcast.vllm.zmq_transport import ReaderLink  # noqa: E402

pytestmark = pytest.mark.alike

legs = pytest.fixture(uplinks.legs)


@pytest.fixture
def peers():
    made = [Peer(), Peer()]
    yield made
    for peer in made:
        peer.stop()


def call(state, address, ipv6, rank):
    uplinks.be_patient(pytest.MonkeyPatch())
    state["downlink"] = ReaderLink(address, ipv6, rank)
    # As a MessageQueue's.
    multiprocessing.util.Finalize(None, state["downlink"].close, exitpriority=0)
    return os.getpid()


def receive(state):
    return state["downlink"].reader.recv(WATCHDOG)


def receive_error(state):
    try:
        return receive(state)
    except ringcast.Error as error:
        return type(error).__name__, str(error)


def hang_up(state):
    state.pop("downlink").close()


def join(leg, peers):
    return [
        peer.call(call, leg.uplink.address, leg.uplink.ipv6, 3 + i) for i, peer in enumerate(peers)
    ]


# ---- What arrives --------------------------------------------------------------------------------


@pytest.mark.parametrize("curve", ["1", "0"])
def test_frames_of_all_sizes_arrive_byte_for_byte_and_in_order(legs, monkeypatch, curve):
    monkeypatch.setenv("RINGCAST_CURVE", curve)
    leg = legs()
    assert zmq_transport.parse_address(leg.uplink.address).is_encrypted == (
        curve == "1" and zmq.has("curve")
    )
    near, far = ringcast.Reader(leg.writer.handle), leg.downlink()
    leg.uplink.wait(WATCHDOG)
    small, mib = [0, 1, 63, 64, 1000, 1 << 16], 1 << 20
    sizes = [*small, mib - 1, mib, mib + 1, 5 * mib, 40 * mib, 7, 0]
    whole = np.random.default_rng(1).bytes(max(sizes))

    def send_all():
        for number, size in enumerate(sizes):
            leg.writer.send_bytes(whole[:size], WATCHDOG)
            value = {"number": number, "array": np.frombuffer(whole[: size & ~7], np.int64)}
            leg.writer.send(value, WATCHDOG, tag=number)

    sending = Receiving(send_all)
    for _ in range(2 * len(sizes)):
        with near.next(WATCHDOG) as sent, far.next(WATCHDOG) as came:
            assert (came.kind, came.tag, len(came)) == (sent.kind, sent.tag, len(sent))
            assert bytes(came) == bytes(sent)
    sending.finish()
    leg.writer.send_error("none today")
    with pytest.raises(ringcast.SendError, match="none today"):
        far.recv(WATCHDOG)
    near.close()


def test_what_is_sent_before_all_have_come_arrives_at_all(legs, monkeypatch):
    monkeypatch.setattr(zmq_transport, "_attach", lambda handles, name: None)
    leg = legs(2)
    first = leg.downlink(3)
    values = ["early", "and small", bytes(3 << 19), "between", bytes(3 << 19), "last"]
    for value in values:
        leg.writer.send(value, 0)
    second = leg.downlink(4)
    for reader in first, second:
        assert [reader.recv(WATCHDOG) for _ in values] == values
    assert first.handle != second.handle
    assert leg.uplink.describe().count("bytes behind") == 2


def test_a_machine_that_is_behind_holds_the_writer_back_and_loses_nothing(legs, monkeypatch):
    monkeypatch.setattr(relay, "WINDOW_BYTES", 1 << 18)
    leg = legs(capacity=1 << 18)
    reader = leg.downlink()
    sent = behind = 0
    while behind < 1 << 18:  # a full ring does not mean yet that the hub has sent all that it may
        with pytest.raises(TimeoutError, match="remote machines"):
            while True:
                leg.writer.send_bytes(sent.to_bytes(4, "little") * 1000, 0.2)
                sent += 1
        text = leg.uplink.describe()
        behind = int(re.search(r"rank 3 .* (\d+) bytes behind", text)[1])
    more = 200
    sending = Receiving(lambda: [leg.writer.send_bytes(bytes(4000)) for _ in range(more)])
    for number in range(sent):
        assert reader.recv(WATCHDOG) == number.to_bytes(4, "little") * 1000
    for _ in range(more):
        assert reader.recv(WATCHDOG) == bytes(4000)
    sending.finish()


def test_a_frame_that_is_larger_than_the_window_arrives(legs, monkeypatch):
    monkeypatch.setattr(relay, "WINDOW_BYTES", 1)
    leg = legs()
    reader = leg.downlink()
    leg.writer.send(np.arange(1 << 20))
    assert reader.recv(WATCHDOG).sum() == np.arange(1 << 20).sum()


# ---- Who comes -----------------------------------------------------------------------------------


def test_the_readers_of_a_machine_share_one_ring(legs, peers):
    leg = legs(2)
    pids = join(leg, peers)
    leg.uplink.wait(WATCHDOG)
    text = leg.uplink.describe()
    assert text.count("bytes behind") == 1
    assert re.search(rf"rank 3 \(pid {pids[0]} on .* for rank 4 \(pid {pids[1]} on", text)
    leg.writer.send({"to": "all"})
    assert [peer.call(receive) for peer in peers] == [{"to": "all"}] * 2
    for peer in reversed(peers):
        peer.call(hang_up)


def test_newcomers_at_once_make_one_relay(legs):
    leg = legs(6)
    threads = [Receiving(lambda rank=rank: leg.downlink(rank)) for rank in range(6)]
    readers = [thread.finish() for thread in threads]
    leg.uplink.wait(WATCHDOG)
    assert len({reader.handle for reader in readers}) == 1
    leg.writer.send(7)
    assert [reader.recv(WATCHDOG) for reader in readers] == [7] * 6


def test_a_newcomer_whose_relay_goes_while_it_decides_becomes_the_relay(legs, monkeypatch):
    leg = legs(2)
    leg.downlink(3)
    attach = zmq_transport._attach

    def attach_late(handles, name):
        reader = attach(handles, name)
        leg.downlinks[0].close()
        return reader

    monkeypatch.setattr(zmq_transport, "_attach", attach_late)
    leg.downlink(4)
    monkeypatch.undo()
    leg.downlink(5)
    leg.uplink.wait(WATCHDOG)
    assert "rank 4" in leg.uplink.describe() and "rank 3" not in leg.uplink.describe()


def test_a_newcomer_that_does_not_decide_is_passed_over(legs, monkeypatch):
    monkeypatch.setattr(zmq_transport, "ANSWER_SECONDS", 0.3)
    leg = legs(2)
    idle = zmq_transport.Connection(zmq_transport.parse_address(leg.uplink.address), False)
    idle.sock.send(b"H" + zmq_transport._pack_hello(zmq_transport.me(7)))
    parts = idle.sock.recv_multipart()
    assert parts[0][:1] == b"W"
    monkeypatch.setattr(zmq_transport, "ANSWER_SECONDS", WATCHDOG)
    leg.downlink(3)
    assert b"has not answered within" in idle.sock.recv_multipart()[0]
    gone = zmq_transport.Connection(idle.address, False)
    gone.sock.send(b"H" + zmq_transport._pack_hello(zmq_transport.me(8)))
    gone.sock.recv_multipart()
    joining = Receiving(lambda: leg.downlink(4))
    gone.close()
    joining.finish()
    leg.uplink.wait(WATCHDOG)
    idle.close()


def test_who_comes_too_late_or_is_of_another_version_is_told(legs):
    leg = legs(1)
    with pytest.MonkeyPatch.context() as patch:
        hello = json.loads(zmq_transport._pack_hello(zmq_transport.me(8)))
        hello["version"] = "0.0.0-old"
        patch.setattr(zmq_transport, "_pack_hello", lambda *_: json.dumps(hello).encode())
        with pytest.raises(ConnectionRefusedError, match="ringcast is 0.0.0-old there, but"):
            leg.downlink(8)
    leg.downlink(3)
    with pytest.raises(ConnectionRefusedError, match="all 1 remote readers have come already"):
        leg.downlink(4)


def test_waiting_tells_who_is_there_and_how_many_are_missing(legs):
    leg = legs(3)
    leg.downlink(5)
    with pytest.raises(TimeoutError, match=r"1 of 3 .*; 2 are missing, .* rank 5 \(pid"):
        leg.uplink.wait(0)
    assert "2 of 3 have not come yet" in leg.uplink.describe()
    waiting = Receiving(lambda: leg.uplink.wait(WATCHDOG))
    leg.uplink.close(0)
    with pytest.raises(RuntimeError, match="cancelled"):
        waiting.finish()


# The address of a writer, and the address that a hub listens at, that are none.
@pytest.mark.parametrize(
    "address, error, told",
    [
        ("tcp://127.0.0.1:80", ValueError, "not the address of a writer"),
        ("tcp://127.0.0.1:{port}#" + "0" * 32, ringcast.WriterGone, "no writer at .*:{port}"),
    ],
)
def test_an_address_that_is_no_writers_is_told(address, error, told):
    with socket.socket() as silent:  # bound and not listening: no other process can take the port
        silent.bind((LOOPBACK, 0))
        port = silent.getsockname()[1]
        with pytest.raises(error, match=told.format(port=port)):
            ReaderLink(address.format(port=port), False, 1)


# How many remote readers, where it listens, what the environment says, and what is told.
REFUSED = [
    (0, LOOPBACK, {}, ValueError, "remote_readers"),
    (1, "192.0.2.1", {}, zmq.ZMQError, "'192.0.2.1'"),
    (1, "no.such.host.invalid", {}, zmq.ZMQError, "'no.such.host.invalid'"),
    (1, LOOPBACK, {"RINGCAST_CURVE": "no"}, ValueError, "RINGCAST_CURVE is 'no'"),
    (1, LOOPBACK, {"RINGCAST_HEARTBEAT": "never"}, ValueError, "RINGCAST_HEARTBEAT is 'never'"),
]


@pytest.mark.parametrize("readers, address, environment, error, told", REFUSED)
def test_a_hub_that_can_not_be_is_refused_by_name(
    monkeypatch, readers, address, environment, error, told
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with ringcast.Writer(1 << 16) as writer, pytest.raises(error, match=told):
        ZmqHub(writer.handle, readers, address, print)


def test_by_default_it_listens_where_a_route_outwards_begins(legs):
    leg = legs(ip=None)
    with socket.create_server((zmq_transport.local_ip(), 0)):
        pass  # it is one of this machine
    assert f"//{zmq_transport.local_ip()}:" in leg.uplink.address.replace("[", "").replace("]", "")


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="no IPv6 here")
def test_ipv6(legs):
    leg = legs(ip="::1")
    assert leg.uplink.ipv6 and leg.uplink.address.startswith("tcp://[::1]:")
    reader = leg.downlink()
    leg.writer.send(6)
    assert reader.recv(WATCHDOG) == 6


# ---- Who goes ------------------------------------------------------------------------------------


def wait_for_the_end(core):
    with core.changed:
        assert core.changed.wait_for(lambda: core._close_by is not None, WATCHDOG)


def test_what_was_sent_arrives_though_the_end_comes_as_soon_as_the_last_reader(legs, monkeypatch):
    """The uplink's thread goes no further than to tell that reader so before it is closed."""
    send = zmq_hub.ZmqHub._send

    def send_and_wait(hub, peer, letter, *rest):
        send(hub, peer, letter, *rest)
        if letter == b"D":
            wait_for_the_end(hub)

    monkeypatch.setattr(zmq_hub.ZmqHub, "_send", send_and_wait)
    leg = legs()
    reader = leg.downlink()
    leg.writer.send("last")
    leg.uplink.close(WATCHDOG)
    assert reader.recv(WATCHDOG) == "last"


def test_what_was_sent_arrives_though_the_end_comes_just_after_a_look_that_found_nothing(
    legs, monkeypatch
):
    leg, take, looked = legs(), relay.Outlet.take, threading.Event()

    def take_and_wait(outlet):
        message = take(outlet)
        if not looked.is_set():
            looked.set()
            wait_for_the_end(leg.uplink)
        return message

    monkeypatch.setattr(relay.Outlet, "take", take_and_wait)
    reader = leg.downlink()
    assert looked.wait(WATCHDOG)
    leg.writer.send("last")
    leg.uplink.close(WATCHDOG)
    assert reader.recv(WATCHDOG) == "last"


def test_a_closed_uplink_ends_it_too_and_lets_the_writer_go_on(legs):
    leg = legs(capacity=1 << 16)
    reader = leg.downlink()
    leg.writer.send("last")
    leg.uplink.close(WATCHDOG)
    assert reader.recv(WATCHDOG) == "last"
    with pytest.raises(ringcast.WriterGone):
        reader.recv(WATCHDOG)
    for _ in range(1000):
        leg.writer.send_bytes(bytes(1000), 0)
    with pytest.raises(ringcast.WriterGone):
        leg.downlink(4)


def test_a_reader_that_closes_is_no_death_but_a_relay_tells_those_it_received_for(legs):
    leg = legs(3)
    relay, second, third = leg.downlink(3), leg.downlink(4), leg.downlink(5)
    leg.downlinks[1].close()
    leg.writer.send(1)
    assert (relay.recv(WATCHDOG), third.recv(WATCHDOG)) == (1, 1)
    leg.downlinks[0].close(linger=0)
    with pytest.raises(ringcast.SendError, match=r"rank 3 \(pid \d+ on .* has closed"):
        third.recv(WATCHDOG)
    leg.writer.send(2)
    assert second.closed


def test_a_relay_that_dies_is_named_with_those_it_received_for(legs, peers):
    leg = legs(2)
    pids = join(leg, peers)
    peers[1].start(receive_error)
    peers[0].process.kill()
    told = rf"rank 3 \(pid {pids[0]} on .* for rank 4 \(pid {pids[1]} on .* has died"
    assert re.match(told, leg.lost())
    assert peers[1].finish()[0] == "WriterGone"
    leg.writer.send("goes on")


def test_a_served_reader_that_dies_is_named_and_in_nobodys_way(legs, peers):
    leg = legs(2, capacity=1 << 16)
    pids = join(leg, peers)
    peers[1].process.kill()
    assert re.match(rf"rank 4 \(pid {pids[1]} on .* has died", leg.lost())
    for number in range(100):  # more than the ring holds
        peers[0].start(receive)
        leg.writer.send_bytes(bytes(1000), WATCHDOG)
        assert peers[0].finish() == bytes(1000)


def test_waiting_for_a_reader_that_has_died_names_it(legs, peers):
    leg = legs(3)
    pids = join(leg, peers)
    waiting = Receiving(lambda: leg.uplink.wait(WATCHDOG))
    peers[0].process.kill()
    with pytest.raises(ringcast.ReaderDied, match=f"rank 3 .pid {pids[0]} "):
        waiting.finish()
    assert f"pid {pids[0]}" in leg.lost()


def make_leg(state):
    uplinks.be_patient(pytest.MonkeyPatch())
    state["leg"] = Leg()
    return state["leg"].uplink.address


def send_and_wait(state, value):
    state["leg"].uplink.wait(WATCHDOG)
    state["leg"].writer.send(value)


def test_when_the_writer_dies_its_readers_drain_and_hear_of_it(peer):
    downlink = ReaderLink(peer.call(make_leg), False, 3)
    peer.call(send_and_wait, "last")
    assert downlink.reader.recv(WATCHDOG) == "last"
    peer.process.kill()
    with pytest.raises(ringcast.SendError, match=rf"the writer \(pid {peer.pid} on .* has died"):
        downlink.reader.recv(WATCHDOG)
    with pytest.raises(ringcast.WriterGone):
        downlink.reader.recv(WATCHDOG)
    downlink.close()


# ---- What is left --------------------------------------------------------------------------------


def test_what_is_dropped_ends_its_threads():
    def ours():
        names = [thread.name for thread in threading.enumerate()]
        return sorted({"ringcast-hub", "ringcast-relay"} & set(names))

    writer = MessageQueue(1, 0, connect_ip=LOOPBACK)
    reader = MessageQueue.create_from_handle(writer.handle, 3)
    writer.wait_until_ready()
    reader.wait_until_ready()
    assert ours() == ["ringcast-hub", "ringcast-relay"]
    del reader, writer
    assert ours() == []


def test_a_forked_child_leaves_its_parents_leg_alone(legs):
    leg = legs()
    reader = leg.downlink()
    in_a_fork(lambda: (leg.uplink.close(), leg.downlinks[0].close()))
    leg.writer.send("still")
    assert reader.recv(WATCHDOG) == "still"


EXITS = """
import pickle, sys
from ringcast.vllm import MessageQueue
if sys.argv[1] == "writer":
    queue = MessageQueue(1, 0, connect_ip="127.0.0.1")
    print(pickle.dumps(queue.handle).hex(), flush=True)
    queue.wait_until_ready()
    queue.enqueue("last")
else:
    queue = MessageQueue.create_from_handle(pickle.loads(bytes.fromhex(sys.argv[1])), 3)
    queue.wait_until_ready()
    assert queue.dequeue() == "last"
"""


def test_nothing_keeps_a_process_from_exiting_and_an_exit_is_no_death():
    def start(argument):
        command = [sys.executable, "-c", EXITS, argument]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    with start("writer") as writer, start(writer.stdout.readline().strip()) as reader:
        for process in reader, writer:
            assert process.communicate(timeout=WATCHDOG) == ("", "")
            assert process.returncode == 0
