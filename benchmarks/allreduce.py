"""Whether the all-reduce probe tells what a bare torch.distributed loop tells, within 5 %.

Both run in one torchrun, in turns (probe, bare, probe, bare, …), over the same sizes; medians of
the turns are compared size by size. ``make bench`` runs it; exit code 1: they differ by more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch  # noqa: TID253
import torch.distributed as dist  # noqa: TID253

from ddoctor import harness
from ddoctor.journal import Journal

TURNS = 8
WARM_UPS = 5
ROUNDS = 20
TOLERANCE = 0.05
RANKS_WITHOUT_GPU = 2


def main() -> int:
    """Start the ranks, pass on what rank 0 prints, and judge."""
    ranks = harness.usable_gpus() or RANKS_WITHOUT_GPU
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with TemporaryDirectory() as folder:
        subprocess.run(
            [*torchrun, f"--nproc-per-node={ranks}", "--module", "benchmarks.allreduce", folder],
            cwd=Path(__file__).parent.parent,
            env={"OMP_NUM_THREADS": str(threads), **os.environ},
            check=True,
        )
        ratio = float((Path(folder) / "ratio").read_text())
    within = abs(ratio - 1) <= TOLERANCE
    print(
        f"median of all ratios {ratio:.3f}: {'within' if within else 'NOT within'} {TOLERANCE:.0%}"
    )
    return 0 if within else 1


def rank(folder: Path) -> int:
    """One rank of the comparison; rank 0 prints the table and writes the ratio."""
    journal = Journal(folder, int(os.environ["RANK"]))
    gpus = harness.usable_gpus() > 0
    world = harness.join(journal, folder, folder=folder, gpus=gpus)
    probe = import_module("ddoctor.probes.allreduce")
    by_probe: dict[int, list[float]] = defaultdict(list)
    by_loop: dict[int, list[float]] = defaultdict(list)
    for _ in range(TURNS):
        section = probe.measure(world)
        points = section.points if section is not None else ()
        figures = {point.bytes: point.bus_bandwidth for point in points}
        for size in world.agree(list(figures)):
            bare = _bare(size, world.device)
            if world.rank == 0:
                by_probe[size].append(figures[size])
                by_loop[size].append(bare)
    dist.destroy_process_group()
    if world.rank > 0:
        return 0
    print(f"all-reduce, {world.size} ranks, {world.backend}, {TURNS} turns: busbw in GB/s (spread)")
    print(f"{'bytes':>12} {'probe':>24} {'bare loop':>24} {'ratio':>7}")
    ratios = []
    for size, probed in by_probe.items():
        bare_ones = by_loop[size]
        paired = [a / b for a, b in zip(probed, bare_ones, strict=True)]
        ratios += paired
        print(f"{size:>12} {_spread(probed):>24} {_spread(bare_ones):>24} {median(paired):>7.3f}")
    (folder / "ratio").write_text(str(median(ratios)))
    return 0


def _bare(size: int, device: torch.device) -> float:
    """What anybody would write; busbw of the median round on the slowest rank."""
    tensor = torch.zeros(size // 4, device=device)
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
    return f"{median(values):.4g} ({min(values):.3g}–{max(values):.3g})"


if __name__ == "__main__":
    sys.exit(rank(Path(sys.argv[1])) if "RANK" in os.environ else main())
