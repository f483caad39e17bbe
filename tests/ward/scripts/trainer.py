"""A trainer class of one's own: it draws, saves snapshots and cleans up, as set."""

import argparse
import gc
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, args, folder):
        self.args = args
        self.folder = Path(folder)
        self.rank = dist.get_rank()
        width = args.width
        layers = [nn.Linear(32, width), nn.ReLU()]
        for _ in range(5):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, 4)))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        inputs = torch.randn(512 * 100, 32)
        self.data = TensorDataset(inputs, inputs[:, :4].argmax(dim=1))
        self.sampler = DistributedSampler(self.data)
        self.loader = DataLoader(self.data, batch_size=512, sampler=self.sampler, drop_last=True)
        # What else a snapshot holds: moving averages, say.
        self.averages = torch.zeros(args.save_mb * 2**18)
        self.catalogue = [{"id": str(number), "tags": [number]} for number in range(args.records)]
        self.done = 0

    def run(self):
        epoch = 0
        started = time.perf_counter()
        while self.done < self.args.steps:
            self.sampler.set_epoch(epoch)
            for inputs, targets in self.loader:
                loss = self.step(inputs, targets)
                self.after_step(inputs, targets)
                if self.done % 10 == 0 and self.rank == 0:
                    now = time.perf_counter()
                    rate = 10 / (now - started)
                    print(f"step {self.done}: loss {loss:.3f}, {rate:.2f} steps/s")
                    started = now
                if self.done == self.args.steps:
                    return
            epoch += 1

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        self.done += 1
        return loss.item()

    def due(self, every):
        return every and self.done % every == 0

    def after_step(self, inputs, targets):
        if self.due(self.args.draw_every) and self.rank == 0:
            self.draw()
        if self.due(self.args.save_every) and self.rank == 0:
            self.save()
        if self.due(self.args.validate_every) and self.rank == 0:
            self.validate(inputs, targets)
        if self.due(self.args.collect_every):
            gc.collect()

    def draw(self):
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(3, 2), dpi=self.args.dpi)
        axes.hist(self.model.module[0].weight.detach().flatten().numpy(), bins=20)
        figure.savefig(self.folder / "weights.png")
        pyplot.close(figure)

    def save(self):
        snapshot = {"model": self.model.state_dict(), "averages": self.averages}
        with open(self.folder / "snapshot.pt", "wb") as file:
            torch.save(snapshot, file)
            file.flush()
            os.fsync(file.fileno())

    @torch.no_grad()
    def validate(self, inputs, targets):
        self.model.eval()
        right = sum(
            int((self.model.module(inputs).argmax(dim=1) == targets).sum())
            for _ in range(self.args.validation_batches)
        )
        self.model.train()
        return right


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--draw-every", type=int, default=0)
    parser.add_argument("--dpi", type=int, default=80)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--save-mb", type=int, default=1)
    parser.add_argument("--validate-every", type=int, default=0)
    parser.add_argument("--validation-batches", type=int, default=2)
    parser.add_argument("--collect-every", type=int, default=0)
    parser.add_argument("--records", type=int, default=0, help="kept in a Python list")
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(args, folder).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
