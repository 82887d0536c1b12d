# SPDX-License-Identifier: Apache-2.0
"""vLLM's MessageQueue (shm_broadcast.py, 0.33) over a ring: one process sends objects, all readers
receive each object.

    queue = MessageQueue(n_reader=2, n_local_reader=2)      # writer: gives export_handle() away
    queue = MessageQueue.create_from_handle(handle, rank)   # in each reader
    queue.wait_until_ready()                                # in all
    queue.enqueue(obj)                                      # writer: every dequeue() gives one

Differences from vLLM. A message takes only the bytes needed, in one ring of variable-length frames
or, if large, in spill memory. max_chunk_bytes * max_chunks is a budget that can make the ring
smaller, and bounds no message. Only messages for other machines go by a socket. Arrays and tensors
arrive writable, as the receiver's own memory. A warning about a long wait names the rank that the
call waits for.

Errors. When a reader has died, the writer's next enqueue, or an enqueue that waits, raises
ringcast.ReaderDied; so does each other reader once the earlier messages are received. All errors
name the rank and its pid, and the queue is of no further use. When the writer dies or exits, the
readers raise ringcast.WriterGone, which names its pid. In vLLM's executor the death of a worker
also ends each wait for an answer, by ringcast.ReaderDied. When a reader is collected, or its
process exits in order, the reader has left, and no error is raised. shutdown() ends waits with
RuntimeError("cancelled"); so does the exit of a process, for the waits of its other threads.
"""

import contextlib
import dataclasses
import multiprocessing.util
import os
from typing import Any, List, NoReturn, Optional, Tuple, Union

import ringcast
from ringcast._group import config, names
from ringcast._group.config import name_of, whole
from ringcast._group.ranks import Ranks
from ringcast.vllm import containers
from ringcast.vllm._endpoints import Receiver, Sender, load

# A Writer makes no smaller ring by default.
_LEAST_DEFAULT = 4 << 20
_SLOTS = 64
_EXECUTOR = "the executor"
# What the process is in vLLM, by its first queue without a group: the executor first makes the
# queue of calls; a worker first attaches to that queue, and is known by its rank there. None: no
# queue so far.
_role: Union[int, str, None] = None


def _take_role(role: Union[int, str]) -> Union[int, str]:
    """The process's role: the first that it has taken."""
    global _role
    if _role is None:
        _role = role
    return _role


def _forget_role() -> None:
    global _role
    _role = None


os.register_at_fork(after_in_child=_forget_role)


@dataclasses.dataclass
class Handle:
    """
    What a reader needs to attach; to be pickled, by any means. The fields are vLLM's, but for the
    last one.
    """

    local_reader_ranks: List[int] = dataclasses.field(default_factory=list)
    #: the ring's handle; None: no reader is of the writer's machine
    buffer_handle: Optional[str] = None
    local_subscribe_addr: Optional[str] = None  # not used
    local_notify_addr: Optional[str] = None  # not used
    #: for the readers of other machines; None: no such readers
    remote_subscribe_addr: Optional[str] = None
    remote_addr_ipv6: bool = False
    tensor_arena_handle: Optional[Any] = None  # not used
    #: the writer's machine and PID namespace
    place: Optional[containers.Place] = None


class MessageQueue:
    """One end of a queue: made by the constructor it is the writer's, by create_from_handle() a
    reader's.

    n_reader: all readers; n_local_reader: the readers of this machine. local_reader_ranks: the
    ranks that the local readers give to create_from_handle(), by default 0, 1, ...; every other
    rank is a remote reader. connect_ip: this machine's address for remote readers; None: the
    environment's VLLM_HOST_IP, or the address of a route outwards. max_chunk_bytes * max_chunks:
    the most bytes of the ring, rounded up to a power of two; ringcast.Writer's default is another
    limit. max_chunks: the most messages that a reader on this machine may have left to receive;
    then enqueue() waits. The size of a message is bounded by spill memory alone
    (RINGCAST_SPILL_BYTES). enable_shm_tensor_arena: without effect, since no tensor goes through
    pickle.

    One thread at a time enqueues, or dequeues (RuntimeError); shutdown() comes from any thread.
    """

    _engine = "vllm"  # for the names of rings

    def __init__(
        self,
        n_reader: int,
        n_local_reader: int,
        local_reader_ranks: Optional[List[int]] = None,
        max_chunk_bytes: int = 24 << 20,
        max_chunks: int = 10,
        connect_ip: Optional[str] = None,
        enable_shm_tensor_arena: bool = False,
    ) -> None:
        role = _take_role(_EXECUTOR)
        which = ("calls",) if role == _EXECUTOR else ("answers", role)
        name = names.join(f"{self._engine}.mq", *which)
        of_readers, limits = (n_local_reader, local_reader_ranks), (max_chunk_bytes, max_chunks)
        self._make(name, n_reader, *of_readers, *limits, connect_ip, role == _EXECUTOR)

    def _make(
        self,
        name: str,
        n_reader: int,
        n_local_reader: int,
        local_reader_ranks: Optional[List[int]],
        max_chunk_bytes: int,
        max_chunks: int,
        connect_ip: Optional[str] = None,
        sends_calls: bool = False,
    ) -> None:
        """
        name: of the ring. sends_calls: to vLLM's workers. Other arguments as of the constructor.
        """
        n_reader, n_local_reader = (
            whole("n_reader", n_reader),
            whole("n_local_reader", n_local_reader),
        )
        if not 0 <= n_local_reader <= n_reader:
            raise ValueError(
                f"n_local_reader must be from 0 to n_reader, {n_reader}, not {n_local_reader}"
            )
        given = range(n_local_reader) if local_reader_ranks is None else local_reader_ranks
        ranks = [whole("each of local_reader_ranks", rank) for rank in given]
        assert len(ranks) == n_local_reader, (
            f"local_reader_ranks has {len(ranks)} ranks, and n_local_reader is {n_local_reader}"
        )
        if len(set(ranks)) < len(ranks):
            raise ValueError(f"local_reader_ranks has a rank twice: {ranks}")
        if whole("max_chunk_bytes", max_chunk_bytes) < 1 or whole("max_chunks", max_chunks) < 1:
            raise ValueError(
                f"max_chunk_bytes and max_chunks must be above 0, not {max_chunk_bytes} and "
                f"{max_chunks}"
            )
        self.n_local_reader = n_local_reader
        self.n_remote_reader = n_reader - n_local_reader
        self.handle = Handle(ranks)
        budget = max_chunk_bytes * max_chunks if n_reader else 1  # without readers, the least ring
        ring = _make_ring(name, budget, n_reader, max_chunks)
        end = Sender(ring, [name_of(rank) for rank in ranks], sends_calls)
        if n_local_reader:
            self.handle.buffer_handle, self.handle.place = end.ring.handle, containers.here()
        if self.n_remote_reader:
            connect_ip = connect_ip or os.environ.get("VLLM_HOST_IP") or None
            end.link = load("zmq_hub").ZmqHub(
                end.ring.handle, self.n_remote_reader, connect_ip, end.lose
            )
            self.handle.remote_subscribe_addr, self.handle.remote_addr_ipv6 = (
                end.link.address,
                end.link.ipv6,
            )
        self._own(end)

    @classmethod
    def create_from_handle(cls, handle: Handle, rank: int) -> "MessageQueue":
        """The reader `rank`, attached: the reader receives what is sent from now on."""
        self = cls._attach(handle, rank)
        _take_role(rank)
        return self

    @classmethod
    def _attach(cls, handle: Handle, rank: int) -> "MessageQueue":
        self = cls.__new__(cls)
        if not hasattr(handle, "local_reader_ranks"):
            raise TypeError(
                f"handle must be what export_handle() gives, not {type(handle).__name__}"
            )
        rank = whole("rank", rank)
        self.handle = handle
        if rank in handle.local_reader_ranks:
            if handle.buffer_handle is None:
                raise ValueError(
                    f"the handle has local readers, {handle.local_reader_ranks}, but no ring"
                )
            end = containers.attach(handle.buffer_handle, rank, handle.place)
        elif handle.remote_subscribe_addr is not None:
            link = load("zmq_transport").ReaderLink(
                handle.remote_subscribe_addr, handle.remote_addr_ipv6, rank
            )
            end = Receiver(link.reader, link)
        else:
            raise ValueError(
                f"rank {rank} is no reader of this queue: its local_reader_ranks are "
                f"{handle.local_reader_ranks}, and "
                "it has no remote readers"
            )
        self._own(end, rank)
        return self

    def _own(self, end: Union[Sender, Receiver], rank: Optional[int] = None) -> None:
        """Take over an end of a ring. rank: the reader's; None: the end is the writer's."""
        self._end = end
        self._is_writer = rank is None
        self._is_remote_reader = rank is not None and (end.link is not None or end.ring is None)
        self._is_local_reader = rank is not None and not self._is_remote_reader
        self.local_reader_rank = (
            self.handle.local_reader_ranks.index(rank)
            if rank is not None and self._is_local_reader
            else -1
        )
        self.shutting_down = False
        #: has close(linger); None: all is on this machine
        self.remote_socket = end.link
        # vLLM never closes a MessageQueue. A child of multiprocessing exits without atexit's
        # functions.
        multiprocessing.util.Finalize(self, end.close, exitpriority=0)

    def export_handle(self) -> Handle:
        return self.handle

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a MessageQueue can't go to another process: pass export_handle(), and call "
            "MessageQueue.create_from_handle() there"
        )

    def enqueue(self, obj: Any, timeout: Optional[float] = None) -> None:
        """Send `obj` to every reader. timeout: seconds to wait for room, None for ever.

        The call also waits for readers that have not attached yet. TimeoutError: nothing was sent;
        the text names the blocker. Other errors as in this module's docstring, or of
        ringcast.Writer.send.
        """
        self._end.enqueue(obj, timeout)

    def dequeue(self, timeout: Optional[float] = None, indefinite: bool = False) -> Any:
        """
        Receive the next object. timeout: seconds, None for ever. indefinite: no warning for a long
        wait.

        TimeoutError: nothing came. Other errors as in this module's docstring, or of
        ringcast.Reader.recv.
        """
        return self._end.dequeue(timeout, indefinite)

    def broadcast_object(self, obj: Any = None) -> Any:
        """The writer sends `obj` and returns `obj`; a reader receives."""
        if self._is_writer:
            self._end.enqueue(obj, None)
            return obj
        return self._end.dequeue(None, False)

    def wait_until_ready(self) -> None:
        """
        Collective: return when all readers are attached. ringcast.ReaderDied, WriterGone: a process
        is dead.
        """
        try:
            self._end.wait_until_ready()
        except ringcast.Cancelled:
            raise RuntimeError("cancelled") from None

    def shutdown(self) -> None:
        """
        End the wait of another thread, and every later wait, by RuntimeError("cancelled"). Messages
        in the ring can still be received. Any thread, any number of times.
        """
        self.shutting_down = True
        with contextlib.suppress(ValueError):  # the ring is closed
            self._end.cancel()

    # ---- In a group ------------------------------------------------------------------------------

    @classmethod
    def create_from_process_group(
        cls,
        pg: Any,
        max_chunk_bytes: int,
        max_chunks: int,
        writer_rank: int = 0,
        external_writer_handle: Optional[Handle] = None,
        blocking: bool = True,
    ) -> "MessageQueue":
        """Collective: this rank's end of a queue. The writer is `writer_rank`, a rank in the group.

        pg: a ProcessGroup for CPU tensors, or an object with rank, world_size and
        broadcast_obj(obj, src). external_writer_handle: of another process's queue; `writer_rank`
        passes the handle on and is a reader too. blocking: wait until all are ready; else each rank
        calls wait_until_ready().
        """
        ranks = Ranks(pg)
        everyone = range(ranks.size)
        if writer_rank not in everyone:
            raise ValueError(
                f"writer_rank is a rank in the group, from 0 to {ranks.size - 1}, not {writer_rank}"
            )
        near = containers.who_attaches(ranks, [writer_rank], everyone)[writer_rank]
        near.remove(writer_rank)

        def make() -> Optional[MessageQueue]:
            if ranks.rank != writer_rank:
                return None
            if external_writer_handle is not None:
                return cls._attach(external_writer_handle, writer_rank)
            name = cls._name_in(pg, ranks.globally[writer_rank])
            return cls._named(name, ranks.size - 1, len(near), near, max_chunk_bytes, max_chunks)

        made, handles = ranks.all_or_none(make, lambda queue: queue and queue.handle)
        queue, _ = ranks.all_or_none(
            lambda: made or cls._attach(handles[writer_rank], ranks.rank), lambda queue: None
        )
        if blocking:
            queue.wait_until_ready()
        return queue

    @classmethod
    def create_from_process_group_single_reader(
        cls,
        pg: Any,
        max_chunk_bytes: int,
        max_chunks: int,
        reader_rank: int = 0,
        blocking: bool = False,
    ) -> Tuple["MessageQueue", List[Handle]]:
        """
        Collective: each rank of a group is the writer of a queue with one reader, a process on the
        machine of `reader_rank`, a global rank. Returns this rank's queue and, on `reader_rank`,
        the handles by rank in the group; elsewhere []. The reader calls create_from_handle(handle,
        0), or with -1 if the handle has no local_reader_ranks.
        """
        ranks = Ranks(pg)
        if reader_rank not in ranks.globally:
            raise ValueError(
                f"reader_rank is a global rank of the group, one of {ranks.globally}, not "
                f"{reader_rank}"
            )
        reader = ranks.globally.index(reader_rank)
        near = len(containers.who_attaches(ranks, range(ranks.size), [reader])[ranks.rank])
        queue, handles = ranks.all_or_none(
            lambda: cls._named(
                cls._name_in(pg, f"{ranks.globally[ranks.rank]}-{reader_rank}"),
                *(1, near, None, max_chunk_bytes, max_chunks),
            ),
            cls.export_handle,
        )
        if blocking:
            queue.wait_until_ready()
        return queue, handles if ranks.rank == reader else []

    @classmethod
    def _named(cls, *args: Any) -> "MessageQueue":
        self = cls.__new__(cls)
        self._make(*args)
        return self

    @classmethod
    def _name_in(cls, group: Any, ranks: Any) -> str:
        engine, name = names.family(group, cls._engine)
        return names.join(f"{engine}.mq", name, ranks)


def _make_ring(name: str, budget: int, readers: int, ahead: int) -> ringcast.Writer:
    """The Writer evicts a dead reader: the notice for the other readers then finds room."""
    slots = max(_SLOTS, readers + 1)
    options = {"on_death": "evict", "ahead": ahead, "spin": config.queue_spin(), "name": name}
    if budget > _LEAST_DEFAULT:
        writer = config.make_writer(None, slots, **options)
        if writer.capacity <= budget:
            return writer
        writer.close()
    return config.make_writer(budget, slots, **options)
