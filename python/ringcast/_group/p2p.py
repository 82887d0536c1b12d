# SPDX-License-Identifier: Apache-2.0
"""
From one rank of a group to another: a ring with one reader for each (group, from, to), made at its
first use.

No call is a collective, and a sender waits for its peer only on request. So a connection begins on
torch.distributed's own point to point, on the CPU group: the first message (HELLO) has the ring's
handle, and the messages after HELLO have whole frames. The receiver of HELLO tries to attach, and
answers each message by whether it has attached. When the sender finds that answer, the sender sends
RING, the last message on that way, and puts the next frame into the ring: by then the reader stands
at the ring's tail, so no frame is lost, and RING tells the reader where the next frame is. A
receiver on another machine can't attach, never gets RING, and the connection stays on
torch.distributed.

gloo can't tell whether a send has ended without a wait for it, and a thread that waits in gloo
stays there until the process exits. Hence the answers: the sender posts a receive for each answer
before the message is sent, and looks into the memory where the answer will arrive. The answers also
tell when the memory of a sent message may go.

A full ring does not hold up an isend: a frame without room waits, packed, in an outbox, which a
thread empties and ends with. All messages have tags of their own: other point to point traffic on
the same group is not disturbed.
"""

import contextlib
import errno
import os
import threading
import time
import warnings
import weakref
from collections import deque
from typing import Any, Deque, List, NoReturn, Optional, Tuple, Union

import torch

import ringcast
from ringcast._group import config, devices, names, rings
from ringcast._group.endpoint import (
    CALL_BITS,
    CALL_MASK,
    SEND_OBJECT,
    SEND_TENSOR_DICT,
    ReaderEnd,
    operation_of,
)
from ringcast._group.packing import may_pack, pack, pack_typed

# Tags of torch.distributed, for messages and for answers.
_TAG, _ANSWER_TAG = 0x52494E47, 0x52494E48
# A message is a header of four int64, _MAGIC with the kind, the frame's tag, the payload's bytes,
# the sender's pid; then the payload.
_MAGIC = 0x72696E6763617300
_HELLO, _FRAME, _ERROR, _RING = range(1, 5)
# How long a sender goes on without a look whether the receiver lives: a look is a system call.
LOOK_SECONDS = 0.05


# ---- Handles -------------------------------------------------------------------------------------


class Handle:
    """A frame that the receiver can take."""

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        pass


_SENT = Handle()


class _Posted(Handle):
    """A message on torch.distributed's way."""

    def __init__(
        self, works: List[Any], answer: Any, answered: Any, retained: List[Any], sender: "Sender"
    ) -> None:
        self._lock = threading.Lock()
        self._works = works
        self._answer = answer
        self._answered = answered
        self._retained = retained
        self._sender = sender

    def is_completed(self) -> bool:
        return not self._works or self.answer() != 0

    def answer(self) -> int:
        """
        0: no answer yet. A thread of gloo's fills the memory, first perhaps the lowest byte alone.
        """
        return int(self._answer.item())

    def wait(self) -> None:
        """A gloo work can be waited for only once."""
        with self._lock:
            works, self._works = self._works, []
            try:
                for work in works:
                    work.wait()
            except RuntimeError as error:
                if not config.is_ours(error):
                    raise
                self._sender.raise_unreachable(error)
            self._retained = []

    def forget(self) -> None:
        """Called when the answer has arrived: then nothing here waits."""
        with contextlib.suppress(RuntimeError):
            self.wait()
            self._answered.wait()


class _Queued(Handle):
    """A frame, or the text of an error, in the outbox."""

    def __init__(self, what: Union[ringcast.PackedFrame, str], tag: int) -> None:
        self.what = what
        self.tag = tag
        self._error: Optional[Exception] = None
        self._event = threading.Event()

    def end(self, error: Optional[Exception] = None) -> None:
        self._error = error
        self._event.set()

    def is_completed(self) -> bool:
        return self._event.is_set()

    def wait(self) -> None:
        self._event.wait()
        if self._error is not None:
            raise self._error


# ---- The end that sends --------------------------------------------------------------------------


class Sender:
    """
    The lock is for the thread that empties the outbox: while the thread runs, only the thread uses
    the Writer.
    """

    def __init__(
        self, rank: int, peer: int, peer_in_group: int, name: Optional[str] = None
    ) -> None:
        self._rank, self._peer, self._peer_in_group = rank, peer, peer_in_group
        self._peer_pid = 0
        self.ring = config.make_writer(config.capacity(), 1, name=name)
        self._lock = threading.Lock()
        self._call = 0
        self._refused = False  # the last call failed where the value is encoded
        self._on_ring = False
        self._next_look = 0.0
        self._failure: Optional[str] = None  # once and for all
        self._greeted = False
        self.posted: Deque[_Posted] = deque()
        self._outbox: Deque[_Queued] = deque()  # a frame stays until it is in the ring
        self._lost = 0, 0  # frames that were in the outbox at its end, and the tag of the first
        self._thread: Optional[threading.Thread] = None
        # The caller's tensors under way, on the group's own device path.
        self.beside: Deque[Handle] = deque()

    @property
    def carries_cuda(self) -> bool:
        """Whether tensors on a CUDA device go by the ring, or before RING in the frames on
        torch.distributed's way. False once the receiver is known to be on another machine."""
        return self.ring._takes_cuda and not self.ring.closed

    def isend(self, group: Any, value: Any, operation: int) -> Handle:
        with self._lock:
            tag = operation << CALL_BITS | self._call
            self._refused = False
            try:
                handle = self._isend(group, value, operation, tag)
            except BaseException as error:
                if self.ring._sent == tag:  # a signal handler has raised when the frame was sent
                    self._call = (self._call + 1) & CALL_MASK
                    raise
                if not isinstance(error, Exception):
                    raise
                named = config.name_setting(error, f"on rank {self._rank}")
                if config.is_of_value(named, self._refused or self.ring._value_failed):
                    self._tell(group, named, tag)
                if named is error:
                    raise
                raise named from None
            self._call = (self._call + 1) & CALL_MASK
            return handle

    def _isend(self, group: Any, value: Any, operation: int, tag: int) -> Handle:
        if self._failure is not None:
            raise ringcast.ReaderDied(errno.EOWNERDEAD, self._failure)
        if self.posted:
            self._look_for_answers(group)
        if operation == SEND_TENSOR_DICT and type(value) is not dict:
            value = self._as_dict(value, tag)
        if not self._on_ring:
            return self._isend_far(group, _FRAME, tag, self._packed(value, operation))
        if not self._outbox:
            if time.monotonic() >= self._next_look:
                self._look()
            try:
                return self._send_now(value, operation, tag)
            except TimeoutError as error:
                if not config.is_ours(error):
                    raise
            except ringcast.ReaderDied:
                self._look()
                raise
        return self._queue(_Queued(self._packed(value, operation), tag))

    def _as_dict(self, value: Any, tag: int) -> Any:
        """A subclass may have no form in a frame."""
        self._refused = True
        if not isinstance(value, dict):
            raise TypeError(f"{operation_of(tag)} needs a dict, not {type(value).__name__}")
        value = dict(value)
        self._refused = False
        return value

    def _send_now(self, value: Any, operation: int, tag: int) -> Handle:
        """TimeoutError: there is no room."""
        try:
            self.ring.send(value, 0, tag=tag)
        except TypeError:
            if not self.ring._value_failed:
                raise
            self.ring.send(self._packed(value, operation), 0, tag=tag)
        return _SENT

    def _packed(self, value: Any, operation: int) -> ringcast.PackedFrame:
        if isinstance(value, ringcast.PackedFrame):
            return value
        self._refused = True
        packs = pack if operation == SEND_OBJECT or may_pack(value) else pack_typed
        frame = packs(value, self.ring._takes_cuda)
        self._refused = False
        return frame

    def _tell(self, group: Any, error: Exception, tag: int) -> None:
        """Send the error to the receiver, which waits for this call."""
        text = config.text_of(operation_of(tag), self._rank, error)
        if self._on_ring:
            self._queue(_Queued(text, tag))
        else:
            self._isend_far(group, _ERROR, tag, text.encode())
        self._call = (self._call + 1) & CALL_MASK

    def _look(self) -> None:
        """ReaderDied: the receiver is dead, or has left."""
        self._next_look = time.monotonic() + LOOK_SECONDS
        if self.ring.check() is not None:
            self._fail("has died")
        if not self.ring.peers():
            self._fail("has left: its group was destroyed, or it has exited")

    def _fail(self, what: str) -> NoReturn:
        pid = f"pid {self._peer_pid}" if self._peer_pid else "its pid was never known"
        self._failure = f"rank {self._peer} ({pid}) {what}: make a new group without it"
        raise ringcast.ReaderDied(errno.EOWNERDEAD, self._failure)

    def raise_unreachable(self, error: Exception) -> NoReturn:
        if "imed out" in str(error):
            raise TimeoutError(
                f"rank {self._peer} has not received within the group's timeout: {error}"
            ) from None
        self._fail(f"can't be reached ({str(error).strip()})")

    # ---- before the ring

    def _isend_far(self, group: Any, kind: int, tag: int, payload: Any = b"") -> Handle:
        try:
            if not self._greeted:
                self._post(group, _HELLO, 0, self.ring.handle.encode())
                self._greeted = True
            return self._post(group, kind, tag, payload)
        except RuntimeError as error:
            if not config.is_ours(error):
                raise
            self.raise_unreachable(error)

    def _post(self, group: Any, kind: int, tag: int, payload: Any) -> Handle:
        answer = torch.zeros(1, dtype=torch.int64)
        tensors = [torch.tensor([_MAGIC | kind, tag, len(payload), os.getpid()], dtype=torch.int64)]
        if len(payload):
            tensors.append(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        # First: the answer then never waits.
        answered = group.recv([answer], self._peer_in_group, _ANSWER_TAG)
        works = [group.send([tensor], self._peer_in_group, _TAG) for tensor in tensors]
        handle = _Posted(works, answer, answered, tensors, self)
        self.posted.append(handle)
        return handle

    def _look_for_answers(self, group: Any) -> None:
        answer = 0
        while self.posted and self.posted[0].answer():
            posted = self.posted.popleft()
            posted.forget()
            answer = posted.answer()  # again: the first look may have seen a part
        if not answer:
            return
        self._peer_pid = abs(answer)
        if answer < 0:
            self.ring.close()  # no reader will attach
        elif not self._on_ring:
            self._isend_far(group, _RING, 0)
            self._on_ring = True

    # ---- after the ring is full

    def _queue(self, item: _Queued) -> Handle:
        self._outbox.append(item)
        if self._thread is None or not self._thread.is_alive():  # a forked child has no thread
            self._thread = threading.Thread(
                target=self._empty_outbox, name="ringcast-outbox", daemon=True
            )
            self._thread.start()
        return item

    def _empty_outbox(self) -> None:
        while True:
            item, error = self._outbox[0], None
            try:
                if isinstance(item.what, str):
                    self.ring.send_error(item.what, tag=item.tag)
                else:
                    self.ring.send(item.what, tag=item.tag)
            except Exception as raised:
                error = config.name_setting(raised, f"on rank {self._rank}")
            with self._lock:
                if error is not None:
                    error = self._judge(error, item)
                if error is not None and self._failure is not None:
                    self._lost = len(self._outbox), item.tag
                self._outbox.popleft().end(error)
                while self._outbox and self._failure is not None:
                    self._outbox.popleft().end(error)
                if not self._outbox:
                    self._thread = None
                    return

    def _judge(self, error: Exception, item: _Queued) -> Exception:
        """The error for the handle: the frame's own, which the receiver gets too, or the end of the
        connection."""
        if config.is_of_value(error, self.ring._value_failed) and not self.ring.closed:
            text = config.text_of(operation_of(item.tag), self._rank, error)
            self._outbox.insert(1, _Queued(text, item.tag))
            return error
        try:
            self._fail(
                "has died"
                if isinstance(error, ringcast.ReaderDied)
                else f"is not sent to any more ({error})"
            )
        except ringcast.ReaderDied as death:
            return death

    def close(self) -> None:
        if self.ring.closed:
            return
        self.ring.cancel()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._tell_lost()
        self.ring.close()

    def _tell_lost(self) -> None:
        """In place of the first lost frame: a text may have room where the frame has none."""
        count, tag = self._lost
        if count:
            text = (
                f"rank {self._rank} has closed the ring before what isend() still had for it found "
                f"room: {count} lost"
            )
            with contextlib.suppress(TimeoutError, ringcast.Error):
                self.ring.send_error(text, 0, tag=tag)


# ---- The end that receives -----------------------------------------------------------------------


class Receiver(ReaderEnd):
    def __init__(self, rank: int, peer: int, peer_in_group: int) -> None:
        self._rank, self._peer, self._peer_in_group = rank, peer, peer_in_group
        self._peer_pid = 0
        self.ring: Optional[ringcast.Reader] = None
        self._on_ring = False
        self._answer: Tuple[Any, ...] = ()
        self._turn = threading.Lock()  # before the ring, whose Reader has a turn of its own

    def recv(self, group: Any, operation: int) -> Any:
        if not self._on_ring:
            if not self._turn.acquire(blocking=False):
                raise RuntimeError(
                    f"another thread receives from rank {self._peer}: one may at a time"
                )
            try:
                taken = self._recv_before_ring(group, operation)
            finally:
                self._turn.release()
            if taken is not None:
                return taken[0]
        if self.ring is None:
            what = (
                f"rank {self._peer} sends into a ring that was closed here: close it on both sides"
            )
            raise ringcast.Error(errno.EPIPE, what)
        return self.receive(operation)

    def _recv_before_ring(self, group: Any, operation: int) -> Optional[Tuple[Any]]:
        """The value, in a tuple. None: it is in the ring."""
        while not self._on_ring:
            kind, tag, payload = self._recv_far(group)
            if kind == _HELLO:
                self._call = 0
                self._attach(payload)
            self._send_answer(group)
            if kind == _RING:
                self._on_ring = True
            elif kind in (_ERROR, _FRAME):
                expected, self._call = self._call, (tag + 1) & CALL_MASK
                if kind == _ERROR:
                    raise ringcast.SendError(errno.EREMOTEIO, payload.numpy().tobytes().decode())
                return (self._accept(operation, expected, self._unpack(payload.numpy()), tag),)
        return None

    def _unpack(self, frame: Any) -> Any:
        """Only a Reader makes tensors on a CUDA device: take one of a private ring."""
        if not devices.has_device(frame):
            return ringcast.unpack(frame)
        with ringcast.Writer(None, 1) as writer, ringcast.Reader(writer.handle) as reader:
            span = writer.reserve(len(frame), 0)
            with memoryview(span) as view:
                view[:] = memoryview(frame)
            span.commit(kind=ringcast.KIND_TENSORS)
            return reader.recv(0)

    def _recv_far(self, group: Any) -> Tuple[int, int, Any]:
        header = torch.zeros(4, dtype=torch.int64)
        try:
            group.recv([header], self._peer_in_group, _TAG).wait()
            magic, tag, size, self._peer_pid = header.tolist()
            if magic & ~0xFF != _MAGIC:
                raise ringcast.ProtocolError(
                    errno.EPROTO, f"a message of rank {self._peer} is not ringcast's"
                )
            payload = torch.empty(size, dtype=torch.uint8)
            if size:
                group.recv([payload], self._peer_in_group, _TAG).wait()
        except RuntimeError as error:
            if not config.is_ours(error):
                raise
            if "imed out" in str(error):
                raise TimeoutError(
                    f"rank {self._peer} has sent nothing within the group's timeout: {error}"
                ) from None
            self._raise_lost(f"can't be reached ({str(error).strip()})")
        return magic & 0xFF, tag, payload

    def _attach(self, payload: Any) -> None:
        self.close()
        try:
            self.ring = config.make_reader(payload.numpy().tobytes().decode(), self._rank)
        except ringcast.RingNotFound:
            pass  # on another machine
        except ringcast.Error as error:
            warnings.warn(
                f"rank {self._rank} can't attach to the ring of rank {self._peer} ({error}): what "
                f"it sends here comes "
                "by torch.distributed",
                RuntimeWarning,
                stacklevel=5,
            )

    def _send_answer(self, group: Any) -> None:
        """
        Send this process's pid, negative if it has not attached. The sender may be gone by now.
        """
        with contextlib.suppress(RuntimeError):
            if self._answer:
                self._answer[0].wait()
        self._answer = ()
        answer = torch.tensor(
            [os.getpid() if self.ring is not None else -os.getpid()], dtype=torch.int64
        )
        with contextlib.suppress(RuntimeError):
            self._answer = group.send([answer], self._peer_in_group, _ANSWER_TAG), answer

    def _raise_gone(self) -> NoReturn:
        self.close()  # a sender that lives begins anew, with HELLO
        self._raise_lost(
            "has died, or its group was destroyed; what was in its ring was received, and what "
            "isend() had not yet put "
            "there is lost: wait for each handle before a process exits"
        )

    def _raise_lost(self, what: str) -> NoReturn:
        pid = (
            f"pid {self._peer_pid}"
            if self._peer_pid
            else "its pid is not known: nothing has come from it"
        )
        raise ringcast.WriterGone(errno.EPIPE, f"rank {self._peer} ({pid}) {what}") from None

    def _raise_mismatch(self, operation: int, expected: str, tag: int, value: Any) -> NoReturn:
        mine = operation_of(operation << CALL_BITS).replace("send", "recv")
        raise RuntimeError(
            f"mismatched ranks: what rank {self._peer} sent with its call {tag & CALL_MASK} was "
            f"{operation_of(tag)}; "
            f"here, on rank {self._rank}, call {expected} is {mine}: what is sent must be "
            f"received by the counterpart, "
            "in the same order"
        )

    def close(self) -> None:
        if self.ring is not None:
            self.ring.close()
        self.ring = None
        self._on_ring = False


# ---- Finding the ends ----------------------------------------------------------------------------

_making = threading.RLock()  # each end is made once, also if two threads need it at the same time


def sender(group: Any, ranks: List[int], me: int, peer: int, engine: str = "torch") -> Sender:
    """This rank's end towards `peer`; `me` and `peer` are ranks in `group`, `ranks` has the global
    numbers. engine: for the name of a new ring."""
    ends = rings.ends(group)
    if ("to", peer) not in ends:
        with _making:
            if ("to", peer) not in ends:
                name = names.join(*names.family(group, engine), f"{ranks[me]}-{ranks[peer]}")
                made = ends["to", peer] = Sender(ranks[me], ranks[peer], peer, name)
                # Closed or not, the end stays until the group goes: answers still arrive in its
                # memory.
                weakref.finalize(group, made.close).atexit = False
    end: Sender = ends["to", peer]
    return end


def receiver(group: Any, ranks: List[int], me: int, peer: int) -> Receiver:
    """This rank's end for the frames of `peer`."""
    ends = rings.ends(group)
    if ("from", peer) not in ends:
        # Another thread may be here too.
        ends.setdefault(("from", peer), Receiver(ranks[me], ranks[peer], peer))
    end: Receiver = ends["from", peer]
    return end
