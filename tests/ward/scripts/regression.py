"""A regression with plain DDP that sets its own threads and CPUs, and keeps a record of itself."""

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--threads", type=int, help="of torch, in each rank")
    parser.add_argument("--cpu", type=int, help="to run on, all ranks")
    parser.add_argument(
        "--keep", choices=("losses", "total", "inputs"), help="for a curve at the end"
    )
    parser.add_argument("--fail", choices=("raise", "exit", "kill", "skip", "reshape"))
    parser.add_argument("--fail-at", type=int, default=15)
    parser.add_argument("--fail-rank", type=int, default=1)
    return parser.parse_args()


def fail(how, step):
    if how == "raise":
        raise ValueError(f"row 7 of batch {step} is no number")
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    args = parse()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    layers = [nn.Linear(32, args.width), nn.ReLU()]
    for _ in range(5):
        layers += [nn.Linear(args.width, args.width), nn.ReLU()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(args.width, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    started, kept, total = time.perf_counter(), [], 0.0
    for step in range(1, args.steps + 1):
        inputs = torch.randn(512, 32)
        targets = inputs[:, :1] * inputs[:, 1:2]
        failing = args.fail and rank == args.fail_rank and step == args.fail_at
        if failing:
            fail(args.fail, step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if args.keep == "losses":
            kept.append(loss)
        elif args.keep == "total":
            total = total + loss
        elif args.keep == "inputs":
            kept.append(inputs.repeat(16, 1).numpy())
        error = loss.detach().clone()
        if not (failing and args.fail == "skip"):
            mean = torch.zeros(2) if failing and args.fail == "reshape" else error
            dist.all_reduce(mean)
        if step % 10 == 0 and rank == 0:
            now = time.perf_counter()
            print(f"step {step}: error {error.item() / 2:.4f}, {10 / (now - started):.2f} steps/s")
            started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
