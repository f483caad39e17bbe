"""Train on a stream of records (an IterableDataset), shared out among ranks and workers or not."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Records(IterableDataset):
    def __init__(self, files, per_file, part, parts):
        self.files = files
        self.per_file = per_file
        self.part = part
        self.parts = parts

    def __iter__(self):
        worker = get_worker_info()
        workers = worker.num_workers if worker and self.parts > 1 else 1
        number = worker.id if worker and self.parts > 1 else 0
        for file in range(self.files):
            if file % (self.parts * workers) != self.part * workers + number:
                continue
            generator = torch.Generator().manual_seed(file)
            for _ in range(self.per_file):
                record = torch.randn(96, generator=generator)
                yield record, record[:3].argmax()


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--records", type=int, default=256, help="in a file")
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--shard", action="store_true")
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    part, parts = (rank, ranks) if args.shard else (0, 1)
    records = Records(args.files, args.records, part, parts)
    loader = DataLoader(records, batch_size=256, num_workers=args.num_workers)
    width = 384
    layers = [nn.Linear(96, width), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    step, started = 0, time.perf_counter()
    for _ in range(args.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0 and rank == 0:
                now = time.perf_counter()
                print(f"step {step}: loss {loss.item():.3f}, {10 / (now - started):.2f} steps/s")
                started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
