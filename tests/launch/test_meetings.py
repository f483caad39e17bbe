"""Tasks, numbers and addresses by which hosts and ranks do not find each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import SCRIPT, told

JOB = """
    #!/bin/bash
    #SBATCH --nodes=2
    #SBATCH --gres=gpu:8
    #SBATCH {tasks}
    first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    {srun} --nnodes=2 --nproc-per-node=8 {meets} train.py
"""
STATIC = "--master-addr=$first --master-port=29500"
C10D = "--rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint=$first:29500"


def errors(folder: Path, command: str, job: str = "", own: str = "") -> list[str]:
    found = told(folder, command, train_py=SCRIPT, job_sb=job, own_py=own)
    return [one.because for one in found if one.severity > Severity.NOTE]


@pytest.mark.parametrize(
    ("tasks", "srun", "wrong"),
    [
        ("--ntasks-per-node=8", "srun torchrun", "srun starts 8 tasks on each host"),
        ("--ntasks=16", "srun torchrun", "srun starts 8 tasks on each host (job.sb:4)"),
        ("--ntasks=2", "srun torchrun", ""),
        # The number on srun's line goes before.
        ("--ntasks-per-node=8", "srun --ntasks=2 torchrun", ""),
        ("--ntasks=16", "srun --ntasks-per-node=1 torchrun", ""),
    ],
)
def test_tasks_that_each_start_all_ranks(tmp_path: Path, tasks: str, srun: str, wrong: str) -> None:
    job = JOB.format(tasks=tasks, srun=srun, meets=C10D)
    found = errors(tmp_path, "sbatch job.sb", job)
    assert [wrong in one for one in found] == [True] if wrong else found == []


@pytest.mark.parametrize("tasks", ["--ntasks-per-node=8", "--ntasks=8"])
def test_tasks_that_nothing_starts(tmp_path: Path, tasks: str) -> None:
    job = f"#SBATCH --nodes=1 {tasks} --gres=gpu:8\ntorchrun --nproc-per-node=8 train.py\n"
    assert errors(tmp_path, "sbatch job.sb", job) == []


@pytest.mark.parametrize(
    ("srun", "meets", "wrong"),
    [
        ("srun torchrun", STATIC, "gives them no --node-rank"),
        ("srun torchrun", "--rdzv-endpoint=$first:29500", "gives them no --node-rank"),
        ("srun torchrun", C10D, ""),
        ("export PET_NODE_RANK=$(number)\n    srun torchrun", STATIC, ""),
        (
            "srun torchrun",
            C10D.replace("--rdzv-endpoint=$first:29500", STATIC),
            "waits for the others at its own localhost",
        ),
        ("srun torchrun", f"{C10D} {STATIC}", ""),
        ("export PET_RDZV_ENDPOINT=$first\n    srun torchrun", f"--rdzv-backend=c10d {STATIC}", ""),
    ],
)
def test_hosts_that_do_not_meet(tmp_path: Path, srun: str, meets: str, wrong: str) -> None:
    job = JOB.format(tasks="--ntasks-per-node=1", srun=srun, meets=meets)
    found = errors(tmp_path, "sbatch job.sb", job)
    assert [wrong in one for one in found] == [True] if wrong else found == []


@pytest.mark.parametrize(
    ("hosts", "wrong"),
    [
        ("-H n1:4,n2:4", True),
        ("-H n1:8,n2:8", False),
        ("-H n1,n2", False),
        ("-H n1:4,n2:4 --oversubscribe", False),
        ("-H n1:4,n2:4 --map-by :OVERSUBSCRIBE", False),
    ],
)
def test_slots_of_open_mpi(tmp_path: Path, hosts: str, wrong: bool) -> None:
    found = errors(tmp_path, f"mpirun -np 16 {hosts} python train.py")
    assert any("the hosts have 8 slots" in one for one in found) is wrong


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("torchrun train.py --nproc-per-node 8", "torchrun, and stands behind the script"),
        ("accelerate launch train.py --num_processes=4", "accelerate, and stands behind"),
        ("torchrun --nproc-per-node 8 train.py", ""),
        ("torchrun --nproc-per-node 8 train.py --lr 3", ""),
        ("torchrun own.py --nnodes 8", ""),
    ],
)
def test_options_behind_the_script(tmp_path: Path, command: str, wrong: str) -> None:
    own = SCRIPT.replace("--lr", "--nnodes")
    found = errors(tmp_path, command, own=own)
    assert [wrong in one for one in found] == [True] if wrong else found == []


@pytest.mark.parametrize(
    ("module", "wrong"),
    [("pkg.trian", True), ("pkg.train", False), ("elsewhere.trian", False), ("pkg", False)],
)
def test_a_module_that_is_not_there(tmp_path: Path, module: str, wrong: bool) -> None:
    (tmp_path / "pkg").mkdir()
    for name in ("__init__", "__main__", "train"):
        (tmp_path / "pkg" / f"{name}.py").touch()
    found = errors(tmp_path, f"torchrun --nproc-per-node 2 -m {module}")
    assert any(f"there is no module {module}" in one for one in found) is wrong


TWO = """
    ssh n1 'torchrun --nnodes=2 --node-rank={} --master-addr=n1 --master-port=29500 train.py' &
    ssh n2 'torchrun --nnodes=2 --node-rank={} --master-addr=n1 --master-port={} train.py' {}
"""


@pytest.mark.parametrize(
    ("first", "second", "port", "end", "wrong"),
    [
        (0, 0, 29500, "&\n    wait", True),
        (1, 1, 29500, "", True),
        (0, 1, 29500, "&\n    wait", False),
        # Another training.
        (0, 0, 29501, "&\n    wait", False),
        ("$FIRST", "$SECOND", 29500, "", False),
    ],
)
def test_two_hosts_with_one_number(
    tmp_path: Path, first: object, second: object, port: int, end: str, wrong: bool
) -> None:
    found = errors(tmp_path, "bash job.sb", TWO.format(first, second, port, end))
    assert any("two of the 2 hosts get the number" in one for one in found) is wrong


IN_TEXT = """
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=1
    #SBATCH --gres=gpu:8
    srun {} {}torchrun --nnodes=2 --nproc-per-node=8 --node-rank={} {}train.py{}
"""
MEETS = "--master-addr=n0 --master-port=29500 "
COUNTED = "--rdzv-backend=c10d --rdzv-endpoint=n0:29500 "


@pytest.mark.parametrize(
    ("shell", "quote", "number", "meets", "wrong"),
    [
        ("bash -c", '"', "$SLURM_NODEID", MEETS, True),
        ("bash -lc", '"', "${SLURM_PROCID}", MEETS, True),
        ("", "", "$SLURM_NODEID", MEETS, True),
        ("bash -c", "'", "$SLURM_NODEID", MEETS, False),
        ("bash -c", '"', "\\$SLURM_NODEID", MEETS, False),
        ("bash -c", '"', "$SLURM_NODEID", COUNTED, False),
    ],
)
def test_a_number_that_the_batch_script_puts_in(
    tmp_path: Path, shell: str, quote: str, number: str, meets: str, wrong: bool
) -> None:
    job = IN_TEXT.format(shell, quote, number, meets, quote)
    found = errors(tmp_path, "sbatch job.sb", job)
    assert [" before srun starts " in one for one in found] == [True] * wrong
