"""Launch commands, with `-m ddoctor.probe run` put before the script in them."""

from __future__ import annotations

import shlex

import pytest
from accelerate.commands.launch import launch_command_parser  # type: ignore[import-untyped]
from torch.distributed.run import get_args_parser

from ddoctor.errors import DoctorError
from ddoctor.training.rewrite import rewritten

OURS = ("--steps", "9")
RUN = "-m ddoctor.probe run --steps 9"


def new(command: str) -> str:
    return shlex.join(rewritten(shlex.split(command), OURS).words)


TORCHRUN = (
    "--nproc-per-node 2",
    "--nproc_per_node=2",
    "--nproc-per-node gpu --nnodes 1:2",
    "--standalone",
    "--nnodes=2 --node_rank 1 --master-addr node-1 --master_port=29501",
    "--nnodes 2 --rdzv-backend c10d --rdzv_endpoint=node-1:29500 --rdzv-id job --rdzv-conf a=1,b=2",
    "-r 3 -t 0:1,1:3 --log-dir logs",
    "-r3 --monitor-interval 1 --start-method spawn --role trainer --local-addr 10.0.0.1",
    "--nproc-per-n 4",
)


@pytest.mark.parametrize("options", TORCHRUN)
@pytest.mark.parametrize(
    ("script", "theirs"),
    [
        ("train.py --lr 0.1", "train.py --lr 0.1"),
        ("-m package.train --lr 0.1", "-m package.train --lr 0.1"),
        ("--module package.train", "-m package.train"),
        ("-- train.py -m x", "train.py -m x"),
        ("train.py -- x -- y", "train.py x -- y"),
        ("train.py train.py train.py", "train.py train.py train.py"),
        ("--max-restarts 3 train.py", "train.py"),
        ("--max_restarts=3 -- train.py", "train.py"),
        ("--no-python my-training --no-python", "my-training --no-python"),
        ("--no_python -- my-training --name python", "my-training --name python"),
        ("--run-path train.py", "train.py"),
        ("train.py --steps 3 --json x", "train.py --steps 3 --json x"),
    ],
)
def test_torchrun_reads_it_as_meant(options: str, script: str, theirs: str) -> None:
    """Its own parser finds ddoctor as the module, and every other option as it was."""
    command = shlex.split(f"torchrun {options} {script}")
    changed = rewritten(command, OURS)
    assert changed.starter == 0
    assert changed.script == tuple(shlex.split(theirs))
    before, after = (
        vars(get_args_parser().parse_args(one[1:])) for one in (command, changed.words)
    )
    assert after.pop("module")
    assert not after.pop("no_python")
    assert not after.pop("run_path")
    assert after.pop("max_restarts") == 0
    assert after.pop("training_script") == "ddoctor.probe"
    assert after.pop("training_script_args") == ["run", *OURS, *shlex.split(theirs)]
    assert after.items() <= before.items()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1", f"python {RUN} train.py --lr 1"),
        ("/opt/env/bin/python3.12 train.py", f"/opt/env/bin/python3.12 {RUN} train.py"),
        ("python train", f"python {RUN} train"),
        (
            "python -u -OO -X dev -W ignore -Wdefault train.py -m x",
            f"python -u -OO -X dev -W ignore -Wdefault {RUN} train.py -m x",
        ),
        ("python -bX dev train.py", f"python -bX dev {RUN} train.py"),
        ("python -- train.py", f"python {RUN} train.py"),
        (
            "python --check-hash-based-pycs always train.py",
            f"python --check-hash-based-pycs always {RUN} train.py",
        ),
        ("python -m package.train x", f"python {RUN} -m package.train x"),
        ("python -mpackage.train x", f"python {RUN} -m package.train x"),
        ("python -um package.train", "python -um ddoctor.probe run --steps 9 -m package.train"),
    ],
)
def test_python(command: str, expected: str) -> None:
    assert new(command) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "python -m torch.distributed.run --nproc-per-node 2 train.py x",
            f"python -m torch.distributed.run --nproc-per-node 2 {RUN} train.py x",
        ),
        (
            "python -u -m torch.distributed.run --max-restarts=2 -m package.train",
            "python -u -m torch.distributed.run --max-restarts=2 -m --max-restarts=0 "
            "ddoctor.probe run --steps 9 -m package.train",
        ),
        (
            "python -m torch.distributed.launch --use_env --nproc_per_node 2 train.py",
            f"python -m torch.distributed.launch --use_env --nproc_per_node 2 {RUN} train.py",
        ),
        (
            "python -m accelerate.commands.launch --num_processes 2 train.py",
            f"python -m accelerate.commands.launch --num_processes 2 {RUN} train.py",
        ),
        (
            "python -m accelerate.commands.accelerate_cli launch train.py",
            f"python -m accelerate.commands.accelerate_cli launch {RUN} train.py",
        ),
    ],
)
def test_python_that_starts_a_launcher(command: str, expected: str) -> None:
    assert new(command) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "deepspeed --num_gpus 8 train.py --module x",
            "deepspeed --num_gpus 8 {run} train.py --module x",
        ),
        (
            "srun deepspeed --hostfile=hosts --module package.train",
            "srun deepspeed --hostfile=hosts {run} -m package.train",
        ),
        (
            "deepspeed --no_python python -u train.py",
            f"deepspeed --no_python python -u {RUN} train.py",
        ),
        ("deepspeed --no_python my-training x", "deepspeed {run} my-training x"),
        (
            "python -m deepspeed.launcher.runner train.py",
            "python -m deepspeed.launcher.runner {run} train.py",
        ),
    ],
)
def test_deepspeed(command: str, expected: str) -> None:
    pytest.importorskip("deepspeed")
    assert new(command) == expected.format(run=RUN.replace("-m ", "--module ", 1))


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--config_file config.yaml",
        "--config-file=config.yaml --num-processes 2",
        "--multi_gpu --num_processes=2 --main_process_port 0 --mixed_precision bf16",
        "--cpu --num_cpu_threads_per_process 1",
        "--use_fsdp --fsdp_version 2",
        "--max_restarts 3",
    ],
)
@pytest.mark.parametrize(
    ("script", "theirs"),
    [
        ("train.py --lr 1 -m x", "train.py --lr 1 -m x"),
        ("-m package.train --lr 1", "-m package.train --lr 1"),
        ("--module package.train", "-m package.train"),
        ("--no_python my-training --x", "my-training --x"),
        ("-- train.py", "train.py"),
    ],
)
def test_accelerate_reads_it_as_meant(options: str, script: str, theirs: str) -> None:
    command = shlex.split(f"accelerate launch {options} {script}")
    changed = rewritten(command, OURS)
    assert changed.script == tuple(shlex.split(theirs))
    before, after = (
        vars(launch_command_parser().parse_args(one[2:])) for one in (command, changed.words)
    )
    assert after.pop("module")
    assert not after.pop("no_python")
    assert not after.pop("max_restarts")
    assert after.pop("training_script") == "ddoctor.probe"
    assert after.pop("training_script_args") == ["run", *OURS, *shlex.split(theirs)]
    # The names of the options that were given, which a file of settings does not override.
    assert "module" in after.pop("nondefault")
    assert after.items() <= before.items()


def test_accelerate_launch_as_one_command() -> None:
    assert new("accelerate-launch --cpu train.py") == f"accelerate-launch --cpu {RUN} train.py"


@pytest.mark.parametrize(
    ("command", "starter"),
    [
        ("srun --ntasks 2 python -u train.py", 3),
        ("srun -n 2 --job-name python --gpus-per-node=8 torchrun --nproc-per-node 8 train.py", 6),
        ("srun --container-image=nvcr.io/nvidia/pytorch:25.01 python /code/train.py", 2),
        ("mpirun -np 2 --bind-to none -x NCCL_DEBUG=INFO python3 train.py", 7),
        ("env -u NCCL_DEBUG OMP_NUM_THREADS=2 torchrun --nproc-per-node 2 train.py", 4),
        ("numactl --cpunodebind=0 --membind 0 python train.py", 4),
        ("nohup accelerate launch --num_processes 2 train.py", 1),
        ("uv run --extra train torchrun train.py", 4),
        ("apptainer exec --nv image.sif torchrun train.py", 4),
        ("srun time -v torchrun --nproc-per-node 2 ./train.py", 3),
    ],
)
def test_what_stands_in_front_stays_there(command: str, starter: int) -> None:
    changed = rewritten(shlex.split(command), OURS)
    before, name, _ = command.rpartition(changed.script[0])
    assert changed.starter == starter
    assert shlex.join(changed.words) == f"{before}{RUN} {name}"


def test_a_module_behind_srun() -> None:
    assert new("srun -n 2 python -m package.train") == f"srun -n 2 python {RUN} -m package.train"


def test_variables_in_front_are_those_of_env() -> None:
    assert new("A=1 B_2='x y' torchrun train.py") == f"env A=1 'B_2=x y' torchrun {RUN} train.py"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "torchrun --max-restarts 3 --no-python python -u train.py -- x",
            f"torchrun --max-restarts 3 --no-python --max-restarts=0 python -u {RUN} train.py -- x",
        ),
        (
            "torchrun --nproc-per-node 2 --no-python numactl --localalloc python -m package.train",
            "torchrun --nproc-per-node 2 --no-python numactl --localalloc "
            f"python {RUN} -m package.train",
        ),
        (
            "accelerate launch --no_python python train.py",
            f"accelerate launch --no_python python {RUN} train.py",
        ),
    ],
)
def test_a_python_that_the_launcher_executes(command: str, expected: str) -> None:
    assert new(command) == expected


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("", "no command to run"),
        ("bash train.sh", "cannot see what bash starts"),
        ("bash -c 'torchrun train.py'", "cannot see what bash starts"),
        ("./train.sh --x", "cannot see what ./train.sh starts"),
        ("sbatch job.sh", "cannot see what job.sh starts"),
        ("srun bash train.sh", "cannot see what bash starts"),
        ("torchrun --no-python ./train.sh", "cannot see what ./train.sh starts"),
        ("torchrun --no-python bash train.sh", "cannot see what bash starts"),
        ("train.py --lr 1", "ddoctor run -- python train.py"),
        ("./train.py", "./train.py is not a launch command"),
        ("-m package.train --lr 1", "ddoctor run -- python -m package.train"),
        ("my-training --lr 1", "cannot see where my-training starts Python"),
        ("srun hostname", "cannot see where srun starts Python"),
        ("srun torchrun train", "cannot see where srun starts Python"),
        ("python", "python has no script"),
        ("python -u -", "python has no script"),
        ("python -m", "python -m has no module"),
        ("python -c 'import torch'", "python -c has no script"),
        ("srun python -uc 'import torch'", "python -c has no script"),
        ("torchrun --no-python python -c 1", "python -c has no script"),
        ("torchrun --nproc-per-node 2", "torchrun refuses this command"),
        ("torchrun --nproc-per-nod 2 --bogus 3 train.py", "torchrun refuses this command"),
        ("srun torchrun --bogus train.py", "torchrun refuses this command"),
        ("torchrun --help", "torchrun --help does not start a training"),
        (
            "accelerate launch --num_processes two train.py",
            "accelerate launch refuses this command",
        ),
        ("accelerate config", "only with `accelerate launch`"),
        ("accelerate", "only with `accelerate launch`"),
        ("torchrun -m ddoctor.probe run train.py", "already contains ddoctor.probe"),
        ("torchrun -m ddoctor.probe", "already contains ddoctor.probe"),
    ],
)
def test_one_line_says_why_not(command: str, told: str) -> None:
    with pytest.raises(DoctorError) as raised:
        rewritten(shlex.split(command), OURS)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node 2 --max-restarts=3 train.py",
        "torchrun --max_restarts 3 train.py",
        "python -m torch.distributed.run --max-restarts=3 train.py",
    ],
)
def test_a_run_that_is_followed_to_its_end_keeps_its_restarts(command: str) -> None:
    words = shlex.split(command)
    assert "--max-restarts=0" in rewritten(words, OURS).words
    kept = rewritten(words, ("--steps=all",), restarts=True).words
    assert "--max-restarts=0" not in kept
    assert "3" in "".join(kept)
