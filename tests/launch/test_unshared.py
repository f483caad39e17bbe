"""DataLoaders that Ray Train or Lightning would share out, and are not let to."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests.launch.reviewed import reviewed

RAY = """
    import argparse
    import ray.train
    import torch
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    def loop(config):
        rows = TensorDataset(torch.load(config["rows"]), torch.load(config["labels"]))
        model = prepare_model(torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        {loader}
        for epoch in range(3):
            for x, y in loader:
                loss = (model(x) - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=8)
    args = parser.parse_args()
    TorchTrainer(
        loop,
        train_loop_config={{"rows": "a.pt"}},
        scaling_config=ScalingConfig(num_workers={ranks}),
    ).fit()
"""
LIGHTNING = """
    import lightning as L
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    class Rows(L.LightningDataModule):
        def train_dataloader(self):
            rows = TensorDataset(torch.load("rows.pt"))
            {loader}
            return loader

        def val_dataloader(self):
            return DataLoader(TensorDataset(torch.load("val.pt")), batch_size=8)

    trainer = L.Trainer(accelerator="gpu", devices={ranks}, strategy="ddp", {switch})
    trainer.fit(model, datamodule=Rows())
"""
WHOLE = "loader = DataLoader(rows, batch_size=8, shuffle=True)"
SAMPLER = "loader = DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows))"
OFF = "use_distributed_sampler=False"


def because(folder: Path, command: str, source: str) -> list[str]:
    found = reviewed(folder, command, source)
    return [one.because for one in found if one.cause == "duplicate-data-across-ranks"]


@pytest.mark.parametrize(
    ("loader", "ranks", "wrong"),
    [
        (WHOLE, "8", True),
        (WHOLE, "args.workers", True),
        ("loader = DataLoader(rows, batch_size=8)", "2", True),
        (f"{WHOLE}\n{indent('loader = prepare_data_loader(loader)', ' ' * 8)}", "8", False),
        (f"loader = prepare_data_loader({WHOLE.removeprefix('loader = ')})", "8", False),
        (SAMPLER, "8", False),
        (WHOLE, "1", False),
        (WHOLE, "count()", False),
    ],
)
def test_a_loader_of_ray(tmp_path: Path, loader: str, ranks: str, wrong: bool) -> None:
    source = RAY.format(loader=loader, ranks=ranks)
    found = because(tmp_path, "ray job submit -- python train.py", source)
    assert ["prepare_data_loader" in one for one in found] == [True] * wrong


@pytest.mark.parametrize(
    ("loader", "ranks", "switch", "wrong"),
    [
        (WHOLE, 4, OFF, True),
        (WHOLE, 2, "replace_sampler_ddp=False", True),
        ("loader = DataLoader(rows, batch_size=8)", 4, OFF, True),
        (WHOLE, 4, "use_distributed_sampler=True", False),
        (WHOLE, 4, "max_epochs=3", False),
        (SAMPLER, 4, OFF, False),
        (WHOLE, 1, OFF, False),
        (
            "rank = self.trainer.global_rank\n            "
            "loader = DataLoader(torch.utils.data.Subset(rows, range(rank, 99, 4)))",
            4,
            OFF,
            False,
        ),
    ],
)
def test_a_loader_of_lightning(
    tmp_path: Path, loader: str, ranks: int, switch: str, wrong: bool
) -> None:
    source = LIGHTNING.format(loader=loader, ranks=ranks, switch=switch)
    found = because(tmp_path, "python train.py", source)
    assert ["lets Lightning add none" in one for one in found] == [True] * wrong
