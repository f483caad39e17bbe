"""Train a small convolutional net on images that are read from storage: plain DDP."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.distributed import DistributedSampler


class Images(Dataset):
    def __init__(self, count, read_ms, decode_ms):
        self.count = count
        self.read_ms = read_ms
        self.decode_ms = decode_ms
        self.pixels = torch.rand(64, 3, 32, 32)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.read_ms:
            time.sleep(self.read_ms / 1000)
        image = self.pixels[index % 64] + index / self.count
        if self.decode_ms:
            image = decode(image, self.decode_ms)
        return image, index % 10


def decode(image, milliseconds):
    until = time.thread_time() + milliseconds / 1000
    sharper = image
    while time.thread_time() < until:
        sharper = sharper.sort(dim=-1).values + torch.fft.rfft2(sharper).abs().mean()
    return image + 0.0 * sharper.mean()


class Collate:
    def __init__(self, milliseconds):
        self.milliseconds = milliseconds

    def __call__(self, samples):
        images, labels = default_collate(samples)
        if self.milliseconds:
            images = decode(images, self.milliseconds)
        return images, labels


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--read-ms", type=float, default=0.0)
    parser.add_argument("--decode-ms", type=float, default=0.0)
    parser.add_argument("--collate-ms", type=float, default=0.0)
    parser.add_argument(
        "--cold-cache-rank", type=int, help="only this rank has to wait for storage"
    )
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)

    warm = args.cold_cache_rank not in (None, rank)
    data = Images(32 * 1024, 0.0 if warm else args.read_ms, args.decode_ms)
    sampler = DistributedSampler(data)
    loader = DataLoader(
        data,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=args.num_workers,
        collate_fn=Collate(args.collate_ms),
        drop_last=True,
    )
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(48, 48, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 10),
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    step, epoch, started = 0, 0, time.perf_counter()
    while step < args.steps:
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0 and rank == 0:
                now = time.perf_counter()
                print(f"step {step}: loss {loss.item():.3f}, {10 / (now - started):.2f} steps/s")
                started = now
            if step == args.steps:
                break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
