"""Sound launches, many of which resemble a mistaken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import FSDP, JOB, MANIFEST, SCRIPT, told

SHM = """volumeMounts: [{name: shm, mountPath: /dev/shm}]
                resources:"""
EACH_RANK = "MASTER_ADDR=localhost MASTER_PORT=29500 WORLD_SIZE=4 python train.py"
LOCAL = "export MASTER_ADDR=localhost\npython train.py\n"
SOUND = [
    ("torchrun --nproc-per-node 8 train.py --batch-size 4", {}),
    ("torchrun --nproc_per_node=8 --nnodes=2 --node_rank=1 --master_addr=10.0.0.1 train.py", {}),
    ("torchrun --nnodes=1:4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=a:1 t.py", {}),
    ("torchrun --standalone --nproc-per-node=gpu train.py", {}),
    ("torchrun --standalone --nnodes=1 --nproc-per-node=8 train.py", {}),
    ("torchrun --nproc-per-node=$GPUS train.py", {}),
    ("CUDA_VISIBLE_DEVICES=4,5,6,7 torchrun --nproc-per-node=4 train.py", {}),
    ("accelerate launch train.py", {}),
    ("accelerate launch --config_file two.yaml train.py", {}),
    ("accelerate launch --config_file two.yaml --num_processes 8 train.py", {}),
    ("accelerate launch --config_file fsdp.yaml train.py", {}),
    (
        "accelerate launch --config_file fsdp.yaml train.py",
        {"fsdp_yaml": FSDP.replace("LlamaDecoderLayer", "null")},
    ),
    (
        "accelerate launch --config_file fsdp.yaml train.py",
        {
            "fsdp_yaml": FSDP.replace("states: true", "states: false").replace(
                "loading: true", "loading: false"
            )
        },
    ),
    (
        "accelerate launch --num_machines 2 --num_processes 16 --machine_rank 0 "
        "--main_process_ip 10.0.0.1 --main_process_port 29500 train.py",
        {},
    ),
    ("accelerate launch --cpu --num_processes 16 train.py", {}),
    ("accelerate launch --config_file one.yaml train.py", {"one_yaml": "distributed_type: 'NO'\n"}),
    ("accelerate launch --mixed_precision bf16 lerobot-train --policy.use_amp=true", {}),
    ("accelerate launch --num_processes=2 lerobot-train --policy.use_amp=false", {}),
    ("deepspeed --num_gpus 8 tune.py --deepspeed ds.json", {}),
    (
        "deepspeed --num_gpus 3 tune.py --deepspeed ds.json",
        {"ds_json": '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}'},
    ),
    ("deepspeed --include localhost:0,1 tune.py", {}),
    ("deepspeed --num_nodes 1 --num_gpus 4 tune.py", {}),
    ("srun -N1 --ntasks-per-node=8 bash run.sh", {"run_sh": LOCAL}),
    ("srun -N2 --ntasks-per-node=8 bash run.sh", {"run_sh": LOCAL.replace("localhost", "node1")}),
    ("mpirun -np 8 -x MASTER_ADDR=127.0.0.1 python train.py", {}),
    ("docker run --gpus all --ipc=host image torchrun --nproc-per-node 2 made_in_image.py", {}),
    ("ssh worker torchrun --nproc-per-node 2 there.py", {}),
    ("sbatch job.sbatch", {}),
    (
        "sbatch job.sbatch",
        {
            "job_sbatch": JOB.replace("--rdzv-backend c10d ", "")
            .replace("srun torchrun", "srun bash -c 'torchrun")
            .replace("train.py", "train.py'")
        },
    ),
    (
        "sbatch job.sbatch",
        {
            "job_sbatch": "#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4\n"
            "export MASTER_ADDR=a WORLD_SIZE=8\nsrun ./one.sh python train.py\n",
            "one_sh": "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\nexec $@\n",
        },
    ),
    (
        "deepspeed --num_gpus 2 tune.py --deepspeed_config ds.json",
        {
            "tune_py": "import argparse, deepspeed\np = argparse.ArgumentParser()\n"
            "args = deepspeed.add_config_arguments(p).parse_args()\n",
            "ds_json": '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}',
        },
    ),
    ("sbatch job.sbatch", {"job_sbatch": JOB.replace("#SBATCH --cpus-per-task=64\n", "")}),
    ("sbatch job.sbatch", {"job_sbatch": JOB.replace("srun", "srun --export=ALL,A=1")}),
    ("srun -N2 --ntasks-per-node=8 python train.py", {}),
    ("bash run.sh", {"run_sh": "export A=1\nmpirun -np 4 -H a:2,b:2 python train.py\n"}),
    ("bash run.sh", {"run_sh": "export NCCL_DEBUG=INFO\nmpirun -np 4 python train.py\n"}),
    ("bash run.sh", {"run_sh": "# a \\  # comment\ntorchrun \\\n  --nproc-per-node=2 train.py\n"}),
    ("pod.yaml", {"pod_yaml": MANIFEST.replace("resources:", SHM)}),
    ("bash run.sh", {"run_sh": f"for i in 0 1 2 3; do\n  RANK=$i {EACH_RANK} &\ndone\nwait\n"}),
    ("bash run.sh", {"run_sh": f"RANK=0 {EACH_RANK} &\nRANK=1 {EACH_RANK} > log &\nwait\n"}),
    ("bash run.sh", {"run_sh": f"export RANK=$1\n{EACH_RANK}\n"}),
    (
        "bash run.sh",
        {"run_sh": f"for h in a b; do ssh $h 'RANK=$((n++)) {EACH_RANK}' & done\n"},
    ),
    (
        "sbatch job.sbatch",
        {"job_sbatch": f"#SBATCH -N1\nfor i in 0 1 2 3; do RANK=$i {EACH_RANK} & done\nwait\n"},
    ),
    ("python train.py --lr 3e-4", {}),
    ("python other.py --anything 4", {"other_py": "import sys\nprint(sys.argv)\n"}),
    (
        "python other.py --anything 4",
        {"other_py": SCRIPT.replace("parse_args", "parse_known_args")},
    ),
    (
        "python other.py --anything 4",
        {"other_py": f"{SCRIPT}\n    from lib import more\n    more.add_options(parser)\n"},
    ),
    ("python train.py --verb", {}),
    (
        "python other.py --no-compile --lr 1",
        {
            "other_py": SCRIPT.replace('"store_true"', "argparse.BooleanOptionalAction").replace(
                "--verbose", "--compile"
            )
        },
    ),
    ("python serve.py --tensor-parallel-size 8", {}),
    (
        "torchrun --nproc-per-node=8 pretrain.py --tensor-model-parallel-size 2 "
        "--pipeline-model-parallel-size 2",
        {},
    ),
    (
        "python other.py --anything 4",
        {"other_py": SCRIPT.replace('"--lr"', 'f"--{name}"')},
    ),
    (
        "python other.py --anything 4",
        {"other_py": f"{SCRIPT}\n    import sys\n    sys.argv.remove('--anything')\n"},
    ),
    ("hf jobs run --timeout 4h img lerobot-train --batch_size=8 --steps=50000", {}),
    ("hf jobs run img lerobot-train --batch_size=8 --steps=100", {}),
    (
        "python -m torch.distributed.launch --nproc_per_node=4 new.py",
        {"new_py": SCRIPT.replace("--lr", "--local-rank")},
    ),
    (
        "python -m torch.distributed.launch --use_env --nproc_per_node=4 old.py",
        {"old_py": SCRIPT.replace("--lr", "--local_rank")},
    ),
]


@pytest.mark.parametrize(("command", "texts"), SOUND)
def test_quiet(tmp_path: Path, command: str, texts: dict[str, str]) -> None:
    found = told(tmp_path, command, gpus=8, **texts)
    assert [one for one in found if one.severity > Severity.NOTE] == []
