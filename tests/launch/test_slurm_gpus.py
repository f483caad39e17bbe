"""GPUs that jobs of Slurm ask for, against the tasks that use them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.analysis.granted_gpus import gpus_per_host
from ddoctor.models import Severity
from tests.launch.reviewed import reviewed
from tests.launched import launched

SCRIPT = """
    import os
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    rank, local = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_LOCALID"])
    dist.init_process_group("nccl", rank=rank, world_size=int(os.environ["SLURM_NTASKS"]))
    torch.cuda.set_device(local)
    model = DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), device_ids=[local])
    dist.destroy_process_group()
"""
JOB = """
    #!/bin/bash
    #SBATCH --nodes=2
    #SBATCH --cpus-per-task=16
    {}
    export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
    {}
"""
SRUN = "srun python train.py"


def told(folder: Path, lines: str, command: str = SRUN, source: str = SCRIPT) -> list[str]:
    rows = "\n    ".join(f"#SBATCH {one}" for one in lines.split())
    job = JOB.format(rows, command)
    return [
        f"{one.severity.value} {one.cause}: {one.because}"
        for one in reviewed(folder, "sbatch job.sbatch", source, gpus=0, job_sbatch=job)
    ]


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        ("--nodes=2 --gres=gpu:8", 8),
        ("--nodes=2 --gres=gpu:h100:8", 8),
        ("--nodes=2 --gres=gpu:8,nvme:1", 8),
        ("--nodes=2 --gres=gpu", 1),
        ("--nodes=2 --gres=gpu:a100:2(S:0-1),gpu:v100:2", 4),
        ("--nodes=2 --gpus-per-node=4", 4),
        ("--nodes=2 --gpus-per-node=h100:4", 4),
        ("--nodes=2 --gpus=16", 8),
        ("--nodes=2 -G h100:16", 8),
        ("--nodes=2 --ntasks-per-node=4 --gpus-per-task=1", 4),
        ("--nodes=2 --ntasks=16 --gpus-per-task=1", 8),
        ("--nodes=2 --gpus=15", None),
        ("--gpus=16", None),
        ("--nodes=2 --gres=nvme:1", None),
        ("--nodes=2", None),
    ],
)
def test_the_gpus_of_a_host(tmp_path: Path, lines: str, count: int | None) -> None:
    launch = launched(tmp_path, f"srun {lines} python train.py", train_py=SCRIPT)
    found = gpus_per_host(launch)
    assert (found.number if found is not None else None) == count


SPAWNS = SCRIPT + "    torch.multiprocessing.spawn(print, nprocs=2)\n"
SPREAD = SCRIPT + "    model = torch.nn.DataParallel(torch.nn.Linear(8, 8))\n"


@pytest.mark.parametrize(
    ("lines", "command", "source", "wrong"),
    [
        ("--ntasks-per-node=4 --gres=gpu:8", SRUN, SCRIPT, True),
        ("--ntasks=8 --gpus=16", SRUN, SCRIPT, True),
        ("--ntasks-per-node=1 --gpus-per-node=h100:8", SRUN, SCRIPT, True),
        ("--ntasks-per-node=4 --gpus-per-task=2 --gpu-bind=none", SRUN, SCRIPT, True),
        ("--ntasks-per-node=8 --gres=gpu:8", SRUN, SCRIPT, False),
        ("--ntasks=16 --gpus=16", SRUN, SCRIPT, False),
        ("--ntasks-per-node=4 --gres=gpu:8", SRUN, SPAWNS, False),
        ("--ntasks-per-node=4 --gres=gpu:8", SRUN, SPREAD, False),
        (
            "--ntasks-per-node=4 --gres=gpu:8",
            f"export CUDA_VISIBLE_DEVICES=0,1,2,3\n    {SRUN}",
            SCRIPT,
            False,
        ),
        ("--ntasks-per-node=4 --gres=gpu:8", f"srun vllm serve &\n    {SRUN}", SCRIPT, False),
    ],
)
def test_idle_gpus(tmp_path: Path, lines: str, command: str, source: str, wrong: bool) -> None:
    found = told(tmp_path, lines, command, source)
    idle = [one for one in found if "GPUs stay idle" in one]
    assert [one.partition(":")[0] for one in idle] == ["warning launch-config-invalid"] * wrong
    assert wrong or not found


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("--ntasks-per-node=8 --gres=gpu:4", True),
        ("--ntasks-per-node=8 --gpus=8", True),
        ("--ntasks=16 --gpus-per-node=a100:4", True),
        ("--ntasks-per-node=4 --gpus=8", False),
        ("--ntasks=8 --gres=gpu:a100:4", False),
    ],
)
def test_two_ranks_on_a_gpu(tmp_path: Path, lines: str, wrong: bool) -> None:
    found = told(tmp_path, lines)
    assert ["nproc-exceeds-visible-gpus" in one for one in found] == [True] * wrong


GUARDED = SCRIPT.replace("torch.cuda.set_device(local)", "print(torch.cuda.is_available())")
GLOO = SCRIPT.replace('"nccl"', '"gloo"').replace("torch.cuda.set_device(local)", "")


@pytest.mark.parametrize(
    ("lines", "source", "severity"),
    [
        ("--ntasks-per-node=4", SCRIPT, Severity.WARNING),
        ("--ntasks-per-node=4 --time=1:00:00", SCRIPT, Severity.WARNING),
        ("--ntasks-per-node=4 --partition=main", SCRIPT, Severity.NOTE),
        ("--ntasks-per-node=4 --qos=long", SCRIPT, Severity.NOTE),
        ("--ntasks-per-node=4 --partition=h100", SCRIPT, None),
        ("--ntasks-per-node=4 --constraint=gpu", SCRIPT, None),
        ("--ntasks-per-node=4 --exclusive", SCRIPT, None),
        ("--ntasks-per-node=4 --gres=gpu:4", SCRIPT, None),
        ("--ntasks-per-node=4 --gpus-per-node=4", SCRIPT, None),
        ("--ntasks-per-node=4 --gpus-per-socket=2", SCRIPT, None),
        ("--ntasks-per-node=4 --tres-per-task=gres/gpu:1", SCRIPT, None),
        ("--ntasks-per-node=4 --cpus-per-gpu=8", SCRIPT, None),
        ("--ntasks-per-node=4 --partition=main", GUARDED, None),
        ("--ntasks-per-node=1", GLOO, None),
    ],
)
def test_a_job_that_asks_for_no_gpu(
    tmp_path: Path, lines: str, source: str, severity: Severity | None
) -> None:
    found = [one for one in told(tmp_path, lines, SRUN, source) if "asks for no GPU" in one]
    assert [one.partition(" ")[0] for one in found] == ([severity.value] if severity else [])


MODULO = SCRIPT.replace(
    "set_device(local)", "set_device(rank % torch.cuda.device_count())"
).replace("device_ids=[local]", "")
FIRST = SCRIPT.replace("set_device(local)", "set_device(0)")
BY_WORD = SCRIPT.replace("torch.cuda.set_device(local)", 'device = torch.device("cuda", local)')
ONE_EACH = "srun bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python train.py'"


@pytest.mark.parametrize(
    ("lines", "command", "source", "wrong"),
    [
        ("--ntasks-per-node=4 --gpus-per-task=1", SRUN, SCRIPT, True),
        ("--ntasks=8 --gpus-per-task=h100:1", SRUN, SCRIPT, True),
        ("--ntasks-per-node=4 --gpus-per-task=1", SRUN, BY_WORD, True),
        ("--ntasks-per-node=4 --gpus-per-node=4 --gpu-bind=single:1", SRUN, SCRIPT, True),
        ("--ntasks-per-node=4 --gpus-per-node=4", ONE_EACH, SCRIPT, True),
        ("--ntasks-per-node=4 --gpus-per-node=4", SRUN, SCRIPT, False),
        ("--ntasks-per-node=4 --gpus-per-task=1 --gpu-bind=none", SRUN, SCRIPT, False),
        ("--ntasks-per-node=4 --gpus-per-task=1 --tres-bind=gres/gpu:none", SRUN, SCRIPT, False),
        ("--ntasks-per-node=4 --gpus=8 --tres-bind=gres/gpu:per_task:1", SRUN, SCRIPT, True),
        ("--ntasks-per-node=4 --gpus-per-node=4 --gpu-bind=closest", SRUN, SCRIPT, False),
        ("--ntasks-per-node=4 --gpus-per-task=1", SRUN, MODULO, False),
        ("--ntasks-per-node=4 --gpus-per-task=1", SRUN, FIRST, False),
        ("--ntasks-per-node=1 --gpus-per-task=1", SRUN, SCRIPT, False),
    ],
)
def test_a_gpu_that_is_hidden(
    tmp_path: Path, lines: str, command: str, source: str, wrong: bool
) -> None:
    found = told(tmp_path, lines, command, source)
    hidden = [one for one in found if "invalid device ordinal" in one]
    assert [one.partition(":")[0] for one in hidden] == ["error wrong-device-binding"] * wrong
    assert wrong or not found


@pytest.mark.parametrize(
    ("lines", "variable", "ranks"),
    [
        ("--ntasks-per-node=1 --gres=gpu:a100:8", "SLURM_GPUS_ON_NODE", 16),
        ("--ntasks-per-node=1 --gpus=8", "SLURM_GPUS_ON_NODE", 8),
        ("--ntasks-per-node=1 --gpus=4", "SLURM_GPUS", 8),
        ("--ntasks-per-node=4", "SLURM_NTASKS", 16),
        ("--ntasks=6", "SLURM_NPROCS", 12),
        ("--ntasks-per-node=1", "SLURM_GPUS_ON_NODE", None),
        # It has no value where another option asks for them.
        ("--ntasks-per-node=1 --gres=gpu:8", "SLURM_GPUS_PER_NODE", None),
    ],
)
def test_variables_of_a_job(tmp_path: Path, lines: str, variable: str, ranks: int | None) -> None:
    rows = "\n    ".join(f"#SBATCH {one}" for one in lines.split())
    job = JOB.format(rows, f"srun torchrun --nnodes 2 --nproc-per-node ${variable} train.py")
    launch = launched(tmp_path, "sbatch job.sbatch", job_sbatch=job, train_py=SCRIPT)
    assert launch.ranks == ranks


@pytest.mark.parametrize(
    ("options", "idle"),
    [
        ("-N2 --gpus-per-node=8", True),
        ("-N2 --gpus-per-node=1", False),
        # By the CPUs of a task, srun may start several.
        ("-N2 --gpus-per-node=8 -c 8", False),
    ],
)
def test_one_task_on_each_host_unasked(tmp_path: Path, options: str, idle: bool) -> None:
    found = reviewed(tmp_path, f"srun {options} python train.py", SCRIPT, gpus=0)
    assert ["GPUs stay idle" in one.because for one in found] == [True] * idle


def test_options_after_one_with_a_value_of_its_own(tmp_path: Path) -> None:
    job = JOB.format(
        "#SBATCH --switches 1\n    #SBATCH --ntasks-per-node 4\n"
        "    #SBATCH --open-mode append\n    #SBATCH --gres gpu:4",
        SRUN,
    )
    launch = launched(tmp_path, "sbatch job.sbatch", job_sbatch=job, train_py=SCRIPT)
    assert (launch.ranks, launch.number("tasks-per-host")) == (8, 4)
    assert gpus_per_host(launch) is not None


@pytest.mark.parametrize("options", ["-K", "--kill-on-bad-exit=1", "--nice", "-m block", "-u -l"])
def test_options_of_srun_before_the_program(tmp_path: Path, options: str) -> None:
    line = f"srun -N2 {options} --ntasks-per-node=4 python train.py"
    assert launched(tmp_path, line, train_py=SCRIPT).ranks == 8
