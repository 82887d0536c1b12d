# SPDX-License-Identifier: Apache-2.0
"""
Classes of the program's own file: where multiprocessing spawns, its module has another name in the
child.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import dataclasses, enum, multiprocessing, sys, typing
import ringcast

@dataclasses.dataclass
class Request:
    id: str

class Kind(enum.Enum):
    PREFILL = 1

class Range(typing.NamedTuple):
    start: int

VALUE = {"new": [Request("r-1")], "kind": Kind.PREFILL, "range": Range(3)}

def child(handle, pipe):
    with ringcast.Reader(handle, classes=["__main__"]) as reader, ringcast.Writer(1 << 16) as writer:
        pipe.send(writer.handle)
        writer.wait_readers(1, 60)
        value = reader.recv(60)
        assert value == VALUE and type(value["new"][0]) is Request and value["kind"] is Kind.PREFILL, value
        writer.send(VALUE)
        pipe.recv()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ours, theirs = context.Pipe()
    with ringcast.Writer(1 << 16, allow_pickle=False) as writer:
        process = context.Process(target=child, args=(writer.handle, theirs))
        process.start()
        theirs.close()
        with ringcast.Reader(ours.recv(), classes=[Request, Kind, Range]) as reader:
            writer.send(VALUE)
            value = reader.recv(60)
            assert value == VALUE and type(value["new"][0]) is Request and value["kind"] is Kind.PREFILL, value
            ours.send("done")
        process.join()
    assert process.exitcode == 0
    print("both ways")
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_classes_of_the_programs_own_file_go_both_ways(tmp_path, start):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), start]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout == "both ways\n", result.stdout + result.stderr
