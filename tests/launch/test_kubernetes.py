"""Restarts, and the names of services, in manifests of Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import told
from tests.launched import launched

POD = """
            spec:
              {pod}
              containers:
              - name: trainer
                image: img
                command: ["torchrun", "--nnodes=2", "--nproc-per-node=8", "--rdzv-backend=c10d",
                  "--rdzv-id=1", "--rdzv-endpoint={meets}", "train.py", "--lr", "1e-3"]
                {env}
                resources: {{limits: {{nvidia.com/gpu: 8, rdma/hca: 1}}}}
                volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
              volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}]
"""
JOB = """
    apiVersion: batch/v1
    kind: Job
    metadata: {{name: rows}}
    spec:
          parallelism: 2
          completions: 2
          completionMode: Indexed
          backoffLimit: 0
          template:
"""
JOB_SET = """
    apiVersion: jobset.x-k8s.io/v1alpha2
    kind: JobSet
    metadata: {{name: rows}}
    spec:
      {policy}
      replicatedJobs:
      - name: workers
        replicas: {replicas}
        template:
         spec:
          parallelism: {parallel}
          {limit}
          template:
"""
OF_KUBEFLOW = """
    apiVersion: kubeflow.org/v1
    kind: PyTorchJob
    metadata: {{name: rows}}
    spec:
      nprocPerNode: "8"
      pytorchReplicaSpecs:
        Master:
          replicas: 1
          template: &pod
{pod}
        Worker: {{replicas: {workers}, template: *pod}}
"""
HOST = "hostNetwork: true"
CLUSTER = "dnsPolicy: ClusterFirstWithHostNet"
NEVER = "restartPolicy: Never"
FIRST = "rows-0.rows:29500"


def because(folder: Path, manifest: str) -> list[tuple[Severity, str]]:
    found = told(folder, "kubectl apply -f rows.yaml", rows_yaml=manifest)
    assert {one.cause for one in found} <= {"launch-config-invalid"}
    return [(one.severity, one.because) for one in found]


def pod(*lines: str, meets: str = "10.0.0.1:29500", env: str = "") -> str:
    return POD.format(pod="\n              ".join(lines), meets=meets, env=env)


@pytest.mark.parametrize(
    ("lines", "meets", "wrong"),
    [
        ([HOST, "subdomain: rows"], FIRST, True),
        ([HOST, "dnsPolicy: ClusterFirst"], "rows-0.rows.team.svc.cluster.local:29500", True),
        ([HOST, "dnsPolicy: Default", "subdomain: peers"], "first.peers:29500", True),
        ([HOST], "$(MASTER_ADDR):29500", True),
        ([HOST, CLUSTER], FIRST, False),
        ([HOST, "dnsPolicy: None"], FIRST, False),
        (["subdomain: rows"], FIRST, False),
        (["hostNetwork: false"], FIRST, False),
        # The DNS of the hosts knows these.
        ([HOST], "node1:29500", False),
        ([HOST], "10.0.0.1:29500", False),
        ([HOST], "node1.lab.example.org:29500", False),
    ],
)
def test_the_name_of_a_service(tmp_path: Path, lines: list[str], meets: str, wrong: bool) -> None:
    env = "env: [{name: MASTER_ADDR, value: rows-0.rows}]"
    job = JOB.format() + pod(NEVER, *lines, meets=meets, env=env)
    found = because(tmp_path, job)
    assert [one for one, _ in found] == [Severity.WARNING] * wrong
    assert all("which does not know" in text for _, text in found)


@pytest.mark.parametrize(
    ("lines", "workers", "wrong"),
    [([HOST], 1, True), ([HOST, CLUSTER], 1, False), ([], 1, False), ([HOST], 0, False)],
)
def test_the_service_of_a_master(
    tmp_path: Path, lines: list[str], workers: int, wrong: bool
) -> None:
    manifest = OF_KUBEFLOW.format(pod=pod(*lines), workers=workers)
    found = because(tmp_path, manifest.replace("--nnodes=2", f"--nnodes={workers + 1}"))
    assert ["the service of the master" in text for _, text in found] == [True] * wrong


@pytest.mark.parametrize(
    ("replicas", "parallel", "limit", "policy", "noted"),
    [
        (1, 2, "", "failurePolicy: {maxRestarts: 3}", True),
        (1, 2, "backoffLimit: 6", "failurePolicy: {maxRestarts: 3}", True),
        (2, 1, "backoffLimit: 6", "", True),
        (1, 2, "backoffLimit: 0", "failurePolicy: {maxRestarts: 3}", False),
        (2, 1, "backoffLimit: 0", "", False),
        (1, 2, "", "", False),
        (1, 1, "", "failurePolicy: {maxRestarts: 3}", False),
    ],
)
def test_a_pod_of_a_set_that_begins_again_alone(
    tmp_path: Path, replicas: int, parallel: int, limit: str, policy: str, noted: bool
) -> None:
    given = {"replicas": replicas, "parallel": parallel, "limit": limit, "policy": policy}
    manifest = JOB_SET.format(**given) + pod()
    found = because(tmp_path, manifest.replace("--nnodes=2", f"--nnodes={replicas * parallel}"))
    assert [one for one, _ in found] == [Severity.NOTE] * noted
    assert all(("maxRestarts" in text) is bool(policy) for _, text in found)


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("restartPolicy: Always", Severity.ERROR),
        ("", Severity.NOTE),
        (NEVER, None),
        ("restartPolicy: OnFailure", None),
    ],
)
def test_a_policy_that_is_refused(tmp_path: Path, line: str, severity: Severity | None) -> None:
    found = because(tmp_path, JOB.format() + pod(line))
    assert [one for one, _ in found] == ([severity] if severity else [])
    assert all("Kubernetes refuses a Job" in text for _, text in found)
    given = {"replicas": 1, "parallel": 2, "limit": "backoffLimit: 0", "policy": ""}
    in_a_set = because(tmp_path, JOB_SET.format(**given) + pod(line))
    assert bool(in_a_set) is (severity is Severity.ERROR)


IN_TEXT = """
    apiVersion: batch/v1
    kind: {kind}
    metadata: {{name: rows}}
    spec:
      parallelism: {pods}
      completions: {pods}
      completionMode: Indexed
      backoffLimit: 0
      template:
        spec:
          restartPolicy: Never
          containers:
          - name: trainer
            command: ["bash", "-c"]
            args:
            - {style}
              set -e;
              torchrun --nnodes={pods} --rdzv-backend=c10d
              --nproc-per-node=8
              {meets} --rdzv-id=1 train.py --lr 1e-3{end}
            env: [{{name: OURS, value: {ours}}}]
            resources: {{limits: {{nvidia.com/gpu: 8, rdma/hca: 1}}}}
            volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
          volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}]
"""


def in_text(
    meets: str, *, kind: str = "Job", pods: int = 2, style: str = ">-", ours: str = "localhost"
) -> str:
    end = '"' if style == '"' else ""
    given = {"kind": kind, "pods": pods, "meets": meets, "ours": ours, "end": end}
    if style == '"':
        return IN_TEXT.replace("{style}\n              ", '"').format(**given)
    manifest = IN_TEXT.format(style=style, **given)
    folds = "c10d\n", "node=8\n"
    for one in folds if style.startswith("|") else ():
        manifest = manifest.replace(one, one.replace("\n", " \\\n"))
    return manifest


@pytest.mark.parametrize(
    ("style", "line"), [(">-", 17), (">", 17), ("|", 20), ("|-", 20), ('"', 16)]
)
def test_the_lines_of_a_text(tmp_path: Path, style: str, line: int) -> None:
    launch = launched(
        tmp_path, "rows.yaml", rows_yaml=in_text("--rdzv-endpoint=a1:29500", style=style)
    )
    meets = launch.get("endpoint")
    assert meets is not None
    assert meets.at == f"rows.yaml:{line}"


@pytest.mark.parametrize(
    ("meets", "kind", "pods", "severity"),
    [
        ("--rdzv-endpoint=localhost:29400", "Job", 2, Severity.ERROR),
        ("--rdzv-endpoint 127.0.0.1:29400", "Job", 4, Severity.ERROR),
        ("--rdzv-endpoint=localhost:${PORT:-29400}", "Job", 2, Severity.ERROR),
        ("--rdzv-endpoint=$OURS:29400", "Job", 2, Severity.ERROR),
        ("--rdzv-endpoint=localhost:29400", "PyTorchJob", 2, Severity.ERROR),
        ("--rdzv-endpoint=${RDZV_HOST:-localhost}:29400", "Job", 2, Severity.WARNING),
        ("--rdzv-endpoint=${RDZV:-127.0.0.1:29400}", "Job", 2, Severity.WARNING),
        # What operators set.
        ("--rdzv-endpoint=${RDZV_HOST:-localhost}:29400", "PyTorchJob", 2, None),
        ("--rdzv-endpoint=${MASTER_ADDR:-localhost}:29400", "Job", 2, None),
        ("--rdzv-endpoint=localhost:29400", "Job", 1, None),
        ("--rdzv-endpoint=${RDZV_HOST:-rows-0.rows}:29400", "Job", 2, None),
        ("--rdzv-endpoint=${OURS:-localhost}:29400", "Job", 2, Severity.ERROR),
    ],
)
def test_pods_that_meet_at_a_local_address(
    tmp_path: Path, meets: str, kind: str, pods: int, severity: Severity | None
) -> None:
    found = because(tmp_path, in_text(meets, kind=kind, pods=pods))
    assert [one for one, _ in found] == [severity] * (severity is not None)
    assert all("different place on each" in text for _, text in found)


def test_what_a_pod_sets_replaces_a_default(tmp_path: Path) -> None:
    meets = "--rdzv-endpoint=${OURS:-localhost}:29400"
    assert because(tmp_path, in_text(meets, ours="rows-0.rows")) == []
