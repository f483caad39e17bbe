"""What a job grants, against what its launch lines and the source start in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import told
from tests.launch.reviewed import reviewed
from tests.launched import launched
from tests.script.sources import LOADER, ddp

IN_QUOTES = """
    #!/bin/bash
    #SBATCH -N 2
    #SBATCH --gpus-per-node=8
    #SBATCH --ntasks-per-node=1
    #SBATCH --cpus-per-task=64
    # It's the first host that the others meet at.
    export FIRST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
    {before}
    srun --label bash -lc '
      . venv/bin/activate
      torchrun --nnodes=2 --nproc-per-node={each} \\
        --node-rank=$SLURM_NODEID --master-addr=$FIRST --master-port=29400 \\
        train.py --lr 1e-3
    '
"""
SKY = """
    num_nodes: 3
    resources: {{accelerators: "L40S:4"}}
    run: |
      accelerate launch --config_file {config} --machine_rank $SKYPILOT_NODE_RANK \\
        --main_process_ip $(echo "$SKYPILOT_NODE_IPS" | head -n1) --main_process_port 8476 train.py
"""
THREE = """
    compute_environment: LOCAL_MACHINE
    distributed_type: MULTI_GPU
    num_machines: {}
    num_processes: {}
"""
NODE = """
    #!/usr/bin/env bash
    HOSTS=4
    torchrun --nnodes=$HOSTS --nproc-per-node=8 --rdzv-backend=c10d --rdzv-id=rows \\
      --rdzv-endpoint={} train.py
"""
TASKS = """
    #!/bin/bash
    #SBATCH --nodes=1 --gres=gpu:4
    #SBATCH --ntasks-per-node=4
    {cpus}
    srun python train.py
"""
POD = """
    apiVersion: v1
    kind: Pod
    spec:
      containers:
      - name: train
        image: ours
        command: [torchrun, --standalone, --nproc-per-node=4, train.py]
        resources:
          limits: {{nvidia.com/gpu: 4, cpu: {}}}
"""
COMPOSE = """
    services:
      train:
        image: ours
        command: torchrun --standalone --nproc-per-node=2 train.py
        cpus: "{}"
"""


@pytest.mark.parametrize(
    ("each", "before", "wrong"),
    [
        (4, "", True),
        (8, "", False),
        (6, "", False),
        (4, "export CUDA_VISIBLE_DEVICES=4,5,6,7", False),
        (4, "vllm serve model --tensor-parallel-size 4 &", False),
    ],
)
def test_ranks_for_a_part_of_the_gpus(tmp_path: Path, each: int, before: str, wrong: bool) -> None:
    job = IN_QUOTES.format(each=each, before=before)
    found = told(tmp_path, "sbatch job.sbatch", job_sbatch=job)
    assert [one.cause for one in found] == ["world-size-mismatch"] * wrong
    assert all(one.severity is Severity.WARNING for one in found)


def test_idle_gpus_explain_no_failure(tmp_path: Path) -> None:
    job = """
        #!/bin/bash
        #SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8
        srun torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d \\
            --rdzv-endpoint=localhost:29500 --rdzv-id=1 train.py
    """
    found = told(tmp_path, "sbatch job.sbatch", job_sbatch=job)
    assert [one.cause for one in found[:2]] == ["launch-config-invalid", "world-size-mismatch"]
    assert [one.severity for one in found[:2]] == [Severity.ERROR, Severity.WARNING]


@pytest.mark.parametrize(
    ("machines", "processes", "wrong"),
    [(3, 6, True), (3, 4, True), (2, 8, True), (3, 12, False), (3, 9, False)],
)
def test_a_task_of_skypilot(tmp_path: Path, machines: int, processes: int, wrong: bool) -> None:
    found = told(
        tmp_path,
        "sky launch rows.yaml",
        rows_yaml=SKY.format(config="own.yaml"),
        own_yaml=THREE.format(machines, processes),
    )
    assert ("world-size-mismatch" in {one.cause for one in found}) is wrong


def test_lines_within_quotes(tmp_path: Path) -> None:
    launch = launched(
        tmp_path, "sbatch job.sbatch", job_sbatch=IN_QUOTES.format(each=8, before=""), train_py=""
    )
    assert launch.around == ("sbatch", "job.sbatch", "srun", "bash")
    rank = launch.get("host-rank")
    assert rank is not None
    assert (launch.line, rank.at) == (11, "job.sbatch:12")


@pytest.mark.parametrize(
    ("command", "address", "wrong"),
    [
        ("pdsh -w a[1-4] 'cd /srv/rows; bash node.sh'", "localhost:29500", True),
        ("clush -w a[1-4] bash node.sh", "127.0.0.1:29500", True),
        ("ssh -o 'ConnectTimeout 5' a1 'source env; ./node.sh'", "localhost:29500", True),
        ("pdsh -w a[1-4] 'cd /srv/rows; bash node.sh'", "$(hostname):29500", True),
        ("srun -N4 ./node.sh", "$HOSTNAME:29500", True),
        ("bash node.sh", "$(hostname):29500", False),
        ("pdsh -w a[1-4] 'cd /srv/rows; bash node.sh'", "a1:29500", False),
        ("pdsh -w a[1-4] 'cd /srv/rows; MEETS=a1 bash node.sh'", "$MEETS:29500", False),
        ("ssh a1 'source env; ./node.sh'", "${MEETS:-a1}:29500", False),
    ],
)
def test_shells_of_other_machines(tmp_path: Path, command: str, address: str, wrong: bool) -> None:
    found = told(tmp_path, command, node_sh=NODE.format(address))
    assert [one.cause for one in found] == ["launch-config-invalid"] * wrong


DEFAULTS = """
    #!/bin/bash
    #SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=64
    {before}
    srun {line} --nproc-per-node=8 --rdzv-backend=c10d --rdzv-id=1 train.py{end}
"""
BY_HAND = "torchrun --nnodes=2 --rdzv-endpoint={}:29500"


@pytest.mark.parametrize(
    ("before", "line", "end", "severity"),
    [
        ("", BY_HAND.format("${MASTER:-127.0.0.1}"), "", Severity.WARNING),
        ("export HEAD=${MASTER:-localhost}", BY_HAND.format("$HEAD"), "", Severity.WARNING),
        (
            "export HEAD=${MASTER:-localhost}",
            f"bash -c '{BY_HAND.format('$HEAD')}",
            "'",
            Severity.WARNING,
        ),
        ("MASTER=localhost", BY_HAND.format("${MASTER:-a1}"), "", Severity.ERROR),
        ("export HEAD=${MASTER:-a1}", BY_HAND.format("$HEAD"), "", None),
        ("MASTER=a1", BY_HAND.format("${MASTER:-localhost}"), "", None),
    ],
)
def test_a_default_at_which_hosts_do_not_meet(
    tmp_path: Path, before: str, line: str, end: str, severity: Severity | None
) -> None:
    job = DEFAULTS.format(before=before, line=line, end=end)
    found = told(tmp_path, "sbatch job.sbatch", job_sbatch=job)
    assert [one.severity for one in found] == [severity] * (severity is not None)
    assert all(
        ("unless MASTER" in one.because) is (one.severity is Severity.WARNING) for one in found
    )


def test_one_number_for_all_hosts(tmp_path: Path) -> None:
    line = "torchrun --nnodes=2 --node-rank=0 --master-addr=a1 --nproc-per-node=8 train.py"
    found = told(tmp_path, f"pdsh -w a1,a2 '{line}'")
    assert ["pdsh runs this line on all 2 hosts" in one.because for one in found] == [True]
    assert not told(tmp_path, f"ssh a1 '{line}'")


@pytest.mark.parametrize(
    ("cpus", "workers", "severity"),
    [
        ("#SBATCH -c 1", 8, Severity.WARNING),
        ("#SBATCH --cpus-per-task=2", 8, Severity.WARNING),
        ("#SBATCH --cpus-per-task=4", 8, Severity.NOTE),
        ("", 8, Severity.NOTE),
        ("#SBATCH --cpus-per-task=8", 8, None),
        ("#SBATCH --cpus-per-task=1", 1, None),
        ("#SBATCH --cpus-per-task=1 --exclusive", 8, None),
    ],
)
def test_the_cpus_of_a_task(
    tmp_path: Path, cpus: str, workers: int, severity: Severity | None
) -> None:
    source = ddp(loader=LOADER.replace("num_workers=4", f"num_workers={workers}"))
    found = reviewed(tmp_path, "sbatch rows.job", source, rows_job=TASKS.format(cpus=cpus))
    assert {one.cause: one.severity for one in found}.get("cpu-affinity-wrong") is severity


def test_workers_by_an_option(tmp_path: Path) -> None:
    source = ddp(loader=LOADER.replace("num_workers=4", "num_workers=options.loaders"))
    job = TASKS.format(cpus="#SBATCH -c 2")
    few = reviewed(tmp_path, "sbatch rows.sb", source, rows_sb=f"{job.rstrip()} --loaders 2\n")
    many = reviewed(tmp_path, "sbatch rows.sb", source, rows_sb=f"{job.rstrip()} --loaders 16\n")
    assert "cpu-affinity-wrong" not in {one.cause for one in few}
    assert any("16 loader workers (rows.sb:5)" in one.because for one in many)


@pytest.mark.parametrize(
    ("cpus", "severity"),
    [
        ("2", Severity.WARNING),
        ('"3500m"', Severity.WARNING),
        ("8", Severity.NOTE),
        ("32", None),
        ("$CPUS", None),
    ],
)
def test_the_limit_of_a_pod(tmp_path: Path, cpus: str, severity: Severity | None) -> None:
    found = reviewed(tmp_path, "kubectl apply -f pod.yaml", ddp(), pod_yaml=POD.format(cpus))
    assert {one.cause: one.severity for one in found}.get("cpu-quota-throttled") is severity


@pytest.mark.parametrize(("cpus", "wrong"), [("1.5", True), ("16", False)])
def test_the_limit_of_a_service(tmp_path: Path, cpus: str, wrong: bool) -> None:
    text = COMPOSE.format(cpus)
    found = reviewed(tmp_path, "docker compose up", ddp(), compose_yaml=text)
    assert ("cpu-quota-throttled" in {one.cause for one in found}) is wrong


ONCE = """
    #!/bin/bash
    #SBATCH --nodes={nodes} --gpus-per-node=4 --ntasks-per-node={tasks}
    {line}
"""
AGENT = "torchrun --nnodes=$SLURM_NNODES --nproc-per-node=4 --rdzv-endpoint=$FIRST:29500 train.py"


@pytest.mark.parametrize(
    ("nodes", "tasks", "line", "because"),
    [
        (1, 4, "python train.py", "nothing starts the other tasks of the job"),
        (2, 4, "python train.py", "nothing starts the other tasks of the job"),
        (2, 1, AGENT, "it waits for 2 hosts, and nothing starts it on the others"),
    ],
)
def test_a_batch_script_runs_on_its_first_node_alone(
    tmp_path: Path, nodes: int, tasks: int, line: str, because: str
) -> None:
    job = ONCE.format(nodes=nodes, tasks=tasks, line=line)
    findings = reviewed(tmp_path, "sbatch job.sbatch", ddp(), job_sbatch=job)
    (found,) = (one for one in findings if one.cause == "not-launched-distributed")
    assert because in found.because
    assert "srun" in found.fixes[0].paste


@pytest.mark.parametrize(
    ("nodes", "tasks", "line"),
    [
        (1, 4, "srun python train.py"),
        (2, 4, "mpirun -np 8 python train.py"),
        (2, 1, f"srun {AGENT}"),
        (1, 1, AGENT),
        # Its ranks are its own processes, so the tasks are cores.
        (1, 4, "torchrun --standalone --nproc-per-node=4 train.py"),
    ],
)
def test_quiet_where_srun_starts_all_or_one_node_is_enough(
    tmp_path: Path, nodes: int, tasks: int, line: str
) -> None:
    job = ONCE.format(nodes=nodes, tasks=tasks, line=line)
    source = ddp(head="os.environ['RANK'] = task('SLURM_PROCID', 'OMPI_COMM_WORLD_RANK')")
    findings = reviewed(tmp_path, "sbatch job.sbatch", source, job_sbatch=job)
    assert "not-launched-distributed" not in {one.cause for one in findings}


OF_LIGHTNING = """
    import lightning as L
    L.Trainer(devices=4, num_nodes=2, strategy="ddp"{}).fit(model)
"""


@pytest.mark.parametrize(
    ("line", "more", "wrong"),
    [
        ("python train.py", "", True),
        ("srun python train.py", "", False),
        ("python train.py", ", plugins=[LightningEnvironment()]", False),
        ("python train.py", ", **options", False),
    ],
)
def test_tasks_that_lightning_waits_for(tmp_path: Path, line: str, more: str, wrong: bool) -> None:
    job = ONCE.format(nodes=2, tasks=4, line=line)
    findings = reviewed(tmp_path, "sbatch job.sbatch", OF_LIGHTNING.format(more), job_sbatch=job)
    told = [one for one in findings if one.cause == "not-launched-distributed"]
    assert any("nothing starts the other tasks" in one.because for one in told) is wrong


def test_quiet_about_tasks_of_a_script_that_trains_alone(tmp_path: Path) -> None:
    job = ONCE.format(nodes=1, tasks=4, line="python train.py").replace("--gpus-per-node=4", "")
    assert "not-launched-distributed" not in {
        one.cause for one in told(tmp_path, "sbatch job.sbatch", job_sbatch=job)
    }


@pytest.mark.parametrize(
    ("command", "because"),
    [
        ("--nnodes 2 --node-rank 0 --master-addr a --master-port 295000", "ports end at 65535"),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 10.0.0.1:0", "which the others do not"),
        ("--master-port 0", "which the ranks do not know"),
    ],
)
def test_ports_at_which_ranks_do_not_meet(tmp_path: Path, command: str, because: str) -> None:
    found = told(tmp_path, f"torchrun --nproc-per-node 8 {command} train.py")
    assert any(because in one.because for one in found if one.cause == "launch-config-invalid")


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint 10.0.0.1:65535",
        "torchrun --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0",
        "torchrun --standalone --nproc-per-node 2 --master-port 0",
        # torchrun does not read it.
        "env MASTER_PORT=0 torchrun --nproc-per-node 2",
        "accelerate launch --multi_gpu --num_processes 2 --main_process_port 0",
    ],
)
def test_quiet_about_ports_that_serve(tmp_path: Path, command: str) -> None:
    found = told(tmp_path, f"{command} train.py")
    assert not any("port" in one.because and "meet" in one.because for one in found)


VOLUME = """
      volumes:
      - name: shm
        emptyDir: {{medium: Memory, sizeLimit: {}}}
"""


@pytest.mark.parametrize(
    ("size", "wrong"), [("64Mi", True), ("512M", True), ("1Gi", False), ("16Gi", False)]
)
def test_the_size_of_the_shared_memory_of_a_pod(tmp_path: Path, size: str, wrong: bool) -> None:
    mount = "        volumeMounts: [{name: shm, mountPath: /dev/shm}]\n"
    pod = POD.format(8).rstrip() + "\n" + mount + VOLUME.format(size).lstrip("\n")
    found = [
        one for one in told(tmp_path, "pod.yaml", pod_yaml=pod) if one.cause == "shm-too-small"
    ]
    assert [size in one.because for one in found] == [True] * wrong
