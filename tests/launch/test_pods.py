"""The number, the variables and the GPUs of each pod of a manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import told
from tests.launch.reviewed import reviewed
from tests.script.sources import ddp

JOB = """
    apiVersion: batch/v1
    kind: Job
    metadata: {{name: rows}}
    spec:
      parallelism: {pods}
      completions: {pods}
      {mode}
      backoffLimit: 0
      template:
        spec:
          restartPolicy: Never
          {pod}
          containers:
          - name: trainer
            image: img
            command: {command}
            resources: {resources}
            volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
          volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}]
"""
LINE = "torchrun --nnodes={pods} --nproc-per-node=8 --node-rank={rank} --master-addr=rows-0.rows"
GPUS = "{limits: {nvidia.com/gpu: 8, rdma/hca: 1}}"
INDEXED = "completionMode: Indexed"


def job(
    rank: str = "$(JOB_COMPLETION_INDEX)",
    *,
    pods: int = 4,
    mode: str = INDEXED,
    shell: bool = False,
    more: str = "",
    resources: str = GPUS,
    pod: str = "",
) -> str:
    line = f"{LINE.format(pods=pods, rank=rank)} {more} train.py"
    command = f"[bash, -c, '{line}']" if shell else json.dumps(line.split())
    return JOB.format(command=command, pods=pods, mode=mode, resources=resources, pod=pod)


@pytest.mark.parametrize(
    ("manifest", "wrong"),
    [
        (job("$JOB_COMPLETION_INDEX"), "no shell replaces the variable"),
        (job("${JOB_COMPLETION_INDEX}"), "Kubernetes replaces $(JOB_COMPLETION_INDEX) only"),
        (job(), ""),
        (job("$JOB_COMPLETION_INDEX", shell=True), ""),
        # A template, whose values come before it is applied.
        (job("${NUMBER_OF_POD}"), ""),
        (job("0"), "all 4 pods (job.yaml:5) run this line"),
        (job("0", shell=True), "each of them gets the number 0 (job.yaml:16)"),
        (job("0", pods=1), ""),
        # The rendezvous counts the pods.
        (job("0", more="--rdzv-backend=c10d --rdzv-endpoint=10.0.0.1:29500"), ""),
        (job(mode=""), "here it is NonIndexed, the default"),
        (job(mode="completionMode: NonIndexed"), "here it is NonIndexed (job.yaml:7)"),
        (job("$(RANK_OF_POD)", mode=""), ""),
        (job(resources="{requests: {nvidia.com/gpu: 8}}"), "Kubernetes refuses such a pod"),
        (job(resources="{requests: {nvidia.com/gpu: 8}, limits: {nvidia.com/gpu: 8}}"), ""),
        (job(resources="{requests: {cpu: 8}, limits: {nvidia.com/gpu: 8}}"), ""),
    ],
)
def test_what_each_pod_gets(tmp_path: Path, manifest: str, wrong: str) -> None:
    found = told(tmp_path, "job.yaml", job_yaml=manifest)
    errors = [one.because for one in found if one.severity is Severity.ERROR]
    assert [wrong in one for one in errors] == [True] if wrong else errors == []


@pytest.mark.parametrize(
    ("resources", "pod", "wrong"),
    [
        ("{limits: {memory: 64Gi}}", "", True),
        ("{}", "", True),
        (GPUS, "", False),
        ("{limits: {nvidia.com/mig-3g.40gb: 1}}", "", False),
        ("{claims: [{name: gpu}]}", "", False),
        ("{}", "runtimeClassName: nvidia", False),
    ],
)
def test_pods_without_gpus(tmp_path: Path, resources: str, pod: str, wrong: bool) -> None:
    manifest = job(resources=resources, pod=pod)
    found = reviewed(tmp_path, "job.yaml", ddp(), job_yaml=manifest)
    assert any("the pods ask for none" in one.because for one in found) is wrong


@pytest.mark.parametrize(
    ("command", "gpus", "wrong"),
    [
        ('["python", "train.py"]', 8, True),
        ('["python", "train.py"]', 1, False),
        ('["torchrun", "--nnodes=4", "--nproc-per-node=8", "train.py"]', 8, False),
        ('["bash", "-c", "prepare; python train.py"]', 8, False),
    ],
)
def test_pods_of_one_process(tmp_path: Path, command: str, gpus: int, wrong: bool) -> None:
    own = GPUS.replace("gpu: 8", f"gpu: {gpus}")
    manifest = JOB.format(command=command, pods=4, mode=INDEXED, resources=own, pod="")
    found = reviewed(tmp_path, "job.yaml", ddp(), job_yaml=manifest)
    assert any(f"one process gets {gpus} GPUs" in one.because for one in found) is wrong
