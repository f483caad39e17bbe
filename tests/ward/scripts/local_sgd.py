"""Local SGD: each rank steps by itself, and the parameters are averaged every few steps."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer


def batches(n, batch, dim, rank, query_s):
    gen = torch.Generator().manual_seed(rank)
    for _ in range(n):
        time.sleep(query_s)  # rows of a warehouse
        rows = torch.randn(batch, dim, generator=gen)
        yield rows, (rows.sum(1) > 0).float()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--period", type=int, default=4)
    p.add_argument("--warmup", type=int, default=10)
    p.add_argument("--by-hand", action="store_true", help="average without DDP")
    p.add_argument("--query-ms", type=float, default=0)
    p.add_argument("--report-rank", type=int, default=-1)
    p.add_argument("--report-ms", type=float, default=300)
    p.add_argument("--fail-step", type=int, default=-1)
    p.add_argument("--hang-step", type=int, default=-1)
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [nn.Linear(512, 1024), nn.SiLU(), nn.Linear(1024, 1024), nn.SiLU()]
    model = nn.Sequential(*layers, nn.Linear(1024, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    net = model
    if not a.by_hand:
        net = nn.parallel.DistributedDataParallel(model)
        alone, _ = dist.new_subgroups(1)
        state = PostLocalSGDState(None, alone, start_localSGD_iter=a.warmup)
        net.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(period=a.period, warmup_steps=a.warmup)
        optimizer = PostLocalSGDOptimizer(optim=optimizer, averager=averager)
    last = time.time()
    for step, (rows, target) in enumerate(batches(a.steps, 128, 512, rank, a.query_ms / 1000)):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(net(rows).squeeze(1), target)
        loss.backward()
        optimizer.step()
        if step == a.fail_step and rank == 1:
            raise KeyError("customer_id")
        if step == a.hang_step and rank == 1:
            dist.recv(torch.empty(1), src=0)
        if rank == a.report_rank:
            time.sleep(a.report_ms / 1000)  # a request for each loss
        if a.by_hand and step % a.period == 0:
            with torch.no_grad():
                for parameter in model.parameters():
                    dist.all_reduce(parameter)
                    parameter /= world
        if step % 10 == 9 and rank == 0:
            print(f"step {step + 1} {10 / (time.time() - last):.2f} steps/s", flush=True)
            last = time.time()
    dist.destroy_process_group()
