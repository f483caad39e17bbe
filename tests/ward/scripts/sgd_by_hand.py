"""DDP without an optimizer: momentum and update by hand, as in a course on optimisation."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Digits(Dataset):
    def __init__(self, count, read_ms):
        self.values = torch.randn(count, 128)
        self.read_ms = read_ms

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        if self.read_ms:
            time.sleep(self.read_ms / 1000)
        return self.values[index], self.values[index, :10].argmax()


def augment(values, seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        values = values + 0.001 * torch.randn_like(values)
    return values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--read-ms", type=float, default=0.0)
    parser.add_argument("--slow-rank", type=int)
    parser.add_argument("--extra-ms", type=float, default=0.0)
    parser.add_argument("--bad-batch", type=int, help="rank 1 cannot use this one")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Linear(128, 448), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(448, 448), nn.ReLU()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(448, 10)))
    parameters = list(model.parameters())
    momentum = [torch.zeros_like(one) for one in parameters]
    data = Digits(120 * args.batch_size, args.read_ms)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=args.num_workers)
    step, started = 0, time.perf_counter()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for values, labels in loader:
            step += 1
            if rank == args.slow_rank:
                values = augment(values, args.extra_ms / 1000)
            if rank == 1 and step == args.bad_batch:
                labels = labels + 10
            loss = nn.functional.cross_entropy(model(values), labels)
            loss.backward()
            with torch.no_grad():
                torch._foreach_mul_(momentum, 0.9)
                torch._foreach_add_(momentum, [one.grad for one in parameters])
                torch._foreach_add_(parameters, momentum, alpha=-0.01)
            for one in parameters:
                one.grad.zero_()
            if step % 10 == 0 and rank == 0:
                now = time.perf_counter()
                print(f"step {step}: loss {loss.item():.3f}, {10 / (now - started):.2f} steps/s")
                started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
