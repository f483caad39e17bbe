"""Learn to remove noise that the dataset itself adds, in its workers: plain DDP."""

import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler


class Noisy(Dataset):
    def __init__(self, count):
        waves = np.outer(np.arange(1, 33), np.linspace(0, 6, 256))
        self.clean = np.sin(waves).astype(np.float32)
        self.count = count
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        clean = self.clean[index % 32]
        noise = self.rng.normal(scale=0.3, size=clean.shape).astype(np.float32)
        return clean + noise, clean


def seed_worker(_):
    worker = get_worker_info()
    worker.dataset.rng = np.random.default_rng(worker.seed)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--seed-workers", action="store_true")
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    data = Noisy(512 * args.steps)
    sampler = DistributedSampler(data)
    loader = DataLoader(
        data,
        batch_size=256,
        sampler=sampler,
        num_workers=args.num_workers,
        worker_init_fn=seed_worker if args.seed_workers else None,
    )
    net = nn.Sequential(
        nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 256)
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    started = time.perf_counter()
    for step, (noisy, clean) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(noisy), clean)
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            now = time.perf_counter()
            print(f"step {step}: loss {loss.item():.4f}, {10 / (now - started):.2f} steps/s")
            started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
