"""What a launch command starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddoctor import engine
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.errors import DoctorError
from ddoctor.evidence.section import Evidence
from ddoctor.models import Severity
from tests.launch.files import HOSTS, MANIFEST, SCRIPT, TWO_GPUS
from tests.launched import launched


@pytest.mark.parametrize(
    ("command", "launcher", "hosts", "ranks"),
    [
        ("torchrun --nproc-per-node 4 train.py", "torchrun", 1, 4),
        ("torchrun --nproc_per_node=4 --nnodes=2 --rdzv-endpoint=a:1 train.py", "torchrun", 2, 8),
        ("torchrun --nproc-per-node=2 -m pkg.train --lr 1", "torchrun", 1, 2),
        ("torchrun train.py", "torchrun", 1, 1),
        ("FOO=1 CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node=2 train.py", "torchrun", 1, 2),
        ("python -u -m torch.distributed.run --nproc-per-node=3 train.py", "torchrun", 1, 3),
        (
            "python -m torch.distributed.launch --nproc_per_node=4 --use_env train.py",
            "torch.distributed.launch",
            1,
            4,
        ),
        ("accelerate launch --num_processes 2 train.py", "accelerate", 1, 2),
        (
            "accelerate launch --multi_gpu --num_processes=16 --num_machines 2 a.py",
            "accelerate",
            2,
            16,
        ),
        ("accelerate launch --config_file two.yaml train.py", "accelerate", 1, 2),
        ("accelerate launch --config_file two.yaml --num_processes 4 train.py", "accelerate", 1, 4),
        ("deepspeed --num_nodes 2 --num_gpus 8 tune.py --deepspeed ds.json", "deepspeed", 2, 16),
        ("deepspeed --hostfile hosts.txt tune.py", "deepspeed", 2, 16),
        ("deepspeed --hostfile hosts.txt --num_nodes 1 tune.py", "deepspeed", 1, 8),
        ("deepspeed --hostfile hosts.txt --include worker-1:0,2@worker-2 t.py", "deepspeed", 2, 10),
        ("deepspeed --hostfile hosts.txt --exclude worker-2 tune.py", "deepspeed", 1, 8),
        ("deepspeed --hostfile hosts.txt --exclude worker-2:0,1,2 t.py", "deepspeed", 2, 13),
        ("deepspeed --include localhost:2,3 tune.py", "deepspeed", 1, 2),
        ("fabric run --devices=2 --num-nodes=3 --strategy=ddp train.py", "fabric", 3, 6),
        ("lightning run model --devices=2 train.py", "fabric", 1, 2),
        ("python train.py", "python", 1, 1),
        ("mpirun -np 4 --mca btl tcp -x NCCL_DEBUG python train.py", "python", None, 4),
        ("mpirun -np 8 -npernode 4 python train.py", "python", 2, 8),
        ("mpiexec -n 8 -H a:4,b:4 python train.py", "python", 2, 8),
        ("mpirun --host a:4,b:4 --timeout 99 --gmca x y python train.py", "python", 2, 8),
        ("mpirun --host a,b --map-by ppr:4:node --output-filename l python t.py", "python", 2, 8),
        ("mpirun --hostfile hosts.txt --tune f python train.py", "python", 2, 16),
        ("mpiexec -hosts a,b -ppn 4 -n 8 -genv A 1 python train.py", "python", 2, 8),
        ("mpiexec -f hosts.txt -n 16 -launcher ssh python train.py", "python", 2, 16),
        ("mpiexec -f hosts.txt -envlist A,B -n 4 python train.py", "python", None, 4),
        ("srun -N2 --ntasks-per-node=8 python train.py", "python", 2, 16),
        ("srun -N2 python train.py", "python", 2, 2),
        ("srun --wait 60 --prefer a100 -T 8 -n 4 python train.py", "python", None, 4),
        ("srun -N1 --container img --task-prolog p.sh -n 4 python train.py", "python", 1, 4),
        ("sbatch -N2 --wait --wrap 'srun -n 8 python train.py'", "python", 2, 8),
        ("sbatch -N1 -W --wrap='torchrun --nproc-per-node 4 train.py'", "torchrun", 1, 4),
        ("srun -N 2 torchrun --nnodes 2 --nproc-per-node 8 train.py", "torchrun", 2, 16),
        ("nohup env A=1 torchrun --nproc-per-node 2 train.py", "torchrun", 1, 2),
        ("uv run torchrun --nproc-per-node 2 train.py", "torchrun", 1, 2),
        ("./no-interpreter.sbatch", "torchrun", 1, 2),
        ("python -m .", "python", 1, 1),
        ("bash -c 'cd x && torchrun --nproc-per-node 2 train.py'", "torchrun", 1, 2),
        (
            "ray job submit -- python -m torch.distributed.run --nproc-per-node=2 t.py",
            "torchrun",
            1,
            2,
        ),
    ],
)
def test_hosts_and_ranks(
    tmp_path: Path, command: str, launcher: str, hosts: int | None, ranks: int
) -> None:
    (tmp_path / "no-interpreter.sbatch").write_text("torchrun --nproc-per-node 2 train.py\n")
    launch = launched(
        tmp_path, command, two_yaml=TWO_GPUS, train_py=SCRIPT, ds_json="{}", hosts_txt=HOSTS
    )
    assert (launch.launcher, launch.hosts, launch.ranks) == (launcher, hosts, ranks)
    assert launch.unknown == ()


def test_the_command_line_beats_the_file(tmp_path: Path) -> None:
    command = "accelerate launch --config_file two.yaml --num_processes 4 train.py"
    launch = launched(tmp_path, command, two_yaml=TWO_GPUS)
    assert [(one.value, one.at) for one in launch.all("ranks")] == [
        ("4", "the command line"),
        ("2", "two.yaml:10"),
    ]


def test_a_file_of_deepspeed_in_that_of_accelerate(tmp_path: Path) -> None:
    config = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    launch = launched(
        tmp_path,
        "accelerate launch --config_file a.yaml train.py",
        a_yaml=config,
        ds_json='{"zero_optimization": {"stage": 2}}',
    )
    stage = launch.get("deepspeed.zero_optimization.stage")
    assert stage is not None
    assert (stage.value, stage.at) == ("2", "ds.json:1")
    assert launch.files == ("a.yaml", "ds.json")


def test_the_default_file_of_the_user(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "accelerate"
    folder.mkdir(parents=True)
    (folder / "default_config.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 3\n")
    launch = launched(tmp_path, "accelerate launch train.py")
    ranks = launch.get("ranks")
    assert ranks is not None
    assert (ranks.value, ranks.at) == ("3", "default_config.yaml:2")


def test_arguments_of_the_script_come_before_its_defaults(tmp_path: Path) -> None:
    launch = launched(tmp_path, "python train.py --batch-size=16 --verbose", train_py=SCRIPT)
    assert launch.number("arg.batch_size") == 16
    assert launch.on("arg.verbose")
    rate = launch.get("arg.lr")
    assert rate is not None
    assert (rate.value, rate.at) == ("0.0001", "train.py:4")
    assert launch.arguments == ("--batch-size=16", "--verbose")


def test_overrides_without_dashes_and_a_config_file(tmp_path: Path) -> None:
    launch = launched(
        tmp_path,
        "python train.py --config run.yaml optimizer.lr=3e-4 batch_size=16",
        run_yaml="batch_size: 8\noptimizer:\n  lr: 1e-3\n  name: adamw\n",
    )
    assert [one.value for one in launch.all("arg.batch_size")] == ["16", "8"]
    assert [one.at for one in launch.all("arg.optimizer.lr")] == ["the command line", "run.yaml:3"]


JOB = """
    #!/bin/bash
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=1   # one launcher
    #SBATCH --gres=gpu:a100:8
    ##SBATCH --time=1
    export NCCL_DEBUG=INFO
    GPUS=8
    MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    echo "python not.py"
    cat <<EOF
    torchrun not_this.py
    EOF
    srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $(( GPUS * 1 )) \\
      --rdzv_endpoint "$MASTER:29500" \\
      train.py --lr 3e-4 --name "a b" > log.txt 2>&1 &
    wait
"""


@pytest.mark.parametrize(
    "script",
    [
        """
            from omegaconf import OmegaConf
            config = OmegaConf.merge(OmegaConf.load("conf/base.yaml"), OmegaConf.from_cli())
        """,
        """
            import yaml
            with open("conf/base.yaml") as file:
                config = yaml.safe_load(file)
        """,
        """
            import argparse
            parser = argparse.ArgumentParser()
            parser.add_argument("--config", default="conf/base.yaml")
        """,
    ],
)
def test_a_file_of_options_that_the_script_names(tmp_path: Path, script: str) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/base.yaml").write_text("optim:\n  lr: 0.01\ntrain:\n  batch_size: 12\n")
    launch = launched(tmp_path, "torchrun train.py train.batch_size=6", train_py=script)
    assert [one.value for one in launch.all("arg.optim.lr")] == ["0.01"]
    assert [one.value for one in launch.all("arg.train.batch_size")] == ["6", "12"]
    assert "conf/base.yaml" in launch.files


@pytest.mark.parametrize(
    ("script", "written"),
    [
        ('open("out.yaml", "w").write("lr: 1")', "lr: 3"),
        ('labels = yaml.safe_load(open("out.yaml"))', "a: ["),
        ('labels = yaml.safe_load(open("out.yaml"))', "[" + "1,\n" * 20_000 + "]"),
        ('config = OmegaConf.load("missing.yaml")', "lr: 3"),
        ('config = np.load("out.yaml")', "lr: 3"),
    ],
)
def test_files_that_give_no_options(tmp_path: Path, script: str, written: str) -> None:
    launch = launched(tmp_path, "torchrun train.py", train_py=script, out_yaml=written)
    assert launch.get("arg.lr", "unreadable") is None
    assert "missing.yaml" not in launch.files


def test_a_job_of_slurm(tmp_path: Path) -> None:
    launch = launched(tmp_path, "sbatch --nodes=4 job.sbatch", job_sbatch=JOB)
    assert (launch.script, launch.arguments) == ("train.py", ("--lr", "3e-4", "--name", "a b"))
    assert launch.around == ("sbatch", "job.sbatch", "srun")
    assert launch.ranks_per_host == 8
    # What the command line asks for.
    assert launch.hosts == 4
    assert [one.value for one in launch.all("nodes")] == ["4", "2"]
    assert [one.at for one in launch.all("gres")] == ["job.sbatch:4"]
    assert launch.get("time-limit") is None
    debug = launch.get("env.NCCL_DEBUG")
    assert debug is not None
    assert debug.at == "job.sbatch:6"
    assert ["$(scontrol" in one.value for one in launch.unresolved] == [True]
    endpoint = launch.get("endpoint")
    assert endpoint is not None
    assert endpoint.line == 14


def test_the_last_launch_of_a_script_counts(tmp_path: Path) -> None:
    script = """
        set -e
        python prepare.py
        for seed in 1 2; do
            torchrun --nproc-per-node "$1" train.py --seed $seed
        done
    """
    launch = launched(tmp_path, "bash run.sh 4", run_sh=script)
    assert (launch.script, launch.ranks) == ("train.py", 4)


def test_a_script_in_a_script(tmp_path: Path) -> None:
    inner = "torchrun --nproc-per-node $GPUS $(which train) $@\n"
    launch = launched(
        tmp_path, "./outer.sh", outer_sh="export GPUS=2\nbash inner.sh --lr 1\n", inner_sh=inner
    )
    assert (launch.script, launch.ranks, launch.arguments) == ("train", 2, ("--lr", "1"))
    assert launch.files == ("./outer.sh", "inner.sh")


def test_a_manifest_of_kubernetes(tmp_path: Path) -> None:
    launch = launched(tmp_path, "job.yaml", job_yaml=MANIFEST)
    assert (launch.script, launch.hosts, launch.ranks) == ("train.py", 3, 12)
    assert launch.arguments == ("--lr", "1e-3")
    assert [launch.number(name) for name in ("gpus-per-host", "pods")] == [4, 3]
    kind = launch.get("kind")
    assert kind is not None
    assert kind.value == "PyTorchJob"


def test_what_an_operator_of_kubernetes_gives_torchrun(tmp_path: Path) -> None:
    bare = MANIFEST.replace(', "--nnodes=3", "--nproc-per-node=4"', "")
    launch = launched(tmp_path, "job.yaml", job_yaml=bare)
    assert (launch.hosts, launch.ranks_per_host) == (3, 4)
    auto = launched(tmp_path, "job.yaml", job_yaml=bare.replace('nprocPerNode: "4"', "a: b"))
    plan = LaunchPlan(launch=auto, visible=1)
    assert (auto.hosts, plan.each, plan.ranks) == (3, 4, 12)
    other = launched(tmp_path, "job.yaml", job_yaml=bare.replace("PyTorchJob", "JobSet"))
    assert (other.hosts, other.ranks_per_host) == (1, 1)


def test_options_of_torchrun_in_variables(tmp_path: Path) -> None:
    line = "env PET_NNODES=2 PET_NPROC_PER_NODE=8 torchrun --nproc-per-node 4 train.py"
    launch = launched(tmp_path, "bash job.sh", job_sh=line)
    assert (launch.hosts, launch.ranks_per_host) == (2, 4)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("ls -l", "no launch of a training"),
        ("torchrun --nproc-per-node 2", "torchrun has no script"),
        ("bash missing.sh", "cannot read missing.sh: No such file"),
        ("accelerate config", "no launch of a training"),
        ("bad.yaml", "bad.yaml:2 is no YAML"),
        ("two.yaml", "two.yaml has no container"),
        ("bash loop.sh", "no launch of a training"),
        ("bash hidden.sh", r"`bash hidden.sh`: hidden.sh:2 runs `\$PROGRAM`; give what it"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, command: str, says: str) -> None:
    with pytest.raises(DoctorError, match=says) as raised:
        launched(
            tmp_path,
            command,
            two_yaml=TWO_GPUS,
            bad_yaml="a: 1\n b: [\n",
            loop_sh="bash loop.sh\n",
            hidden_sh="set -e\n$PROGRAM --lr 3e-4\n",
        )
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("accelerate launch --config_file missing.yaml train.py", "cannot read missing.yaml"),
        ("accelerate launch --config_file bad.yaml train.py", "bad.yaml:2 is no YAML"),
        ("accelerate launch --config_file deep.yaml train.py", "deep.yaml:1 is no YAML"),
        ("accelerate launch --config_file laughs.yaml train.py", "more than 10000 values"),
        ("accelerate launch --config_file empty.yaml train.py", "more than 10000 values"),
        ("accelerate launch --config_file large.yaml train.py", "is larger than 4 MiB"),
        ("torchrun train.py --config bad.yaml", "bad.yaml:2 is no YAML"),
        ("torchrun train.py --deepspeed bad.json", "bad.json:1 is no JSON"),
        ("accelerate launch --config_file list.yaml train.py", "list.yaml has no keys"),
        ("torchrun train.py --deepspeed laughs.yaml.json", "more than 10000 values"),
        ("bash run.sh", "bad.yaml:2 is no YAML"),
        ("torchrun nowhere.py", "there is no file nowhere.py"),
    ],
)
def test_the_rest_is_read_without_a_file_that_cannot_be(
    tmp_path: Path, command: str, says: str
) -> None:
    laughs = ["a0: &a0 [1, 2]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(100 * 2**20)
    (tmp_path / "laughs.yaml.json").write_text("\n".join(laughs))
    launch = launched(
        tmp_path,
        command,
        train_py="import sys\n",
        bad_yaml="a: 1\n b: [\n",
        bad_json='{"a" 1}',
        list_yaml="- a",
        deep_yaml="[" * 100_000,
        laughs_yaml="\n".join(laughs),
        empty_yaml="\n".join(laughs).replace("[1, 2]", "{}"),
        run_sh="accelerate launch --config_file bad.yaml train.py\n",
    )
    (error,) = (
        one
        for one in engine.examine(Evidence([launch]), "doctor").findings
        if one.severity is Severity.ERROR
    )
    assert says in error.because
    assert "\n" not in error.because
    assert launch.script in ("train.py", "nowhere.py")


def test_a_script_may_name_files_that_exist_when_it_runs(tmp_path: Path) -> None:
    launch = launched(
        tmp_path, "bash run.sh", run_sh="accelerate launch --config_file made.yaml train.py\n"
    )
    assert launch.all("unreadable") == launch.all("missing") == ()
    assert "cannot read made.yaml" in launch.unresolved[0].value


def test_what_python_warns_of_in_a_script_is_read_without_a_word(tmp_path: Path) -> None:
    script = (
        "import argparse\nprint('\\d', 1 is 1)\n"
        "argparse.ArgumentParser().add_argument('--lr', default=0.1)\n"
    )
    launch = launched(tmp_path, "python train.py", train_py=script)
    lr = launch.get("arg.lr")
    assert lr is not None
    assert lr.value == "0.1"


def test_what_cannot_be_a_file_name_is_none(tmp_path: Path) -> None:
    for name in ("x" * 5_000 + ".py", "a\0b.py"):
        assert launched(tmp_path, f"torchrun {name} --config {name}.json").script == name


def test_a_pipe_is_left_to_the_launch(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"import torch\n")
    os.close(writer)
    for command in (f"python /dev/fd/{reader}", f"torchrun train.py --config /dev/fd/{reader}"):
        launched(tmp_path, command)
    launch = launched(tmp_path, f"accelerate launch --config_file /dev/fd/{reader} train.py")
    assert launch.all("unreadable") == ()
    assert os.read(reader, 100) == b"import torch\n"
    os.close(reader)
