"""DeepSpeed's engine with ZeRO on CPUs: the configuration is a dictionary, the engine steps."""

import argparse
import os
import time

import deepspeed
import torch
import torch.nn as nn
from deepspeed import comm
from torch.utils.data import Dataset


class PromptDataset(Dataset):
    def __init__(self, args):
        self.args = args

    def __len__(self):
        return 100000

    def __getitem__(self, idx):
        if self.args.fetch_ms:
            time.sleep(self.args.fetch_ms / 1000)
        g = torch.Generator().manual_seed(idx)
        x = torch.randn(256, generator=g)
        return x, x[:4].argmax()


class SimpleModel(nn.Module):
    def __init__(self, hidden, depth):
        super().__init__()
        self.stack = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(depth)])
        self.out = nn.Linear(hidden, 4)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, y):
        for layer in self.stack:
            x = torch.relu(layer(x))
        return self.loss(self.out(x), y)


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--micro", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--fetch_ms", type=float, default=0)
    parser.add_argument("--num_workers", type=int, default=0)
    parser.add_argument("--slow_rank", type=int, default=-1)
    parser.add_argument("--slow_ms", type=float, default=300)
    parser.add_argument("--raise_at", type=int, default=-1)
    parser.add_argument("--hang_at", type=int, default=-1)
    parser.add_argument("--save_every", type=int, default=0)
    return parser.parse_args()


def score(batch, ms):
    time.sleep(ms / 1000)  # the reward server answers
    return batch


def main():
    args = get_args()
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    ds_config = {
        "train_micro_batch_size_per_gpu": args.micro,
        "gradient_accumulation_steps": args.accumulate,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": args.stage},
        "steps_per_print": 100000,
    }
    model = SimpleModel(256, 4)
    engine, _, _, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), config=ds_config
    )
    loader = engine.deepspeed_io(PromptDataset(args), num_local_io_workers=args.num_workers)
    start = time.time()
    for i, batch in enumerate(loader):
        if engine.global_rank == args.slow_rank:
            batch = score(batch, args.slow_ms)
        loss = engine(*batch)
        if engine.global_rank == 1 and i == args.raise_at:
            raise RuntimeError("reward model returned no score")
        if engine.global_rank == 1 and i == args.hang_at:
            time.sleep(100000)
        engine.backward(loss)
        engine.step()
        if args.save_every and engine.global_steps % args.save_every == 0:
            engine.save_checkpoint("ckpt", tag="last")
        if (i + 1) % 10 == 0 and engine.global_rank == 0:
            print(f"step {i + 1} loss {loss.item():.3f} {10 / (time.time() - start):.2f} steps/s")
            start = time.time()
        if engine.global_steps >= args.steps:
            break
    comm.barrier()


if __name__ == "__main__":
    main()
