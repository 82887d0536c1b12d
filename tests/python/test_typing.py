# SPDX-License-Identifier: Apache-2.0
"""The stubs say what the extension does, and code that uses the API passes a strict check."""

import ast
import inspect
import os
import pathlib
import pydoc
import re
import site
import subprocess
import sys
import types

import pytest

import ringcast
from ringcast import _ringcast as extension

pytestmark = pytest.mark.alike

SAMPLE = """
import asyncio
from typing import Any, List, Optional, Tuple

import ringcast
from ringcast import Frame, Info, PackedFrame, Reader, ReaderStatus, Span, Stats, Tap, TapFrame, Writer


def data_of_a_device() -> Any: ...


def send(writer: Writer) -> str:
    count: int = writer.wait_readers(1, timeout=2.5)
    writer.send({"a": count}, None, tag=7)
    writer.send_bytes(b"x")
    writer.send_bytes(memoryview(b"x"), 1)
    writer.send_error("no")
    with writer.reserve(10, timeout=1) as span:
        view: memoryview = memoryview(span)
        view[:] = bytes(10)
        view.release()
        span.commit(3, kind=ringcast.KIND_BYTES)
    span = writer.reserve(len(view))
    taken: Span = span
    taken.abort()
    states: List[str] = [status.state for status in writer.peers()]
    first: ReaderStatus = writer.peers()[0]
    lost: Optional[ReaderStatus] = writer.check()
    held: float = lost.held + writer.fileno() if lost else 0
    stalls: int = first.stalls + first.stats.frames
    info: Info = writer.info()
    stats: Stats = writer.stats()
    print(stalls, held, info.page_size, info.numa, info.spin_ns, stats.waited_ns, sum(stats.histogram))
    packed: PackedFrame = ringcast.pack({"a": 1}, allow_pickle=None)
    writer.send(packed, 1, tag=2)
    print(packed.nbytes, len(packed), bytes(packed))
    with writer.reserve(tag=3) as other:
        other.grow(2 * len(other), timeout=1)
        other.commit(len(other) + stats.estimate_hits + stats.grown + stats.wasted_bytes)
    writer.cancel()
    try:
        writer.send(bytes(10))
    except ringcast.FrameTooLarge as error:
        needed: int = error.spill_bytes or error.capacity or 0
        print(needed, info.spill_bytes + info.spill_used + info.ring_frame - info.spill_error)
    writer.send({"x": writer.empty((2, 3), "a dtype", device="cuda")})
    sizes: List[int] = [writer.capacity, info.max_frame, info.page_size, info.ring_frame, info.spill_bytes]
    return writer.handle + states[0] + first.name + str(sizes)


async def in_a_loop(writer: Writer, reader: Reader) -> List[Tuple[Any, int]]:
    await writer.asend({"a": 1}, 1.5, tag=3)
    await asyncio.gather(writer.asend(b"x"), reader.arecv(timeout=None))
    fd: int = writer.room_fileno()
    pair: Tuple[Any, int] = await asyncio.wait_for(reader.arecv_tagged(), 1)
    return [pair, (fd, 0)] + [(item, 0) async for item in reader]


def receive(handle: str) -> Tuple[Any, int]:
    with Tap(handle, allow_pickle=False) as tap:
        seen: TapFrame = tap.next(timeout=1)
        print(tap.lost().bytes, tap.lost().gaps, tap.peers()[0].stats, tap.stats().frames, tap.info(), seen.data)
        print(tap.recv(0), tap.recv_tagged(), [item for item in tap], tap.handle, tap.closed)
    with Reader(handle, name="rank 1", spin=0, leases=4, allow_pickle=False) as reader:
        fd: int = reader.fileno()
        reader.cancel()
        ready: bool = reader.prepare_gpu()
        print(fd, reader.info(), reader.stats(), ready)
        try:
            frame: Frame = reader.next(0)
            data: bytes = bytes(frame)
            reader.check()
            frame.release()
        except ringcast.WriterGone as gone:
            print(gone.errno, data)
        except (ringcast.Cancelled, ringcast.Evicted, ringcast.PickleRefused):
            raise
        except ringcast.Error:
            pass
        except TimeoutError:
            pass
        for item in reader:
            print(item)
        print(reader.lag, reader.memory, reader.closed, reader.writer_pid)
        return reader.recv_tagged(timeout=None)


with Writer(1 << 20, readers=4, memory="pages", spin=None, numa=0, spill_bytes=1 << 22, allow_pickle=True) as writer:
    send(writer)
Writer(on_death="evict", on_slow="evict", slow=0.5).close()
"""

WRONG = """
import ringcast

ringcast.Writer("64k")
ringcast.Reader(7)
ringcast.Span()  # OK here: mypy does not know that it can't be made
ringcast.Writer().send(1, 2, 3)
ringcast.Writer().capacity = 5
ringcast.Writer().sned(1)
ringcast.Writer().send_bytes("text")
class Mine(ringcast.Reader): ...
ringcast.Tap(handle=None)
ringcast.Writer(spill_bytes="1M")
ringcast.Writer(slow="1")
ringcast.Writer().asend(1, "soon")
"""


def check(tmp_path, *arguments):
    home = os.path.dirname(os.path.dirname(os.path.abspath(ringcast.__file__)))
    installed = home in site.getsitepackages() + [site.getusersitepackages()]
    environment = dict(os.environ, MYPY_CACHE_DIR=str(tmp_path / "cache"))
    environment.update({} if installed else {"MYPYPATH": home, "PYTHONPATH": home})
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_code_that_uses_the_api_passes_a_strict_check(tmp_path):
    (tmp_path / "sample.py").write_text(SAMPLE)
    result = check(tmp_path, "mypy", "--strict", "sample.py")
    assert result.returncode == 0, result.stdout + result.stderr


def test_misuse_does_not_pass(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    result = check(tmp_path, "mypy", "--strict", "wrong.py")
    assert result.stdout.count("error:") == 12, result.stdout + result.stderr


# Without torch, which mypy would read for a quarter of a minute. The stubs have the types of the
# other two.
PACKAGE = """
[mypy]
strict = True
ignore_missing_imports = True
[mypy-torch.*]
follow_imports = skip
[mypy-ringcast._methods,ringcast._asyncio]
ignore_errors = True
"""


def test_the_package_itself_passes_a_strict_check(tmp_path):
    (tmp_path / "mypy.ini").write_text(PACKAGE)
    result = check(tmp_path, "mypy", "--config-file", "mypy.ini", "-p", "ringcast")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "module", ["ringcast._ringcast", "ringcast.exceptions", "ringcast._status"]
)
def test_the_stubs_agree_with_the_modules(tmp_path, module):
    allowed = tmp_path / "allowed.txt"
    # Python has no name for the buffer protocol before 3.12.
    allowed.write_text("ringcast\\._ringcast\\.(Span|Frame|PackedFrame)\\.__buffer__\n")
    result = check(
        tmp_path, "mypy.stubtest", module, "--allowlist", str(allowed), "--ignore-unused-allowlist"
    )
    assert result.returncode == 0, result.stdout + result.stderr


STUB = ast.parse(
    pathlib.Path(ringcast.__file__).with_name("_ringcast.pyi").read_text(encoding="utf-8")
)


def stubs():
    """
    (name, the extension's object, the stub's node) of all that is public, and of __enter__ and the
    like.
    """
    for node in STUB.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            found = getattr(extension, node.name)
            yield node.name, found, node
            for item in node.body:
                if (
                    isinstance(item, ast.FunctionDef)
                    and item.name in vars(found)
                    and item.name != "__new__"
                ):
                    yield f"{node.name}.{item.name}", vars(found)[item.name], item


STUBS = {name: (found, node) for name, found, node in stubs()}


def test_every_public_name_has_a_docstring_which_is_the_stubs_and_help_shows_it():
    assert (
        len(STUBS) > 100
        and {"Writer", "Writer.send", "Writer.__exit__", "Reader.lag", "pack"} <= STUBS.keys()
    )
    pages = [
        pydoc.render_doc(found, renderer=pydoc.plaintext)
        for name, (found, _) in STUBS.items()
        if "." not in name
    ]
    page = re.sub(r"[\s|]+", " ", "".join(pages))
    for name, (found, node) in STUBS.items():
        if isinstance(found, types.WrapperDescriptorType):
            continue
        text = ast.get_docstring(node)
        assert text, f"{name} has no docstring in the stub"
        assert inspect.getdoc(found) == text, name
        assert re.sub(r"[\s|]+", " ", text) in page, name
