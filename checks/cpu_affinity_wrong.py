"""The CPU affinity mask has too few cores for the ranks, or only cores far from their GPUs.

Every rank and every DataLoader worker inherits the affinity mask of the launching shell, or the
cpuset of its container or job. With fewer cores than ranks, the ranks share cores while the other
cores idle. With cores of one NUMA node only, the ranks with GPUs on another node copy all their
data across the sockets.

Symptoms: ``taskset -cp $$`` in the launching shell shows few cores; ``nvidia-smi topo -m`` shows
the cores near each GPU.

To fix it, widen the mask or the cpuset, or let each rank reset its affinity.
"""

# Above 150 lines: a job file, a mask before the run and in it, of ranks and of workers, with one
# fix per place that sets it.

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings, granted_cpus
from ddoctor.analysis.cpu_contention import FOLLOWS, Held, held_up, waiting_for_workers
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.local_ranks import LocalRanks, bound_one_by_one, visible_gpus
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Cpus, Kernel, cpu_list
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Environment
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("cpu-thread-oversubscription", "step-loop-overhead", *FOLLOWS)

# Workers that use this share of their CPUs have hardly any CPU time left.
USED_UP = 0.8


def in_a_job(plan: LaunchPlan, script: Script | None) -> Iterator[Finding]:
    """Slurm grants one CPU to a task that does not ask for more, whatever it starts."""
    launch, each = plan.launch, plan.each
    tasks, granted = launch.get("tasks-per-host", "tasks"), launch.get("cpus-per-task")
    whole = launch.get("srun.exclusive", "srun.cpus_per_gpu", "srun.mem_per_gpu")
    if "srun" not in launch.around or tasks is None or each is None or whole is not None:
        return
    count = granted.number if granted is not None else 1
    ranks = each if launch.launcher != "python" else 1
    if (launch.launcher != "python" and tasks.number != 1) or not count:
        return
    workers = granted_cpus.loader_workers(plan, script)
    every = ranks * workers.number if workers is not None else 0
    few = ranks > count
    if not few and every < granted_cpus.MANY * count:
        return
    told = f"{count} CPU{'s' * (count != 1)}"
    where = f" ({granted.at})" if granted is not None else ", as --cpus-per-task is not given"
    of_ranks = f"each host runs {ranks} ranks in one task ({tasks.at})"
    if ranks == 1:
        of_ranks = f"each task ({tasks.at}) is a rank"
    if workers is not None and every > 1:
        of_ranks += f" with {workers.number} loader workers ({workers.at})"
    wanted = ranks + every
    sure = granted is not None and (few or every >= granted_cpus.TOO_MANY * count)
    yield Finding(
        # Many clusters grant CPUs with each GPU.
        severity=Severity.WARNING if sure else Severity.NOTE,
        confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
        because=f"{of_ranks}, and a task gets {told}{where}",
        evidence=(
            Observation(name="CPUs per task", value=count, expected=wanted, source="the job file"),
        ),
        fixes=(
            Fix(
                summary="ask for CPUs for all ranks and their loader workers",
                paste=f"#SBATCH --cpus-per-task={wanted}",
                caution="a cluster may grant CPUs with each GPU by default: srun nproc shows it",
            ),
        ),
    )


def fewer_cores_than_ranks(
    cpus: Cpus,
    ranks: LocalRanks,
    environment: Environment | None,
    kernel: Kernel | None,
    use: RankUse | None,
) -> Iterator[Finding]:
    """The mask has less than one core per rank, on a machine with enough cores."""
    allowed = len(cpus.allowed)
    if bound_one_by_one(environment) or (use is not None and cpus.host in use.by_host):
        return  # what was measured during the training is better evidence
    if ranks.number is None or allowed >= min(ranks.number, cpus.logical):
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
    """The mask has no core of the NUMA node of a GPU."""
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
        # Without a cpuset the launcher may still bind each rank to a separate node.
        confidence=Confidence.LIKELY if held else Confidence.POSSIBLE,
        because=(
            f"GPU {', '.join(str(gpu.index) for gpu in far)} {'is' if len(far) == 1 else 'are'} "
            f"on NUMA node {', '.join(map(str, nodes))}, but the affinity mask "
            f"{cpu_list(cpus.allowed)} has no core there"
            + ("" if held else "; check the mask of a running rank: taskset -cp PID")
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
    """Ranks waited for the CPUs of their mask during the training."""
    for ranks in use.by_host.values():
        for held in held_up(ranks):
            yield _held_up(held)


def workers_on_few_cores(use: RankUse, loading: Loading, steps: Steps) -> Iterator[Finding]:
    """DataLoader workers use all CPUs of their mask, and the training waits for them."""
    for ranks in use.by_host.values():
        for held in waiting_for_workers(ranks, loading, steps):
            room = min(sum(rank.workers for rank in held.ranks), ranks[0].host_cpus)
            if len(held.mask) < room and (held.busy or 0.0) >= USED_UP * len(held.mask):
                yield _held_up(held)


def _held_up(held: Held) -> Finding:
    ranks, first = held.ranks, held.ranks[0]
    who = endings.ranks(rank.rank for rank in ranks)
    mask = f"CPU {cpu_list(held.mask)} of the {first.host_cpus} of {first.host}"
    if held.busy is not None:
        workers = sum(rank.workers for rank in ranks)
        because = (
            f"the {workers} workers of {who} may only use {mask}, and used {held.busy:.2g} of "
            f"{len(held.mask)} CPUs while the training waited for {held.waited:.0%} of the time"
        )
    elif held.waited is not None:
        because = f"{who} may only use {mask}, and waited for it for {held.waited:.0%} of the time"
    else:
        because = f"{who} may only use {mask}; /proc/PID/schedstat shows how long they wait for it"
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
    caution = "a cpuset of the container or job without other cores must be widened there"
    if held.busy is not None and any(rank.worker_affinity for rank in held.ranks):
        return Fix.python(
            summary="let the workers use all CPUs, and find what narrows their mask",
            paste=f"DataLoader(…, worker_init_fn=lambda worker: {reset})",
            caution=caution,
        )
    return Fix.python(
        summary="let each rank use all CPUs, or those near its GPU; a shell, launcher, library or "
        "image narrows its mask, and the workers inherit it",
        paste=f"{reset}  # before the first DataLoader",
        caution=caution,
        settings=("torch.affinity=all",),
    )


def _wider(cpus: Cpus, environment: Environment | None, kernel: Kernel | None) -> Fix:
    numbered = {index for node in cpus.numa for index in node.cpus}
    every = cpu_list(numbered or range(cpus.logical))
    if cpus.cpuset is None or not set(cpus.cpuset) <= set(cpus.allowed):
        wanted = every if cpus.cpuset is None else cpu_list(cpus.cpuset)
        return Fix(
            summary="widen the mask of the launching shell; ranks and workers inherit it",
            paste=f"taskset -cp {wanted} $$",
        )
    if environment is not None and environment.get("SLURM_JOB_ID"):
        return Fix(
            summary="request more cores from Slurm: the cpuset of the job has no others",
            paste=f"#SBATCH --cpus-per-task={cpus.logical}",
            caution="for one task per node that starts all ranks; divide it by the tasks per node",
        )
    if kernel is not None and kernel.container == "kubernetes":
        return Fix(
            summary="request more cores: the cpuset of the pod has no others",
            paste=f'resources:\n  requests: {{cpu: "{cpus.logical}"}}\n'
            f'  limits: {{cpu: "{cpus.logical}"}}\n',
            language="yaml",
            caution="or as many as the node can allocate",
        )
    if kernel is not None and kernel.engine:
        return Fix(
            summary="give the container more cores: its cpuset has no others",
            paste=f"{kernel.engine} update --cpuset-cpus {every} CONTAINER",
            caution="on the machine that runs the container",
        )
    return Fix(
        summary="widen the cpuset of the session's slice, as root: it has no other cores",
        paste=f"sudo systemctl set-property --runtime user-$(id -u).slice AllowedCPUs={every}",
    )
