"""FSDP1 with an auto-wrap policy: a small language model, with validation and full checkpoints."""

import argparse
import functools
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCABULARY = 512
LENGTH = 64


class Corpus(Dataset):
    def __init__(self, documents, lookup_ms):
        self.documents = documents
        self.lookup_ms = lookup_ms

    def __len__(self):
        return self.documents

    def __getitem__(self, index):
        if self.lookup_ms:
            time.sleep(self.lookup_ms / 1000)  # a network share
        generator = torch.Generator().manual_seed(index)
        return torch.randint(VOCABULARY, (LENGTH + 1,), generator=generator)


class LanguageModel(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.unembed = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.unembed(hidden)


def loss_of(model, tokens):
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train_epoch(args, model, optimizer, loader, rank, done, folder):
    model.train()
    since = time.perf_counter()
    for tokens in loader:
        if rank == args.filter_rank:
            keep_new(tokens, args.filter_ms)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, tokens)
        if rank == 1 and done == args.corrupt_step:
            raise RuntimeError("document 4711: checksum mismatch")
        if rank == 1 and done == args.stall_step:
            time.sleep(10_000)  # waits for a licence server
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        done += 1
        if done % 5 == 0 and rank == 0:
            now = time.perf_counter()
            print(f"step {done}: loss {loss.item():.3f}, {5 / (now - since):.2f} steps/s")
            since = now
        if args.save_every and done % args.save_every == 0:
            save(model, rank, folder, args.disk_ms)
        if args.eval_every and done % args.eval_every == 0:
            evaluate(model, args)
        if done >= args.steps:
            break
    return done


def keep_new(tokens, milliseconds):
    seen = {tuple(row) for row in tokens.tolist()}
    time.sleep(milliseconds / 1000)  # asks the index which of them it knows
    return seen


def save(model, rank, folder, disk_ms):
    settings = FullStateDictConfig(rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, settings):
        state = model.state_dict()
    if rank == 0:
        with open(os.path.join(folder, "model.pt"), "wb") as file:
            torch.save(state, Remote(file, disk_ms))
    dist.barrier()


class Remote:
    """A file on a disk that is far away."""

    def __init__(self, file, milliseconds):
        self.file = file
        self.milliseconds = milliseconds

    def write(self, data):
        time.sleep(self.milliseconds / 1000)
        return self.file.write(data)

    def flush(self):
        self.file.flush()


@torch.no_grad()
def evaluate(model, args):
    model.eval()
    losses = [loss_of(model, tokens) for tokens in DataLoader(Corpus(32, 0), batch_size=8)]
    total = torch.stack(losses).mean()
    dist.all_reduce(total)
    model.train()
    return total.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--strategy", default="FULL_SHARD")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--lookup-ms", type=float, default=0.0)
    parser.add_argument("--filter-rank", type=int)
    parser.add_argument("--filter-ms", type=float, default=300.0)
    parser.add_argument("--corrupt-step", type=int)
    parser.add_argument("--stall-step", type=int)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--disk-ms", type=float, default=0.0)
    parser.add_argument("--eval-every", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = FullyShardedDataParallel(
        LanguageModel(128, 3),
        auto_wrap_policy=functools.partial(
            transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer}
        ),
        sharding_strategy=ShardingStrategy[args.strategy],
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    corpus = Corpus(4000, args.lookup_ms)
    sampler = DistributedSampler(corpus)
    loader = DataLoader(
        corpus,
        args.batch_size,
        sampler=sampler,
        num_workers=args.num_workers,
        drop_last=True,
        persistent_workers=args.num_workers > 0,
    )
    done = epoch = 0
    with tempfile.TemporaryDirectory() as folder:
        while done < args.steps:
            sampler.set_epoch(epoch)
            done = train_epoch(args, model, optimizer, loader, rank, done, folder)
            epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
