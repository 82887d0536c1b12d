# SPDX-License-Identifier: Apache-2.0
"""Traces: the phases of each send and each recv, in all processes of a run, as a file for
ui.perfetto.dev.

    RINGCAST_TRACE=trace.json python program.py     # each process with the variable
    ringcast.trace.start("trace.json")              # or by hand, in each process

docs/trace.md explains the file.
"""

import atexit
import contextlib
import errno
import fcntl
import json
import multiprocessing.process
import os
import struct
import sys
import threading
import time
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from ringcast import _files, _ringcast, _spans
from ringcast._options import integer

__all__ = ["flush", "start", "stop"]

_LIMIT = 1 << 30
_LEAST = 1 << 12  # bytes: the first event must fit
_MOST_KEPT = 1 << 24  # bytes of events, while another process holds the file

_trace: Optional["_Trace"] = None


def start(file: Any, limit: int = _LIMIT) -> None:
    """Trace this process from now on, into `file`, until stop() or the end of the process.

    Processes with the same file share the file. The file of an earlier run is replaced, once no
    process traces into it any more. The file takes at most `limit` bytes; then the trace ends, with
    a warning.

    OSError: the file can't be written. ValueError: this process traces already; the file is there,
    and no trace; or `limit` is out of range.
    """
    global _trace
    if _trace is not None:
        raise ValueError(
            f"this process traces into {_trace.path} already: call ringcast.trace.stop() first"
        )
    trace = _Trace(os.path.abspath(os.fsdecode(file)), integer("limit", limit, _LEAST, sys.maxsize))
    _spans.subscribe(trace.take)
    _trace = trace


def stop() -> None:
    """
    Write the events so far, and end the trace of this process. Without a trace nothing happens.
    """
    global _trace
    trace, _trace = _trace, None
    if trace is not None:
        trace.end()


atexit.register(stop)


def flush() -> None:
    """Write the events so far. Without a trace nothing happens."""
    _spans.flush()


def start_as_asked() -> None:
    """
    Called by `import ringcast` if RINGCAST_TRACE is set. If the file can't be written, the program
    goes on.
    """
    try:
        start(os.environ["RINGCAST_TRACE"])
        # For children in other folders.
        os.environ["RINGCAST_TRACE"] = os.path.abspath(os.environ["RINGCAST_TRACE"])
    except (OSError, ValueError, TypeError) as error:
        warnings.warn(
            f"no trace is taken, as RINGCAST_TRACE asks: {error}", RuntimeWarning, stacklevel=3
        )


# ---- Names ---------------------------------------------------------------------------------------


def note_rank() -> None:
    """Called when a group gets its first ring: the program may leave the group before any event is
    written."""
    trace = _trace
    if trace is not None:
        trace.note_rank()


def _rank() -> Optional[int]:
    """The process's rank in torch.distributed, if known."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else None


def _process_name(rank: Optional[int]) -> str:
    """The rank, or the name of a Reader or ring; and the name that multiprocessing gave."""
    names = [f"rank {rank}"] if rank is not None else []
    if not names:
        names += [own or ring for ring, own in _ringcast._spans_names().values() if own or ring][:1]
    process = multiprocessing.process.current_process().name
    if process != "MainProcess":
        names.append(process)
    return ", ".join(names) or os.path.basename(sys.argv[0] if sys.argv else "") or "python"


# ---- Events --------------------------------------------------------------------------------------


class _Trace:
    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = path, limit
        self.known_rank: Optional[Tuple[int, int]] = (
            None  # with the pid; stays, when the program leaves its group
        )
        self.export: "Optional[Export]" = exporter()
        self._begin_process()
        self.file: "Optional[TraceFile]" = TraceFile(path, limit, self._about_process())

    def _begin_process(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()  # a signal's handler may call stop() within take()
        self.is_taking = self.is_ended = False
        self._forget()

    def _forget(self) -> None:
        self.kept = b""
        self.told_name: Any = None
        self.told_threads: Set[int] = set()

    def take(self, spans: List[_spans.Span]) -> None:
        """
        The subscriber: called by several threads at the same time, and in a forked child with the
        parent's file.
        """
        forked = self._is_forked()
        with self.lock:
            self.is_taking = True
            try:
                if self.file is None:
                    return
                if forked:
                    self.file.close()
                rings = {ring: name for ring, (name, _) in _ringcast._spans_names().items() if name}
                first = self._about_process()
                self.kept += b"".join(self._lines(spans, first, rings))
                self.file.append(first, self.kept)
                self.kept = b""
            except Busy as error:
                self._bound(error)
            except (OSError, ValueError, TooLarge) as error:
                self._give_up(error)
                return
            finally:
                self.is_taking = False
                if self.is_ended:
                    self._close()
        if self.export is not None:
            self._export(self.export, spans, rings)

    def _export(self, export: "Export", spans: List[_spans.Span], rings: Dict[int, str]) -> None:
        try:
            export(spans, rings)
        except Exception as error:  # another package's: the trace goes on
            self.export = None
            warnings.warn(
                f"no more spans go to OpenTelemetry: {error!r}", RuntimeWarning, stacklevel=2
            )

    def _bound(self, error: Exception) -> None:
        """Another process holds the file."""
        if len(self.kept) <= _MOST_KEPT:
            return
        lost = self.kept.count(b"\n")
        self._forget()
        warnings.warn(
            f"the trace lacks {lost} events of process {self.pid}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )

    def _give_up(self, error: Exception) -> None:
        global _trace
        if self.file is not None:
            self.file.close()
        self.file = None
        if _trace is self:
            _trace = None
        if not self.is_ended:
            _spans.unsubscribe(self.take)
        warnings.warn(
            f"the trace of process {self.pid} ends here: {error}", RuntimeWarning, stacklevel=2
        )

    def _is_forked(self) -> bool:
        """Whether a child makes the first call since the fork. The lock and the kept events are the
        parent's."""
        if self.pid == os.getpid():
            return False
        self._begin_process()
        return True

    def end(self) -> None:
        _spans.unsubscribe(self.take)
        self._is_forked()
        with self.lock:
            self.is_ended = True
            if not self.is_taking:  # by this thread; else take() closes the file
                self._close()

    def _close(self) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError, ValueError, TooLarge):
                if self.kept:
                    self.file.append(self._about_process(), self.kept)
            self.file.close()
        self.file = None

    def _about_process(self) -> bytes:
        """The event with the name of the process."""
        self.note_rank()
        return self._about("process_name", self.pid, _process_name(self.rank()))

    def note_rank(self) -> None:
        """Any thread may call this, and a forked child before its first take()."""
        rank = _rank()
        if rank is not None:
            self.known_rank = os.getpid(), rank

    def rank(self) -> Optional[int]:
        known = self.known_rank
        return known[1] if known is not None and known[0] == os.getpid() else None

    def _about(self, what: str, tid: int, name: Any) -> bytes:
        key = "sort_index" if what.endswith("sort_index") else "name"
        event = {
            "cat": "ringcast",
            "ph": "M",
            "name": what,
            "pid": self.pid,
            "tid": tid,
            "args": {key: name},
        }
        return json.dumps(event, separators=(",", ":")).encode() + b"\n"

    def _lines(self, spans: List[_spans.Span], first: bytes, rings: Dict[int, str]) -> Any:
        if first != self.told_name:  # a rank may be known only now
            self.told_name = first
            yield b"," + first
            if self.rank() is not None:
                yield b"," + self._about("process_sort_index", self.pid, self.rank())
        threads = {span.thread for span in spans} - self.told_threads
        if threads:
            self.told_threads |= threads
            for thread in threading.enumerate():
                if thread.native_id in threads:
                    yield b"," + self._about("thread_name", thread.native_id, thread.name)
        yield "".join(self._slices(spans, rings)).encode()

    def _slices(self, spans: List[_spans.Span], rings: Dict[int, str]) -> Any:
        """
        In reverse, so that a call comes before its phases: the first of two slices with one start
        is the outer.
        """
        names = {ring: json.dumps(name) for ring, name in rings.items()}
        pid = self.pid
        for kind, start, end, thread, ring, position, size in reversed(spans):
            place = f'"pid":{pid},"tid":{thread},"ts":{start // 1000}.{start % 1000:03}'
            took = end - start
            name = names.get(ring) or f'"{ring:016x}"'
            yield (
                f',{{"cat":"ringcast","ph":"X","name":"{kind}",{place},'
                f'"dur":{took // 1000}.{took % 1000:03},'
                f'"args":{{"ring":{name},"position":{position},"bytes":{size}}}}}\n'
            )
            if kind in _FLOWS and position % 128 in (0, 16):
                frame = position - position % 128
                yield (
                    f',{{"cat":"ringcast","name":"{ring:016x}","id":"{frame:#x}",'
                    f"{_FLOWS[kind]},{place}}}\n"
                )


# Perfetto joins one start and any number of ends by category, name and id. An arrow begins at the
# slice with the earlier start. A recv may begin before the send, so the arrow ends at "decode". A
# frame begins at a multiple of 128, and the first message of a packed frame, which stands for the
# batch, 16 bytes on. A further message may be at such a place, too: an end without a start is no
# arrow.
_FLOWS = {"publish": '"ph":"s"', "decode": '"ph":"f","bp":"e"'}


# ---- The file -----------------------------------------------------------------------------------
# A trace's file is a JSON object with a list of events, an event a line; several processes write.
#
# A flush writes new lines over the closing brackets, and the brackets anew, under a lock. So the
# file is whole after each flush. A process killed inside a flush leaves a torn end; the next flush
# of any process cuts the torn end off.
#
# A process keeps a shared lock until the trace ends. The first process of a run finds no such lock,
# and replaces the file of an earlier run; all others append. Both locks are of bytes far behind the
# end. They belong to the open file description, so the kernel ends the locks with the process.
# (flock would not do: NFS turns it into a lock of all bytes.) Whoever can read a file can lock it,
# so the file is for this user alone.

HEAD = b'{"traceEvents":[\n'
MARK = HEAD + b'{"cat":"ringcast",'  # how each trace of ringcast begins
TAIL = b"]}\n"
_LIVE = 1 << 62  # the byte of the shared lock
_FLUSH = _LIVE + 1  # the byte of a flush
_LOOK = 1 << 20  # more than a line
_PATIENCE = 10  # seconds, to begin
_WAIT = 0.05  # seconds, to append: the caller is between two messages


class TooLarge(Exception):
    """The events do not fit the limit of the file's bytes."""


class Busy(OSError):
    """Another process has held the file for longer than a flush takes. Nothing was written."""


class TraceFile:
    def __init__(self, path: str, limit: int, first: bytes) -> None:
        """first: an event, the first line of a new file. OSError: the file can't be written.
        ValueError: the file is no trace."""
        self.path, self.limit = path, limit
        self.fd = -1
        self.id = (-1, -1)
        self._open(first, _PATIENCE)

    def _open(self, first: bytes, patience: float) -> None:
        self.close()
        self.fd = _files.open_shared(self.path)
        self.id = _id(os.fstat(self.fd))
        try:
            with self._locked(patience):
                if self._lock(_LIVE, fcntl.F_WRLCK):
                    self._begin(first)
                self._lock(_LIVE, fcntl.F_RDLCK)
        except BaseException:
            self.close()
            raise

    def _begin(self, first: bytes) -> None:
        found = os.pread(self.fd, len(MARK), 0)
        if found and found != MARK:
            raise ValueError(
                f"{self.path} is there, and no trace of ringcast: give another name, or delete "
                f"the file"
            )
        with contextlib.suppress(OSError):  # of a file system without modes
            os.fchmod(self.fd, 0o600)  # the file of an earlier release
        os.ftruncate(self.fd, 0)
        self._write(HEAD + first + TAIL, 0)

    @contextlib.contextmanager
    def _locked(self, patience: float) -> Iterator[None]:
        deadline = time.monotonic() + patience
        while not self._lock(_FLUSH, fcntl.F_WRLCK):
            if time.monotonic() >= deadline:
                raise Busy(f"{self.path} is locked: a process was stopped while it wrote there")
            time.sleep(0.0005)
        try:
            yield
        finally:
            self._lock(_FLUSH, fcntl.F_UNLCK)

    def _lock(self, byte: int, kind: int) -> bool:
        """Take the lock, or give it back; False: another process has one in the way."""
        lock = struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, lock)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True

    def append(self, first: bytes, lines: bytes) -> None:
        """Add lines of the form b",{...}\\n". first: for a new file, if the file was deleted.
        TooLarge: nothing was added. Busy. OSError."""
        if self._is_gone():
            self._open(first, _WAIT)
        with self._locked(_WAIT):
            end = self._end()
            if end + len(lines) + len(TAIL) > self.limit:
                raise TooLarge(f"{self.path} has reached its limit of {self.limit} bytes")
            self._write(lines + TAIL, end)

    def _is_gone(self) -> bool:
        """Whether the file was deleted or replaced, or could not be opened anew."""
        try:
            return not self._is_mine() or _id(os.lstat(self.path)) != self.id
        except FileNotFoundError:
            return True

    def _is_mine(self) -> bool:
        """Whether the descriptor is still the file's: the program may have closed it, and opened a
        file of its own."""
        try:
            return self.fd >= 0 and _id(os.fstat(self.fd)) == self.id
        except OSError:
            return False

    def _end(self) -> int:
        """Where the last whole line ends."""
        size = os.fstat(self.fd).st_size
        if os.pread(self.fd, len(TAIL), max(0, size - len(TAIL))) == TAIL:
            return size - len(TAIL)
        start = max(0, size - _LOOK)
        seen = os.pread(self.fd, _LOOK, start)
        at = seen.rfind(b"\n") + 1
        while at > 0:
            before = seen.rfind(b"\n", 0, at - 1) + 1
            line = seen[before:at]
            if line == HEAD or (line.startswith((b",{", b"{")) and line.endswith(b"}\n")):
                break
            at = before
        if at == 0:
            raise ValueError(
                f"{self.path} is no trace of ringcast any more: another program has written to "
                f"the file"
            )
        os.ftruncate(self.fd, start + at)
        return start + at

    def _write(self, data: bytes, at: int) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self.fd, rest, at)
            rest, at = rest[written:], at + written

    def close(self) -> None:
        if self._is_mine():
            os.close(self.fd)
        self.fd = -1


def _id(found: os.stat_result) -> Tuple[int, int]:
    return found.st_dev, found.st_ino


# ---- OpenTelemetry ------------------------------------------------------------------------------
# By its API: of the tracer "ringcast", a PRODUCER span for each send, a CONSUMER span for each
# recv, and their phases as children.

Export = Callable[[List[_spans.Span], Dict[int, str]], None]


def exporter() -> Optional[Export]:
    """A function of spans and the names of rings. None: the package opentelemetry is missing."""
    try:
        from opentelemetry import trace
        from opentelemetry.context import Context
    except ImportError:
        return None
    tracer: Any = trace.get_tracer("ringcast", _ringcast.__version__)
    kinds = {"send": trace.SpanKind.PRODUCER, "recv": trace.SpanKind.CONSUMER}

    def export(spans: List[_spans.Span], rings: Dict[int, str]) -> None:
        wall = time.time_ns() - time.monotonic_ns()
        calls: Dict[
            int, List[Tuple[_spans.Span, Any]]
        ] = {}  # of each thread: the calls around the present span
        for span in reversed(spans):  # a call comes before its phases
            around = calls.setdefault(span.thread, [])
            while around and not (
                around[-1][0].start_ns <= span.start_ns and span.end_ns <= around[-1][0].end_ns
            ):
                around.pop()
            # An empty context: the program's span at the time of a flush is no parent.
            context = trace.set_span_in_context(around[-1][1], Context()) if around else Context()
            made = tracer.start_span(
                f"ringcast {span.kind}",
                context=context,
                kind=kinds.get(span.kind, trace.SpanKind.INTERNAL),
                start_time=span.start_ns + wall,
                attributes={
                    "messaging.system": "ringcast",
                    "messaging.destination.name": rings.get(span.ring, f"{span.ring:016x}"),
                    "messaging.message.body.size": span.bytes,
                    "ringcast.position": span.position,
                    "thread.id": span.thread,
                },
            )
            if span.kind in kinds:
                around.append((span, made))
            made.end(end_time=span.end_ns + wall)

    return export
