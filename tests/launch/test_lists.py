"""Lists of hosts and GPUs, and numbers of ranks, that do not fit each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import TWO_GPUS, told
from tests.launch.reviewed import reviewed
from tests.launch.test_what_starts import head
from tests.script.sources import ddp

HOSTS = "n1 slots=4\nn2 slots=4\n"


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ("--include n1:0,1@n3:0,1", "n3 (the command line) is no host"),
        ("--include=n3", "n3 (the command line) is no host"),
        ("-i n1:0,1@n2:0,1,2,3,4", "n2:0,1,2,3,4 (the command line) names slots"),
        ("--exclude n3", "n3 (the command line) is no host"),
        ("-e n2:4", "n2:4 (the command line) names slots"),
        ("--include n1:0,1@n2:0,1", ""),
        ("--include n1@n2:0,2", ""),
        ("--include n1:4,5,6,7@n2:4,5,6,7", ""),
        ("--exclude n1:0@n2:3", ""),
        ("--exclude n2", ""),
        ("", ""),
    ],
)
def test_hosts_and_slots_of_a_hostfile(tmp_path: Path, options: str, wrong: str) -> None:
    command = "deepspeed --hostfile {} {} other.py"
    found = told(tmp_path, command.format("hosts.txt", options), hosts_txt=HOSTS)
    assert [one.because[: len(wrong)] for one in found] == [wrong] * bool(wrong)
    # The file is where the job runs.
    assert not told(tmp_path, command.format("elsewhere.txt", options))


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ("--include n1:0,1@n2:0,1", "2 hosts × 2 ranks, by deepspeed"),
        ("--include n2", "1 host × 4 ranks, by deepspeed"),
        ("--exclude n1:0@n2:0", "2 hosts × 3 ranks, by deepspeed"),
        ("--exclude n1", "1 host × 4 ranks, by deepspeed"),
        ("--include n1:0@n2:0,1", "3 ranks, by deepspeed"),
    ],
)
def test_the_ranks_of_a_filter(tmp_path: Path, options: str, starts: str) -> None:
    command = f"deepspeed --hostfile hosts.txt {options} train.py"
    assert head(tmp_path, command, ddp(), hosts_txt=HOSTS)["starts"] == starts


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("accelerate launch --gpu_ids 0,1,2,3 --num_processes 2 other.py", True),
        ("accelerate launch --config_file own.yaml other.py", True),
        (
            "accelerate launch --gpu_ids=0,1,2,3 --num_machines 2 --num_processes 4 "
            "--machine_rank 0 --main_process_ip a other.py",
            True,
        ),
        ("accelerate launch --gpu_ids 0,1 --num_processes 2 other.py", False),
        ("accelerate launch --gpu_ids all --num_processes 2 other.py", False),
        ("accelerate launch --config_file own.yaml --num_processes 4 other.py", False),
        # One process may spread its model over them.
        ("accelerate launch --gpu_ids 0,1,2,3 --num_processes 1 other.py", False),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc-per-node 2 other.py", False),
    ],
)
def test_more_gpus_than_processes(tmp_path: Path, command: str, wrong: bool) -> None:
    own = TWO_GPUS.replace("gpu_ids: all", "gpu_ids: 0,1,2,3")
    found = told(tmp_path, command, gpus=8, own_yaml=own)
    assert [one.severity for one in found] == [Severity.WARNING] * wrong


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("CUDA_VISIBLE_DEVICES=2,3 deepspeed --num_gpus 2 other.py", True),
        ("bash run.sh", True),
        ("CUDA_VISIBLE_DEVICES=2,3 deepspeed --num_gpus 4 other.py", True),
        ("CUDA_VISIBLE_DEVICES=2,3 deepspeed other.py", False),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 2 other.py", False),
        ("CUDA_VISIBLE_DEVICES=2,3 deepspeed --include localhost:2,3 other.py", False),
        ("deepspeed --num_gpus 2 other.py", False),
        ("CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2 other.py", False),
    ],
)
def test_devices_that_deepspeed_ignores(tmp_path: Path, command: str, wrong: bool) -> None:
    run = "export CUDA_VISIBLE_DEVICES=4,5,6,7\ndeepspeed --num_gpus=4 other.py\n"
    found = told(tmp_path, command, gpus=8, run_sh=run)
    assert ["deepspeed ignores it" in one.because for one in found] == [True] * wrong


JOINS = """
    import argparse
    import os
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    WORLD = 4
    p = argparse.ArgumentParser()
    p.add_argument("--world_size", type=int, default=4)
    args = p.parse_args()
    def main(args):
        local = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local)
        {}
        model = DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), device_ids=[local])
        dist.destroy_process_group()
    if __name__ == "__main__":
        main(args)
"""
JOIN = 'dist.init_process_group("nccl", world_size={}, rank=int(os.environ["RANK"]))'
EIGHT = "torchrun --nproc-per-node 8 train.py"
TASKS = "srun -N2 --ntasks-per-node=4 --gpus-per-node=4 python train.py"


@pytest.mark.parametrize(
    ("command", "line", "wrong"),
    [
        (EIGHT, JOIN.format(4), True),
        (EIGHT, JOIN.format("WORLD"), True),
        (EIGHT, JOIN.format("args.world_size"), True),
        (TASKS, JOIN.format(4), True),
        ("torchrun --nproc-per-node 2 train.py", JOIN.format(4), True),
        ("torchrun --nproc-per-node 4 train.py", JOIN.format(4), False),
        (f"{EIGHT} --world_size 8", JOIN.format("args.world_size"), False),
        (EIGHT, JOIN.format('int(os.environ["WORLD_SIZE"])'), False),
        (EIGHT, JOIN.format("-1"), False),
        (
            EIGHT,
            'args.world_size = int(os.environ["WORLD_SIZE"])\n        '
            + JOIN.format("args.world_size"),
            False,
        ),
        (EIGHT, f"args.world_size *= 2\n        {JOIN.format('args.world_size')}", False),
        (EIGHT, f"if os.environ.get('FOUR'):\n            {JOIN.format(4)}", False),
        # Other processes may be started by hand.
        ("python train.py", JOIN.format(4), False),
    ],
)
def test_a_world_size_of_the_script(tmp_path: Path, command: str, line: str, wrong: bool) -> None:
    found = reviewed(tmp_path, command, JOINS.format(line), gpus=8)
    told = [one for one in found if "joins a world of 4 ranks" in one.because]
    assert [one.cause for one in told] == ["world-size-mismatch"] * wrong


SPAWNS = """
    import os
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch.nn.parallel import DistributedDataParallel
    def work(rank, world):
        dist.init_process_group("nccl", rank=rank, world_size=world)
        torch.cuda.set_device(rank)
        model = DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), device_ids=[rank])
        dist.destroy_process_group()
    if __name__ == "__main__":
        {}
"""
ALL = "mp.spawn(work, args=(8,), nprocs={})"


@pytest.mark.parametrize(
    ("command", "line", "says"),
    [
        (EIGHT, ALL.format(8), "each of them starts 8 more"),
        (EIGHT, ALL.format("torch.cuda.device_count()"), "each of them starts several more"),
        (TASKS, ALL.format(4), "srun starts 4 ranks on a host, and each of them starts 4 more"),
        ("torchrun --nproc-per-node 1 train.py", ALL.format(8), ""),
        ("python train.py", ALL.format(8), ""),
        (
            EIGHT,
            'if "RANK" in os.environ:\n            work(int(os.environ["RANK"]), 8)\n'
            f"        else:\n            {ALL.format(8)}",
            "",
        ),
    ],
)
def test_ranks_that_start_ranks(tmp_path: Path, command: str, line: str, says: str) -> None:
    found = reviewed(tmp_path, command, SPAWNS.format(line), gpus=8)
    told = [one.because for one in found if "each of them starts" in one.because]
    assert len(told) == bool(says)
    assert all(says in one for one in told)


@pytest.mark.parametrize(
    ("processes", "world", "wrong"),
    [(4, 8, True), (8, 8, False), ("torch.cuda.device_count()", 8, False)],
)
def test_fewer_processes_than_the_group_waits_for(
    tmp_path: Path, processes: str | int, world: int, wrong: bool
) -> None:
    source = SPAWNS.format(ALL.format(processes)).replace("world_size=world", f"world_size={world}")
    found = reviewed(tmp_path, "python train.py", source, gpus=8)
    assert [one.cause for one in found] == ["world-size-mismatch"] * wrong
