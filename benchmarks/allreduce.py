"""Whether the all-reduce probe tells what a bare torch.distributed loop tells, within 5 %.

Both run in one torchrun, at each size in turns (probe, bare, bare, probe, …), and each pair of
neighbours gives a ratio. ``make bench`` runs it; exit code 1: they differ by more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch  # noqa: TID253
import torch.distributed as dist  # noqa: TID253

from ddoctor.probing.journal import Journal
from ddoctor.probing.world import ProbeWorld, join, usable_gpus

TURNS = 16
# Small ones show latency, the large ones bandwidth.
SIZES_ON_CPU = [2**power for power in (10, 16, 20, 22, 24, 26)]
SIZES_ON_GPU = [2**power for power in (10, 16, 20, 24, 28, 30)]
# So that the probe takes all of its rounds at each size.
AMPLE_SECONDS = 60.0
WARM_UPS = 5
ROUNDS = 20
TOLERANCE = 0.05
RANKS_WITHOUT_GPU = 2


def main() -> int:
    """Start the ranks, pass on what rank 0 prints, and judge."""
    ranks = usable_gpus() or RANKS_WITHOUT_GPU
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with TemporaryDirectory() as folder:
        subprocess.run(
            [*torchrun, f"--nproc-per-node={ranks}", "--module", "benchmarks.allreduce", folder],
            cwd=Path(__file__).parent.parent,
            env={"OMP_NUM_THREADS": str(threads), **os.environ},
            check=True,
        )
        return judge(Path(folder))


def judge(folder: Path) -> int:
    """Say what the ratio comes to; 1 if it is too far from 1."""
    ratio = float((folder / "ratio").read_text())
    within = abs(ratio - 1) <= TOLERANCE
    print(
        f"median of all ratios {ratio:.3f}: {'within' if within else 'NOT within'} {TOLERANCE:.0%}"
    )
    return 0 if within else 1


def rank(folder: Path, sizes: Sequence[int] = ()) -> int:
    """One rank of the comparison; rank 0 prints the table and writes the ratio."""
    journal = Journal(folder, int(os.environ["RANK"]))
    gpus = usable_gpus() > 0
    world = join(journal, folder, gpus=gpus)
    probe = import_module("ddoctor.probes.allreduce")
    if world.rank == 0:
        print(f"{world.size} ranks, {world.backend}, {TURNS} turns; busbw in GB/s (quartiles)")
        print(f"{'bytes':>12} {'probe':>24} {'bare loop':>24} {'ratio of pairs':>24}")
    ratios = []
    for size in sizes or (SIZES_ON_GPU if world.on_gpu else SIZES_ON_CPU):
        tensor = torch.zeros(size // 4, device=world.device)
        probed: list[float] = []
        bare: list[float] = []
        for turn in range(TURNS):
            # Whoever comes second finds the caches and the clocks as the first has left them.
            arms = [(probed, _probe(probe, world)), (bare, _bare)]
            for figures, measure in arms if turn % 2 else reversed(arms):
                figures.append(measure(tensor))
        pairs = [a / b for a, b in zip(probed, bare, strict=True)]
        ratios += pairs
        if world.rank == 0:
            print(f"{size:>12} {_spread(probed):>24} {_spread(bare):>24} {_spread(pairs):>24}")
    dist.destroy_process_group()
    if world.rank == 0:
        (folder / "ratio").write_text(str(median(ratios)))
    return 0


def _probe(probe: ModuleType, world: ProbeWorld) -> Callable[[torch.Tensor], float]:
    def measure(tensor: torch.Tensor) -> float:
        figure: float = probe.one_size(world, tensor, seconds=AMPLE_SECONDS).bus_bandwidth
        return figure

    return measure


def _bare(tensor: torch.Tensor) -> float:
    """What anybody would write; busbw of the median round on the slowest rank."""
    device, size = tensor.device, tensor.numel() * 4
    for _ in range(WARM_UPS):
        dist.all_reduce(tensor)
    if device.type == "cuda":
        new: Any = torch.cuda.Event
        events = [[new(enable_timing=True) for _ in range(2)] for _ in range(ROUNDS)]
        for begin, end in events:
            begin.record()
            dist.all_reduce(tensor)
            end.record()
        torch.cuda.synchronize(device)
        seconds = [begin.elapsed_time(end) / 1e3 for begin, end in events]
    else:
        seconds = []
        for _ in range(ROUNDS):
            dist.barrier()
            begin_time = time.perf_counter()
            dist.all_reduce(tensor)
            seconds.append(time.perf_counter() - begin_time)
    slowest = torch.tensor(median(seconds), dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    ranks = dist.get_world_size()
    return size / slowest.item() * 2 * (ranks - 1) / ranks / 1e9


def _spread(values: list[float]) -> str:
    low, middle, high = quantiles(values, n=4)
    return f"{middle:.4g} ({low:.3g}–{high:.3g})"


if __name__ == "__main__":
    if "RANK" in os.environ:
        sys.exit(rank(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]]))
    sys.exit(main())
