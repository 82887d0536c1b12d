# SPDX-License-Identifier: Apache-2.0
"""Traces: the phases of each send and each recv, in all processes of a run, as a file for ui.perfetto.dev.

    RINGCAST_TRACE=trace.json python program.py     # each process with the variable
    ringcast.trace.start("trace.json")              # or by hand, in each process

docs/trace.md explains the file.
"""

import atexit
import contextlib
import json
import multiprocessing.process
import os
import sys
import threading
import warnings
from typing import Any, Dict, List, Optional, Set, Tuple

from ringcast import _ringcast, _spans
from ringcast._options import integer
from ringcast._trace_file import Busy, TooLarge, TraceFile
from ringcast._trace_telemetry import Export, exporter

__all__ = ["flush", "start", "stop"]

_LIMIT = 1 << 30
_LEAST = 1 << 12  # bytes: the first event must fit
_MOST_KEPT = 1 << 24  # bytes of events, while another process holds the file

_trace: Optional["_Trace"] = None


def start(file: Any, limit: int = _LIMIT) -> None:
    """Trace this process from now on, into `file`, until stop() or the end of the process.

    Processes with the same file share the file. The file of an earlier run is replaced, once no process traces into it
    any more. The file takes at most `limit` bytes; then the trace ends, with a warning.

    OSError: the file can't be written. ValueError: this process traces already; the file is there, and no trace; or
    `limit` is out of range.
    """
    global _trace
    if _trace is not None:
        raise ValueError(f"this process traces into {_trace.path} already: call ringcast.trace.stop() first")
    trace = _Trace(os.path.abspath(os.fsdecode(file)), integer("limit", limit, _LEAST, sys.maxsize))
    _spans.subscribe(trace.take)
    _trace = trace


def stop() -> None:
    """Write the events so far, and end the trace of this process. Without a trace nothing happens."""
    global _trace
    trace, _trace = _trace, None
    if trace is not None:
        trace.end()


atexit.register(stop)


def flush() -> None:
    """Write the events so far. Without a trace nothing happens."""
    _spans.flush()


def start_as_asked() -> None:
    """Called by `import ringcast` if RINGCAST_TRACE is set. If the file can't be written, the program goes on."""
    try:
        start(os.environ["RINGCAST_TRACE"])
        os.environ["RINGCAST_TRACE"] = os.path.abspath(os.environ["RINGCAST_TRACE"])  # for children in other folders
    except (OSError, ValueError, TypeError) as error:
        warnings.warn(f"no trace is taken, as RINGCAST_TRACE asks: {error}", RuntimeWarning, stacklevel=3)


# ---- Names ---------------------------------------------------------------------------------------------------------


def note_rank() -> None:
    """Called when a group gets its first ring: the program may leave the group before any event is written."""
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


# ---- Events --------------------------------------------------------------------------------------------------------


class _Trace:
    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = path, limit
        self.known_rank: Optional[Tuple[int, int]] = None  # with the pid; stays, when the program leaves its group
        self.export: Optional[Export] = exporter()
        self._begin_process()
        self.file: Optional[TraceFile] = TraceFile(path, limit, self._about_process())

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
        """The subscriber: called by several threads at the same time, and in a forked child with the parent's file."""
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

    def _export(self, export: Export, spans: List[_spans.Span], rings: Dict[int, str]) -> None:
        try:
            export(spans, rings)
        except Exception as error:  # another package's: the trace goes on
            self.export = None
            warnings.warn(f"no more spans go to OpenTelemetry: {error!r}", RuntimeWarning, stacklevel=2)

    def _bound(self, error: Exception) -> None:
        """Another process holds the file."""
        if len(self.kept) <= _MOST_KEPT:
            return
        lost = self.kept.count(b"\n")
        self._forget()
        warnings.warn(f"the trace lacks {lost} events of process {self.pid}: {error}", RuntimeWarning, stacklevel=2)

    def _give_up(self, error: Exception) -> None:
        global _trace
        if self.file is not None:
            self.file.close()
        self.file = None
        if _trace is self:
            _trace = None
        if not self.is_ended:
            _spans.unsubscribe(self.take)
        warnings.warn(f"the trace of process {self.pid} ends here: {error}", RuntimeWarning, stacklevel=2)

    def _is_forked(self) -> bool:
        """Whether a child makes the first call since the fork. The lock and the kept events are the parent's."""
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
        event = {"cat": "ringcast", "ph": "M", "name": what, "pid": self.pid, "tid": tid, "args": {key: name}}
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
        """In reverse, so that a call comes before its phases: the first of two slices with one start is the outer."""
        names = {ring: json.dumps(name) for ring, name in rings.items()}
        pid = self.pid
        for kind, start, end, thread, ring, position, size in reversed(spans):
            place = f'"pid":{pid},"tid":{thread},"ts":{start // 1000}.{start % 1000:03}'
            took = end - start
            name = names.get(ring) or f'"{ring:016x}"'
            yield (
                f',{{"cat":"ringcast","ph":"X","name":"{kind}",{place},"dur":{took // 1000}.{took % 1000:03},'
                f'"args":{{"ring":{name},"position":{position},"bytes":{size}}}}}\n'
            )
            if kind in _FLOWS and position % 128 in (0, 16):
                frame = position - position % 128
                yield f',{{"cat":"ringcast","name":"{ring:016x}","id":"{frame:#x}",{_FLOWS[kind]},{place}}}\n'


# Perfetto joins one start and any number of ends by category, name and id. An arrow begins at the slice with the
# earlier start. A recv may begin before the send, so the arrow ends at "decode". A frame begins at a multiple of 128,
# and the first message of a packed frame, which stands for the batch, 16 bytes on. A further message may be at such a
# place, too: an end without a start is no arrow.
_FLOWS = {"publish": '"ph":"s"', "decode": '"ph":"f","bp":"e"'}
