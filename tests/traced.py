"""Traces made by hand, in the format that torch's profiler writes of a rank with a GPU.

Events, categories and arguments are those of a trace of torch 2.3 with NCCL on two A100, which
HolisticTraceAnalysis publishes (``tests/data/nccl_parser_config/nccl_data.json.gz``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

MAIN, AUTOGRAD = 100, 101
"""Threads of the host."""
COMPUTES, SENDS = 7, 40
"""Streams of the GPU."""
MS = 1000.0


@dataclass(frozen=True, kw_only=True)
class Dose:
    """What is wrong in each step of a rank, in milliseconds but for numbers."""

    longer: float = 0.0
    """Its kernels take longer."""
    waits: float = 0.0
    """It waits for that in the all-reduce that follows."""
    sends: float = 2.0
    """The last all-reduce, which no kernel overlaps."""
    loads: float = 1.0
    """Its main thread in the loader, while the GPU has nothing to do."""
    synced: float = 1.0
    """The GPU idles after the host has read the loss back."""
    late: float = 0.0
    """Before each of 20 kernels, the GPU waits for its launch."""
    copies: float = 0.5
    pageable: bool = False
    small: int = 0
    """All-reduces of one number, of 0.2 ms each, after the backward pass."""
    stacks: bool = False
    """Whether Python functions are recorded."""


@dataclass
class Made:
    """A trace of one rank; times in milliseconds."""

    rank: int = 0
    world: int | None = 2
    events: list[dict[str, object]] = field(default_factory=list)
    header: dict[str, object] = field(default_factory=dict)
    launched: int = 0
    clock: float = 0.0
    """By how much the clock of its host differs."""

    def add(
        self, category: str, name: str, begin: float, lasts: float, thread: int, **arguments: object
    ) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 0 if category in ("kernel", "gpu_memcpy") else 4000,
                "tid": thread,
                "ts": 4458676416000.5 + (self.clock + begin) * MS,
                "dur": lasts * MS,
                "args": {"External id": len(self.events), **arguments},
            }
        )

    def host(self, name: str, begin: float, lasts: float, thread: int = MAIN) -> None:
        self.add("user_annotation", name, begin, lasts, thread, **{"Record function id": 0})

    def operator(self, name: str, begin: float, lasts: float, thread: int = MAIN) -> None:
        self.add("cpu_op", name, begin, lasts, thread, **{"Input Dims": [[32, 64], []]})

    def on_gpu(
        self,
        category: str,
        name: str,
        launch: float,
        begin: float,
        lasts: float,
        thread: int = MAIN,
        stream: int = COMPUTES,
        **arguments: object,
    ) -> None:
        """A kernel or a copy, and the call of the host that launches it."""
        self.launched += 1
        ids = {"correlation": self.launched}
        call = "cudaLaunchKernel" if category == "kernel" else "cudaMemcpyAsync"
        self.add("cuda_runtime", call, launch, 0.005, thread, cbid=211, **ids)
        more = {"device": self.rank, "stream": stream, **ids, **arguments}
        self.add(category, name, begin, lasts, stream, **more)

    def sent(
        self, launch: float, begin: float, lasts: float, *, elements: int, thread: int = AUTOGRAD
    ) -> None:
        """An all-reduce of NCCL."""
        world = self.world or 2
        self.on_gpu(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            launch,
            begin,
            lasts,
            thread,
            SENDS,
            **{
                "Collective name": "allreduce",
                "In msg nelems": elements,
                "Group size": world,
                "dtype": "Float",
                "Process Group Name": "0",
                "Process Group Ranks": str([*range(world)]),
            },
        )

    def write(self, path: Path) -> Path:
        told: dict[str, object] = {"schemaVersion": 1, "deviceProperties": [{"id": self.rank}]}
        told |= self.distributed() | {"host_name": f"node-{self.rank}", **self.header}
        path.write_text(json.dumps(told | {"traceEvents": self.events}, indent=1))
        return path

    def distributed(self) -> dict[str, object]:
        if self.world is None:
            return {}
        ranks = {"rank": self.rank, "world_size": self.world}
        return {"distributedInfo": {"backend": "nccl", **ranks, "pg_config": []}}

    def step(self, number: int, begin: float, dose: Dose) -> float:
        """Add a step, and return its end."""
        self.host(
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin, dose.loads
        )
        host = gpu = begin + dose.loads
        pinned = "Pageable" if dose.pageable else "Pinned"
        copy = f"Memcpy HtoD ({pinned} -> Device)"
        self.on_gpu("gpu_memcpy", copy, host, gpu, dose.copies, bytes=2**20)
        gpu += dose.copies
        host += 0.1
        forward = host
        for _ in range(10):
            host, gpu = self._kernel(host, gpu, 2.0 + dose.longer / 10, dose.late, MAIN)
        self.host("DistributedDataParallel.forward", forward, host - forward)
        backward = host
        # The first bucket is ready in the middle of the backward pass, which hides it.
        for place in range(10):
            host, gpu = self._kernel(host, gpu, 2.0, dose.late, AUTOGRAD)
            if place == 4:
                self.sent(host, gpu, 4.0, elements=10**6)
        self.operator(
            "autograd::engine::evaluate_function: AddmmBackward0",
            backward,
            host - backward,
            AUTOGRAD,
        )
        self.sent(host - 0.01, gpu, dose.waits + dose.sends, elements=2 * 10**6)
        gpu += dose.waits + dose.sends
        for _ in range(dose.small):
            host = max(host, gpu - 0.1)
            self.sent(host, gpu, 0.2, elements=1, thread=MAIN)
            gpu += 0.2
        host += 0.05
        self.host("Optimizer.step#AdamW.step", host, 0.2)
        self.on_gpu("kernel", "multi_tensor_apply_kernel", host + 0.1, gpu, 1.0)
        gpu += 1.0
        host += 0.3
        # loss.item() ends when the GPU has done everything.
        if dose.stacks:
            self.add("python_function", "train.py(31): main", begin, gpu - begin + 0.1, MAIN)
            self.add("python_function", "torch/_tensor.py(40): item", host, gpu - host + 0.02, MAIN)
        self.operator("aten::item", host, gpu - host + 0.02)
        self.operator("aten::_local_scalar_dense", host + 0.001, gpu - host + 0.018)
        self.add("cuda_runtime", "cudaStreamSynchronize", host + 0.01, gpu - host, MAIN)
        end = gpu + dose.synced
        self.host(f"ProfilerStep#{number}", begin, end - begin)
        return end

    def _kernel(
        self, host: float, gpu: float, lasts: float, late: float, thread: int
    ) -> tuple[float, float]:
        """Add a kernel; return when the host goes on, and when the kernel ends."""
        launch = max(host, gpu + late - 0.05) if late else host
        begin = max(gpu, launch + 0.005)
        self.on_gpu("kernel", "ampere_sgemm_128x64_tn", launch, begin, lasts, thread)
        return launch + 0.02, begin + lasts


def made(
    rank: int = 0,
    world: int | None = 2,
    steps: int = 5,
    dose: Dose | None = None,
    clock: float = 0.0,
) -> Made:
    """Steps of DDP: forward and backward of 40 ms, an all-reduce that they hide, and one more."""
    dose = dose or Dose()
    one = Made(rank=rank, world=world, clock=clock)
    now = 0.0
    for number in range(steps):
        now = one.step(number + 4, now, dose)
    return one
