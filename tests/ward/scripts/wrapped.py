"""DDP with what people switch on: a compiled model, a static graph, checkpointed blocks, a hook."""

from __future__ import annotations

import argparse
import itertools
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import GELU, LayerNorm, Linear, Module, ModuleList, Sequential
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, StackDataset


class Mixer(Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = LayerNorm(channels)
        self.net = Sequential(
            Linear(channels, 2 * channels), GELU(), Linear(2 * channels, channels)
        )

    def forward(self, x):
        return x + self.net(self.norm(x))


class Backbone(Module):
    def __init__(self, channels: int, depth: int, checkpointed: bool, contrastive: bool) -> None:
        super().__init__()
        self.mixers = ModuleList([Mixer(channels) for _ in range(depth)])
        self.classify = Linear(channels, 8)
        if contrastive:
            self.contrast = Linear(channels, channels)  # used in the second stage
        self.checkpointed = checkpointed

    def forward(self, x):
        for mixer in self.mixers:
            x = checkpoint(mixer, x, use_reentrant=False) if self.checkpointed else mixer(x)
        return self.classify(x)


class Vectors:
    """Embeddings that another program wrote."""

    def __init__(self, count: int, channels: int, fetch_ms: float) -> None:
        self.values = torch.randn(count, channels)
        self.fetch_ms = fetch_ms

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int):
        if self.fetch_ms:
            time.sleep(1e-3 * self.fetch_ms)
        return self.values[index]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--max-steps", type=int, default=400)
    add("--batch-size", type=int, default=128)
    add("--loader-workers", type=int, default=0)
    add("--fetch-ms", type=float, default=0.0)
    add("--compile", choices=["inductor", "aot_eager"])
    add("--static-graph", action="store_true")
    add("--checkpointing", action="store_true")
    add("--fp16-hook", action="store_true", help="halve what the gradients weigh on the way")
    add("--zero", action="store_true", help="shard the optimizer's state")
    add("--contrastive", action="store_true", help="with the head of the second stage")
    add("--thumbnail-every", type=int, default=0)
    add("--thumbnail-ms", type=float, default=300.0)
    add("--break-at", type=int)
    add("--stick-at", type=int)
    add("--snapshot-every", type=int, default=0)
    add("--snapshot-ms", type=float, default=0.0)
    return parser.parse_args()


def build(opts: argparse.Namespace):
    torch.manual_seed(1234)
    net = Backbone(128, 4, opts.checkpointing, opts.contrastive)
    if opts.compile:
        net = torch.compile(net, backend=opts.compile)
    ddp = DistributedDataParallel(net, static_graph=opts.static_graph)
    if opts.fp16_hook:
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    trained = [p for p in ddp.parameters() if p.requires_grad]
    if opts.zero:
        return ddp, ZeroRedundancyOptimizer(trained, optimizer_class=torch.optim.Adam, lr=1e-3)
    return ddp, torch.optim.Adam(trained, lr=1e-3)


def draw_thumbnail(ms: float) -> None:
    time.sleep(ms / 1e3)


class Upload:
    def __init__(self, ms: float) -> None:
        self.ms = ms

    def write(self, data) -> int:
        time.sleep(self.ms / 1e3)
        return len(data)

    def flush(self) -> None:
        pass


def endless(loader: DataLoader, sampler: DistributedSampler):
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def main() -> None:
    opts = options()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ddp, optimizer = build(opts)
    vectors = Vectors(65536, 128, opts.fetch_ms)
    data = StackDataset(vectors, vectors.values[:, :8].argmax(1))
    sampler = DistributedSampler(data)
    loader = DataLoader(
        data, opts.batch_size, sampler=sampler, num_workers=opts.loader_workers, drop_last=True
    )
    tick = time.monotonic()
    for step, (x, y) in enumerate(endless(loader, sampler), 1):
        if step > opts.max_steps:
            break
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        if rank == 1 and step == opts.break_at:
            raise AssertionError("labels and vectors do not match")
        if rank == 1 and step == opts.stick_at:
            import threading

            threading.Event().wait()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and opts.thumbnail_every and step % opts.thumbnail_every == 0:
            draw_thumbnail(opts.thumbnail_ms)
        if opts.snapshot_every and step % opts.snapshot_every == 0 and rank == 0:
            torch.save(ddp.module.state_dict(), Upload(opts.snapshot_ms))
        if step % 10 == 0 and rank == 0:
            tock = time.monotonic()
            print(f"step {step}: loss {loss:.3f} | {10 / (tock - tick):.2f} steps/s", flush=True)
            tick = tock
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
