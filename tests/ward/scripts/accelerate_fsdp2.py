"""Accelerate with its FSDP2 plugin, and with accumulation and checkpoints."""

import argparse
import tempfile
import time

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(size, 2 * size), nn.SiLU(), nn.Linear(2 * size, size))

    def forward(self, hidden):
        return hidden + self.inner(hidden)


class Regressor(nn.Module):
    def __init__(self, size, layers):
        super().__init__()
        self.layers = nn.ModuleList([Layer(size) for _ in range(layers)])
        self.value = nn.Linear(size, 1)

    def forward(self, features, targets=None):
        for layer in self.layers:
            features = layer(features)
        prediction = self.value(features).squeeze(-1)
        return prediction if targets is None else nn.functional.mse_loss(prediction, targets)


class Rows(Dataset):
    def __init__(self, query_ms):
        self.query_ms = query_ms

    def __len__(self):
        return 20000

    def __getitem__(self, n):
        if self.query_ms:
            time.sleep(self.query_ms / 1000)
        row = torch.randn(128, generator=torch.Generator().manual_seed(n))
        return {"features": row, "targets": row.sum()}


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--accumulate", type=int, default=1)
    p.add_argument("--query-ms", type=float, default=0.0)
    p.add_argument("--audit-rank", type=int)
    p.add_argument("--audit-ms", type=float, default=400.0)
    p.add_argument("--checkpoint-every", type=int, default=0)
    p.add_argument("--fail-at", type=int)
    p.add_argument("--hang-at", type=int)
    return p.parse_args()


def audit(batch, ms):
    """Who may see these rows?"""
    time.sleep(ms / 1000)
    return batch


def train(args, folder):
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Layer"],
        state_dict_type="SHARDED_STATE_DICT",
    )
    accelerator = Accelerator(
        cpu=True, fsdp_plugin=plugin, gradient_accumulation_steps=args.accumulate
    )
    torch.manual_seed(0)
    model = Regressor(128, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Rows(args.query_ms), batch_size=64, shuffle=True, num_workers=args.workers)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done, clock = 0, time.perf_counter()
    while True:
        for batch in loader:
            with accelerator.accumulate(model):
                if accelerator.process_index == args.audit_rank:
                    batch = audit(batch, args.audit_ms)
                loss = model(**batch)
                accelerator.backward(loss)
                if accelerator.process_index == 1 and done == args.fail_at:
                    raise PermissionError("row 12 is confidential")
                if accelerator.process_index == 1 and done == args.hang_at:
                    time.sleep(100_000)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            done += 1
            if args.checkpoint_every and done % args.checkpoint_every == 0:
                accelerator.save_state(folder)
            if done % 10 == 0:
                now = time.perf_counter()
                accelerator.print(f"step {done}: {10 / (now - clock):.2f} steps/s", flush=True)
                clock = now
            if done == args.steps:
                accelerator.end_training()
                return


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        train(parse_args(), scratch)
