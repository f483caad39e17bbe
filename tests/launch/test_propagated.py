"""Variables that reach the ranks of other hosts, and those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.files import told
from tests.launch.reviewed import reviewed

HOSTS = "n1 slots=8\nn2 slots=8\n"
CAUSE = "env-not-propagated-to-nodes"


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("NCCL_DEBUG=INFO HF_HOME=/s deepspeed --hostfile hosts.txt other.py", "HF_HOME"),
        ("WANDB_PROJECT=a deepspeed -H hosts.txt --launcher pdsh other.py", "WANDB_PROJECT"),
        ("bash run.sh", "PYTORCH_CUDA_ALLOC_CONF, TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("NCCL_DEBUG=INFO UCX_TLS=tcp deepspeed --hostfile hosts.txt other.py", ""),
        ("HF_HOME=/s deepspeed --hostfile hosts.txt --launcher slurm other.py", ""),
        ("HF_HOME=/s deepspeed --hostfile hosts.txt --no_ssh --node_rank 0 other.py", ""),
        ("HF_HOME=/s deepspeed --hostfile hosts.txt --include n1 other.py", ""),
        ("HF_HOME=/s deepspeed --num_gpus 8 other.py", ""),
        ("DS_ENV_FILE=/s/env HF_HOME=/s deepspeed --hostfile hosts.txt other.py", ""),
        ("WANDB_PROJECT=a mpirun -np 16 -H n1:8,n2:8 python other.py", ""),
    ],
)
def test_variables_of_deepspeed(tmp_path: Path, command: str, names: str) -> None:
    run = """
        export TORCH_NCCL_ASYNC_ERROR_HANDLING=1
        export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
        deepspeed --hostfile=hosts.txt other.py
    """
    found = [
        one for one in told(tmp_path, command, hosts_txt=HOSTS, run_sh=run) if one.cause == CAUSE
    ]
    assert [one.because.partition(" (")[0] for one in found] == [names] * bool(names)


def test_a_file_of_variables_reaches_all_hosts(tmp_path: Path) -> None:
    (tmp_path / ".deepspeed_env").write_text("HF_HOME=/s\n")
    command = "HF_HOME=/s {} deepspeed --hostfile hosts.txt other.py"
    assert not told(tmp_path, command.format(""), hosts_txt=HOSTS)
    found = told(tmp_path, command.format("HF_HUB_OFFLINE=1"), hosts_txt=HOSTS)
    assert [one.because.partition(" (")[0] for one in found] == ["HF_HUB_OFFLINE"]


RAY = """
    import ray
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer
    {}
    def loop(config): ...
    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=16, use_gpu=True)).fit()
"""
SUBMITTED = """ray job submit --runtime-env-json '{"env_vars": {"NCCL_DEBUG": "INFO"}}' --"""


@pytest.mark.parametrize(
    ("command", "init", "names"),
    [
        ("HF_HOME=/s python train.py", 'ray.init(address="auto")', "HF_HOME"),
        ("HF_HOME=/s python train.py", 'ray.init("ray://head:10001")', "HF_HOME"),
        (f"{SUBMITTED} HF_HOME=/s python train.py", "", "HF_HOME"),
        (
            "HF_HOME=/s NCCL_DEBUG=INFO python train.py",
            'ray.init("auto", runtime_env={"env_vars": {"HF_HOME": "/s"}})',
            "NCCL_DEBUG",
        ),
        (f"{SUBMITTED} NCCL_DEBUG=INFO python train.py", "", ""),
        ("HF_HOME=/s python train.py", "ray.init()", ""),
        ("HF_HOME=/s python train.py", "ray.init('auto', runtime_env=chosen())", ""),
        ("HF_HOME=/s python train.py", "ray.init('auto', runtime_env={'env_vars': ENV})", ""),
        ("ray job submit --runtime-env env.yaml -- HF_HOME=/s python train.py", "", ""),
        # `ray start` may have got it, too.
        ("bash run.sh", "ray.init('auto')", ""),
    ],
)
def test_variables_of_ray(tmp_path: Path, command: str, init: str, names: str) -> None:
    run = "export HF_HOME=/s\nray start --head\npython train.py\n"
    found = [
        one
        for one in reviewed(tmp_path, command, RAY.format(init), run_sh=run)
        if one.cause == CAUSE
    ]
    assert [one.because.partition(" (")[0] for one in found] == [names] * bool(names)


REMOTE = """
    export NCCL_SOCKET_IFNAME=eth1 EDITOR=vi
    for host in n1 n2; do
        {} "{}{}" &
    done
    wait
"""
JOINS = "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint n1:29500 "
ENV_INIT = "RANK=0 python "


@pytest.mark.parametrize(
    ("program", "before", "starts", "names"),
    [
        ("ssh $host", "cd /work && ", JOINS, "NCCL_SOCKET_IFNAME"),
        ("pdsh -w n1,n2", "", JOINS, "NCCL_SOCKET_IFNAME"),
        ("MASTER_ADDR=n1 ssh $host", "", ENV_INIT, "NCCL_SOCKET_IFNAME, MASTER_ADDR"),
        # torchrun gives its ranks its own address.
        ("MASTER_ADDR=n1 ssh $host", "", JOINS, "NCCL_SOCKET_IFNAME"),
        ("ssh $host", "export NCCL_SOCKET_IFNAME=$NCCL_SOCKET_IFNAME; ", JOINS, ""),
        ("ssh $host", "NCCL_SOCKET_IFNAME=eth1 ", JOINS, ""),
        ("ssh -o SendEnv=NCCL_SOCKET_IFNAME $host", "", JOINS, ""),
        ("ssh $host", "source /etc/env.sh; ", JOINS, ""),
        ("bash -c", "", JOINS, ""),
    ],
)
def test_variables_of_ssh(
    tmp_path: Path, program: str, before: str, starts: str, names: str
) -> None:
    run = REMOTE.format(program, before, f"{starts}other.py")
    found = [one for one in told(tmp_path, "bash run.sh", run_sh=run) if one.cause == CAUSE]
    assert [one.because.partition(" (")[0] for one in found] == [names] * bool(names)


OWN_PART = """
    export NCCL_SOCKET_IFNAME=eth1
    for i in 1 2; do
        ssh n$i "{}torchrun --nnodes 3 --node-rank $i --master-addr n0 {}" {}
    done
    {}
    torchrun --nnodes 3 --node-rank 0 --master-addr n0 other.py
"""


@pytest.mark.parametrize(
    ("before", "script", "behind", "after", "lost"),
    [
        ("cd /work && ", "other.py", "&", "", True),
        ("source venv/bin/activate && ", "other.py", "&", "", True),
        ("export NCCL_SOCKET_IFNAME=$NCCL_SOCKET_IFNAME; ", "other.py", "&", "", False),
        ("source /etc/env.sh; ", "other.py", "&", "", False),
        ("", "prepare.py", "&", "", False),
        ("", "other.py", "&", "wait", False),
        ("", "other.py", "", "", False),
    ],
)
def test_the_other_hosts_of_a_loop(
    tmp_path: Path, before: str, script: str, behind: str, after: str, lost: bool
) -> None:
    run = OWN_PART.format(before, script, behind, after)
    found = [one for one in told(tmp_path, "bash run.sh", run_sh=run) if one.cause == CAUSE]
    assert ["ssh" in one.because for one in found] == [True] * lost
