"""The same in Lightning: a module, a data module's loader, the Trainer with DDP."""

import argparse
import time
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __init__(self, count, read_ms):
        self.values = torch.randn(count, 64)
        self.read_ms = read_ms

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        if self.read_ms:
            time.sleep(self.read_ms / 1000)
        values = self.values[index]
        return values, values[:4].argmax()


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        width = 384
        layers = [nn.Linear(64, width), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 4))
        self.started = time.perf_counter()

    def training_step(self, batch, number):
        values, labels = batch
        loss = nn.functional.cross_entropy(self.net(values), labels)
        if self.global_step % 10 == 9 and self.trainer.is_global_zero:
            now = time.perf_counter()
            rate = 10 / (now - self.started)
            print(
                f"step {self.global_step + 1}: loss {loss.item():.3f}, {rate:.2f} steps/s",
                flush=True,
            )
            self.started = now
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--read-ms", type=float, default=0.0)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    lightning.seed_everything(0, workers=True, verbose=False)
    loader = DataLoader(
        Signals(80 * args.batch_size, args.read_ms),
        args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=args.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main()
