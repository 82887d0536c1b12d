# SPDX-License-Identifier: Apache-2.0
"""The types and the docstrings of the extension: the build makes the C docstrings of this file
(docstrings.py).

Every `timeout` is in seconds; None waits for ever, 0 tries once. TimeoutError: the time is up.
"""

from types import ModuleType
from typing import (
    Any,
    AsyncIterator,
    Callable,
    Coroutine,
    Dict,
    Final,
    Iterable,
    Iterator,
    List,
    NoReturn,
    Optional,
    Tuple,
    Union,
    final,
)

from typing_extensions import Buffer, Self

from ringcast._compose import ComposedFrame
from ringcast._status import GpuInfo, GpuStatus, Info, ReaderStatus, Ring, Stats, TapFrame, TapLost

_Classes = Optional[Iterable[Union[type, ModuleType, str]]]

__version__: Final[str]

KIND_BYTES: Final[int]
"""The kind of a frame with the caller's own bytes: of send_bytes(), and of commit() by default."""

KIND_TENSORS: Final[int]
"""The kind of a frame in the typed layout of ringcast/frame.h: of send() and send_error()."""

def _intern(name: str, /) -> str: ...
def _printable(text: str, /) -> str: ...
def pack(
    obj: Any, *, allow_pickle: Optional[bool] = None, hash: Optional[str] = None
) -> PackedFrame:
    """Make the frame that Writer.send(obj) would send, in memory of its own: a PackedFrame.

    Each Writer.send(packed) costs one copy, and the readers receive the same value as from
    send(obj). The frame holds `obj` as it is at the time of the call.

    allow_pickle: as for Writer; None allows pickles unless RINGCAST_ALLOW_PICKLE=0. hash: as for
    Writer.send(); PackedFrame.hashes has the hashes.

    Tensors on a CUDA device: the call waits for the device and copies the bytes; they arrive as
    after send().

    TypeError: a tensor on any other device. PickleRefused, and any error of pickle, as in
    Writer.send().
    """

def _pack_of_cpu(obj: Any, hash: Optional[str], /) -> PackedFrame: ...
def unpack(frame: Buffer, *, allow_pickle: Optional[bool] = None, classes: _Classes = None) -> Any:
    """Return the object of a frame, as recv() would: `frame` is a PackedFrame, a Frame of
    Reader.next(), or the bytes of a frame in any buffer.

    allow_pickle, classes: as for Reader. Without pickles no module is imported but torch and NumPy.
    The Reader of a Frame, or of a memoryview or NumPy array over one, must allow pickles too; if
    not, its classes count, unless `classes` is given. Tensors of a CUDA device arrive on the CPU;
    in a Frame, where the Reader wants them. ProtocolError: no frame. BufferError: not contiguous.
    Evicted: the Reader of the Frame, memoryview or array; with other objects over a Frame there is
    no such check. PickleRefused, ImportError, SendError, and errors of unpickling, as in recv().
    """

def rings() -> List[Ring]:
    """Return the rings of this user with a live writer, sorted by name and pid: a Ring(name, pid,
    handle) each.

    Error: /proc can't be read.
    """

def find(ring: str, /) -> str:
    """
    Return the handle of one ring: `ring` is the name of Writer(name=...), NAME@PID, @PID (a process
    with one ring) or a handle.

    RingNotFound: there is none. ValueError: `ring` is none of these, or stands for several rings,
    which are listed.
    """

def gpu_status() -> GpuStatus:
    """Return whether this process can use a CUDA device, and if not why: a GpuStatus.

    The first call opens the driver, which takes 0.1 s or more. The call allocates nothing on a
    device.
    """

def add_size(history: Buffer, n: int, /) -> int:
    """Add a size to a history, 64 bytes that are 0 at first; return the next estimate, as of
    Writer.reserve()."""

def _recycling(limit: int = -1, /) -> Tuple[int, int, int, int, int]: ...
def _spans_start(functions: Tuple[Callable[[List[Any]], None], ...], capacity: int, /) -> None: ...
def _spans_functions(functions: Tuple[Callable[[List[Any]], None], ...], /) -> None: ...
def _spans_flush() -> None: ...
def _spans_dropped() -> int: ...
def _spans_names() -> Dict[int, Tuple[str, str]]: ...
def _spans_stop() -> None: ...

@final
class PackedFrame:
    """A frame made by pack(), for Writer.send() on any number of rings, in any threads at once.

    A PackedFrame never changes and does not refer to the packed object. memoryview(packed) and
    bytes(packed) show the bytes, in the layout of ringcast/frame.h; nbytes and len(packed) count
    them. packed["key"], keys() and "key" in packed look into a dict, as for a Frame.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of the frame in a ring."""

    @property
    def hashes(self) -> Any:
        """The hashes of the tensors and arrays, of pack(..., hash=...), as for Frame.hashes."""

    def keys(self) -> List[str]:
        """Return the keys of the frame's dict, in order. Errors as Frame.keys()."""

    def __getitem__(self, key: str, /) -> Any:
        """Return a copy of one item of the frame's dict, as recv() would give it."""

    def __contains__(self, key: object, /) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def __reduce__(self) -> NoReturn:
        """Raise TypeError: only Writer.send() takes a PackedFrame, on its own."""

@final
class DeviceTensor:
    """
    An array on a CUDA device, of a library that is unknown to ringcast, or missing in this process.

    torch.from_dlpack(tensor), cupy.from_dlpack(tensor) and the like make an array over the same
    memory. The memory is freed with the last array, behind the work of the streams that use it,
    which may be destroyed before. A DeviceTensor of a view() lies in the writer's pool and is
    read-only.
    """

    @property
    def shape(self) -> Tuple[int, ...]:
        """The shape, a tuple of ints."""

    @property
    def dtype(self) -> str:
        """The name of the dtype, as torch spells it: "float32"."""

    @property
    def device(self) -> str:
        """The device: "cuda:0" and the like."""

    @property
    def nbytes(self) -> int:
        """Bytes of the array, in C order."""

    @property
    def data_ptr(self) -> int:
        """The address on the device; 0 if the array is empty."""

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """The array for libraries without DLPack, such as Numba."""

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> NoReturn:
        """Raise TypeError: the bytes are on a device."""

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """Return a DLPack capsule for from_dlpack() of torch, CuPy or JAX.

        BufferError: the caller asks for a copy, or for a different device.
        """

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Return (2, ordinal): a CUDA device and its number."""

@final
class Span:
    """Memory of the ring, reserved by Writer.reserve() and written in place.

        with writer.reserve(16) as span, memoryview(span) as view:
            view[:] = bytes(16)

    The end of the block commits the whole Span; an exception aborts the Span. numpy.asarray(span)
    and torch.frombuffer(span, ...) write too, but delete every such array before the end of the
    block. BufferError: a memoryview or an array is still in use, and the Span is still open: delete
    the array, then call commit() or abort(). ValueError: reserve() had no size, so commit(n) must
    tell the size, before the end of the block.

    len(span) is the number of bytes. The memory starts 16 bytes into a 64-byte line.
    """

    def commit(self, n: Optional[int] = None, *, kind: int = 0) -> None:
        """
        Publish the first `n` bytes (None: all) as one frame, as Writer.commit(). The Span is then
        closed.

        ValueError: the Span is closed, or `n` is more than was reserved (the Span stays open).
        BufferError: a memoryview of the Span is still in use.
        """

    def grow(self, n: int, timeout: Optional[float] = None) -> None:
        """Make the Span `n` bytes long, with the written bytes. The memory may move: take a new
        memoryview.

        Timeout and errors as Writer.reserve(); after an error the Span is unchanged. BufferError: a
        memoryview of the Span is still in use. ValueError: the Span is closed.
        """

    def abort(self) -> None:
        """Give the memory back; no reader sees the bytes. Errors as commit()."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self:
        """Return the Span."""

    def __exit__(self, *exception: Any) -> None:
        """
        Commit the whole Span, unless closed; after an exception, abort (once the last memoryview is
        gone).
        """

@final
class Frame:
    """
    A frame in the ring, leased by Reader.next() and read in place. A Reader holds at most `leases`
    Frames at a time.

        with reader.next() as frame, memoryview(frame) as view:
            total = sum(view)

    The end of the block releases the frame, and the writer may reuse the memory. Dropping the last
    reference to a Frame releases the frame too. numpy.asarray(frame) reads in place; delete every
    such array before the end of the block. BufferError: a memoryview or an array is still in use,
    and the frame is still held: delete the array, then call release().

    The bytes read were whole if release() or the block ends without Evicted; Reader.check() tells
    earlier.

    If a dict was sent, frame["key"] reads one item, as recv() would give it; frame.keys() and "key"
    in frame look at the keys alone. len(frame) is the number of bytes, bytes(frame) a copy.
    Read-only.
    """

    @property
    def kind(self) -> int:
        """KIND_BYTES or KIND_TENSORS."""

    @property
    def position(self) -> int:
        """Where the frame starts, in bytes since the ring was made."""

    @property
    def tag(self) -> int:
        """The sender's tag; 0 for send_bytes()."""

    def release(self) -> None:
        """
        Give the frame back to the ring, from any thread. The writer may overwrite the memory once
        all older frames are released too. A second call does nothing.

        BufferError: a memoryview of the frame is still in use. Evicted: the writer has evicted this
        Reader and may have overwritten the frame during the read: discard all results.
        """

    def view(self) -> Any:
        """Return the object of the frame, as Reader.view() lends it: arrays and tensors lie in the
        ring, and torch's must not be written to. Each call decodes the frame anew; no bytes of
        arrays are copied.

        They show the sent bytes until the Frame is released. Errors as Reader.view().
        """

    @property
    def hashes(self) -> Any:
        """The hashes of the sender's send(..., hash=...) or pack(..., hash=...), as 64-bit ints.

        For a sent dict: a dict. If a value is a tensor or array, its key has the hash. If a value
        contains tensors or arrays, its key has the list of hashes, in the order of a walk through
        the value. For any other value, and a dict that is read as a whole (see keys): the hash, the
        list, or None. Pickled values have none.
        """

    def keys(self) -> List[str]:
        """Return the keys of the frame's dict, in order, without reading the values.

        A dict of more than 64 items without arrays, of 8 dicts with equal keys, or with other keys
        is read as a whole.

        TypeError: the frame holds no dict, or a dict with keys other than str. ProtocolError,
        SendError, and the errors of reading the whole, as in Reader.recv().
        """

    def __getitem__(self, key: str, /) -> Any:
        """Return a copy of one item of the frame's dict, as recv() would give it."""

    def __contains__(self, key: object, /) -> bool: ...
    def __reduce__(self) -> NoReturn:
        """Raise TypeError: send the frame's object instead."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self:
        """Return the Frame."""

    def __exit__(self, *exception: Any) -> None:
        """Release the frame; after an exception, as soon as the last memoryview is gone."""

@final
class View:
    """The result of Reader.view(), for one `with` block. The end of the block gives the frame back,
    also after an exception, and so does dropping a View.
    """

    @property
    def tag(self) -> int:
        """The sender's tag; 0 for send_bytes()."""

    @property
    def hashes(self) -> Any:
        """As Frame.hashes, inside the block."""

    def __enter__(self) -> Any:
        """Return the object."""

    def __exit__(self, *exception: Any) -> None:
        """Give the frame back.

        Evicted: the writer has evicted this Reader and may have overwritten the arrays: discard all
        results.
        """

@final
class Writer:
    """Makes a ring, and sends to every process that attaches a Reader to the ring's handle.

    capacity: bytes of the ring, rounded up to a power of two; default: by the L3 cache, 4 to 32
    MiB. readers: the most readers at a time. memory: "hugetlb", "shmem-huge", "pages", or "auto":
    RINGCAST_MEMORY, else the first kind the machine has. If a kind is named and the machine lacks
    it, the call raises Error. spin: seconds that a wait spins before sleeping. None: 20 µs (with
    fewer CPUs than parties a wait yields for at most 50 µs); 0: never spin. numa: where the memory
    lies on a machine of several nodes: "local" to this CPU, "none" (the kernel decides),
    "interleaved", or the number of a node. A placement that fails is no error; info() tells.
    spill_bytes: the most memory beside the ring, for frames too large for the ring, rounded up to 2
    MiB and allocated on use. None: RINGCAST_SPILL_BYTES, else 4 GiB or half of the free memory,
    whichever is less. 0: none. allow_pickle: False refuses values that need a pickle. None: True,
    unless RINGCAST_ALLOW_PICKLE=0. on_death: what a blocked call does about a dead reader: "fail"
    raises ReaderDied, "evict" goes on without the reader. slow: seconds that a live reader may
    block the writer, over all calls until one succeeds; None: for ever. on_slow: what happens after
    `slow`: "fail" raises TimeoutError, "evict" goes on, and the reader gets Evicted.
    gpu_pool_bytes: device memory for tensors on a CUDA device, allocated by the first such tensor.
    None: RINGCAST_GPU_POOL_BYTES, else 0. 0: no pool; such tensors are copied to the ring. wait:
    how much to spin when a regular message is due: "balanced" (RINGCAST_WAIT, else 5 %), "latency"
    or "power". ahead: the most frames that a Reader may have left to take; then send() waits as for
    room. None: no such bound. name: by which rings(), find() and the command line know the ring: 1
    to 47 letters, digits and any of ._:+-

    One thread at a time: a second thread gets RuntimeError. After a fork the child gets
    ForkedError. ValueError: an argument is out of range. Error: the kernel's errno, if there is no
    memory.
    """

    def __new__(
        cls,
        capacity: Optional[int] = None,
        readers: int = 64,
        *,
        memory: str = "auto",
        spin: Optional[float] = None,
        numa: Union[str, int] = "local",
        spill_bytes: Optional[int] = None,
        allow_pickle: Optional[bool] = None,
        on_death: str = "fail",
        on_slow: str = "fail",
        slow: Optional[float] = None,
        gpu_pool_bytes: Optional[int] = None,
        wait: str = "balanced",
        ahead: Optional[int] = None,
        name: Optional[str] = None,
    ) -> Self: ...

    _takes_cuda: bool  # False: send() refuses torch's tensors on a CUDA device

    @property
    def gpu(self) -> Optional[GpuInfo]:
        """
        How tensors of a CUDA device travel: a GpuInfo, or None: none was sent yet, or there is no
        device.
        """

    @property
    def handle(self) -> str:
        """
        The ring's address, a short printable str: give the handle to the readers by any means.
        """

    @property
    def name(self) -> str:
        """The ring's name, as given, or empty."""

    @property
    def capacity(self) -> int:
        """Bytes of the ring."""

    @property
    def memory(self) -> str:
        """The kind of memory of the ring: "hugetlb", "shmem-huge" or "pages"."""

    # Of the last calls, for ringcast._group and ringcast.vllm: call.h, writer.h of the extension.
    _value_failed: bool
    _is_full: bool
    _sent: int
    _departures: int

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    def wait_readers(self, n: int, timeout: Optional[float] = None) -> int:
        """Wait until at least `n` readers are attached, and return the number of readers.

        TimeoutError: not in time. ValueError: `n` is more than the ring has slots.
        """

    def send(
        self, obj: Any, timeout: Optional[float] = None, *, tag: int = 0, hash: Optional[str] = None
    ) -> None:
        """Send any Python object to every attached reader.

        ringcast itself encodes plain values, containers, torch tensors (any dtype and strides),
        NumPy arrays and scalars, dataclasses, msgspec.Structs, namedtuples and Enum members, up to
        1024 levels. Tensors and arrays are copied once, straight into the ring; from a CUDA device
        (torch, or any array with __dlpack__ there, such as CuPy's and JAX's), into a pool on the
        device, without a wait. The rest of a value is pickled by protocol 5, with tensors, arrays
        and buffers beside the pickle. A PackedFrame of pack() is sent as the packed object.

        Do not change the value before send() returns; afterwards changes do no harm, for the
        readers have copies. If a tensor gets other memory during the call (tensor.data = ...), the
        tensor is sent as before. Nothing can hold memory that is freed or moved within its storage
        (untyped_storage().resize_(0), a resize_ that grows the storage, NumPy's
        resize(refcheck=False)): send() then reads freed memory, and the process may crash.

        timeout: seconds to wait for room, None for ever, 0 to try once. tag: 32 bits of the
        caller's own, for recv_tagged(). hash: "sha256" or "xxh3" hashes each tensor and array,
        nested ones too, during the copy, over the bytes in C order; readers find the hashes in
        Frame.hashes. The hash is the first 8 bytes of the SHA-256 as a big-endian int, or the
        64-bit XXH3. Pickled values get no hash; a PackedFrame has the hashes of pack().

        TimeoutError: no room in time, in the ring or in the spill memory; the message names the
        reader that blocks. FrameTooLarge: the frame can never fit; the error's spill_bytes would be
        enough. Error (ENOMEM, ENOSPC): the machine has no more spill memory. PickleRefused: the
        value needs a pickle, which this Writer refuses. ReaderDied: there is no room, a reader has
        died, and on_death is "fail". TypeError: a tensor on an unsupported device, or on a device
        that this process can't use. ValueError: a tensor without memory. RecursionError: the
        nesting is too deep for the thread's stack, or for pickle. RuntimeError: the value changed
        during the call. Any error of pickle, with the place in front: `value['a'][2]: ...`. After
        an error nothing was sent.
        """

    def asend(
        self, obj: Any, timeout: Optional[float] = None, *, tag: int = 0, hash: Optional[str] = None
    ) -> Coroutine[Any, Any, None]:
        """Send for a task of asyncio: `await writer.asend(obj)`.

        If there is room, the call sends at once, now and then after a turn of the loop. Else only
        this task waits, in the loop and without a thread, and sends `obj` as it was at the start of
        the wait. Waiting calls are served in order. A cancelled call has sent nothing.

        Timeout and errors as send(). ValueError: the Writer was closed during the wait.
        """

    def send_many(
        self, values: Iterable[Any], timeout: Optional[float] = None, *, tag: int = 0
    ) -> None:
        """
        Send each of the values, in order, as send(value, tag=tag) does, in fewer and larger steps.

        Readers receive the values one by one or by recv_many(). If the tag is 0, bytes of at
        most 1 KiB share frames of the ring and cost least. The timeout is for all.

        Errors as send(). The exception's attribute `sent` is the number of values that were sent
        before the failure: send_many(values[error.sent:]) goes on without a loss or a repeat.
        """

    def asend_many(
        self, values: Iterable[Any], timeout: Optional[float] = None, *, tag: int = 0
    ) -> Coroutine[Any, Any, None]:
        """Send as send_many(), for a task of asyncio, as asend().

        A cancelled call may have sent some of the values: CancelledError has `sent`, too.
        """

    def send_bytes(self, data: Buffer, timeout: Optional[float] = None) -> None:
        """Send the bytes of any buffer, in C order; recv() returns bytes. Timeout and errors as
        send()."""

    def send_error(self, text: str, timeout: Optional[float] = None, *, tag: int = 0) -> None:
        """Send an error in place of an object: recv() raises SendError(text) at every reader.
        Otherwise as send()."""

    def reserve(
        self, n: Optional[int] = None, timeout: Optional[float] = None, *, tag: int = 0
    ) -> Span:
        """Reserve `n` bytes of the ring or of spill memory, to be written in place: a Span. One
        reservation at a time.

        n: None: an estimate, if the size of the frame is known only after the write. Then grow() a
        Span that is too small. commit(n) trims the Span, and teaches the estimate of the tag. The
        estimate is a little more than the third largest of the last 32 to 64 sizes; for a new tag
        4096. It is never more than info().max_frame.

        Readers see nothing before commit(). Timeout and errors as send(). Error (EBUSY): a
        reservation is already open. ValueError: a tag beside `n`.
        """

    def commit(self, n: Optional[int] = None, *, kind: int = 0) -> None:
        """Publish the first `n` bytes (None: all) of the open reservation as one frame.

        kind: KIND_BYTES, or KIND_TENSORS for a whole frame of Reader.next(), to be passed on.

        Error (ENOTSUP): the frame's tensors lie in device memory of another Writer; the reservation
        stays open. ValueError: no reservation is open, `n` is more than was reserved, or `n` is
        None after a reserve() without a size (the reservation stays open). BufferError: a
        memoryview of the Span is still in use.
        """

    def abort(self) -> None:
        """Give the open reservation back; no reader sees the bytes. Errors as commit()."""

    def empty(self, shape: Any, dtype: Any, device: Any = None) -> Any:
        """
        Return a torch tensor with memory in the writer's pool, on a CUDA device. Sending the tensor
        copies nothing.

            logits = writer.empty((32, 4096), torch.float16)
            torch.mm(hidden, weights, out=logits)
            writer.send({"logits": logits})

        The contents are arbitrary, as with torch.empty. The readers read the sent tensor, or a
        contiguous part, in place. Do not write to the tensor until the readers have read it
        (Writer.gpu.slots_used falls), or drop the tensor and make a new one. The memory is used
        again when the tensor is gone and the readers have read it. The tensor is copied if it is
        sent again before, or sent to a reader that has not opened the pool. A Writer that closes
        before its tensors are gone leaves the pool allocated until the process ends.

        device: as torch has it; None: torch's current one. A Writer has one device.

        TimeoutError: the pool is full, or there is none (Writer.gpu says why). ValueError: not the
        Writer's device. Error (EMSGSIZE): larger than the pool; (ENODEV): there is no device.
        """

    def compose(
        self, value: Dict[Any, Any], timeout: Optional[float] = None, *, tag: int = 0
    ) -> ComposedFrame:
        """Reserve the frame of a dict, and write its arrays in place.

            with writer.compose({"x": ringcast.empty((2048, 1280), "float32"), "step": 7}) as frame:
                np.multiply(pixels, scale, out=frame["x"])

        The end of the block sends the frame; an exception aborts the frame. The readers get the
        same as from send() of the dict with these arrays. Placeholders of ringcast.empty() may
        stand anywhere in the dict, beside all that send() takes; an array that is not written has
        arbitrary contents. Without a block, call the frame's commit() or abort(). Nothing else can
        be sent while the frame is open.

        Arguments and errors as send() and reserve(). Error (EBUSY): a reservation is open.
        BufferError at the end: an array or tensor over the frame is still in use; see
        ComposedFrame.
        """

    def peers(self) -> List[ReaderStatus]:
        """Return the readers that hold a slot now, a ReaderStatus each.

        state is "joining", "active", "stopped" (by a signal or a debugger: slow, not dead), "dead",
        "evicted" (and still alive), or "unknown" (nothing tells whether the reader lives). position
        and lag are bytes; held is the seconds that the writer has waited for the reader. Each field
        is true of some moment during the call.
        """

    def check(self) -> Optional[ReaderStatus]:
        """
        Return the ReaderStatus of a reader that has died, or was evicted since the last call; None
        if all is well.

        With on_death="evict" each reader is reported once, so call until None. With "fail" each
        call reports a dead reader. The call never waits, and makes one system call where the kernel
        has pidfds.

        Error: EMFILE, ENFILE, ENOMEM of the kernel.
        """

    def fileno(self) -> int:
        """
        Return a descriptor for select, poll, epoll and asyncio's add_reader, readable when a reader
        has died: call check().

        Readers that attach later are watched from the next check(), wait_readers() or fileno() on.
        Every call returns the same descriptor, which close() closes: never read or close the
        descriptor. Errors as check().
        """

    def room_fileno(self) -> int:
        """Return a descriptor for event loops, readable when a send with timeout 0 that raised
        TimeoutError may now succeed.

        Then send again with timeout 0; each TimeoutError makes the descriptor wait again. The
        descriptor may be readable without room, and is so every 50 ms while there is no room. The
        descriptor starts readable, is the same at each call, and is closed by close(): never read
        or close the descriptor. asend() does all of this.

        Error: EMFILE, ENFILE, ENOMEM of the kernel. Error (ENOBUFS) of a send: the descriptor is
        gone; call room_fileno() again.
        """

    def info(self) -> Info:
        """Return the facts of the ring: an Info.

        Sizes are bytes. tail counts the bytes sent so far, headers and rounding included;
        spill_used is the spill memory in use now.
        """

    def stats(self) -> Stats:
        """Return the counts of this Writer so far: a Stats."""

    def cancel(self) -> None:
        """Make a thread's current wait on this Writer, and every later call that would wait, raise
        Cancelled.

        Any thread may call. A cancelled Writer stays cancelled.
        """

    def close(self) -> None:
        """Announce the end and leave the ring: readers receive what was sent, then WriterGone.

        The call aborts an open reservation. Closing twice is fine. BufferError: a memoryview of the
        Span is still in use.
        """

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: give the handle to the other process instead."""

    def __enter__(self) -> Self:
        """Return the Writer."""

    def __exit__(self, *exception: Any) -> None:
        """Call close()."""

@final
class Reader(Iterator[Any], AsyncIterator[Any]):
    """
    Attaches to the ring of a Writer's handle, and receives what is sent from then on, or from the
    newest frame on.

    handle: the Writer's handle, whole, with nothing around it. name: shown in errors and lists
    ("rank 3"); at most 31 bytes in UTF-8 are kept. spin, wait: as for Writer. leases: how many
    Frames of next() the Reader may hold at a time, at most 64. allow_pickle: False refuses frames
    with a pickle, which can run code, and frames that name a class which is not allowed. None:
    True, unless RINGCAST_ALLOW_PICKLE=0 or `classes` is given. classes: what a frame may name,
    beside ringcast.allow() and the environment's RINGCAST_CLASSES: classes, modules, or their
    names, as for allow(). Implies allow_pickle=False; with allow_pickle=True it is a ValueError.
    retain: where possible, recv() does not copy large arrays and tensors: the arrays stay in the
    ring's spill memory, and belong to this process, copy-on-write. See docs/python.md, "Without a
    copy". map_location: where tensors and arrays of a CUDA device arrive. None: on this process's
    current device. "cuda", "cuda:1" or a torch.device: there, with the torch tensors of the CPU
    too. "cpu": in host memory. start: "next": the first frame is the next one to be sent. "latest":
    the newest frame, or if there is none yet, the next. tag: with "latest", the newest frame of
    send(..., tag=tag), 1 to 2**32 - 1. See docs/python.md, "The last value".

    Iterating, also by `async for`, receives until the writer is gone.

    One thread at a time: a second thread gets RuntimeError. After a fork the child gets
    ForkedError. ValueError: not a handle. RingNotFound: the ring is gone. AccessDenied: the ring of
    another user. ProtocolError: another build of ringcast made the ring. NoFreeSlot: the ring has
    no slot for another reader. Error (ENODATA): the ring has no frame with the tag any more, or
    never had one.
    """

    def __new__(
        cls,
        handle: str,
        *,
        name: Optional[str] = None,
        spin: Optional[float] = None,
        leases: int = 1,
        allow_pickle: Optional[bool] = None,
        retain: bool = False,
        map_location: Any = None,
        wait: str = "balanced",
        classes: _Classes = None,
        start: str = "next",
        tag: Optional[int] = None,
    ) -> Self: ...
    @property
    def gpu(self) -> Optional[GpuInfo]:
        """
        How tensors of a CUDA device arrive: a GpuInfo, or None: none has arrived yet, or there is
        no device.
        """

    @property
    def handle(self) -> str:
        """The handle of the ring."""

    @property
    def capacity(self) -> int:
        """Bytes of the ring."""

    @property
    def memory(self) -> str:
        """The kind of memory of the ring: "hugetlb", "shmem-huge" or "pages"."""

    @property
    def writer_pid(self) -> int:
        """The pid of the writer."""

    @property
    def lag(self) -> int:
        """Bytes sent and not received yet."""

    # For ringcast._group: see call.h of the extension.
    _value_failed: bool

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    def recv(self, timeout: Optional[float] = None) -> Any:
        """Receive the next object: equal to the sent object, writable, and no part of the ring. For
        send_bytes(), bytes.

        A received torch tensor can't be made larger in place (resize_).

        timeout: seconds to wait, None for ever, 0 to try once. Ctrl-C ends the wait at once.

        TimeoutError: nothing came in time. WriterGone: the writer is gone, and all frames were
        received. SendError: the writer could not send an object. ProtocolError: the frame is
        damaged, or a class has other fields here. ImportError: torch, or the module or class of an
        instance, is missing. PickleRefused: the frame holds a pickle, which this Reader refuses.
        RecursionError: the nesting is too deep for the thread's stack. Any error of unpickling, and
        what the value's own code raises, as it is; in an iteration a RuntimeError in place of
        StopIteration. After any error from SendError on, the Reader goes on with the next frame.
        Error (EBUSY): the Reader holds as many Frames of next() as `leases` allows. Evicted: the
        writer has evicted this Reader.
        """

    def recv_tagged(self, timeout: Optional[float] = None) -> Tuple[Any, int]:
        """Receive the next object with the sender's tag: (object, tag). The tag of bytes is 0.
        Otherwise as recv()."""

    def recv_many(self, timeout: Optional[float] = None, most: Optional[int] = None) -> List[Any]:
        """Receive all objects that are there, at least one and at most `most`: a list, in order.

        Waits for the first object only. Timeout and errors as recv(), of the first object. A later
        object that can't be received ends the list: the next call raises the reason, so no object
        is lost. If a KeyboardInterrupt or the like ends the call, the exception's attribute
        `received` is the list so far.
        """

    def arecv_many(
        self, timeout: Optional[float] = None, most: Optional[int] = None
    ) -> Coroutine[Any, Any, List[Any]]:
        """Receive as recv_many(), for a task of asyncio, as arecv()."""

    def arecv(self, timeout: Optional[float] = None) -> Coroutine[Any, Any, Any]:
        """Receive for a task of asyncio: `await reader.arecv()`.

        Only this task waits, in the loop and without a thread. A frame that is already there is
        received at once, now and then after a turn of the loop, so that other tasks make progress.
        A cancelled call loses nothing: the next call receives the frame.

        Timeout and errors as recv(). RuntimeError: a task waits on this Reader already. ValueError:
        the Reader was closed during the wait.
        """

    def arecv_tagged(self, timeout: Optional[float] = None) -> Coroutine[Any, Any, Tuple[Any, int]]:
        """Receive as arecv(), with the sender's tag: (object, tag). The tag of bytes is 0."""

    def next(self, timeout: Optional[float] = None) -> Frame:
        """Lease the next frame, of any kind, to be read in place: a Frame.

        A Reader may hold as many Frames as `leases` allows, and release them in any order.

        timeout, TimeoutError, WriterGone and ProtocolError as for recv(). Error (EBUSY): the Reader
        already holds as many Frames. Evicted: the writer has evicted this Reader.
        """

    def view(self, timeout: Optional[float] = None) -> View:
        """
        Receive the next object for a `with` block, with arrays and tensors in place, in the ring: a
        View.

            with reader.view() as obj:
                total = obj["x"].sum()              # reads the ring's memory in place

        NumPy arrays are read-only. torch has no read-only tensors: TO WRITE TO A TENSOR OF A VIEW
        KILLS THE PROCESS (SIGSEGV), because the memory is mapped read-only; in-place operations
        write too. Clone a tensor before changing it. Reading an array or tensor after the block is
        safe, whatever happens to the Reader and the writer, but shows the writer's next bytes: copy
        inside the block what you keep. All else in the object is a copy of this process's own.

        A view uses one of the Reader's `leases`; several views may be nested. Timeout and errors as
        recv(). The end of the block may raise Evicted: the writer has evicted this Reader and may
        have overwritten the arrays.
        """

    def prepare_gpu(self) -> bool:
        """Open the writer's pool on the device; return whether the pool is open.

        Without this call the first frame with a device tensor opens the pool, and itself goes
        through the ring. False: the writer has no pool yet, frames of an earlier pool are to be
        received first, or the pool can't be opened now: call again. Causes: the device is busy, a
        graph is being captured, descriptors or memory lack; gpu.why has the cause. The call may
        take long.

        Error (ENODEV): this process can't use a device; (ENOTSUP, EIO): the pool can't be opened
        here.
        """

    def check(self) -> None:
        """Check that all bytes read from held Frames before this call were whole, without releasing
        the Frames.

        Evicted: the bytes may be damaged; the writer has evicted this Reader.
        """

    def fileno(self) -> int:
        """
        Return a descriptor for select, poll, epoll and asyncio's add_reader, readable when recv()
        may have a result.

        Then call recv(0) until TimeoutError, which makes the descriptor wait again. The descriptor
        starts readable, is the same at each call, and is closed by close(): never read or close the
        descriptor.

        Error: EMFILE, ENFILE, ENOMEM of the kernel. Error (ENOBUFS) of recv(0): the descriptor is
        gone; call fileno() again.
        """

    def info(self) -> Info:
        """Return facts of the ring, as Writer.info(); spin_ns is this Reader's own."""

    def stats(self) -> Stats:
        """
        Return the counts of this Reader so far, as Writer.stats(): frames and bytes count what was
        received.
        """

    def cancel(self) -> None:
        """Make a thread's current wait on this Reader, and every later call that would wait, raise
        Cancelled.

        Frames that are already there can still be received. Any thread may call. A cancelled Reader
        stays cancelled.
        """

    def close(self) -> None:
        """Leave the ring and release all held Frames. Closing twice is fine.

        Arrays of a view() may outlive the Reader: the memory is unmapped with the last array.
        BufferError: a memoryview of a Frame is still in use.
        """

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: give the handle to the other process instead."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, Any]:
        """Receive as arecv(); the iteration ends when the writer is gone."""

    def __enter__(self) -> Self:
        """Return the Reader."""

    def __exit__(self, *exception: Any) -> None:
        """Call close()."""

@final
class Tap(Iterator[Any]):
    """Copies the frames of a ring, from now on, without ever blocking the writer.

    A Tap takes no slot of a reader. Frames that the writer overwrites before the Tap has copied
    them are lost, and counted by lost(); a Tap that is less than half a ring behind loses nothing.
    Iterating receives until the writer is gone.

    handle: the Writer's handle. allow_pickle, classes: as for Reader.

    One thread at a time: a second thread gets RuntimeError. After a fork the child gets
    ForkedError. Errors as Reader, except NoFreeSlot.
    """

    def __new__(
        cls, handle: str, *, allow_pickle: Optional[bool] = None, classes: _Classes = None
    ) -> Self: ...
    @property
    def handle(self) -> str:
        """The handle of the ring."""

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    def recv(self, timeout: Optional[float] = None) -> Any:
        """Copy the next frame and return the object, as Reader.recv(). For overwritten frames see
        lost()."""

    def recv_tagged(self, timeout: Optional[float] = None) -> Tuple[Any, int]:
        """Copy the next frame and return (object, tag). The tag of bytes is 0."""

    def next(self, timeout: Optional[float] = None) -> TapFrame:
        """
        Copy the next frame, of any kind, as the frame stands in the ring: TapFrame(position, kind,
        data).
        """

    def lost(self) -> TapLost:
        """
        Return the loss, TapLost(bytes, gaps): frames that the writer overwrote before this Tap had
        copied them.

        bytes counts bytes of the ring, headers and rounding included; gaps counts the
        interruptions.
        """

    def info(self) -> Info:
        """Return facts of the ring, as Writer.info()."""

    def stats(self) -> Stats:
        """Return the counts of the writer so far, as Writer.stats()."""

    def peers(self) -> List[ReaderStatus]:
        """Return the readers of the ring, as Writer.peers()."""

    def close(self) -> None:
        """Leave the ring. Closing twice is fine."""

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: give the handle to the other process instead."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def __enter__(self) -> Self:
        """Return the Tap."""

    def __exit__(self, *exception: Any) -> None:
        """Call close()."""
