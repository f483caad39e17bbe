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


OPTION = """
    import argparse
    import os
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default={default})
    args = parser.parse_args()
    {more}
    torch.cuda.set_device({device})
    dist.init_process_group("nccl")
    model = DistributedDataParallel(net().cuda())
    train(model)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("launcher", "default", "more", "device", "wrong"),
    [
        ("torchrun --nproc-per-node 4", "0", "", "args.local_rank", True),
        ("torchrun --nproc-per-node 4", "0", "gpu = args.local_rank", "gpu", True),
        ("accelerate launch --num_processes 4", "0", "", "args.local_rank", True),
        # It gives the option to each rank.
        ("deepspeed --num_gpus 4", "0", "", "args.local_rank", False),
        ("torchrun --nproc-per-node 1", "0", "", "args.local_rank", False),
        (
            "torchrun --nproc-per-node 4",
            'int(os.environ["LOCAL_RANK"])',
            "",
            "args.local_rank",
            False,
        ),
        ("torchrun --nproc-per-node 4", "0", "args.local_rank = mine()", "args.local_rank", False),
        ("torchrun --nproc-per-node 4", "0", "gpu = mine()", "gpu", False),
    ],
)
def test_a_local_rank_that_no_launcher_gives(
    tmp_path: Path, launcher: str, default: str, more: str, device: str, wrong: bool
) -> None:
    source = OPTION.format(default=default, more=more, device=device)
    assert ("wrong-device-binding" in causes(tmp_path, f"{launcher} train.py", source)) is wrong


ITS_TASK = 'os.environ["RANK"] = os.environ["SLURM_PROCID"]\n'


@pytest.mark.parametrize(
    ("command", "source", "wrong"),
    [
        ("srun -N1 --ntasks-per-node=4 python train.py", ddp(), True),
        ("mpirun -np 4 python train.py", ddp(), True),
        ("srun -N1 --ntasks-per-node=4 python train.py", ddp(head=ITS_TASK), False),
        (
            "srun -N1 --ntasks-per-node=4 python train.py",
            ddp(head="from mpi4py import MPI\nMPI"),
            False,
        ),
        ("srun -N1 -n4 --container-image=pytorch.sqsh python train.py", ddp(), False),
        ("srun -N1 -n4 bash -c 'RANK=$SLURM_PROCID python train.py'", ddp(), False),
        ("srun -N1 torchrun --nproc-per-node 4 train.py", ddp(), False),
        ("srun -N1 -n4 python train.py", ACCELERATE, False),
        ("srun -N1 -n4 python train.py", LIGHTNING, False),
    ],
)
def test_tasks_without_the_variables_of_torchrun(
    tmp_path: Path, command: str, source: str, wrong: bool
) -> None:
    assert (ALONE in causes(tmp_path, command, source)) is wrong


BY_NUMBER = """
    import os, torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def number(*names):
        return next(int(os.environ[one]) for one in (*names, "ZERO") if one in os.environ)

    local = {local}
    torch.cuda.set_device({device})
    dist.init_process_group("nccl")
    model = DistributedDataParallel(net().cuda())
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""
OF_SLURM = 'number("SLURM_LOCALID")'


@pytest.mark.parametrize(
    ("launcher", "local", "device", "wrong"),
    [
        ("torchrun --nproc-per-node 4", OF_SLURM, "local", True),
        ("srun --ntasks-per-node=1 torchrun --nproc-per-node 4", OF_SLURM, "local", True),
        ("torchrun --nproc-per-node 4", 'number("LOCAL_RANK", "SLURM_LOCALID")', "local", False),
        ("torchrun --nproc-per-node 1", OF_SLURM, "local", False),
        ("torchrun --nproc-per-node 4", OF_SLURM, "dist.get_node_local_rank()", False),
        ("srun --ntasks-per-node=4 python", OF_SLURM, "local", False),
        ("torchrun --nproc-per-node 4", OF_SLURM, "rank % torch.cuda.device_count()", False),
    ],
)
def test_the_local_rank_of_another_launcher(
    tmp_path: Path, launcher: str, local: str, device: str, wrong: bool
) -> None:
    source = BY_NUMBER.format(local=local, device=device)
    assert ("wrong-device-binding" in causes(tmp_path, f"{launcher} train.py", source)) is wrong


BY_TASK = """
    import os, torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    env = os.environ
    rank, world = int(env["OMPI_COMM_WORLD_RANK"]), int(env["OMPI_COMM_WORLD_SIZE"])
    local = {local}
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    model = DistributedDataParallel(net().cuda())
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""
OF_TORCHRUN = 'int(env.get("LOCAL_RANK", 0))'
MPIRUN = "mpirun -np 8 -H a:4,b:4 -x MASTER_ADDR -x MASTER_PORT"


@pytest.mark.parametrize(
    ("launcher", "local", "wrong"),
    [
        (f"{MPIRUN} python", OF_TORCHRUN, True),
        (f"{MPIRUN} python", 'int(env["OMPI_COMM_WORLD_LOCAL_RANK"])', False),
        (f"{MPIRUN} python", f'{OF_TORCHRUN} or int(env["OMPI_COMM_WORLD_LOCAL_RANK"])', False),
        (f"{MPIRUN} python", "rank % torch.cuda.device_count()", False),
        (f"{MPIRUN} -x LOCAL_RANK=0 python", OF_TORCHRUN, False),
        ("mpirun -np 2 -H a:1,b:1 python", OF_TORCHRUN, False),
        ("srun --ntasks-per-node=4 --gpus-per-task=1 python", OF_TORCHRUN, False),
    ],
)
def test_the_local_rank_of_torchrun_for_tasks(
    tmp_path: Path, launcher: str, local: str, wrong: bool
) -> None:
    found = causes(tmp_path, f"{launcher} train.py", BY_TASK.format(local=local))
    assert ("wrong-device-binding" in found) is wrong
