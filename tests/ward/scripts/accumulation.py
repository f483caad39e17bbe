"""Gradient accumulation with plain DDP, with or without no_sync()."""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--accumulate", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=448)
    parser.add_argument("--no-sync", action="store_true", help="reduce at the last micro-step only")
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    width = args.width
    layers = []
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.SiLU()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)

    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        total = 0.0
        for micro in range(args.accumulate):
            inputs = torch.randn(args.batch_size, width)
            targets = inputs.mean(dim=1, keepdim=True)
            held_back = args.no_sync and micro < args.accumulate - 1
            with model.no_sync() if held_back else contextlib.nullcontext():
                loss = nn.functional.mse_loss(model(inputs), targets) / args.accumulate
                loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 and rank == 0:
            now = time.perf_counter()
            print(f"step {step}: loss {total:.4f}, {10 / (now - started):.2f} steps/s")
            started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
