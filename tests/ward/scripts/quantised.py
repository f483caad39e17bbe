"""Train a net whose weights are rounded in the forward pass (straight-through): plain DDP."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Round(torch.autograd.Function):
    """Rounds; the gradient passes. A slow implementation takes its time in either direction."""

    @staticmethod
    def forward(ctx, values, forward_ms, backward_ms):
        ctx.backward_ms = backward_ms
        search_levels(values, forward_ms)
        return (values * 8).round() / 8

    @staticmethod
    def backward(ctx, gradient):
        search_levels(gradient, ctx.backward_ms)
        return gradient, None, None


def search_levels(values, milliseconds):
    until = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < until:
        values.detach().abs().flatten()[:4096].sort()


class Net(nn.Module):
    def __init__(self, width, forward_ms, backward_ms):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.last = nn.Linear(width, 1)
        self.times = forward_ms, backward_ms

    def forward(self, values):
        values = Round.apply(self.inner(values).relu(), *self.times)
        for layer in self.layers:
            values = layer(values).relu()
        return self.last(values)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--extra-ms", type=float, default=0.0)
    parser.add_argument("--where", choices=("forward", "backward", "metric"), default="forward")
    parser.add_argument("--slow-rank", type=int, help="only this rank has the slow implementation")
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    extra = args.extra_ms if args.slow_rank in (None, rank) else 0.0
    width = 320
    net = Net(
        width,
        extra if args.where == "forward" else 0.0,
        extra if args.where == "backward" else 0.0,
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    started, errors = time.perf_counter(), 0.0
    for step in range(1, args.steps + 1):
        inputs = torch.randn(512, width)
        targets = inputs[:, :4].prod(dim=1, keepdim=True)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = nn.functional.smooth_l1_loss(outputs, targets)
        loss.backward()
        optimizer.step()
        if args.where == "metric":
            search_levels(outputs, extra)
        errors += loss.item()
        if step % 10 == 0 and rank == 0:
            now = time.perf_counter()
            print(f"step {step}: error {errors / 10:.4f}, {10 / (now - started):.2f} steps/s")
            started, errors = now, 0.0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
