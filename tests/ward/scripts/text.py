"""Train a small language model on documents of different lengths, padded per batch."""

import argparse
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 500


class Shard(Dataset):
    """Documents of one rank, each batch made up of similar ones where they are bucketed."""

    def __init__(self, rank, lengths):
        self.lengths = lengths
        self.seed = rank

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        return torch.randint(1, VOCABULARY, (self.lengths[index],), generator=generator)


def pad(documents):
    return nn.utils.rnn.pad_sequence(documents, batch_first=True)


class LanguageModel(nn.Module):
    def __init__(self, width=128, blocks=2):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.blocks(self.embed(tokens), mask=mask, is_causal=True))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--longer", type=float, default=1.0, help="the last rank's documents")
    parser.add_argument(
        "--lengths", choices=("fixed", "bucketed", "shuffled"), default="fixed", help="of documents"
    )
    parser.add_argument("--spread", type=float, default=0.5, help="of the lengths' logarithms")
    return parser.parse_args()


def lengths_of(args, rank, ranks):
    count = args.steps * args.batch_size
    if args.lengths == "fixed":
        longer = args.longer if rank == ranks - 1 else 1.0
        return [int(args.length * longer)] * count
    # Bucketed: the ranks draw the same lengths, batch by batch.
    source = random.Random(0 if args.lengths == "bucketed" else rank)
    batches = (args.length * source.lognormvariate(0, args.spread) for _ in range(args.steps))
    return [
        max(8, min(4 * args.length, int(one))) for one in batches for _ in range(args.batch_size)
    ]


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    documents = Shard(rank, lengths_of(args, rank, ranks))
    loader = DataLoader(documents, args.batch_size, collate_fn=pad, num_workers=1)
    model = DistributedDataParallel(LanguageModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    started = time.perf_counter()
    for step, tokens in enumerate(loader, 1):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            now = time.perf_counter()
            print(f"step {step}: loss {loss.item():.3f}, {10 / (now - started):.2f} steps/s")
            started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
