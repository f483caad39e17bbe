"""Mistakes in the shell scripts of launches."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor.errors import DoctorError
from ddoctor.models import Severity
from tests.launch.files import FSDP, SCRIPT, told
from tests.launch.reviewed import causes, reviewed
from tests.launched import launched

SLURM = """
    #!/bin/bash
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=1
    #SBATCH --gpus-per-node=4
    export {variable}=bond0
    MASTER_ADDR={address}
    srun torchrun --nnodes=2 --nproc-per-node=4 {more} train.py --lr 1e-3
"""
MEETS = "--rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint=$MASTER_ADDR:29500"
FIRST = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
BY_NUMBER = "--node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR --master-port=29500"
ARMS = """
    torchrun {first} --nproc-per-node 2 train.py --lr 1e-3 > a.log 2>&1 {ends}
    torchrun {second} --nproc-per-node 2 train.py --lr 1e-4 > b.log 2>&1 &
    wait
"""
TRAINER = """
    from transformers import HfArgumentParser, Trainer, TrainingArguments
    arguments = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    Trainer(model=model, args=arguments[0]).train()
"""
OWN_OPTIONS = """
    from accelerate import Accelerator
    from options import parser
    args = parser().parse_args()
    accelerator = Accelerator(mixed_precision=args.mixed_precision)
"""
OPTIONS = """
    import argparse
    def parser():
        found = argparse.ArgumentParser()
        found.add_argument("--mixed_precision", default="{}")
        return found
"""


@pytest.mark.parametrize(
    ("cause", "variable", "address", "more"),
    [
        ("hostname-resolution", "NCCL_SOCKET_IFNAME", "$SLURM_JOB_NODELIST", MEETS),
        ("launch-config-invalid", "NCCL_SOCKET_IFNAME", FIRST, BY_NUMBER),
        ("environment-variable-invalid", "NCCL_SOCKET_IFNAM", FIRST, MEETS),
        ("environment-variable-invalid", "NCCL_SOCKET_INTERFACE", FIRST, MEETS),
    ],
)
def test_a_batch_script(tmp_path: Path, cause: str, variable: str, address: str, more: str) -> None:
    (tmp_path / "jobs").mkdir()
    for name, text in (
        ("sick", SLURM.format(variable=variable, address=address, more=more)),
        ("sound", SLURM.format(variable="NCCL_SOCKET_IFNAME", address=FIRST, more=MEETS)),
    ):
        lines = [line.removeprefix("    ") for line in text.strip("\n").splitlines()]
        (tmp_path / "jobs" / f"{name}.sh").write_text("\n".join(lines))
    assert cause in {one.cause for one in told(tmp_path, "sbatch jobs/sick.sh")}
    assert cause not in {one.cause for one in told(tmp_path, "sbatch jobs/sound.sh")}


@pytest.mark.parametrize(
    ("first", "second", "ends", "severity"),
    [
        ("--master-port 29511", "--master-port 29511", "&", Severity.ERROR),
        ("--master-port 29511", "--master-port 29512", "&", None),
        ("--master-port 29511", "--master-port 29511", "", None),
        ("--master-port 29511", "--master-port 29511", "& wait", None),
        ("", "", "&", Severity.NOTE),
        ("--standalone", "--standalone", "&", None),
    ],
)
def test_launches_at_the_same_time(
    tmp_path: Path, first: str, second: str, ends: str, severity: Severity | None
) -> None:
    script = ARMS.format(first=first, second=second, ends=ends)
    found = {one.cause: one.severity for one in told(tmp_path, "bash run.sh", run_sh=script)}
    assert found.get("master-port-in-use") is severity


@pytest.mark.parametrize(
    ("config", "given", "wrong"),
    [
        ('{"fp16": {"enabled": true}}', "--bf16", True),
        ('{"bf16": {"enabled": true}}', "--bf16", False),
        ('{"bf16": {"enabled": "auto"}}', "--bf16", False),
        ('{"bf16": {"enabled": true}}', "", False),
        ('{"gradient_accumulation_steps": 4}', "--gradient_accumulation_steps 8", True),
        ('{"gradient_accumulation_steps": 4}', "--gradient_accumulation_steps 4", False),
        ('{"optimizer": {"params": {"lr": 1e-4}}}', "--learning_rate 0.0001", False),
        ('{"optimizer": {"params": {"lr": 1e-4}}}', "--learning_rate 3e-4", True),
    ],
)
def test_a_file_of_deepspeed_and_the_trainer(
    tmp_path: Path, config: str, given: str, wrong: bool
) -> None:
    command = f"torchrun --standalone --nproc-per-node 4 train.py --deepspeed ds.json {given}"
    found = causes(tmp_path, command, TRAINER, ds_json=config)
    assert ("launch-config-invalid" in found) is wrong


@pytest.mark.parametrize(("default", "wrong"), [("no", True), ("bf16", False)])
def test_options_in_another_module(tmp_path: Path, default: str, wrong: bool) -> None:
    command = "accelerate launch --num_processes 2 --mixed_precision bf16 train.py"
    found = causes(tmp_path, command, OWN_OPTIONS, options_py=OPTIONS.format(default))
    assert ("mixed-precision-overridden" in found) is wrong


MAKEFILE = """
    GPUS ?= 8
    PORT = 29507
    .PHONY: train test
    train: data
    \tOMP_NUM_THREADS=4 torchrun --nproc_per_node=$(GPUS) --master_port=$(PORT) \\
    \t  train.py --lr 1e-3
    test:
    \tpytest -q
"""
SKY = """
    name: rows
    num_nodes: {nodes}
    resources:
      accelerators: H100:8
    envs:
      NCCL_DEBUG: WARN
    run: |
      HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
      torchrun --nnodes={hosts} --nproc_per_node={ranks} \\
        --node_rank=$SKYPILOT_NODE_RANK --master_addr=$HEAD --master_port=12375 \\
        train.py --lr 1e-3
"""
MACHINES = """
    compute_environment: LOCAL_MACHINE
    distributed_type: MULTI_GPU
    num_machines: 4
    num_processes: {}
    rdzv_backend: static
"""
BATCH = """
    #!/bin/bash
    #SBATCH --nodes=4
    #SBATCH --ntasks-per-node=1
    #SBATCH --gpus-per-node=8
    srun bash -c 'accelerate launch --config_file four.yaml --machine_rank $SLURM_PROCID \\
      --main_process_ip node1 --main_process_port 29500 train.py --lr 1e-3'
"""


@pytest.mark.parametrize(
    ("command", "ranks"), [("make train", 8), ("make train GPUS=2", 2), ("make GPUS=4", 4)]
)
def test_a_makefile(tmp_path: Path, command: str, ranks: int) -> None:
    (tmp_path / "Makefile").write_text(dedent(MAKEFILE).lstrip("\n"))
    launch = launched(tmp_path, command, train_py=SCRIPT)
    assert (launch.ranks, launch.script) == (ranks, "train.py")
    assert (launch.file, launch.number("main-port")) == ("Makefile", 29507)
    assert launch.line == 5


@pytest.mark.parametrize("command", ["make test", "make", "make -f other.mk train"])
def test_no_launch_in_a_makefile(tmp_path: Path, command: str) -> None:
    (tmp_path / "Makefile").write_text("test:\n\tpytest -q\n")
    with pytest.raises(DoctorError, match="no launch of a training was found"):
        launched(tmp_path, command)


@pytest.mark.parametrize(
    ("hosts", "ranks", "found"),
    [
        ("$SKYPILOT_NUM_NODES", "$SKYPILOT_NUM_GPUS_PER_NODE", []),
        ("$SKYPILOT_NUM_NODES", "16", ["nproc-exceeds-visible-gpus"]),
    ],
)
def test_a_task_of_skypilot(tmp_path: Path, hosts: str, ranks: str, found: list[str]) -> None:
    task = SKY.format(nodes=2, hosts=hosts, ranks=ranks)
    command = "sky launch -c rows --yes task.yaml"
    assert [one.cause for one in told(tmp_path, command, task_yaml=task)] == found
    assert launched(tmp_path, command).hosts == 2


@pytest.mark.parametrize(("processes", "wrong"), [(8, True), (32, False), (16, True), (24, False)])
def test_processes_of_one_machine(tmp_path: Path, processes: int, wrong: bool) -> None:
    (tmp_path / "four.sbatch").write_text(dedent(BATCH).lstrip("\n"))
    found = told(tmp_path, "sbatch four.sbatch", four_yaml=MACHINES.format(processes))
    assert ("world-size-mismatch" in {one.cause for one in found}) is wrong


@pytest.mark.parametrize(
    ("more", "cause", "wrong"),
    [
        ("--num_workers=0", "dataloader-bottleneck", True),
        ("--num_workers=4", "dataloader-bottleneck", False),
        ("--config_path=x --resume=true", "launch-config-invalid", True),
        ("--config_path=x --resume=false", "launch-config-invalid", False),
    ],
)
def test_lerobot(tmp_path: Path, more: str, cause: str, wrong: bool) -> None:
    command = f"accelerate launch --config_file fsdp.yaml $(which lerobot-train) {more}"
    (tmp_path / "run.sh").write_text(f"{command}\n")
    found = told(tmp_path, "bash run.sh", fsdp_yaml=FSDP)
    assert (cause in {one.cause for one in found}) is wrong


@pytest.mark.parametrize(("workers", "noted"), [("", True), ("dataloader_num_workers=8", False)])
def test_transforms_of_a_trainer(tmp_path: Path, workers: str, noted: bool) -> None:
    source = f"""
        from transformers import Trainer, TrainingArguments
        data.set_transform(augmented)
        arguments = TrainingArguments("out", {workers})
        Trainer(model=model, args=arguments, train_dataset=data).train()
    """
    found = causes(tmp_path, "torchrun --standalone --nproc-per-node 2 train.py", source)
    assert ("dataloader-bottleneck" in found) is noted


SOURCED = """
    set -e
    {reads}
    torchrun --standalone --nproc-per-node="${{1:?ranks}}" train.py
"""


@pytest.mark.parametrize(
    ("reads", "file", "wrong"),
    [
        ("source own.env", "export NCCL_SOCKET_IFACE=eth0", True),
        (". ./own.env", "export NCCL_SOCKET_IFACE=eth0", True),
        ("set -a; source own.env; set +a", "NCCL_SOCKET_IFACE=eth0", True),
        ("source own.env", "NCCL_SOCKET_IFACE=eth0", False),
        ("source own.env", "export NCCL_SOCKET_IFNAME=eth0", False),
        ("source own.env", "source own.env\nexport NCCL_SOCKET_IFNAME=eth0", False),
        ("source other.env", "export NCCL_SOCKET_IFACE=eth0", False),
        ("export NCCL_SOCKET_IFACE=eth0\n    source own.env", "A=1", True),
        # What the script does not export stays in its shell, also after the file.
        ("NCCL_SOCKET_IFACE=eth0\n    source own.env", "A=1", False),
    ],
)
def test_a_file_that_the_script_reads(tmp_path: Path, reads: str, file: str, wrong: bool) -> None:
    (tmp_path / "own.env").write_text(file + "\n")
    found = told(tmp_path, "bash run.sh 2", run_sh=SOURCED.format(reads=reads))
    assert ("environment-variable-invalid" in {one.cause for one in found}) is wrong
    assert "launch-config-invalid" not in {one.cause for one in found}


NAMED = """
    FILE=${1:?the file of variables}; shift
    source "$FILE"
    torchrun --standalone --nproc-per-node="$RANKS" train.py "$@"
"""


@pytest.mark.parametrize(("ranks", "wrong"), [(8, True), (6, False)])
def test_a_file_that_an_argument_names(tmp_path: Path, ranks: int, wrong: bool) -> None:
    (tmp_path / "lab.env").write_text(f"export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5\nRANKS={ranks}\n")
    found = told(tmp_path, "bash run.sh lab.env", run_sh=NAMED)
    assert ("nproc-exceeds-visible-gpus" in {one.cause for one in found}) is wrong


LIGHTNING = """
    import lightning as L
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=1)
    options = parser.parse_args()
    L.Trainer(accelerator="gpu", devices={devices}, num_nodes=2, strategy="ddp").fit(model)
"""
TASKS = """
    #!/bin/bash
    #SBATCH --nodes=2
    #SBATCH --gres=gpu:4
    #SBATCH --ntasks-per-node={tasks}
    {starts}python train.py --gpus 4
"""


@pytest.mark.parametrize(
    ("devices", "tasks", "starts", "wrong"),
    [
        ("4", 1, "srun ", True),
        ("options.gpus", 1, "srun ", True),
        ("4", 4, "srun ", False),
        ("options.gpus", 4, "srun ", False),
        ("'auto'", 1, "srun ", False),
        ("4", 1, "", False),
    ],
)
def test_a_task_for_each_device_of_lightning(
    tmp_path: Path, devices: str, tasks: int, starts: str, wrong: bool
) -> None:
    script = dedent(TASKS).lstrip().format(tasks=tasks, starts=starts)
    source = LIGHTNING.format(devices=devices)
    (tmp_path / "job.sbatch").write_text(script)
    found = causes(tmp_path, "sbatch job.sbatch", source)
    assert ("launch-config-invalid" in found) is wrong


OF_NODES = """
    import argparse
    import yaml
    import lightning as L
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1)
    args = parser.parse_args()
    cfg = yaml.safe_load(open("own.yaml"))
    L.Trainer(accelerator="gpu", devices=4, {}).fit(model)
"""
OF_FOUR = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=9\n"


@pytest.mark.parametrize(
    ("given", "line", "wrong"),
    [
        ("num_nodes=1", "srun python train.py", True),
        ("strategy='ddp'", "srun python train.py", True),
        ("num_nodes=args.nodes", "srun python train.py --nodes 4", True),
        ("num_nodes=args.nodes", "srun python train.py", True),
        ('num_nodes=cfg["num_nodes"]', "srun python train.py", True),
        ("num_nodes=2", "srun python train.py", False),
        ("num_nodes=args.nodes", "srun python train.py --nodes=2", False),
        ("num_nodes=args.nodes", "srun python train.py --nodes $SLURM_NNODES", False),
        ('num_nodes=int(os.environ["SLURM_NNODES"])', "srun python train.py", False),
        ("**cfg", "srun python train.py", False),
        ("num_nodes=nodes", "srun python train.py --nodes 4", False),
        ("num_nodes=1, plugins=[environment()]", "srun python train.py", False),
        # A part of the nodes.
        ("num_nodes=1", "srun -N 1 python train.py", False),
        ("num_nodes=1", "srun --job-name=interactive python train.py", False),
    ],
)
def test_nodes_of_lightning(tmp_path: Path, given: str, line: str, wrong: bool) -> None:
    (tmp_path / "own.yaml").write_text("num_nodes: 3\n")
    (tmp_path / "job.sbatch").write_text(f"{OF_FOUR}{line}\n")
    found = reviewed(tmp_path, "sbatch job.sbatch", OF_NODES.format(given))
    told = [one for one in found if "has num_nodes" in one.because]
    assert [one.cause for one in told] == ["launch-config-invalid"] * wrong


@pytest.mark.parametrize(
    "end",
    [
        *("> log.txt", ">log.txt", "> log.txt 2>&1", "2>&1 | tee log.txt", "2> errors.txt"),
        *("&> log.txt", "< /dev/null > log.txt", "> >(tee log.txt) 2>&1", "2> >(tee log.txt >&2)"),
    ],
)
def test_a_number_before_a_redirection_is_a_value(tmp_path: Path, end: str) -> None:
    line = f"torchrun --nproc-per-node 2 train.py --lr 3 {end}\n"
    launch = launched(tmp_path, "bash run.sh", run_sh=line, train_py="")
    assert launch.arguments == ("--lr", "3")
