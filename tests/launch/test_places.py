"""Where the ranks of several hosts meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import told
from tests.launch.reviewed import reviewed
from tests.launch.test_what_starts import head
from tests.script.sources import ddp

HOSTS = "n1 slots=8\nn2 slots=8\n"
JOB = """
    #!/bin/bash
    #SBATCH --nodes={nodes}
    #SBATCH --ntasks-per-node={each}
    #SBATCH --gpus-per-node=8
    #SBATCH --cpus-per-task=16
    {before}
    {line}
"""
PYTHON = "srun python other.py"
LAST = "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | {})"
STATIC = (
    "srun bash -c 'torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$SLURM_NODEID "
    "--master-addr=$MASTER_ADDR train.py'"
)
MACHINES = (
    "srun bash -c 'accelerate launch --num_machines 2 --num_processes 16 --machine_rank "
    "$SLURM_PROCID --main_process_ip $MASTER_ADDR --main_process_port 29500 {} train.py'"
)
C10D = (
    "srun torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-id=7 "
    "--rdzv-endpoint=$MASTER_ADDR:29500 train.py"
)
TORCH_TUTORIAL = """nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
    export MASTER_ADDR=${{nodes[{}]}}"""


def meets_elsewhere(folder: Path, command: str, *, job_sbatch: str = "") -> list[Severity]:
    found = told(folder, command, hosts_txt=HOSTS, job_sbatch=job_sbatch)
    return [one.severity for one in found if "look for rank 0" in one.because]


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("deepspeed --hostfile hosts.txt --master_addr n2 train.py", True),
        ("deepspeed -H hosts.txt --master_addr=n2.lab.org train.py", True),
        ("deepspeed -H hosts.txt --include n2@n1:0,1 --master_addr=n2 train.py", True),
        ("deepspeed --hostfile hosts.txt --master_addr n1 train.py", False),
        ("deepspeed --hostfile hosts.txt --include n2:0,1 --master_addr n2 train.py", False),
        ("deepspeed --hostfile hosts.txt --exclude n1 --master_addr n2 train.py", False),
        # The address of either host.
        ("deepspeed --hostfile hosts.txt --master_addr 10.0.0.2 train.py", False),
        ("mpirun -np 16 -host n1:8,n2:8 -x MASTER_ADDR=n2 python other.py", True),
        ("mpirun -np 16 --hostfile hosts.txt -x MASTER_ADDR=n2 python other.py", True),
        ("MASTER_ADDR=n2 mpirun -np 16 -H n1:8,n2:8 -x MASTER_ADDR python other.py", True),
        ("mpirun -np 16 -host n1:8,n2:8 -x MASTER_ADDR=n1 python other.py", False),
        ("MASTER_ADDR=n2 srun -N2 -w n2,n1 --ntasks-per-node=8 python other.py", True),
        ("MASTER_ADDR=n10 srun -N2 --nodelist=n9,n10 -n 16 python other.py", True),
        ("MASTER_ADDR=n1 srun -N2 -w n2,n1 --ntasks-per-node=8 python other.py", False),
        ("MASTER_ADDR=n9 srun -N2 --nodelist=n10,n9 -n 16 python other.py", False),
        ("MASTER_ADDR=n2 srun -N2 -w n[1-2] --ntasks-per-node=8 python other.py", False),
        ("mpirun -np 16 --hostfile none.txt -x MASTER_ADDR=n2 python other.py", False),
        ("mpirun -np 16 -host n2:8,n1:8 -x MASTER_ADDR=n2 python other.py", False),
    ],
)
def test_an_address_in_a_list_of_hosts(tmp_path: Path, command: str, wrong: bool) -> None:
    assert meets_elsewhere(tmp_path, command) == [Severity.ERROR] * wrong


@pytest.mark.parametrize(
    ("before", "line", "told_as"),
    [
        (LAST.format("tail -n 1"), PYTHON, Severity.ERROR),
        (LAST.format("tail -1"), STATIC, Severity.ERROR),
        (LAST.format("sed -n 2p"), MACHINES.format(""), Severity.ERROR),
        (TORCH_TUTORIAL.format(1), STATIC, Severity.WARNING),
        (LAST.format("head -n 1"), PYTHON, None),
        (LAST.format("tail -n +1 | head -n 1"), STATIC, None),
        (LAST.format("sed -n 1p"), MACHINES.format(""), None),
        (TORCH_TUTORIAL.format(0), STATIC, None),
        # With c10d, the host of the endpoint has the store, whichever it is.
        (LAST.format("tail -n 1"), C10D, None),
        (LAST.format("tail -n 1"), MACHINES.format("--rdzv_backend c10d"), None),
    ],
)
def test_an_address_of_a_job(
    tmp_path: Path, before: str, line: str, told_as: Severity | None
) -> None:
    job = JOB.format(nodes=2, each=8 if line == PYTHON else 1, before=before, line=line)
    found = meets_elsewhere(tmp_path, "sbatch job.sbatch", job_sbatch=job)
    assert found == ([told_as] if told_as is not None else [])


def test_the_last_host_of_one(tmp_path: Path) -> None:
    job = JOB.format(nodes=1, each=8, before=LAST.format("tail -n 1"), line=PYTHON)
    assert not meets_elsewhere(tmp_path, "sbatch job.sbatch", job_sbatch=job)


def test_where_the_ranks_meet_is_shown(tmp_path: Path) -> None:
    line = "mpirun -np 16 -host n1:8,n2:8 -x MASTER_ADDR=n1 -x MASTER_PORT=29501 python train.py"
    assert head(tmp_path, line, ddp())["rendezvous"] == "n1:29501 (the command line)"
    line = "torchrun --nnodes 2 --node-rank 0 --master-addr n1 train.py"
    assert head(tmp_path, line, ddp())["rendezvous"] == "n1 (the command line)"
    assert "rendezvous" not in head(tmp_path, "torchrun --master-addr n1 train.py", ddp())


IN_FUNCTION = """
    import os
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    def set_up(rank, world, args):
        {}
        dist.init_process_group("nccl", {}rank=rank, world_size=world)
    def main(args):
        local = int(os.environ["SLURM_LOCALID"])
        set_up(int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"]), args)
        torch.cuda.set_device(local)
        model = DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), device_ids=[local])
        dist.destroy_process_group()
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--master_addr", default="localhost")
    parser.add_argument("--dist_url", default="tcp://localhost:29500")
    main(parser.parse_args())
"""
ALWAYS = 'os.environ["MASTER_ADDR"] = "localhost"'
BY_DEFAULT = 'os.environ.setdefault("MASTER_ADDR", "127.0.0.1")'
TASKS = "sbatch job.sbatch"
HOSTFILE = "mpirun -np 16 -hostfile hosts.txt -x MASTER_ADDR=n1"
OWN = "export MASTER_ADDR=$(hostname)"
TORCHRUN = "torchrun --nnodes 2 --node-rank 0 --master-addr n1 --nproc-per-node 8 train.py"


@pytest.mark.parametrize(
    ("command", "before", "sets", "method", "wrong"),
    [
        (TASKS, "", ALWAYS, "", True),
        (TASKS, OWN, ALWAYS, "", True),
        (TASKS, "", 'os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1234")', "", True),
        (TASKS, "", 'os.environ["MASTER_ADDR"] = args.master_addr', "", True),
        (TASKS, "", "pass", 'init_method="tcp://127.0.0.1:29500", ', True),
        (TASKS, "", "pass", "init_method=args.dist_url, ", True),
        (f"{HOSTFILE} python train.py", "", ALWAYS, "", True),
        (TASKS, "", BY_DEFAULT, "", True),
        (TORCHRUN, "", ALWAYS, "", True),
        (
            TASKS,
            "",
            'os.environ["MASTER_ADDR"] = os.environ["SLURM_LAUNCH_NODE_IPADDR"]',
            "",
            False,
        ),
        (TASKS, "", "pass", 'init_method="tcp://n1:29500", ', False),
        (TASKS, "", f'if os.environ.get("DEBUG"):\n            {ALWAYS}', "", False),
        (TASKS, "", f'if "MASTER_ADDR" not in os.environ:\n            {ALWAYS}', "", False),
        (TASKS, OWN, BY_DEFAULT, "", False),
        (TORCHRUN, "", BY_DEFAULT, "", False),
        (
            TASKS,
            "",
            'args.master_addr = os.environ["SLURM_LAUNCH_NODE_IPADDR"]\n'
            '        os.environ["MASTER_ADDR"] = args.master_addr',
            "",
            False,
        ),
        (f"{TORCHRUN} --dist_url env://", "", "pass", "init_method=args.dist_url, ", False),
        # The ranks may be on one of the hosts.
        ("mpirun -np 8 -hostfile hosts.txt python train.py", "", ALWAYS, "", False),
        (
            TORCHRUN,
            "",
            'os.environ["MASTER_ADDR"] = os.environ.get("MASTER_ADDR", "localhost")',
            "",
            False,
        ),
        ("torchrun --nproc-per-node 8 train.py", "", ALWAYS, "", False),
        ("python train.py", "", ALWAYS, "", False),
        ("srun -N1 --ntasks-per-node=8 python train.py", "", ALWAYS, "", False),
    ],
)
def test_a_local_address_in_the_script(
    tmp_path: Path, command: str, before: str, sets: str, method: str, wrong: bool
) -> None:
    job = JOB.format(nodes=2, each=8, before=before, line="srun python train.py")
    source = IN_FUNCTION.format(sets, method)
    found = reviewed(tmp_path, command, source, job_sbatch=job, hosts_txt=HOSTS)
    local = [one for one in found if "local address that the script sets" in one.because]
    assert [one.cause for one in local] == ["launch-config-invalid"] * wrong


ON_ALL = "srun {} --node-rank={} --master-addr=n1 --nproc-per-node=8 train.py"
OF_TORCHRUN = "torchrun --nnodes=2"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (ON_ALL.format(OF_TORCHRUN, "0"), True),
        (ON_ALL.format(OF_TORCHRUN, "$SLURM_NODEID"), True),
        (MACHINES.format("").replace("$SLURM_PROCID", "0"), True),
        (MACHINES.format("").replace("bash -c '", "").replace("'", ""), True),
        # Such a rendezvous counts the hosts itself.
        (ON_ALL.format(f"{OF_TORCHRUN} --rdzv-backend=c10d --rdzv-endpoint=n1:29500", "0"), False),
        (MACHINES.format("--rdzv_backend c10d").replace("$SLURM_PROCID", "0"), False),
        (
            MACHINES.format("--rdzv_backend c10d").replace("bash -c '", "").replace("'", ""),
            False,
        ),
    ],
)
def test_one_number_for_all_hosts(tmp_path: Path, line: str, wrong: bool) -> None:
    before = LAST.format("head -n 1")
    job = JOB.format(nodes=2, each=1, before=before, line=line)
    found = told(tmp_path, "sbatch job.sbatch", job_sbatch=job)
    assert ["gets the number" in one.because for one in found] == [True] * wrong
