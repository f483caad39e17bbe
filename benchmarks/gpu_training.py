"""A training on every GPU whose stream has to be told from its host: for ``benchmarks.gpu``.

Each step multiplies for some 20 ms on the GPU. With ``--loader-ms`` the host waits as long for each
batch: less than the step hides behind the GPU's work and costs nothing, more shows as loader. With
``--short`` the GPU has little to do, and the host's own work is what a step takes.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch  # noqa: TID253
import torch.distributed as dist  # noqa: TID253
from torch import nn  # noqa: TID253
from torch.nn.parallel import DistributedDataParallel  # noqa: TID253
from torch.utils.data import DataLoader, Dataset  # noqa: TID253

LAYERS = 4
# Width, samples of a batch, and steps.
LONG, SHORT = (8192, 4096, 300), (512, 128, 2000)
WARM_UPS = 50


class Samples(Dataset[Any]):
    """Batches that take their time."""

    def __init__(self, seconds: float, steps: int, batch: torch.Tensor) -> None:
        self._seconds, self._steps, self._batch = seconds, steps, batch

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._seconds:
            time.sleep(self._seconds)
        return self._batch


def main() -> None:
    """Train, wherever torchrun has put this rank."""
    options = argparse.ArgumentParser()
    options.add_argument("--loader-ms", type=float, default=0.0)
    options.add_argument("--short", action="store_true")
    arguments = options.parse_args()
    width, samples, steps = SHORT if arguments.short else LONG
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    layers = [nn.Linear(width, width) for _ in range(LAYERS)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = Samples(arguments.loader_ms / 1e3, steps, torch.randn(samples, width).pin_memory())
    began = 0.0
    for number, batch in enumerate(DataLoader(data, batch_size=None)):
        if number == WARM_UPS:
            torch.cuda.synchronize()
            began = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss: Any = model(batch.to(device, non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"a step took {(time.perf_counter() - began) / (steps - WARM_UPS) * 1e3:.4f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
