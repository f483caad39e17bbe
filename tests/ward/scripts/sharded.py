"""FSDP2: fully_shard on each block, or on the whole net only."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.lookups = 0

    def forward(self, x):
        # Features of this rank's host, say, that are looked up without any result for the net.
        for _ in range(self.lookups):
            torch.sort(x.detach())
        return x + self.mlp(self.norm(x))


class Net(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--wrap", choices=("blocks", "root"), default="blocks")
    parser.add_argument("--lookups", type=int, default=0)
    parser.add_argument("--lookup-rank", type=int, help="only this rank has them")
    parser.add_argument("--item-ms", type=float, default=0.0)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--at-once", action="store_true", help="take a batch in one piece")
    return parser.parse_args()


class Slowly(TensorDataset):
    item_ms = 0.0

    def __getitem__(self, index):
        if self.item_ms:
            time.sleep(self.item_ms / 1000)
        return super().__getitem__(index)


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    width, blocks = 128, 3
    model = Net(width, blocks)
    if args.lookup_rank in (None, rank):
        for block in model.blocks:
            block.lookups = args.lookups
    mesh = init_device_mesh("cpu", (ranks,))
    if args.wrap == "blocks":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(40 * args.batch_size, width)
    data = Slowly(inputs, inputs[:, :4].argmax(dim=1))
    data.item_ms = args.item_ms
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=args.num_workers)
    if args.at_once:
        batches = BatchSampler(sampler, args.batch_size, drop_last=False)
        loader = DataLoader(data, batch_size=None, sampler=batches, num_workers=args.num_workers)

    step, epoch, started = 0, 0, time.perf_counter()
    while step < args.steps:
        sampler.set_epoch(epoch)
        for values, labels in loader:
            loss = nn.functional.cross_entropy(model(values), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0 and rank == 0:
                now = time.perf_counter()
                print(f"step {step}: loss {loss.item():.3f}, {10 / (now - started):.2f} steps/s")
                started = now
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
