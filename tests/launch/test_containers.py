"""Launches in containers: Docker, Compose and Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch import reviewed
from tests.launch.files import SCRIPT, told

COMPOSE = """
    services:
      cache:
        image: redis
      trainer:
        image: img
        command: {command}
        ipc: host
        environment:
          - NCCL_DEBUG=WARN
        deploy:
          resources:
            reservations:
              devices:
              - driver: nvidia
                device_ids: ["0", "1"]
                capabilities: [gpu]
"""
TRAIN_JOB = """
    apiVersion: trainer.kubeflow.org/v1alpha1
    kind: TrainJob
    spec:
      trainer:
        image: img
        numNodes: 1
        command: ["torchrun", "train.py", "--lr", "1e-3"]
        resourcesPerNode:
          limits: {nvidia.com/gpu: 4}
        env:
        - {name: TORCH_DISTRIBUTED_DEBUG, value: DETAIL}
"""
JOB_SET = """
    apiVersion: jobset.x-k8s.io/v1alpha2
    kind: JobSet
    spec:
      replicatedJobs:
      - name: workers
        replicas: 1
        template:
          spec:
            parallelism: 2
            template:
              spec:
                containers:
                - name: trainer
                  image: img
                  env:
                  - {name: NNODES, value: "HOSTS"}
                  command: ["bash", "-lc"]
                  args:
                  - >
                    exec torchrun --nnodes=$NNODES --nproc-per-node=8
                    --node-rank=$JOB_COMPLETION_INDEX --master-addr=first
                    --master-port=29500 /app/train.py --lr 1e-3
                  volumeMounts: [{mountPath: /dev/shm, name: shm}]
                volumes: [{name: shm, emptyDir: {medium: Memory}}]
"""
OVERRIDES = """
      podTemplateOverrides:
      - targetJobs: [{name: node}]
        spec:
          volumes: [{name: memory, emptyDir: {medium: Memory}}]
          containers:
          - name: node
            volumeMounts: [{name: memory, mountPath: PATH}]
"""
PLAIN = """
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator()
"""


def causes(folder: Path, command: str, **texts: str) -> list[str]:
    return [one.cause for one in told(folder, command, gpus=0, **texts)]


@pytest.mark.parametrize(
    ("gpus", "ranks", "wrong"),
    [
        ("'\"device=2,3\"'", 4, True),
        ("'\"device=2,3\"'", 2, False),
        ("2", 4, True),
        ("all", 4, False),
        ("count=4", 4, False),
    ],
)
def test_the_gpus_of_a_container(tmp_path: Path, gpus: str, ranks: int, wrong: bool) -> None:
    line = f"docker run --rm --gpus {gpus} --ulimit stack=67108864 --ipc=host img torchrun"
    command = f"{line} --standalone --nproc-per-node {ranks} train.py"
    assert ("nproc-exceeds-visible-gpus" in causes(tmp_path, command)) is wrong


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ('["torchrun", "--nproc-per-node=4", "train.py"]', True),
        ("torchrun --nproc-per-node=4 train.py", True),
        ('["torchrun", "--nproc-per-node=2", "train.py"]', False),
        ("bash -c 'torchrun --nproc-per-node=$${N:-2} train.py'", False),
    ],
)
def test_a_service_of_compose(tmp_path: Path, words: str, wrong: bool) -> None:
    texts = {"compose_yaml": COMPOSE.format(command=words)}
    for command in ("docker compose up trainer", "docker compose -f compose.yaml up"):
        found = causes(tmp_path, command, **texts)
        assert ("nproc-exceeds-visible-gpus" in found) is wrong


def test_one_process_for_the_gpus_of_a_service(tmp_path: Path) -> None:
    compose = COMPOSE.format(command="python train.py")
    found = reviewed.causes(tmp_path, "docker compose up trainer", PLAIN, compose_yaml=compose)
    assert found == ["not-launched-distributed"]
    spread = PLAIN + '    model = AutoModel.from_pretrained("a/b", device_map="auto")\n'
    source = "    from transformers import AutoModel\n" + spread
    assert not reviewed.causes(tmp_path, "docker compose up trainer", source, compose_yaml=compose)


@pytest.mark.parametrize("option", ["-f job.yaml", "--filename=job.yaml"])
def test_a_manifest_that_kubectl_hands_over(tmp_path: Path, option: str) -> None:
    found = causes(tmp_path, f"kubectl apply {option}", job_yaml=TRAIN_JOB)
    assert "debug-settings-left-on" in found
    off = TRAIN_JOB.replace("DETAIL", '"OFF"')
    assert "debug-settings-left-on" not in causes(tmp_path, f"kubectl apply {option}", job_yaml=off)


@pytest.mark.parametrize(("hosts", "wrong"), [("4", True), ("2", False)])
def test_the_pods_of_a_job_set(tmp_path: Path, hosts: str, wrong: bool) -> None:
    # The script has another path in the image than here.
    texts = {"job_yaml": JOB_SET.replace("HOSTS", hosts), "train_py": SCRIPT}
    found = causes(tmp_path, "kubectl create -f job.yaml", **texts)
    assert found == ["world-size-mismatch"] * wrong


@pytest.mark.parametrize(("path", "wrong"), [("/data", True), ("/dev/shm", False)])
def test_the_shared_memory_of_a_train_job(tmp_path: Path, path: str, wrong: bool) -> None:
    job = TRAIN_JOB + OVERRIDES.replace("PATH", path)
    findings = told(tmp_path, "kubectl apply -f job.yaml", gpus=0, job_yaml=job)
    found = [one for one in findings if one.cause == "shm-too-small"]
    # The runtime that it names may mount it.
    assert [one.severity for one in found] == [Severity.NOTE] * wrong
