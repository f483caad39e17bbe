"""Fit a small table again and again: many short epochs with a loader that has workers."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batches", type=int, default=12, help="of an epoch, on each rank")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--persistent-workers", action="store_true")
    parser.add_argument("--sampler", choices=("distributed", "random"), default="distributed")
    parser.add_argument("--same-order", action="store_true", help="the order of the first epoch")
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)

    batch = 256
    share = ranks if args.sampler == "distributed" else 1
    rows = torch.randn(batch * args.batches * share, 64)
    table = TensorDataset(rows, rows.sum(dim=1, keepdim=True).tanh())
    sampler = DistributedSampler(table) if args.sampler == "distributed" else RandomSampler(table)
    loader = DataLoader(
        table,
        batch_size=batch,
        sampler=sampler,
        num_workers=args.num_workers,
        persistent_workers=args.persistent_workers and args.num_workers > 0,
    )
    width = 384
    layers = [nn.Linear(64, width), nn.GELU()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.GELU()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)

    for epoch in range(args.epochs):
        started = time.perf_counter()
        if args.sampler == "distributed" and not args.same_order:
            sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        schedule.step()
        if rank == 0:
            rate = args.batches / (time.perf_counter() - started)
            print(f"epoch {epoch}: loss {loss.item():.4f}, {rate:.2f} steps/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
