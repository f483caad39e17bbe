"""A generator against a discriminator: two nets, two optimizers. Plain DDP."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def net(inputs, width, outputs):
    layers = [nn.Linear(inputs, width), nn.LeakyReLU(0.2)]
    for _ in range(2):
        layers += [nn.Linear(width, width), nn.LeakyReLU(0.2)]
    return DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, outputs)))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--larger-share", type=float, default=1.0, help="of the first rank's batch")
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    generator, discriminator = net(16, 224, 64), net(64, 224, 1)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.99))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
    judge = nn.functional.binary_cross_entropy_with_logits
    count = int(args.batch_size * (args.larger_share if rank == 0 else 1.0))
    ones, zeros = torch.ones(count, 1), torch.zeros(count, 1)

    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        real = torch.randn(count, 64).cumsum(dim=1)
        fake = generator(torch.randn(count, 16))

        discriminator_optimizer.zero_grad()
        judged = discriminator(torch.cat([real, fake.detach()]))
        discriminator_loss = judge(judged, torch.cat([ones, zeros]))
        discriminator_loss.backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        discriminator.requires_grad_(False)
        generator_loss = judge(discriminator.module(fake), ones)
        generator_loss.backward()
        discriminator.requires_grad_(True)
        generator_optimizer.step()
        if step % 10 == 0 and rank == 0:
            now = time.perf_counter()
            losses = f"{generator_loss.item():.3f} and {discriminator_loss.item():.3f}"
            print(f"step {step}: losses {losses}, {10 / (now - started):.2f} steps/s")
            started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
