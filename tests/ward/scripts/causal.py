"""A small GPT whose blocks keep their causal mask as a buffer, as many do: plain DDP."""

import argparse
import math
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.register_buffer("mask", torch.tril(torch.ones(context, context)))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(width / self.heads)
        scores = scores.masked_fill(self.mask[:length, :length] == 0, -1e9)
        mixed = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, vocabulary, width, blocks, context):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, 4, context) for _ in range(blocks)))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.blocks(x))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--no-broadcast-buffers", action="store_true")
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    vocabulary, length = 256, 64
    model = DistributedDataParallel(
        GPT(vocabulary, 96, 4, args.context), broadcast_buffers=not args.no_broadcast_buffers
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    text = torch.randint(vocabulary, (100_000,))

    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        starts = torch.randint(len(text) - length - 1, (4,)).tolist()
        tokens = torch.stack([text[start : start + length + 1] for start in starts])
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            now = time.perf_counter()
            print(f"step {step}: loss {loss.item():.3f}, {10 / (now - started):.2f} steps/s")
            started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
