"""An ordinary DDP training for ``benchmarks.overhead``: how long a step takes, by steps done."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch  # noqa: TID253
import torch.distributed as dist  # noqa: TID253
from torch import nn  # noqa: TID253
from torch.nn.parallel import DistributedDataParallel  # noqa: TID253
from torch.utils.data import DataLoader, TensorDataset  # noqa: TID253

WARM_UPS = 60
FEATURES, BATCH, BATCHES = 128, 32, 128


def main() -> None:
    """Write the wall and the CPU seconds of a step, as rank 0 sees them."""
    width, steps, result = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    arm = sys.argv[4]
    traced: Any = None
    if arm == "traceml":
        # The peer asks for two lines in the script.
        traced = import_module("traceml_ai")
        traced.init(mode="auto")
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = [nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = BATCH * BATCHES
    data = TensorDataset(torch.randn(rows, FEATURES), torch.randint(0, 10, (rows,)))
    loader = DataLoader(data, batch_size=BATCH)

    def train(wanted: int) -> None:
        done = 0
        while True:
            for inputs, labels in loader:
                with traced.trace_step(model) if traced else nullcontext():
                    optimizer.zero_grad()
                    loss: Any = nn.functional.cross_entropy(model(inputs), labels)
                    loss.backward()
                    optimizer.step()
                done += 1
                if done == wanted:
                    return

    train(WARM_UPS)
    profiler: Any = torch.profiler.profile() if arm == "profiler" else nullcontext()
    with profiler:
        dist.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        train(steps)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    if dist.get_rank() == 0:
        result.write_text(f"{seconds / steps} {cpu / steps}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
