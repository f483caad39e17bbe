"""A pipeline of two stages: rank 0 reads the inputs, rank 1 the targets."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


def stage_module(index, width, depth):
    layers = []
    for _ in range(depth):
        layers.extend([nn.Linear(width, width), nn.Tanh()])
    if index == 1:
        layers.append(nn.Linear(width, 16))
    return nn.Sequential(*layers)


class PipelineTrainer:
    def __init__(self, options):
        self.o = options
        self.rank = dist.get_rank()
        torch.manual_seed(self.rank)
        depth = options.depth * (options.heavier if self.rank == 1 else 1)
        module = stage_module(self.rank, options.width, depth)
        self.stage = PipelineStage(module, self.rank, 2, torch.device("cpu"))
        kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[options.schedule]
        self.schedule = kind(
            self.stage, n_microbatches=options.microbatches, loss_fn=nn.functional.cross_entropy
        )
        self.optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
        self.text = 50 * "the quick brown fox jumps over the lazy dog "
        self.stream = torch.Generator().manual_seed(7)

    def next_batch(self):
        """Both ranks draw the same; each uses its part."""
        if self.o.tokenise_ms:
            self.tokenise()
        x = torch.randn(self.o.batch, self.o.width, generator=self.stream)
        return x, x[:, :16].argmax(dim=1)

    def tokenise(self):
        end = time.perf_counter() + self.o.tokenise_ms / 1000
        while time.perf_counter() < end:
            sorted(self.text.split())

    def iteration(self, number):
        x, y = self.next_batch()
        self.optimizer.zero_grad()
        if self.rank == 0:
            self.schedule.step(x)
        else:
            self.measure(number)
            losses = []
            self.schedule.step(target=y, losses=losses)
        self.optimizer.step()

    def measure(self, number):
        if number == self.o.crash_at:
            raise OSError("no space left for the metrics")
        if number == self.o.freeze_at:
            time.sleep(100_000)
        if self.o.metrics_ms:
            self.metrics()

    def metrics(self):
        norms = [p.detach().norm().item() for p in self.stage.submod.parameters()]
        time.sleep(self.o.metrics_ms / 1000)  # until the tracking server has them
        return norms

    def fit(self):
        before = time.perf_counter()
        for number in range(1, self.o.steps + 1):
            self.iteration(number)
            if number % 10 == 0 and self.rank == 0:
                now = time.perf_counter()
                print(f"step {number}: {10 / (now - before):.2f} steps/s", flush=True)
                before = now


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--schedule", choices=("gpipe", "1f1b"), default="gpipe")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--heavier", type=int, default=1, help="layers of stage 1, times")
    parser.add_argument("--tokenise-ms", type=float, default=0.0)
    parser.add_argument("--metrics-ms", type=float, default=0.0)
    parser.add_argument("--crash-at", type=int)
    parser.add_argument("--freeze-at", type=int)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    PipelineTrainer(arguments).fit()
    dist.destroy_process_group()
