"""A training loop with Accelerate: prepared model, optimizer, loader and schedule."""

import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Readings(Dataset):
    def __init__(self, count, read_ms):
        self.values = torch.randn(count, 64)
        self.read_ms = read_ms

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        if self.read_ms:
            time.sleep(self.read_ms / 1000)
        values = self.values[index]
        return {"values": values, "label": int(values[:5].argmax())}


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batches", type=int, default=40, help="of an epoch, on each rank")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--read-ms", type=float, default=0.0)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
    parser.add_argument(
        "--ignore-accumulation", action="store_true", help="count micro-steps by hand"
    )
    parser.add_argument("--bare-loader", action="store_true", help="do not prepare the loader")
    return parser.parse_args()


def main():
    args = parse()
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=1
        if args.ignore_accumulation
        else args.gradient_accumulation_steps,
    )
    torch.manual_seed(3)
    share = 1 if args.bare_loader else accelerator.num_processes
    data = Readings(args.batches * args.batch_size * share, args.read_ms)
    loader = DataLoader(data, args.batch_size, shuffle=True, num_workers=args.num_workers)
    layers = [nn.Linear(64, args.width), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(args.width, args.width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(args.width, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    if not args.bare_loader:
        loader = accelerator.prepare(loader)

    step, started = 0, time.perf_counter()
    for _ in range(args.epochs):
        for micro, batch in enumerate(loader, 1):
            with accelerator.accumulate(model):
                logits = model(batch["values"])
                loss = nn.functional.cross_entropy(logits, batch["label"])
                if args.ignore_accumulation:
                    accelerator.backward(loss / args.gradient_accumulation_steps)
                    if micro % args.gradient_accumulation_steps == 0:
                        optimizer.step()
                        schedule.step()
                        optimizer.zero_grad()
                else:
                    accelerator.backward(loss)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            if micro % args.gradient_accumulation_steps == 0:
                step += 1
                if step % 10 == 0:
                    now = time.perf_counter()
                    rate = 10 / (now - started)
                    accelerator.print(f"step {step}: loss {loss.item():.3f}, {rate:.2f} steps/s")
                    started = now
    accelerator.end_training()


if __name__ == "__main__":
    main()
