"""GPUs that a job of Slurm asks for, and what its tasks do with them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.granted_gpus import tasks_per_host
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.mistake import shown as named
from ddoctor.analysis.script_source import is_plain, shown
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

ASKED = (
    *("gres", "gpus", "gpus-per-host", "gpus-per-task", "srun.gpus_per_socket"),
    *("srun.tres_per_task", "srun.tres_per_node", "srun.ntasks_per_gpu"),
    *("srun.mem_per_gpu", "srun.cpus_per_gpu"),
)
MAY_GRANT = ("srun.partition", "srun.constraint", "srun.qos", "srun.reservation")
OF_GPUS = re.compile(r"gpu|dgx|hgx|cuda|tesla|[abhlv]\d{2,3}|gh200|mi\d{3}", re.IGNORECASE)
"""Words in the names of partitions whose hosts have GPUs."""
SPREADS = re.compile(r"multiprocessing\.|torch\.nn\.DataParallel$")
JOIN = "torch.distributed.init_process_group"
LOCAL = frozenset(
    f"os.environ[{name}]" for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
)
BY_LOCAL = re.compile(r"\$\{?(?:SLURM_LOCALID|OMPI_COMM_WORLD_LOCAL_RANK)\}?")
ONE_EACH = re.compile(r"(?:single|per_task):1$|map_gpu:")


def idle(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Fewer tasks than GPUs on each host, where each task is a rank that trains on one GPU."""
    launch, granted = plan.launch, plan.gpus_per_host
    tasks = tasks_per_host(launch) or launch.ranks_per_host
    hosts = launch.number("nodes") or launch.hosts
    by_tasks = launch.launcher == "python" and "srun" in launch.around and not launch.on("cpu")
    if not by_tasks or granted is None or not granted.number or not tasks or not hosts:
        return
    others = launch.get("beside", "env.CUDA_VISIBLE_DEVICES") is not None
    uneven = granted.number <= tasks or granted.number % tasks > 0
    if others or uneven or not is_plain(script, "accelerate") or _spreads(script):
        return
    each = granted.number
    at = launch.get("tasks-per-host", "tasks", "ranks-per-host")
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=f"the job has {each} GPUs on each host ({granted.at}), and srun starts {tasks} "
        f"task{'s' * (tasks > 1)} there ({at.at if at is not None else ''}), each a rank that "
        f"trains on one GPU: {(each - tasks) * hosts} of {each * hosts} GPUs stay idle",
        evidence=(
            Observation(name="tasks per host", value=tasks, expected=each, source=granted.at),
        ),
        fixes=(
            Fix(
                summary="start a task for each GPU, or ask for fewer GPUs",
                paste=f"#SBATCH --ntasks-per-node={each}",
            ),
        ),
    )


def _spreads(script: Script) -> bool:
    """Whether one process may use several GPUs."""
    return any(SPREADS.search(one.name) or "device_map" in one.keywords for one in script.calls)


def not_asked(plan: LaunchPlan, script: Script | None) -> Iterator[Finding]:
    """A batch script that asks for no GPU; some partitions give them unasked.

    Source: slurm.schedmd.com/gres.html, "Jobs will not be allocated any generic resources unless
    specifically requested"; with ``--exclusive``, a job gets all of its hosts.
    """
    launch = plan.launch
    at = launch.get("nodes", "tasks-per-host", "tasks")
    if "sbatch" not in launch.around or at is None or launch.on("cpu"):
        return
    grants = [one for name in MAY_GRANT if (one := launch.get(name)) is not None]
    unasked = launch.get(*ASKED, "srun.exclusive") is None
    if not unasked or any(OF_GPUS.search(one.value) for one in grants):
        return
    needs = needs_cuda(script) if script is not None else None
    # A site may grant GPUs by what else the job names, or to every job.
    sure = needs is not None and not grants
    if needs is None and ((plan.each or 0) < 2 or launch.get("srun.partition") is not None):
        return
    what = f"{shown(needs.at)} needs a GPU" if needs is not None else f"{plan.each} ranks start"
    where = "" if needs is not None else " on each host"
    unless = f", unless {grants[0].value} ({grants[0].at}) grants it" if grants else ""
    yield Finding(
        severity=Severity.WARNING if sure else Severity.NOTE,
        confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
        because=f"{what}{where}, and the job asks for no GPU "
        f"({at.file.rpartition('/')[2]}){unless}",
        evidence=(Observation(name="GPUs asked for", value=0, source=at.at),),
        fixes=(
            Fix(
                summary="ask for one GPU per rank",
                paste=f"#SBATCH --gpus-per-node={plan.each or 8}",
            ),
        ),
    )


def needs_cuda(script: Script) -> SourceCall | None:
    """What fails without a GPU, in a script that does not ask whether there is one."""
    asks = script.of("torch.cuda.is_available", "torch.accelerator.is_available")
    joins = [one for one in script.of(JOIN) if one.argument("backend", 0) in ("'nccl'", '"nccl"')]
    uses = [*joins, *script.of("torch.cuda.set_device")]
    sure = (one for one in uses if "condition" not in one.within)
    return next(sure, None) if not asks else None


def hidden(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Each task sees one GPU, which is number 0 there, and the source selects by the local rank.

    Source: slurm.schedmd.com/srun.html: --gpus-per-task and --ntasks-per-gpu imply --tres-bind.
    """
    launch, one_each = plan.launch, _one_each(plan.launch)
    sets = any("CUDA_VISIBLE_DEVICES" in one.name for one in script.settings)
    if one_each is None or launch.launcher != "python" or (plan.each or 0) < 2 or sets:
        return
    for call in script.of("torch.cuda.set_device", "torch.device", ".to", ".cuda"):
        made = {*call.origins.get("0", ()), *call.origins.get("1", ())}
        made |= {*call.origins.get("device", ())}
        by_local = made & LOCAL and made <= LOCAL | {"'cuda'"}
        if by_local and call.on_all_ranks and "condition" not in call.within:
            yield Finding(
                title="A rank selects a GPU that the launch hides from it",
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"{named(one_each.name)} is {one_each.value} ({one_each.at}): each task "
                f"sees one GPU, as number 0, but {shown(call.at)} selects the GPU of the local "
                'rank. All tasks of a host but the first fail with "invalid device ordinal"',
                evidence=(Observation(name="GPUs that a task sees", value=1, source=one_each.at),),
                fixes=(
                    Fix(
                        summary="let each task see all GPUs of its host",
                        paste=f"#SBATCH --gpus-per-node={plan.each}",
                        caution="or keep the line, and use cuda:0 in each task",
                    ),
                ),
            )
            return


def _one_each(launch: Launch) -> Setting | None:
    """What makes one GPU visible to each task; None: nothing that is known here."""
    bound = launch.get("srun.tres_bind", "srun.gpu_bind")
    chosen = launch.get("env.CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return chosen if BY_LOCAL.fullmatch(chosen.value) else None
    if "srun" not in launch.around:
        return None
    if bound is not None:
        return bound if ONE_EACH.search(bound.value) else None
    per_task = launch.get("gpus-per-task", "srun.ntasks_per_gpu")
    alone = per_task is not None and per_task.value.rpartition(":")[2] == "1"
    return per_task if alone else None
