"""A loop of one's own with Fabric: its launcher's ranks, a prepared model, optimizer and loader."""

import argparse
import time

import torch
from lightning import Fabric
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, count, read_ms):
        self.values = torch.randn(count, 96)
        self.read_ms = read_ms

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        if self.read_ms:
            time.sleep(self.read_ms / 1000)
        return self.values[index], self.values[index, :3].argmax()


def describe(values, seconds):
    until = time.perf_counter() + seconds
    found = values.mean()
    while time.perf_counter() < until:
        found = found + values.std()
    return found


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
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(5, verbose=False)
    layers = [nn.Linear(96, 448), nn.GELU()]
    for _ in range(4):
        layers += [nn.Linear(448, 448), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(448, 3))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    data = Waves(60 * args.batch_size, args.read_ms)
    loader = fabric.setup_dataloaders(
        DataLoader(data, args.batch_size, shuffle=True, num_workers=args.num_workers)
    )
    step, started = 0, time.perf_counter()
    for _ in range(args.epochs):
        for values, labels in loader:
            step += 1
            if fabric.global_rank == args.slow_rank:
                describe(values, args.extra_ms / 1000)
            if fabric.global_rank == 1 and step == args.bad_batch:
                labels = labels + 3
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(values), labels)
            fabric.backward(loss)
            optimizer.step()
            if step % 10 == 0:
                now = time.perf_counter()
                fabric.print(f"step {step}: {loss.item():.3f}, {10 / (now - started):.2f} steps/s")
                started = now


if __name__ == "__main__":
    main()
