"""The ranks may use too few CPU cores, or only cores far from their GPUs.

The affinity mask of the launching shell, or the cpuset of its container or job, goes down to every
rank and every DataLoader worker. Where it holds fewer cores than there are ranks they take turns
while the other cores idle; where it holds only cores of one NUMA node, the ranks of GPUs on the
other node copy all their data across the sockets.

Seen from outside: ``taskset -cp $$`` in the shell that launches, ``nvidia-smi topo -m`` for the
cores near each GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.environment import Environment
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Cpus, Kernel, cpu_list
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.ranks import bound_one_by_one, local_ranks, visible_gpus
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("cpu-thread-oversubscription", "dataloader-bottleneck", "straggler-rank")


def fewer_cores_than_ranks(
    cpus: Cpus,
    gpus: Gpus | None,
    environment: Environment | None,
    runs: ProbeRuns | None,
    kernel: Kernel | None,
) -> Iterator[Finding]:
    """Not even one core for the main thread of each rank, on a machine that has them."""
    ranks = local_ranks(gpus, environment, runs)
    allowed = len(cpus.allowed)
    if bound_one_by_one(environment):
        return
    if ranks is None or allowed >= min(ranks.number, cpus.logical):
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if ranks.certain else Confidence.LIKELY,
        because=(
            f"{ranks.number} ranks ({ranks.told_by}) share {allowed} of the machine's "
            f"{cpus.logical} logical CPUs: the affinity mask is {cpu_list(cpus.allowed)}"
        ),
        evidence=(
            Observation(
                name="logical CPUs in the affinity mask",
                value=allowed,
                expected=cpus.logical,
                source="sched_getaffinity(2)",
            ),
        ),
        fixes=(_wider(cpus, environment, kernel),),
    )


def far_from_the_gpus(
    cpus: Cpus, gpus: Gpus, environment: Environment | None, kernel: Kernel | None
) -> Iterator[Finding]:
    """The mask holds no core of the NUMA node that a GPU hangs on."""
    near = {node.index: set(node.cpus) for node in cpus.numa if node.cpus}
    far = [
        gpu
        for gpu in visible_gpus(gpus, environment)
        if gpu.numa_node in near and not near[gpu.numa_node].intersection(cpus.allowed)
    ]
    if not far or bound_one_by_one(environment):
        return
    nodes = sorted({gpu.numa_node for gpu in far if gpu.numa_node is not None})
    held = cpus.cpuset is not None and set(cpus.cpuset) <= set(cpus.allowed)
    yield Finding(
        severity=Severity.WARNING,
        # Without a cpuset the launcher may still bind each rank to a node of its own.
        confidence=Confidence.LIKELY if held else Confidence.POSSIBLE,
        because=(
            f"GPU {', '.join(str(gpu.index) for gpu in far)} hang on NUMA node "
            f"{', '.join(map(str, nodes))}, and the affinity mask {cpu_list(cpus.allowed)} has no "
            "core there"
            + ("" if held else "; the mask of a running rank settles it: taskset -cp PID")
        ),
        evidence=tuple(
            Observation(
                name=f"cores of NUMA node {node} in the mask",
                value=0,
                expected=len(near[node]),
                source="/sys/devices/system/node",
            )
            for node in nodes
        ),
        where=Where(devices=tuple(f"cuda:{gpu.index}" for gpu in far)),
        fixes=(_wider(cpus, environment, kernel),),
    )


def _wider(cpus: Cpus, environment: Environment | None, kernel: Kernel | None) -> Fix:
    numbered = {index for node in cpus.numa for index in node.cpus}
    every = cpu_list(numbered or range(cpus.logical))
    if cpus.cpuset is None or not set(cpus.cpuset) <= set(cpus.allowed):
        wanted = every if cpus.cpuset is None else cpu_list(cpus.cpuset)
        return Fix(
            summary="widen the mask of the shell that launches; ranks and workers inherit it",
            paste=f"taskset -cp {wanted} $$",
        )
    if environment is not None and environment.get("SLURM_JOB_ID"):
        return Fix(
            summary="ask Slurm for more cores: the job's cpuset holds no others",
            paste=f"#SBATCH --cpus-per-task={cpus.logical}",
            caution="for one task per node that starts all ranks; divide it by the tasks per node",
        )
    if kernel is not None and kernel.container == "kubernetes":
        return Fix(
            summary="ask for more cores: the pod's cpuset holds no others",
            paste=f'resources:\n  requests: {{cpu: "{cpus.logical}"}}\n'
            f'  limits: {{cpu: "{cpus.logical}"}}\n',
            language="yaml",
            caution="or as many as the node can allocate",
        )
    if kernel is not None and kernel.engine:
        return Fix(
            summary="give the container more cores: its cpuset holds no others",
            paste=f"{kernel.engine} update --cpuset-cpus {every} CONTAINER",
            caution="on the machine that runs the container",
        )
    return Fix(
        summary="the cpuset of the session holds no others: widen that of its slice, as root",
        paste=f"sudo systemctl set-property --runtime user-$(id -u).slice AllowedCPUs={every}",
    )
