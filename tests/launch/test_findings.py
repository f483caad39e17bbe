"""What is told of launch lines and their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor import engine
from ddoctor.evidence.host import SharedMemory
from ddoctor.evidence.section import Evidence
from ddoctor.launch import reader
from ddoctor.models import Confidence, Severity
from ddoctor.script import reader as script
from tests.launch.files import FSDP, JOB, MANIFEST, SCRIPT, TWO_GPUS, ZERO, machine, told
from tests.launched import launched


@pytest.mark.parametrize(
    ("cause", "command", "says", "texts"),
    [
        (
            "launch-config-invalid",
            "torchrun --nprocs-per-node 2 train.py",
            "mean --nproc-per-node?",
            {},
        ),
        ("launch-config-invalid", "torchrun train.py --batch-sise 4", "mean --batch-size?", {}),
        (
            "launch-config-invalid",
            "accelerate launch --config_file two.yaml train.py",
            "did you mean num_machines?",
            {"two_yaml": TWO_GPUS.replace("num_machines", "num_machine")},
        ),
        (
            "launch-config-invalid",
            "torchrun --nnodes=2 --node-rank=2 --master-addr=a train.py",
            "host 2 (the command line) does not exist",
            {},
        ),
        ("launch-config-invalid", "torchrun train.py --batch_size 4", "mean --batch-size?", {}),
        (
            "launch-config-invalid",
            "python -m torch.distributed.launch --nproc_per_node=4 old.py",
            "old.py knows no --local-rank (added by torch.distributed.launch): did you mean "
            "--local_rank?",
            {"old_py": SCRIPT.replace("--lr", "--local_rank")},
        ),
        (
            "launch-config-invalid",
            "accelerate launch --num_processes 16 --num_machines N --machine_rank 0 train.py",
            "hosts is 'N' (the command line), which is no number",
            {},
        ),
        ("launch-config-invalid", "torchrun --standalone --nnodes=2 train.py", "itself only", {}),
        (
            "launch-config-invalid",
            "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:29500 train.py",
            "would meet at localhost:29500",
            {},
        ),
        ("launch-config-invalid", "torchrun --nnodes=4 train.py", "no address to meet at", {}),
        (
            "launch-config-invalid",
            "torchrun --nnodes=4 --rdzv-backend=c10d --rdzv-id=7 train.py",
            "no address to meet at",
            {},
        ),
        (
            "fsdp-wrap-policy-wrong",
            "accelerate launch --config_file fsdp.yaml tune.py --model_path org/Mistral-7B-v0.1",
            "LlamaDecoderLayer (fsdp.yaml:5), a class of Llama models",
            {},
        ),
        (
            "launch-config-invalid",
            "accelerate launch --num_machines 2 --num_processes 16 --machine_rank 0 train.py",
            "no main_process_ip",
            {},
        ),
        (
            "launch-config-invalid",
            "sbatch job.sbatch",
            "each of them gets the number 0 (job.sbatch:7)",
            {"job_sbatch": JOB.replace("$SLURM_NODEID", "0").replace("c10d", "static")},
        ),
        (
            "launch-config-invalid",
            "sbatch job.sbatch",
            "the batch script puts in $SLURM_NODEID before srun starts (job.sbatch:7)",
            {"job_sbatch": JOB.replace("--rdzv-backend c10d ", "")},
        ),
        (
            "world-size-mismatch",
            "sbatch job.sbatch",
            "WORLD_SIZE is 16 (job.sbatch:2), and 8 processes are started",
            {
                "job_sbatch": "#SBATCH --nodes=2 --ntasks-per-node=4\n"
                "export WORLD_SIZE=$((SLURM_NNODES * 8)) MASTER_ADDR=a\nsrun python train.py\n"
            },
        ),
        (
            "launch-config-invalid",
            "bash run.sh",
            "a blank or a comment follows its backslash",
            {"run_sh": "torchrun --nproc-per-node=2 \\  # of this host\n  train.py\npython a.py\n"},
        ),
        (
            "launch-config-invalid",
            "torchrun --nnodes=2 --master-addr=<IP of node 0> --node-rank=0 train.py".replace(
                "<IP of node 0>", "'<IP of node 0>'"
            ),
            "placeholder",
            {},
        ),
        (
            "launch-config-invalid",
            "deepspeed --num_gpus 4 tune.py --deepspeed ds.json",
            "4 × 2 accumulation steps × 4 ranks is 32",
            {},
        ),
        (
            "launch-config-invalid",
            "srun -N2 --ntasks-per-node=8 bash run.sh",
            "2 hosts would meet at localhost (run.sh:1)",
            {"run_sh": "export MASTER_ADDR=localhost\npython train.py\n"},
        ),
        (
            "launch-config-invalid",
            "mpirun -np 8 -npernode 4 -x MASTER_ADDR=127.0.0.1 python train.py",
            "2 hosts would meet at 127.0.0.1 (the command line)",
            {},
        ),
        (
            "launch-config-invalid",
            "deepspeed --include localhost:0,1 --num_gpus 2 tune.py",
            "--include localhost:0,1 (the command line) chooses hosts and GPUs",
            {},
        ),
        (
            "world-size-mismatch",
            "accelerate launch --num_machines 2 --num_processes 1 --main_process_ip a train.py",
            "the total over all machines",
            {},
        ),
        (
            "world-size-mismatch",
            "sbatch job.sbatch",
            "8 tasks on each host (job.sbatch:3), and each is a torchrun that starts 8 ranks: 64",
            {"job_sbatch": JOB.replace("--ntasks-per-node=1", "--ntasks-per-node=8")},
        ),
        (
            "world-size-mismatch",
            "sbatch --nodes=4 job.sbatch",
            "the job has 4 hosts (the command line), and torchrun expects 2 (job.sbatch:7)",
            {},
        ),
        (
            "world-size-mismatch",
            "pod.yaml",
            "the job has 5 hosts (pod.yaml:",
            {"pod_yaml": MANIFEST.replace("replicas: 2", "replicas: 4")},
        ),
        (
            "world-size-mismatch",
            "torchrun --nproc-per-node=6 pretrain.py --tensor-model-parallel-size 4",
            "6 ranks do not divide by TP 4 (the command line)",
            {},
        ),
        (
            "nproc-exceeds-visible-gpus",
            "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node=4 train.py",
            "0,1 (the command line) makes visible 2 GPUs",
            {},
        ),
        (
            "nproc-exceeds-visible-gpus",
            "torchrun --nproc-per-node=9 train.py",
            "this machine has 8 GPUs",
            {},
        ),
        (
            "nproc-exceeds-visible-gpus",
            "sbatch job.sbatch",
            "job.sbatch:5 asks for 4 GPUs",
            {"job_sbatch": JOB.replace("--gpus-per-node=8", "--gpus-per-node=4")},
        ),
        (
            "not-launched-distributed",
            "accelerate launch --config_file two.yaml --num_processes 4 train.py",
            "accelerate starts one where distributed_type is NO (two.yaml:3)",
            {"two_yaml": TWO_GPUS.replace("MULTI_GPU", "'NO'")},
        ),
        (
            "fsdp-wrap-policy-wrong",
            "accelerate launch --config_file fsdp.yaml train.py",
            "is empty (fsdp.yaml:5)",
            {"fsdp_yaml": FSDP.replace("LlamaDecoderLayer", "''")},
        ),
        (
            "fsdp-ram-efficient-random-weights",
            "accelerate launch --config_file fsdp.yaml train.py",
            "fsdp_sync_module_states is off (fsdp.yaml:7)",
            {"fsdp_yaml": FSDP.replace("states: true", "states: false")},
        ),
        (
            "mixed-precision-overridden",
            "accelerate launch --num_processes=2 lerobot-train --policy.use_amp=true",
            "policy.use_amp is on (the command line), but does nothing",
            {},
        ),
        (
            "env-not-propagated-to-nodes",
            "sbatch job.sbatch",
            "NCCL_DEBUG (job.sbatch:6) would not reach",
            {"job_sbatch": JOB.replace("srun", "srun --export=PATH,HOME")},
        ),
        (
            "env-not-propagated-to-nodes",
            "bash run.sh",
            "mpirun passes on only what -x names",
            {"run_sh": "export NCCL_DEBUG=INFO\nmpirun -np 4 -H a:2,b:2 python train.py\n"},
        ),
        (
            "cpu-affinity-wrong",
            "sbatch job.sbatch",
            "8 ranks in one task (job.sbatch:3), and a task gets 4 CPUs (job.sbatch:4)",
            {"job_sbatch": JOB.replace("--cpus-per-task=64", "--cpus-per-task=4")},
        ),
        (
            "job-time-limit",
            "hf jobs run --flavor a10g-large img bash -c "
            "'nvidia-smi && lerobot-train --batch_size=8 --steps=50000'",
            "50,000 steps (the command line) take less only below 36 ms a step",
            {},
        ),
        ("shm-too-small", "pod.yaml", "mounts nothing at /dev/shm", {}),
    ],
)
def test_told(tmp_path: Path, cause: str, command: str, says: str, texts: dict[str, str]) -> None:
    found = [one for one in told(tmp_path, command, gpus=8, **texts) if one.cause == cause]
    assert len(found) == 1, found
    assert says in found[0].because
    assert found[0].severity > Severity.NOTE
    assert found[0].fixes


TRAINER = "from transformers import Trainer\n\nTrainer().train()\n"


@pytest.mark.parametrize(
    ("command", "source", "gpus", "found"),
    [
        ("python train.py", TRAINER, 4, True),
        ("CUDA_VISIBLE_DEVICES=0,1 python train.py", TRAINER, 4, True),
        ("CUDA_VISIBLE_DEVICES=3 python train.py", TRAINER, 4, False),
        ("python train.py", TRAINER, 1, False),
        ("torchrun --nproc-per-node=4 train.py", TRAINER, 4, False),
        ("python train.py", "print(1)\n", 4, False),
    ],
)
def test_the_trainer_in_one_process(
    tmp_path: Path, command: str, source: str, gpus: int, found: bool
) -> None:
    launch = launched(tmp_path, command, train_py=source)
    path = reader.script_file(launch, tmp_path)
    assert path is not None
    report = engine.examine(Evidence([launch, script.read(path, ()), machine(gpus)]), "doctor")
    causes = [one.cause for one in report.findings if one.severity > Severity.NOTE]
    assert ("not-launched-distributed" in causes) == found


def test_the_effective_batch_is_a_note_with_choices(tmp_path: Path) -> None:
    command = "accelerate launch --num_processes=2 lerobot-train --batch_size=8 --steps=50000 "
    (note,) = [
        one
        for one in told(tmp_path, command + "--optimizer.lr=1e-4 --save_freq=5000", gpus=2)
        if one.cause == "effective-batch-lr-mismatch"
    ]
    assert (note.severity, note.confidence) == (Severity.NOTE, Confidence.POSSIBLE)
    assert "uses 16 samples, 2 times as many as on one GPU" in note.because
    paste = note.fixes[0].paste
    assert "0.000141 (Adam" in paste
    assert "0.0002 (SGD" in paste
    assert "25,000" in paste
    assert "2,500" in paste


def test_the_choices_for_the_rate_of_a_policy(tmp_path: Path) -> None:
    command = "accelerate launch --num_processes=4 lerobot-train --batch_size=8 --steps=50000 "
    (note,) = [
        one
        for one in told(tmp_path, command + "--eval_freq=5000", gpus=4)
        if one.cause == "effective-batch-lr-mismatch"
    ]
    assert "if the rate of the policy and the steps are of one GPU" in note.because
    paste = note.fixes[0].paste
    assert "learning rate  × 2 (Adam" in paste
    assert "eval_freq      1,250" in paste
    assert note.fixes[1].paste == "micro-batch 2 on each of 4 ranks"


def test_an_offload_that_does_nothing_is_a_note(tmp_path: Path) -> None:
    command, text = "deepspeed --num_gpus 8 tune.py --deepspeed ds.json", '"stage": 3'
    (note,) = told(tmp_path, command, gpus=8, ds_json=ZERO.replace(text, '"stage": 2'))
    assert note.severity is Severity.NOTE
    assert "stage 3 only, and the stage is 2 (ds.json:5)" in note.because


@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch --num_processes=1 lerobot-train --batch_size=8 --steps=50 --lr=1e-4",
        "accelerate launch --num_processes=2 other.py --batch_size=8 --steps=50",
        "accelerate launch --num_processes=2 lerobot-train --steps=50 --lr=1e-4",
    ],
)
def test_no_note_without_numbers(tmp_path: Path, command: str) -> None:
    found = told(tmp_path, command, gpus=2)
    assert [one for one in found if one.cause == "effective-batch-lr-mismatch"] == []


def test_this_machine_is_not_the_one_that_a_manifest_asks_for(tmp_path: Path) -> None:
    """Without a run, what this host shows neither replaces nor confirms what a file says."""
    here = SharedMemory(host="laptop", size=16 * 2**20, free=16 * 2**20)
    evidence = Evidence([launched(tmp_path, "pod.yaml", pod_yaml=MANIFEST), here])
    found = [
        one for one in engine.examine(evidence, "doctor").findings if one.cause == "shm-too-small"
    ]
    assert {"mounts nothing" in one.because for one in found} == {True, False}
