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

from ddoctor.analysis.cpu_masks import Held, held_up, waiting_for_workers
from ddoctor.analysis.local_ranks import bound_one_by_one, local_ranks, visible_gpus
from ddoctor.evidence.environment import Environment
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Cpus, Kernel, cpu_list
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "cpu-thread-oversubscription",
    "dataloader-bottleneck",
    "straggler-rank",
    # gloo moves data with threads of its own.
    "communication-bound-step",
    "scaling-efficiency-low",
    "compute-bound",
)

# What is on its CPUs for so much of the time has hardly any left to be faster.
USED_UP = 0.8


def fewer_cores_than_ranks(
    cpus: Cpus,
    gpus: Gpus | None,
    environment: Environment | None,
    runs: ProbeRuns | None,
    kernel: Kernel | None,
    use: RankUse | None,
) -> Iterator[Finding]:
    """Not even one core for the main thread of each rank, on a machine that has them."""
    ranks = local_ranks(gpus, environment, runs)
    allowed = len(cpus.allowed)
    if bound_one_by_one(environment) or (use is not None and cpus.host in use.by_host):
        return  # what was seen while it trained tells more
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


def waiting_for_their_cores(use: RankUse) -> Iterator[Finding]:
    """While they trained, ranks took turns on the CPUs of their mask."""
    for ranks in use.by_host.values():
        for held in held_up(ranks):
            yield _held_up(held)


def workers_on_few_cores(use: RankUse, loading: Loading, steps: Steps) -> Iterator[Finding]:
    """The DataLoader workers use up the few CPUs of their mask, and the training waits for them."""
    for ranks in use.by_host.values():
        for held in waiting_for_workers(ranks, loading, steps):
            room = min(sum(rank.workers for rank in held.ranks), ranks[0].host_cpus)
            if len(held.mask) < room and (held.busy or 0.0) >= USED_UP * len(held.mask):
                yield _held_up(held)


def _held_up(held: Held) -> Finding:
    ranks, first = held.ranks, held.ranks[0]
    number = "rank" if len(ranks) == 1 else "ranks"
    who = f"{number} {cpu_list(rank.rank for rank in ranks)}"
    mask = f"CPU {cpu_list(held.mask)} of the {first.host_cpus} of {first.host}"
    if held.busy is not None:
        workers = sum(rank.workers for rank in ranks)
        because = (
            f"the {workers} workers of {who} may only use {mask}, and kept {held.busy:.2g} of "
            f"{len(held.mask)} busy while the training waited for {held.waited:.0%} of the time"
        )
    elif held.waited is not None:
        because = f"{who} may only use {mask}, and waited for it for {held.waited:.0%} of the time"
    else:
        because = f"{who} may only use {mask}; /proc/PID/schedstat tells how long they wait for it"
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE if held.waited is None else Confidence.LIKELY,
        because=because,
        evidence=(
            Observation(
                name="CPUs in the affinity mask",
                value=len(held.mask),
                expected=first.host_cpus,
                source="sched_getaffinity(2)",
            ),
        ),
        where=Where(hosts=(first.host,), ranks=tuple(rank.rank for rank in ranks)),
        cost=None
        if held.waited is None
        else Cost(value=round(held.waited, 3), unit="share of step"),
        fixes=(_reset(held),),
    )


def _reset(held: Held) -> Fix:
    reset = "os.sched_setaffinity(0, range(os.cpu_count()))"
    caution = "a cpuset of the container or job, if it holds no others, is widened there only"
    if held.busy is not None and any(rank.worker_affinity for rank in held.ranks):
        return Fix(
            summary="let the workers use all CPUs, and see what narrows their mask",
            paste=f"DataLoader(…, worker_init_fn=lambda worker: {reset})",
            language="python",
            caution=caution,
        )
    return Fix(
        summary="let each rank use all CPUs, or those near its GPU: a shell, a launcher, a library "
        "or an image narrows its mask, and the workers inherit it",
        paste=f"{reset}  # before the first DataLoader",
        language="python",
        caution=caution,
        settings=("torch.affinity=all",),
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
