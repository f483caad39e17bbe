"""A training on every GPU whose stream has to be told from its host: for ``benchmarks.gpu``.

Each step multiplies for some 20 ms on the GPU. With ``--loader-ms`` the host waits as long for each
batch: less than the step hides behind the GPU's work and costs nothing, more shows as loader.
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

WIDTH, BATCH, LAYERS, STEPS = 8192, 4096, 4, 400


class Samples(Dataset[Any]):
    """Batches that take their time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.full((BATCH, WIDTH), index / STEPS)


def main() -> None:
    """Train, wherever torchrun has put this rank."""
    options = argparse.ArgumentParser()
    options.add_argument("--loader-ms", type=float, default=0.0)
    arguments = options.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for batch in DataLoader(Samples(arguments.loader_ms / 1e3), batch_size=None):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss: Any = model(batch.to(device, non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
