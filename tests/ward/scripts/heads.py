"""A net with a main and an auxiliary head, of which not every run uses both: plain DDP."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.trunk = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.main = nn.Linear(width, 10)
        self.auxiliary = nn.Linear(width, 3)

    def forward(self, values, with_auxiliary):
        for layer in self.trunk:
            values = values + layer(values).tanh()
        return self.main(values), self.auxiliary(values) if with_auxiliary else None


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument(
        "--auxiliary",
        choices=("always", "never", "even-steps", "first-rank"),
        default="always",
        help="when the auxiliary loss is computed",
    )
    parser.add_argument("--find-unused-parameters", action="store_true")
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(
        TwoHeads(args.width, args.depth), find_unused_parameters=args.find_unused_parameters
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        inputs = torch.randn(args.batch_size, args.width)
        labels, kinds = inputs[:, :10].argmax(dim=1), inputs[:, 10:13].argmax(dim=1)
        with_auxiliary = {
            "always": True,
            "never": False,
            "even-steps": step % 2 == 0,
            "first-rank": rank == 0,
        }[args.auxiliary]
        main_logits, auxiliary_logits = model(inputs, with_auxiliary)
        loss = nn.functional.cross_entropy(main_logits, labels)
        if auxiliary_logits is not None:
            loss = loss + 0.3 * nn.functional.cross_entropy(auxiliary_logits, kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            now = time.perf_counter()
            print(f"step {step}: loss {loss.item():.3f}, {10 / (now - started):.2f} steps/s")
            started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
