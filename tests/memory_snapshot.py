"""Snapshots of torch's allocator, built by hand in the form of torch.cuda.memory._snapshot()."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddoctor import engine
from ddoctor.models import JUDGING, Report
from ddoctor.reading import reader

MIB, GIB = 2**20, 2**30
SITE = "/opt/venv/lib/python3.11/site-packages"
Stack = list[dict[str, Any]]


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


def stack(*frames: tuple[str, int, str]) -> Stack:
    """The innermost frame first, as torch writes them."""
    return [frame(*one) for one in frames]


MAIN = ("/home/ann/train.py", 90, "main")
SCRIPT = ("/home/ann/train.py", 120, "<module>")
MODULE = f"{SITE}/torch/nn/modules/module.py"
CALL = (MODULE, 1787, "_call_impl")
ENGINE = (
    "??",
    0,
    "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)",
)

TO_DEVICE = stack((MODULE, 1360, "convert"), (MODULE, 957, "_apply"), (MODULE, 1371, "to"), MAIN)
STATES = stack(
    (f"{SITE}/torch/optim/adamw.py", 172, "_init_group"),
    (f"{SITE}/torch/optim/adamw.py", 213, "step"),
    ("/home/ann/train.py", 44, "step"),
    MAIN,
)
SCRATCH = stack(
    (f"{SITE}/torch/optim/adam.py", 650, "_multi_tensor_adam"),
    (f"{SITE}/torch/optim/adamw.py", 220, "step"),
    ("/home/ann/train.py", 44, "step"),
    MAIN,
)
BACKWARD = stack(("??", 0, "at::detail::empty_cuda(c10::ArrayRef<long>)"), ENGINE)
BATCH = stack(("/home/ann/train.py", 30, "load"), MAIN)


def forward(line: int = 12, name: str = "forward") -> Stack:
    return stack(
        (f"{SITE}/torch/nn/modules/linear.py", 134, "forward"),
        CALL,
        ("/home/ann/model.py", line, name),
        CALL,
        ("/home/ann/train.py", 40, "step"),
        MAIN,
        SCRIPT,
    )


def evaluating(line: int = 60) -> Stack:
    return stack(("/home/ann/train.py", line, "evaluate"), MAIN, SCRIPT)


@dataclass
class Allocator:
    """What an allocator has done on one device: segments, blocks, and the trace of its events."""

    device: int = 0
    expandable: bool = False
    segments: list[dict[str, Any]] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    _next: int = 0x7F0000000000

    def segment(self, *blocks: tuple[int, Stack | None], **fields: Any) -> None:
        """Blocks by size and stack; without a stack, they are free."""
        start = address = self._next
        rows = []
        for size, frames in blocks:
            state = "inactive" if frames is None else "active_allocated"
            rows.append(
                {
                    "address": address,
                    "size": size,
                    "requested_size": size,
                    "state": state,
                    "frames": frames or [],
                }
            )
            address += size
        self._next = address
        used = sum(size for size, frames in blocks if frames is not None)
        self.segments.append(
            {
                "device": self.device,
                "address": start,
                "total_size": address - start,
                "allocated_size": used,
                "active_size": used,
                "requested_size": used,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "is_expandable": self.expandable,
                "frames": [],
                "blocks": rows,
                **fields,
            }
        )

    def alloc(self, size: int, frames: Stack) -> int:
        """Allocate a block that stays, in a segment of its own; return its address."""
        address = self._next
        self.segment((size, frames))
        self._event("alloc", size, frames, address)
        return address

    def brief(self, size: int, frames: Stack) -> None:
        """Allocate a block and free it."""
        address, self._next = self._next, self._next + size
        self._event("alloc", size, frames, address)
        self._event("free_requested", size, frames, address)
        self._event("free_completed", size, frames, address)

    def step(self, *, kept: Sequence[tuple[int, Stack]] = ()) -> None:
        """A training step: all that it allocates is freed, but for what is kept."""
        for line in (12, 13):
            self.brief(64 * MIB, forward(line))
        for size, frames in kept:
            self.alloc(size, frames)
        self.brief(32 * MIB, BACKWARD)
        self.brief(32 * MIB, SCRATCH)

    def fail(self, size: int, frames: Stack, *, free: int = 100 * MIB) -> None:
        """The allocator has no memory left."""
        self.trace.append(
            {
                "action": "oom",
                "device_free": free,
                "size": size,
                "stream": 0,
                "time_us": len(self.trace),
                "frames": frames,
            }
        )
        self._event("snapshot", 0, [], 0)

    def _event(self, action: str, size: int, frames: Stack, address: int) -> None:
        self.trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": len(self.trace),
                "frames": frames,
            }
        )


def snapshot(*devices: Allocator) -> dict[str, Any]:
    """As torch.cuda.memory._snapshot() returns it."""
    traces: list[list[Any]] = [[] for _ in range(max(one.device for one in devices) + 1)]
    for one in devices:
        traces[one.device] = one.trace
    return {
        "segments": [segment for one in devices for segment in one.segments],
        "device_traces": traces,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [],
    }


def write(folder: Path, *devices: Allocator, rank: int = 0, protocol: int = 4) -> Path:
    """As torch.cuda.memory._dump_snapshot() writes it."""
    path = folder / f"oom_rank{rank}.pickle"
    path.write_bytes(pickle.dumps(snapshot(*devices), protocol=protocol))
    return path


def told(*paths: Path) -> Report:
    """The report about files; no check crashes, and each file is read."""
    evidence, refused = reader.read(paths)
    assert refused == ()
    report = engine.examine(evidence, "diagnose")
    assert [one for one in report.crashed if one.check != JUDGING] == []
    return report
