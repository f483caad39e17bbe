"""Mistakes that only the launch line and the source of the script show together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.reviewed import causes
from tests.script.sources import ACCELERATE, LIGHTNING, TRAINER, ddp

ALONE = "not-launched-distributed"
LOOP = """
    import torch

    model, optimizer = net(), adam()
    for batch in batches():
        model(batch).sum().backward()
        optimizer.step()
"""
SPAWNS = """
    import torch.multiprocessing as mp
    import torch.distributed as dist

    def main(rank):
        dist.init_process_group("gloo", rank=rank, world_size=2)

    mp.spawn(main, nprocs=2)
"""
SETS = """
    import os
    import torch.distributed as dist

    os.environ["MASTER_ADDR"] = "localhost"
    dist.init_process_group()
"""
IF_ASKED = """
    import torch.distributed as dist

    def main(args):
        if args.distributed:
            dist.init_process_group("nccl")

    main(parse())
"""


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ("python train.py", ddp()),
        (
            "python -u train.py",
            "import torch.distributed as d\ndef f():\n  d.init_process_group()\nf()",
        ),
        ("torchrun --nproc-per-node 4 train.py", LOOP),
        ("accelerate launch --num_processes 4 train.py", LOOP),
    ],
)
def test_not_launched_distributed(tmp_path: Path, command: str, source: str) -> None:
    assert ALONE in causes(tmp_path, command, source)


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ("torchrun --nproc-per-node 4 train.py", ddp()),
        ("RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=1 python train.py", ddp()),
        ("srun -N1 --ntasks-per-node=4 python train.py", ddp()),
        ("python train.py", SPAWNS),
        ("python train.py", SETS),
        ("python train.py", IF_ASKED),
        ("python train.py", f"import missing_part\n{LOOP.replace('    ', '')}"[:0] or "print(1)"),
        ("accelerate launch --num_processes 4 train.py", ACCELERATE),
        ("torchrun --nproc-per-node 4 train.py", LIGHTNING),
        ("torchrun --nproc-per-node 4 train.py", TRAINER),
        ("torchrun --nproc-per-node 1 train.py", LOOP),
        ("torchrun --nproc-per-node 4 train.py", f"{LOOP}    save(model, rank=local_rank)\n"),
    ],
)
def test_quiet(tmp_path: Path, command: str, source: str) -> None:
    assert ALONE not in causes(tmp_path, command, source)
