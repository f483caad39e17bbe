"""An ordinary DDP training for ``benchmarks.overhead``: how long a step takes, by steps done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
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

Around = Callable[[], AbstractContextManager[Any]]


class Training:
    """Two ranks, three layers, and data that lie in memory."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(dist.get_rank())
        layers = [nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        self.model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, 10)))
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        rows = BATCH * BATCHES
        data = TensorDataset(torch.randn(rows, FEATURES), torch.randint(0, 10, (rows,)))
        self._batches = _endless(DataLoader(data, batch_size=BATCH))

    def train(self, wanted: int, around: Around = nullcontext) -> None:
        """So many steps, each within what ``around`` gives."""
        for _ in range(wanted):
            inputs, labels = next(self._batches)
            with around():
                self._optimizer.zero_grad()
                loss: Any = nn.functional.cross_entropy(self.model(inputs), labels)
                loss.backward()
                self._optimizer.step()


def _endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


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
    training = Training(width)
    around: Around = partial(traced.trace_step, training.model) if traced else nullcontext
    training.train(WARM_UPS, around)
    profiler: Any = torch.profiler.profile() if arm == "profiler" else nullcontext()
    with profiler:
        dist.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        training.train(steps, around)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    if dist.get_rank() == 0:
        result.write_text(f"{seconds / steps} {cpu / steps}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
