"""Embeddings and wide layers: many parameters, little work on each. Plain DDP."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=3)
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    layers = [nn.EmbeddingBag(300, args.width)]
    for _ in range(args.depth):
        layers += [nn.Linear(args.width, args.width), nn.ReLU()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(args.width, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        clicks = torch.randint(300, (args.batch_size, 5))
        bought = (clicks.sum(dim=1, keepdim=True) % 2).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(clicks), bought)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            now = time.perf_counter()
            print(f"step {step}: loss {loss.item():.3f}, {10 / (now - started):.2f} steps/s")
            started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
