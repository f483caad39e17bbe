"""What accelerate starts on TPUs and by Megatron-LM; TrainJobs of Kubeflow with runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence.section import Evidence
from ddoctor.report.launch import starts
from tests.launch.files import SCRIPT
from tests.launch.reviewed import causes
from tests.launched import launched

TPU = """
    compute_environment: LOCAL_MACHINE
    distributed_type: {kind}
    main_training_function: main
    mixed_precision: bf16
    num_machines: 1
    num_processes: 8
    {more}
"""
MEGATRON = """
    compute_environment: LOCAL_MACHINE
    distributed_type: MEGATRON_LM
    megatron_lm_config:
      megatron_lm_num_micro_batches: {micro}
      megatron_lm_pp_degree: 2
      megatron_lm_recompute_activations: false
      megatron_lm_sequence_parallelism: true
      megatron_lm_tp_degree: 2
      megatron_lm_use_distributed_optimizer: {sharded}
    mixed_precision: bf16
    num_machines: 1
    num_processes: {ranks}
"""
BY_FILE = "accelerate launch --config_file c.yaml {}train.py"
JOB = """
    apiVersion: trainer.kubeflow.org/v1alpha1
    kind: TrainJob
    metadata:
      name: tune
    spec:
      runtimeRef:
        name: {name}
      {trainer}
"""
RUNTIME = """
    ---
    apiVersion: trainer.kubeflow.org/v1alpha1
    kind: ClusterTrainingRuntime
    metadata:
      name: own
    spec:
      mlPolicy:
        numNodes: 3
        torch:
          numProcPerNode: 2
      template:
        spec:
          replicatedJobs:
            - name: data
              template:
                spec:
                  template:
                    spec:
                      containers:
                        - name: fetch
                          command: [python, fetch.py]
            - name: node
              template:
                metadata:
                  labels:
                    trainer.kubeflow.org/trainjob-ancestor-step: trainer
                spec:
                  template:
                    spec:
                      containers:
                        - name: node
                          command: [torchrun, {script}]
                          resources:
                            limits:
                              nvidia.com/gpu: 2
"""


def head(folder: Path, command: str, **texts: str) -> dict[str, str]:
    return dict(starts(Evidence([launched(folder, command, **{"train_py": SCRIPT, **texts})])))


@pytest.mark.parametrize("kind", ["XLA", "TPU"])
@pytest.mark.parametrize(
    ("more", "option", "of"),
    [
        ("tpu_use_cluster: false", "", "this host"),
        ("tpu_use_cluster: false", "--num_processes 4 ", "this host"),
        ("tpu_use_cluster: true\n    tpu_name: v4-32", "", "the pod v4-32"),
    ],
)
def test_tpus(tmp_path: Path, kind: str, more: str, option: str, of: str) -> None:
    config = TPU.format(kind=kind, more=more)
    found = head(tmp_path, BY_FILE.format(option), c_yaml=config)
    assert found["starts"] == f"a process for each TPU device of {of}, by accelerate"
    assert found["parallelism"] == "data parallel by torch_xla, bf16"
    # The 8 processes of the file are not compared with GPUs.
    assert causes(tmp_path, BY_FILE.format(option), SCRIPT, gpus=4, c_yaml=config) == []


def test_processes_on_gpus_count(tmp_path: Path) -> None:
    config = TPU.format(kind="MULTI_GPU", more="tpu_use_cluster: false")
    assert head(tmp_path, BY_FILE.format(""), c_yaml=config)["starts"].startswith("1 host × 8")


@pytest.mark.parametrize(
    ("ranks", "micro", "sharded", "told"),
    [
        (
            8,
            2,
            "true",
            "TP 2, PP 2, DP 2, 2 micro-batches a step, sequence parallelism, "
            "distributed optimizer, bf16",
        ),
        (4, 1, "false", "TP 2, PP 2, 1 micro-batch a step, sequence parallelism, bf16"),
        (6, 1, "false", "TP 2, PP 2, 1 micro-batch a step, sequence parallelism, bf16"),
    ],
)
def test_megatron(tmp_path: Path, ranks: int, micro: int, sharded: str, told: str) -> None:
    config = MEGATRON.format(ranks=ranks, micro=micro, sharded=sharded)
    found = head(tmp_path, BY_FILE.format(""), c_yaml=config)
    assert found["parallelism"] == f"Megatron-LM, {told}"


def job(trainer: str, name: str = "own") -> str:
    return JOB.format(name=name, trainer=trainer.replace("\n", "\n      "))


@pytest.mark.parametrize(
    ("trainer", "begins", "script"),
    [
        ("", "3 hosts × 2 ranks, by torchrun", "own.py"),
        ("trainer:\n  numNodes: 4", "4 hosts × 2 ranks, by torchrun", "own.py"),
        ("trainer:\n  numProcPerNode: 1", "3 hosts × 1 rank, by torchrun", "own.py"),
        (
            "trainer:\n  numNodes: 1\n  command: [torchrun, --nproc-per-node, '2', train.py]",
            "1 host × 2 ranks, by torchrun",
            "train.py",
        ),
        ("trainer:\n  command: [python, train.py]", "3 hosts × 1 rank, by python", "train.py"),
    ],
)
def test_a_job_with_its_runtime(tmp_path: Path, trainer: str, begins: str, script: str) -> None:
    manifest = job(trainer) + RUNTIME.format(script="own.py")
    found = head(tmp_path, "job.yaml", job_yaml=manifest)
    assert (found["starts"], found["script"]) == (begins, script)


def test_a_job_without_a_command(tmp_path: Path) -> None:
    manifest = job("trainer:\n  numNodes: 2", "torch-distributed")
    with pytest.raises(DoctorError, match="its runtime torch-distributed is not in it: append"):
        head(tmp_path, "job.yaml", job_yaml=manifest)
    # The runtime of another job has a command that counts by itself.
    both = manifest + RUNTIME.format(script="own.py")
    assert head(tmp_path, "job.yaml", job_yaml=both)["script"] == "own.py"
