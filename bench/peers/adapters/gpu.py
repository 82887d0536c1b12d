# SPDX-License-Identifier: Apache-2.0
"""With a GPU: torch.distributed over NCCL, torch's CUDA IPC, and plain copies.

As in PyTorch's documentation (docs.pytorch.org, "Distributed communication package" and "Multiprocessing best
practices"). A message starts in the writer's memory and ends in the readers', as in all ways, and the
copies to the GPU and from there are in the figures. For data on the GPU anyway the file measures as a program:

    gpu.py [--json] [--quick]    copies of 1 MiB to 2 GiB to the GPU, from the GPU and within the GPU, a single process
"""

import contextlib
import pickle
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # not the folder of vllm.py

import beside  # noqa: E402
from adapters.base import LeftOut, Way  # noqa: E402
from beside import Row  # noqa: E402

SLOTS = 2  # of "cuda-copy": messages under way
MIB = 1 << 20


def missing() -> str:
    """Why torch can use no GPU; "" if torch can."""
    try:
        import torch
    except ImportError as error:
        return f"no GPU: needs torch, which can't be imported: {error}"
    if torch.version.cuda is None:
        return f"no GPU: this torch, {torch.__version__}, is built without CUDA"
    if not torch.cuda.is_available():
        return f"no GPU: torch {torch.__version__} finds none"
    return ""


class Gpu(Way):
    requires = ("torch",)
    readings: Tuple[str, ...] = ("bytes",)
    note = "from the writer's memory by its GPU to the readers' memory"

    @classmethod
    def check(cls) -> None:
        if missing():
            raise LeftOut(missing())

    @classmethod
    def version(cls) -> str:
        import torch

        return f"torch {torch.__version__}, CUDA {torch.version.cuda}"


# ---- NCCL ------------------------------------------------------------------------------------------------------------


class Nccl(Gpu):
    """NCCL wants a GPU for each process."""

    family = "nccl"
    collective = True

    @classmethod
    def version(cls) -> str:
        import torch

        return f"torch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"

    def initialize(self) -> None:
        import torch
        import torch.distributed as dist

        if torch.cuda.device_count() < self.me.processes:
            gpus = torch.cuda.device_count()
            raise LeftOut(f"no GPU for each of the processes, of which there are {self.me.processes}: {gpus} in all")
        self.device = torch.device("cuda", self.me.rank)
        torch.cuda.set_device(self.device)
        where = f"file://{self.me.folder}/nccl"
        dist.init_process_group(
            "nccl", init_method=where, rank=self.me.rank, world_size=self.me.processes, device_id=self.device
        )
        dist.barrier()

    def cleanup(self) -> None:
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()


class NcclObject(Nccl):
    """broadcast_object_list: torch pickles, copies to the GPU, and broadcasts the sizes, then the pickle."""

    name = "nccl-object"
    readings = ("bytes", "objects")

    def write(self, data: Any) -> None:
        import torch.distributed as dist

        dist.broadcast_object_list([data], 0, device=self.device)

    def read(self) -> Any:
        import torch.distributed as dist

        box: List[Any] = [None]
        dist.broadcast_object_list(box, 0, device=self.device)
        return box[0]

    write_object = write
    read_object = read


class NcclTensor(Nccl):
    """Two broadcasts: the size, then the bytes."""

    name = "nccl-tensor"

    def write(self, data: Any) -> None:
        import torch.distributed as dist

        from adapters.gloo import tensor_of

        tensor = tensor_of(data).to(self.device)
        dist.broadcast(self.size(tensor.numel()), 0)
        dist.broadcast(tensor, 0)

    def read(self) -> memoryview:
        import torch
        import torch.distributed as dist

        size = self.size(0)
        dist.broadcast(size, 0)
        tensor = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        dist.broadcast(tensor, 0)
        return memoryview(tensor.cpu().numpy())

    def size(self, value: int) -> Any:
        import torch

        return torch.tensor([value], device=self.device)


# ---- One GPU, seen by all processes ----------------------------------------------------------------------------------


class Shared(Gpu):
    """All processes use the first GPU, and share addresses by a socket."""

    family = "cuda"

    def initialize(self) -> None:
        import torch
        from multiprocessing.connection import Client, Listener

        torch.cuda.init()
        self.wires: List[Any] = []
        if self.me.rank:
            self.wires.append(Client(self.me.wait_for("address"), "AF_UNIX"))
            return
        path = f"{self.me.folder}/cuda"
        with Listener(path, "AF_UNIX", backlog=self.me.processes) as listener:
            self.me.publish("address", path)
            for _ in range(self.me.readers):
                self.wires.append(listener.accept())

    def tell(self, tensor: Any) -> None:
        """The handle of a tensor's memory, once for each reader: torch counts the readers by the handles."""
        from torch.multiprocessing.reductions import reduce_tensor

        for wire in self.wires:
            wire.send_bytes(pickle.dumps(reduce_tensor(tensor)))

    def told(self) -> Any:
        build, arguments = pickle.loads(self.wires[0].recv_bytes())
        return build(*arguments)

    def cleanup(self) -> None:
        self.me.barrier("left")
        for wire in self.wires:
            wire.close()


class CudaIpc(Shared):
    """A tensor for each message. The handle goes to the readers, as torch.multiprocessing's queues send tensors. torch
    keeps the memory until all readers have dropped the tensor."""

    name = "cuda-ipc"

    def write(self, data: Any) -> None:
        from adapters.gloo import tensor_of

        tensor = tensor_of(data).to("cuda:0")
        self.tell(tensor)

    def read(self) -> memoryview:
        return memoryview(self.told().cpu().numpy())


class CudaCopy(Shared):
    """A copy into memory of the GPU, mapped by the readers beforehand, and a copy out by each reader."""

    name = "cuda-copy"
    payloads = ("bytes-1Mi", "bytes-4Mi", "bytes-16Mi", "bytes-64Mi")

    def initialize(self) -> None:
        import torch

        super().initialize()
        self.count = 0
        if self.me.rank:
            self.slots = [self.told() for _ in range(SLOTS)]
            return
        self.slots = [torch.empty(self.me.largest, dtype=torch.uint8, device="cuda:0") for _ in range(SLOTS)]
        for slot in self.slots:
            self.tell(slot)

    def write(self, data: Any) -> None:
        import torch

        from adapters.gloo import tensor_of

        if self.count >= SLOTS:
            for wire in self.wires:
                wire.recv_bytes()  # the reader has copied the slot's earlier message
        self.slots[self.count % SLOTS][: len(data)].copy_(tensor_of(data))
        torch.cuda.synchronize()
        for wire in self.wires:
            wire.send_bytes(len(data).to_bytes(8, "little"))
        self.count += 1

    def read(self) -> memoryview:
        size = int.from_bytes(self.wires[0].recv_bytes(), "little")
        host = self.slots[self.count % SLOTS][:size].cpu()
        self.count += 1
        with contextlib.suppress(BrokenPipeError):
            self.wires[0].send_bytes(b"done")
        return memoryview(host.numpy())


# ---- Copies alone ----------------------------------------------------------------------------------------------------


def copies(quick: bool) -> Iterator[Dict[str, Any]]:
    """A row for each direction and size; without a GPU a row with the reason."""
    row = {
        "family": "cuda",
        "language": "python",
        "scenario": "copy",
        "processes": 1,
        "reading": "bytes",
        "floor": True,
    }
    if missing():
        yield {**row, "peer": "cuda-copy", "payload": "all", "status": missing()}
        return
    row["version"] = Gpu.version()
    size, largest = MIB, (64 if quick else 2048) * MIB
    while size <= largest:
        for name, seconds in measured(size, 5 if quick else 20).items():
            yield {
                **row, "peer": f"cuda-copy-{name}", "payload": f"bytes-{size // MIB}Mi", "bytes": size, "status": "ok",
                "p50_us": round(seconds * 1e6, 3), "bytes_per_s": round(size / seconds),
            }  # fmt: skip
        size *= 4 if size < 1024 * MIB else 2


def measured(size: int, rounds: int) -> Dict[str, float]:
    """Seconds of a copy, the median; host memory is pinned."""
    import torch

    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    one, other = (torch.zeros(size, dtype=torch.uint8, device="cuda:0") for _ in range(2))
    ways = {"to-gpu": (one, host), "from-gpu": (host, one), "within": (other, one)}
    times: Dict[str, List[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, (to, source) in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(of[1:]) for name, of in times.items()}


def line(row: Row) -> str:
    figures = f"{row['p50_us']:12.1f} us {row['bytes_per_s'] / 1e9:8.1f} GB/s" if row["status"] == "ok" else ""
    return f"{row['peer']:20} {row['payload']:12} {figures or row['status']}"


def main() -> None:
    options = beside.options_of(__doc__, "up to 64 MiB")
    beside.tell(([row] for row in copies(options.quick)), line, options.json)


if __name__ == "__main__":
    main()
