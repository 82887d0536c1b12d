# SPDX-License-Identifier: Apache-2.0
"""The types of the extension. What they do and raise is told in full by their docstrings: help(ringcast.Writer).

Wherever there is a `timeout`: seconds; None waits for ever, 0 tries once; TimeoutError when the time is up.
"""

from types import TracebackType
from typing import (
    Any,
    AsyncIterator,
    Coroutine,
    Dict,
    Final,
    Iterator,
    List,
    NoReturn,
    Optional,
    Tuple,
    Type,
    Union,
    final,
)

from typing_extensions import Buffer, Self

from ringcast._status import GpuInfo, GpuStatus, Info, ReaderStatus, Recycling, Stats, TapFrame, TapLost

__version__: Final[str]

KIND_BYTES: Final[int]
"""The kind of a frame whose bytes are the caller's own: of send_bytes(), and of commit() unless it is told."""

KIND_TENSORS: Final[int]
"""The kind of a frame in the typed layout of ringcast/frame.h: of send() and send_error()."""

def pack(obj: Any, *, allow_pickle: Optional[bool] = None, hash: Optional[str] = None) -> PackedFrame:
    """Make the frame that Writer.send(obj) would send, in memory of its own, to be sent on several rings.
    allow_pickle=False: PickleRefused names the place and type of what has no form of its own."""

def unpack(frame: Buffer, *, allow_pickle: Optional[bool] = None) -> Any:
    """The object that a frame holds: a PackedFrame, a Frame, or its bytes; as recv() would give it.
    allow_pickle=False: no pickle of it is loaded, and no module is imported but torch and NumPy."""

def _tidy_readers() -> bool: ...
def gpu_status() -> GpuStatus:
    """Whether this process can use a CUDA device, and why not."""

def recycling() -> Recycling:
    """How the memory of large received arrays is used again."""

def set_recycling(limit: int, /) -> None:
    """Keep at most `limit` bytes of that memory for the next arrays; 0 turns it off. Default:
    RINGCAST_RECYCLE_BYTES."""

@final
class PackedFrame:
    """A frame made by pack(), to be sent by Writer.send() on any number of rings, by any threads at once; read-only."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in a ring."""

    @property
    def hashes(self) -> Any:
        """Of send(..., hash=...): {key: int} for tensors, {key: [int]} for what has such in it; see the docstring."""

    def keys(self) -> List[str]:
        """The keys of the dict that it holds, in order. TypeError: it holds none."""

    def __getitem__(self, key: str, /) -> Any:
        """That item alone, a copy, as recv() would give it."""

    def __contains__(self, key: object, /) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def __reduce__(self) -> NoReturn: ...

@final
class DeviceTensor:
    """An array on a CUDA device, of a sender's library that is not known, or not here: for from_dlpack()."""

    @property
    def shape(self) -> Tuple[int, ...]: ...
    @property
    def dtype(self) -> str:
        """Its name, as torch has it."""

    @property
    def device(self) -> str:
        """ "cuda:0" and the like."""

    @property
    def nbytes(self) -> int: ...
    @property
    def data_ptr(self) -> int:
        """Its address on the device."""

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]: ...
    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> NoReturn:
        """TypeError: its bytes are on a device."""

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> Tuple[int, int]: ...

@final
class Loan:
    """A tensor that Writer.lend() has lent: what is sent of it is copied by the readers, from where it lies.

    with writer.lend(weights) as loan:
        writer.send({"weights": weights})
        loan.wait()

    It keeps the tensor until it is closed. What was sent must not be written to before it is idle.
    """

    @property
    def idle(self) -> bool:
        """Whether all that was sent of it has been read."""

    @property
    def closed(self) -> bool: ...
    def wait(self, timeout: Optional[float] = None) -> None:
        """Wait until it is idle."""

    def close(self, timeout: Optional[float] = None) -> None:
        """Take it back: afterwards its memory may be freed. TimeoutError: not yet; ask again."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[Type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...

@final
class Span:
    """Memory of the ring, lent by Writer.reserve(), to be written in place.

    with writer.reserve(16) as span, memoryview(span) as view:
        view[:] = bytes(16)

    All of it is committed at the end of the block, and aborted after an exception. BufferError: a memoryview or an
    array of it is still in use; it is open as before: drop them, then commit() or abort().
    """

    def commit(self, n: Optional[int] = None, *, kind: int = 0) -> None:
        """Publish the first `n` bytes (None: all) as one frame. kind: KIND_BYTES or KIND_TENSORS."""

    def grow(self, n: int, timeout: Optional[float] = None) -> None:
        """Make it `n` bytes long in all, keeping what was written. No memoryview may be in use; take a new one."""

    def abort(self) -> None:
        """Give the memory back; no reader sees anything."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[Type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...

@final
class Frame:
    """A frame in the ring, lent by Reader.next(), to be read in place; read-only.

    with reader.next() as frame, memoryview(frame) as view:
        total = sum(view)

    It is released at the end of the block. BufferError: a memoryview or an array of it is still in use; it is held as
    before: drop them, then release().
    """

    @property
    def kind(self) -> int:
        """KIND_BYTES or KIND_TENSORS."""

    @property
    def position(self) -> int:
        """Where the frame starts, in bytes since the ring was made."""

    @property
    def tag(self) -> int:
        """The sender's tag; that of bytes is 0."""

    def release(self) -> None:
        """Give the frame back to the ring, where the writer may overwrite it. Evicted: drop what was made of it."""

    @property
    def hashes(self) -> Any:
        """Of send(..., hash=...): {key: int} for tensors, {key: [int]} for what has such in it; see the docstring."""

    def keys(self) -> List[str]:
        """The keys of the dict that it holds, in order. TypeError: it holds none."""

    def __getitem__(self, key: str, /) -> Any:
        """That item alone, a copy, as recv() would give it."""

    def __contains__(self, key: object, /) -> bool: ...
    def __reduce__(self) -> NoReturn: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[Type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...

@final
class View:
    """An object whose arrays and tensors lie in the ring, lent by Reader.view() for one `with` block.

    with reader.view() as obj:
        total = obj["x"].sum()

    NumPy arrays are read-only; TO WRITE TO A TORCH TENSOR OF A VIEW KILLS THE PROCESS (SIGSEGV). What is still held
    after the block can be looked at, but shows whatever the writer puts there.
    """

    @property
    def tag(self) -> int:
        """The sender's; that of bytes is 0."""

    @property
    def hashes(self) -> Any:
        """As Frame.hashes, inside the block."""

    def __enter__(self) -> Any: ...
    def __exit__(
        self,
        exception_type: Optional[Type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...

@final
class Writer:
    """Makes a ring and sends through it. capacity: bytes. spin: seconds that a wait spins before it sleeps.

    memory: "hugetlb", "shmem-huge", "pages", or "auto": RINGCAST_MEMORY, else the first of them that can be had.
    numa: "local", "none", "interleaved", or a node's number. spill_bytes: the most memory beside the ring, for what is
    too large for it; None: RINGCAST_SPILL_BYTES, else up to 4 GiB; 0: none. allow_pickle: False refuses to send what
    would need a pickle; None: RINGCAST_ALLOW_PICKLE, else True. on_death: what is done about a dead reader in the way,
    "fail" (ReaderDied) or "evict" (go on without it). slow: seconds that a live one may be in the way, None for ever;
    on_slow: then "fail" (TimeoutError) or "evict" (it gets Evicted). gpu_pool_bytes: memory of the device for tensors
    on it; None: RINGCAST_GPU_POOL_BYTES, else 256 MiB; 0: none. gpu_inline_most: so few bytes go through the ring
    anyway. gpu_full: without room there, "inline" (through the ring) or "raise" (TimeoutError). gpu_lend: needed only
    if other device tensors are sent before the first lend().
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
        gpu_inline_most: Optional[int] = None,
        gpu_full: str = "inline",
        gpu_lend: bool = False,
    ) -> Self: ...
    @property
    def gpu(self) -> Optional[GpuInfo]:
        """How tensors of a CUDA device go; None: none has gone yet."""

    @property
    def handle(self) -> str:
        """The ring's name: hand it to the readers by any means."""

    @property
    def capacity(self) -> int:
        """Bytes of the ring."""

    @property
    def max_frame(self) -> int:
        """The largest frame's bytes, spill memory included."""

    @property
    def ring_frame(self) -> int:
        """Bytes of the largest frame that stays in the ring."""

    @property
    def spill_bytes(self) -> int:
        """The most spill memory there can be; 0: there is none."""

    @property
    def memory(self) -> str:
        """What was got: "hugetlb", "shmem-huge" or "pages"."""

    @property
    def page_size(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def wait_readers(self, n: int, timeout: Optional[float] = None) -> int:
        """Wait until at least `n` readers are attached; return how many are."""

    def send(
        self, obj: Any, timeout: Optional[float] = None, *, tag: int = 0, hash: Optional[str] = None
    ) -> None:
        """Send any object, or what pack() made of one. timeout: for room. tag: 32 bits of the caller's own. hash:
        "sha256" or "xxh3", of each tensor and array, for Frame.hashes."""

    def asend(
        self, obj: Any, timeout: Optional[float] = None, *, tag: int = 0, hash: Optional[str] = None
    ) -> Coroutine[Any, Any, None]:
        """send() for a task of asyncio; calls that wait for room are served in their order."""

    def send_bytes(self, data: Buffer, timeout: Optional[float] = None) -> None: ...
    def send_error(self, text: str, timeout: Optional[float] = None, *, tag: int = 0) -> None:
        """Make recv() raise SendError(text) at every reader."""

    def reserve(self, n: int, timeout: Optional[float] = None) -> Span:
        """Lend `n` bytes, of the ring or of spill memory, to be written in place."""

    def commit(self, n: Optional[int] = None, *, kind: int = 0) -> None:
        """As Span.commit(), of the open reservation."""

    def abort(self) -> None: ...
    def lend(self, tensor: Any, /) -> Loan:
        """Lend a contiguous tensor on a CUDA device: readers copy what is sent of it from where it lies."""

    def estimate(self, tag: int) -> int:
        """Bytes to reserve() for the next frame of `tag`, by what learn() was told."""

    def learn(self, tag: int, n: int) -> None:
        """Tell estimate() that a frame of `tag` took `n` bytes."""

    def peers(self) -> List[ReaderStatus]: ...
    def readers(self) -> List[ReaderStatus]:
        """The same as peers()."""

    def check(self) -> Optional[ReaderStatus]:
        """A reader that has died or was evicted, to be asked until there is None."""

    def fileno(self) -> int:
        """A descriptor to poll: readable when a reader has died; then call check()."""

    def room_fileno(self) -> int:
        """A descriptor to poll: readable when a send with timeout 0 that found no room may end otherwise."""

    def info(self) -> Info: ...
    def stats(self) -> Stats: ...
    def cancel(self) -> None:
        """Make waits raise Cancelled, from any thread."""

    def close(self) -> None: ...
    def __reduce__(self) -> NoReturn: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[Type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...

@final
class Reader(Iterator[Any], AsyncIterator[Any]):
    """Attaches to the ring of a handle and receives what is sent from then on; iterating, also by `async for`, ends
    with the writer.

    map_location: where tensors that were on a CUDA device arrive: None, on this process's current one; "cpu"; "cuda",
    "cuda:1" or a torch.device, with those of the CPU too. name: shown where the reader is spoken of. spin: as for
    Writer. leases: how many Frames may be held at once, to 64.
    allow_pickle: False refuses frames that hold a pickle; None: RINGCAST_ALLOW_PICKLE, else True. keep: large arrays
    and tensors are not copied where that can be avoided: docs/python.md, "Without a copy".
    """

    def __new__(
        cls,
        handle: str,
        *,
        name: Optional[str] = None,
        spin: Optional[float] = None,
        leases: int = 1,
        allow_pickle: Optional[bool] = None,
        keep: bool = False,
        map_location: Any = None,
    ) -> Self: ...
    @property
    def gpu(self) -> Optional[GpuInfo]:
        """How tensors of a CUDA device come; None: none has come yet, or there is no device here."""

    @property
    def handle(self) -> str: ...
    @property
    def capacity(self) -> int: ...
    @property
    def memory(self) -> str: ...
    @property
    def writer_pid(self) -> int: ...
    @property
    def lag(self) -> int:
        """Bytes that were sent and not received yet."""

    @property
    def closed(self) -> bool: ...
    def recv(self, timeout: Optional[float] = None) -> Any:
        """Receive the next object, this process's own; of send_bytes(), bytes."""

    def recv_tagged(self, timeout: Optional[float] = None) -> Tuple[Any, int]:
        """As recv(), with the sender's tag; that of bytes is 0."""

    def arecv(self, timeout: Optional[float] = None) -> Coroutine[Any, Any, Any]:
        """recv() for a task of asyncio; one that is cancelled has lost nothing."""

    def arecv_tagged(self, timeout: Optional[float] = None) -> Coroutine[Any, Any, Tuple[Any, int]]:
        """As arecv(), with the sender's tag."""

    def next(self, timeout: Optional[float] = None) -> Frame:
        """Lend the next frame, to be read in place."""

    def view(self, timeout: Optional[float] = None) -> View:
        """Receive the next object for a `with` block, its arrays and tensors where they lie, in the ring."""

    def prepare_gpu(self) -> bool:
        """Open the pool that the writer has on its device, before a frame needs it; False: there is none yet, or it
        can't be opened just now, and then gpu.why says why."""

    def check(self) -> None:
        """Make sure that what was read of held Frames so far was whole; else Evicted."""

    def fileno(self) -> int:
        """A descriptor to poll: readable when recv(0) may have something to give."""

    def info(self) -> Info: ...
    def stats(self) -> Stats: ...
    def cancel(self) -> None:
        """Make waits raise Cancelled, from any thread; what is there can still be received."""

    def close(self) -> None: ...
    def __reduce__(self) -> NoReturn: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, Any]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[Type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...

@final
class Tap(Iterator[Any]):
    """Sees what a ring carries, holds nobody back, and loses what is overwritten before it has copied it."""

    def __new__(cls, handle: str, *, allow_pickle: Optional[bool] = None) -> Self: ...
    @property
    def handle(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def recv(self, timeout: Optional[float] = None) -> Any:
        """Copy the next frame's object, as Reader.recv()."""

    def recv_tagged(self, timeout: Optional[float] = None) -> Tuple[Any, int]:
        """As recv(), with the sender's tag; that of bytes is 0."""

    def next(self, timeout: Optional[float] = None) -> TapFrame:
        """Copy the next frame as it stands in the ring."""

    def lost(self) -> TapLost:
        """What was overwritten before it was copied."""

    def info(self) -> Info: ...
    def stats(self) -> Stats:
        """The writer's."""

    def peers(self) -> List[ReaderStatus]: ...
    def close(self) -> None: ...
    def __reduce__(self) -> NoReturn: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[Type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...
