"""Lightning starts its own ranks: `python lightning_fit.py`."""

import argparse
import time
from pathlib import Path
from tempfile import mkdtemp

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __init__(self, count, load_ms=0.0):
        self.count = count
        self.load_ms = load_ms

    def __len__(self):
        return self.count

    def __getitem__(self, item):
        time.sleep(self.load_ms / 1000)
        generator = torch.Generator().manual_seed(item)
        scan = torch.randn(1, 24, 24, generator=generator)
        return scan, (scan.mean() > 0).long()


class ScanData(L.LightningDataModule):
    def __init__(self, hparams):
        super().__init__()
        self.settings = hparams

    def train_dataloader(self):
        return DataLoader(
            Scans(6400, self.settings.load_ms),
            batch_size=16,
            shuffle=True,
            num_workers=self.settings.workers,
            persistent_workers=self.settings.workers > 0,
        )

    def val_dataloader(self):
        return DataLoader(Scans(64), batch_size=16)


class Classifier(L.LightningModule):
    def __init__(self, hparams):
        super().__init__()
        self.settings = hparams
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.head = nn.Linear(256, 2)
        self.projection = nn.Linear(256, 32) if hparams.projection else None

    def training_step(self, batch, batch_idx):
        scans, labels = batch
        if self.global_rank == self.settings.slow_rank:
            self.look_up_patients(labels)
        if self.global_rank == 1 and self.global_step == self.settings.raise_at:
            raise ZeroDivisionError("no positive scans in the batch")
        if self.global_rank == 1 and self.global_step == self.settings.hang_at:
            time.sleep(100_000)
        loss = nn.functional.cross_entropy(self.head(self.encoder(scans)), labels)
        self.log("loss", loss)
        return loss

    def look_up_patients(self, labels):
        time.sleep(self.settings.slow_ms / 1000)

    def validation_step(self, batch, batch_idx):
        scans, labels = batch
        right = (self.head(self.encoder(scans)).argmax(1) == labels).float().mean()
        self.log("right", right, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Speed(L.Callback):
    def on_train_start(self, trainer, module):
        self.since = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.is_global_zero and (batch_idx + 1) % 10 == 0:
            now = time.perf_counter()
            print(f"step {trainer.global_step}: {10 / (now - self.since):.2f} steps/s", flush=True)
            self.since = now


class Archive(L.Callback):
    """Keeps every so many steps."""

    def __init__(self, every, copy_ms, folder):
        self.every, self.copy_ms, self.folder = every, copy_ms, Path(folder)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if self.every and trainer.global_step % self.every == 0:
            trainer.save_checkpoint(self.folder / "last.ckpt")
            if trainer.is_global_zero:
                time.sleep(self.copy_ms / 1000)  # to the archive


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=400)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--load-ms", type=float, default=0.0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--val-every", type=int, default=0)
    parser.add_argument("--projection", action="store_true")
    parser.add_argument("--slow-rank", type=int)
    parser.add_argument("--slow-ms", type=float, default=300.0)
    parser.add_argument("--raise-at", type=int)
    parser.add_argument("--hang-at", type=int)
    parser.add_argument("--archive-every", type=int, default=0)
    parser.add_argument("--archive-ms", type=float, default=0.0)
    hparams = parser.parse_args()
    L.seed_everything(3)
    folder = mkdtemp()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=hparams.max_steps,
        accumulate_grad_batches=hparams.accumulate,
        val_check_interval=hparams.val_every or None,
        limit_val_batches=None if hparams.val_every else 0,
        check_val_every_n_epoch=None if hparams.val_every else 1,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        default_root_dir=folder,
        callbacks=[Speed(), Archive(hparams.archive_every, hparams.archive_ms, folder)],
    )
    trainer.fit(Classifier(hparams), datamodule=ScanData(hparams))


if __name__ == "__main__":
    main()
