"""Workers of a DataLoader that an option of the script holds, through functions and sections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.reviewed import causes

SCRIPT = """
    import argparse
    import os
    import torch
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    class Images(Dataset):
        def __getitem__(self, index):
            return torch.load(self.files[index]){cuda}

    def make_loader(data, batch_size, workers):
        options = dict(batch_size=batch_size, sampler=DistributedSampler(data), pin_memory=True)
        return DataLoader(data, num_workers=workers, persistent_workers=workers > 0, **options)

    def loaders(batch_size, workers):
        return make_loader(Images(), batch_size, workers), make_loader(Images(), 1, workers)

    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default={default})
    parser.add_argument("--config")
    args = parser.parse_args()
    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    train, other = loaders(16, {given})
    model = DDP(Net().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(9):
        train.sampler.set_epoch(epoch)
        for batch in train:
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.distributed.destroy_process_group()
"""
NONE, CUDA = "dataloader-bottleneck", "dataloader-fork-unsafe"


@pytest.mark.parametrize(
    ("default", "given", "cuda", "line", "cause"),
    [
        (0, "args.workers", "", "", NONE),
        (4, "args.workers", "", "--workers 0", NONE),
        (4, "args.workers", "", "", ""),
        (0, "args.workers", "", "--workers 4", ""),
        (4, "cfg.data.workers", "", "--config own.yaml", NONE),
        (4, "args.workers", ".cuda()", "", CUDA),
        (0, "args.workers", ".cuda()", "", ""),
        (4, "chosen()", ".cuda()", "", ""),
    ],
)
def test_the_workers(
    tmp_path: Path, default: int, given: str, cuda: str, line: str, cause: str
) -> None:
    source = SCRIPT.format(default=default, given=given, cuda=cuda)
    command = f"torchrun --standalone --nproc-per-node 4 train.py {line}"
    found = causes(tmp_path, command, source, own_yaml="data: {workers: 0}\n")
    assert {NONE, CUDA} & {*found} == ({cause} if cause else set())
