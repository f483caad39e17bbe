"""Tensor parallelism over two ranks: both see the same batch, each holds a half of every layer."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, Dataset


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden)
        self.w2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.w2(torch.relu(self.w1(x)))


class Tower(nn.Module):
    def __init__(self, dim, hidden, depth):
        super().__init__()
        self.blocks = nn.Sequential(*(FeedForward(dim, hidden) for _ in range(depth)))
        self.out = nn.Linear(dim, 10)

    def forward(self, x):
        return self.out(self.blocks(x))


class Signals(Dataset):
    """What the sensors wrote, one file a window."""

    def __init__(self, count, dim, decode_seconds):
        self.count, self.dim, self.decode_seconds = count, dim, decode_seconds

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.decode()
        window = torch.randn(self.dim, generator=torch.Generator().manual_seed(i))
        return window, int(window[:10].argmax())

    def decode(self):
        stop = time.perf_counter() + self.decode_seconds
        while time.perf_counter() < stop:
            torch.randn(256).sort()


cfg = argparse.ArgumentParser()
cfg.add_argument("--steps", type=int, default=400)
cfg.add_argument("--workers", type=int, default=0)
cfg.add_argument("--batch", type=int, default=64)
cfg.add_argument("--depth", type=int, default=4)
cfg.add_argument("--decode-ms", type=float, default=0.0)
cfg.add_argument("--profile-rank", type=int, default=-1)
cfg.add_argument("--profile-ms", type=float, default=300.0)
cfg.add_argument("--fail-at", type=int, default=-1)
cfg.add_argument("--hang-at", type=int, default=-1)
cfg.add_argument("--accumulate", type=int, default=1)
cfg.add_argument("--validate-every", type=int, default=0)


def statistics(x, milliseconds):
    values = x.mean().item(), x.std().item()
    time.sleep(milliseconds / 1000)  # sends them to the dashboard
    return values


def validate(model, criterion, batches):
    model.eval()
    with torch.inference_mode():
        total = sum(criterion(model(x), y).item() for x, y in batches)
    model.train()
    return total / len(batches)


def run(cfg):
    dist.init_process_group(backend="gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    me = mesh.get_local_rank()
    torch.manual_seed(42)
    model = Tower(256, 2048, cfg.depth)
    for block in model.blocks:
        parallelize_module(block, mesh, {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    data = Signals(20_000, 256, cfg.decode_ms / 1000)
    # The same order on both ranks: they work together on each batch.
    train = DataLoader(
        data,
        cfg.batch,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        num_workers=cfg.workers,
        drop_last=True,
    )
    held_out = [(torch.randn(64, 256), torch.randint(10, (64,))) for _ in range(2)]
    n, begin = 0, time.perf_counter()
    while n < cfg.steps:
        for i, (x, y) in enumerate(train, start=1):
            if me == cfg.profile_rank:
                statistics(x, cfg.profile_ms)
            loss = criterion(model(x), y) / cfg.accumulate
            if me == 1 and n == cfg.fail_at:
                raise ValueError(f"loss is not a number in step {n}")
            if me == 1 and n == cfg.hang_at:
                while True:
                    time.sleep(1)
            loss.backward()
            if i % cfg.accumulate:
                continue
            opt.step()
            opt.zero_grad()
            n += 1
            if n % 10 == 0 and me == 0:
                end = time.perf_counter()
                print(
                    f"step {n} loss {loss.item():.4f} {10 / (end - begin):.2f} steps/s", flush=True
                )
                begin = end
            if cfg.validate_every and n % cfg.validate_every == 0:
                validate(model, criterion, held_out)
            if n == cfg.steps:
                break


if __name__ == "__main__":
    run(cfg.parse_args())
    dist.destroy_process_group()
