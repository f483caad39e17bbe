"""Data-parallel training without a wrapper: the gradients are averaged by hand."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn


def average_one_by_one(parameters, ranks):
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks


def average_together(parameters, ranks):
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    flat /= ranks
    start = 0
    for parameter in parameters:
        parameter.grad.copy_(flat[start : start + parameter.numel()].view_as(parameter))
        start += parameter.numel()


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--one-by-one", action="store_true")
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--noise", type=float, default=0.0, help="added to the gradients")
    parser.add_argument(
        "--own-start", action="store_true", help="each rank starts from its own seed"
    )
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank if args.own_start else 0)
    width = 128
    layers = []
    for _ in range(args.depth):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(width, 8))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    average = average_one_by_one if args.one_by_one else average_together
    torch.manual_seed(100 + rank)

    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        inputs = torch.randn(args.batch_size, width)
        targets = inputs[:, :8].argmax(dim=1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        average(parameters, ranks)
        if args.noise:
            for parameter in parameters:
                parameter.grad += args.noise * torch.randn_like(parameter)
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            now = time.perf_counter()
            print(f"step {step}: loss {loss.item():.3f}, {10 / (now - started):.2f} steps/s")
            started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
