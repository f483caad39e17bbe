"""The launchers disagree about the world size, the total number of ranks.

WORLD_SIZE is one number for the whole run: ``--nnodes`` times ``--nproc-per-node``, or
``num_processes`` in accelerate's configuration. If it is larger than the number of started
processes, all ranks wait for processes that never start. If two processes have the same rank, one
overwrites the data of the other.

Symptoms: a hang in init_process_group while every process is alive.

To fix it, set the same number of hosts and ranks per host in every launcher.
"""

# Above 150 lines: it judges ranks that joined, logs, and launch lines with their files.

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import prod

from ddoctor.analysis import endings, log_events
from ddoctor.analysis.granted_gpus import tasks_per_host
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import shown
from ddoctor.analysis.written_ranks import world_of, written_ranks
from ddoctor.evidence.joining import HostJoining, Joining
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Environment
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "launch-config-invalid",
    "rank-missing-at-init",
    "rank-stuck-outside-collective",
    "dead-rank",
    "first-failure-masked",
    "script-error",
)

OF_ALL_RANKS = ("torchrun", "torch.distributed.launch", "accelerate")
"""Launchers that start all ranks of a host."""
OF_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
"""Variables with the number of tasks of a step, or of its job."""
OF_OTHER_STARTERS = (
    *("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"),
    # A shell in a job is one task of it.
    "SLURM_PTY_PORT",
)
"""Variables of a process for which Slurm's number of tasks says nothing."""
FEW = 8
"""Names that one sentence lists."""


def processes(joinings: tuple[Joining, ...]) -> Iterator[Finding]:
    """Slurm or MPI started a number of processes that differs from the world size."""
    for joining in joinings:
        launched, size, by = joining.launched, joining.world_size, joining.launched_by
        if launched in (None, size) or all(one.came for one in joining.ranks):
            continue
        yield _finding(
            f"the ranks have a world size of {size}, but {by}={launched} processes were started",
            (Observation(name="processes", value=launched or 0, expected=size, source=by),),
            Where(),
        )


def words(joining: Joining) -> Iterator[Finding]:
    """Ranks that joined have different world sizes, or one rank joined twice."""
    came = [one for one in joining.ranks if one.came]
    sizes = Counter(one.world_size for one in came if one.world_size is not None)
    twice = [rank for rank, times in Counter(one.rank for one in came).items() if times > 1]
    if len(sizes) > 1:
        usual = sizes.most_common(1)[0][0]
        odd = [one for one in came if one.world_size not in (None, usual)]
        counts = " and ".join(
            f"{size} on {times} rank{'s' * (times > 1)}" for size, times in sizes.most_common()
        )
        yield _finding(
            f"the ranks have different world sizes: {counts}",
            tuple(
                Observation(name=f"world size of rank {one.rank}", value=one.world_size or 0)
                for one in odd[:FEW]
            ),
            Where(
                hosts=tuple(sorted({one.host for one in odd})),
                ranks=tuple(sorted({one.rank for one in odd})),
            ),
        )
    elif twice:
        hosts = sorted({one.host for one in came if one.rank in twice})
        yield _finding(
            f"{endings.ranks(twice[:FEW])} joined more than once, from {', '.join(hosts)}",
            (Observation(name="processes with one rank", value=2, expected=1, source="the store"),),
            Where(hosts=tuple(hosts), ranks=tuple(twice)),
        )


def hosts(host_joinings: tuple[HostJoining, ...]) -> Iterator[Finding]:
    """The hosts have different values of ``--nnodes``."""
    for joining in host_joinings:
        others = [one for one in joining.callers if one.expected != joining.expected]
        if others:
            counts = ", ".join(f"{one.expected} on {one.host}" for one in others[:FEW])
            yield _finding(
                f"--nnodes differs between hosts: {joining.expected} on {joining.host}, {counts}",
                tuple(
                    Observation(
                        name=f"--nnodes on {one.host}", value=one.expected, source="its command"
                    )
                    for one in joining.callers[:FEW]
                ),
                Where(hosts=tuple(sorted(one.host for one in others))),
            )


def in_a_launch(plan: LaunchPlan) -> Iterator[Finding]:
    """The numbers of a launcher and of what starts it, in a launch line and its files."""
    launch = plan.launch
    hosts, ranks = launch.get("hosts"), launch.get("ranks")
    if launch.launcher == "accelerate" and hosts is not None and ranks is not None:
        machines, processes = hosts.number or 1, ranks.number
        if processes is not None and machines > 1 and processes % machines:
            yield _in_a_launch(
                f"num_processes is {processes} ({ranks.at}), the total over all machines, and does "
                f"not divide by {machines} machines ({hosts.at})",
                ranks,
                f"accelerate launch --num_machines {machines} --num_processes "
                f"{machines * max(processes, 1)} …  # machines × GPUs of each",
            )
        granted = plan.gpus_per_host
        share = (processes or 0) // machines
        # The number of one machine, where that of all is asked for.
        if (
            granted is not None
            and processes is not None
            and granted.number == processes > share > 0
        ):
            yield _in_a_launch(
                f"num_processes is {processes} ({ranks.at}), the total over all {machines} "
                f"machines: {share} on each, and each has {granted.value} GPUs ({granted.at})",
                ranks,
                f"accelerate launch --num_machines {machines} --num_processes "
                f"{machines * (processes or 0)} …  # machines × GPUs of each",
            )
    yield from _fewer_than_granted(plan)
    degrees = prod(one.number or 1 for one in plan.degrees.values())
    # A single process may start its ranks itself.
    if plan.ranks is not None and plan.ranks > 1 and plan.ranks % degrees:
        named = " × ".join(f"{k} {one.value} ({one.at})" for k, one in plan.degrees.items())
        yield _in_a_launch(
            f"{plan.ranks} ranks do not divide by {named}, which share a model",
            next(iter(plan.degrees.values())),
            f"start a multiple of {degrees} ranks",
        )
    tasks, each = tasks_per_host(launch), plan.each
    at = launch.get("tasks-per-host", "tasks")
    by_srun = "srun" in launch.around and launch.launcher in OF_ALL_RANKS
    of_ranks = by_srun and at is not None and each is not None
    if of_ranks and at is not None and each is not None and (tasks or 1) > 1 and each > 1:
        yield _in_a_launch(
            f"srun starts {tasks} tasks on each host ({at.at}), and each is a "
            f"{launch.launcher} that starts {each} ranks: {(tasks or 1) * each} on a host",
            at,
            "#SBATCH --ntasks-per-node=1  # torchrun starts the ranks of its host",
        )
    stated = launch.get("env.WORLD_SIZE")
    if (
        stated is not None
        and None not in (stated.number, plan.ranks)
        and stated.number != plan.ranks
        and launch.launcher == "python"
        and launch.around
    ):
        yield _in_a_launch(
            f"WORLD_SIZE is {stated.number} ({stated.at}), and {plan.ranks} "
            f"process{'es are' if plan.ranks != 1 else ' is'} started",
            stated,
            f"export WORLD_SIZE={plan.ranks}",
        )
    granted = launch.get("nodes", "pods")
    if (
        granted is not None
        and hosts is not None
        and None not in (granted.number, hosts.number)
        and granted.number != hosts.number
        and launch.launcher in OF_ALL_RANKS
        and (launch.around or granted.name == "pods")
        and not ("srun" not in launch.around and hosts.number == 1 and granted.name == "nodes")
    ):
        yield _in_a_launch(
            f"the job has {granted.value} hosts ({granted.at}), and {launch.launcher} expects "
            f"{hosts.value} ({hosts.at})",
            hosts,
            f"--nnodes={granted.value}  # accelerate: --num_machines={granted.value}",
        )


def _fewer_than_granted(plan: LaunchPlan) -> Iterator[Finding]:
    """Ranks for a part of the GPUs that each host of a job has, and nothing that uses the rest."""
    launch, granted, each = plan.launch, plan.gpus_per_host, plan.each
    told = launch.get("ranks") if launch.launcher == "accelerate" else launch.get("ranks-per-host")
    tasks, hosts = launch.get("tasks-per-host"), launch.hosts or 1
    if granted is None or not granted.number or told is None or not each or hosts < 2:
        return
    others = launch.get("beside", "env.CUDA_VISIBLE_DEVICES") is not None or plan.devices
    # Several tasks of a host may share its GPUs; the number of one machine has its own finding.
    shared = (tasks is not None and tasks.number != 1) or granted.number == launch.number("ranks")
    parts = granted.number // each if granted.number % each == 0 else 1
    if others or shared or parts < 2 or launch.launcher not in OF_ALL_RANKS or launch.on("cpu"):
        return
    whole = granted.number * hosts
    told_by = "num_processes" if told.name == "ranks" else "--nproc-per-node"
    yield Finding(
        severity=Severity.WARNING,
        # Somebody may want more memory for each rank: it explains no failure.
        confidence=Confidence.POSSIBLE,
        because=f"the job has {granted.number} GPUs on each of {hosts} hosts ({granted.at}), "
        f"{whole} in all, and {told_by} is {told.value} ({told.at}): with {each} ranks on each "
        f"host, {whole - each * hosts} GPUs stay idle",
        evidence=(Observation(name="ranks", value=each * hosts, expected=whole, source=told.at),),
        fixes=(
            Fix(
                summary="start a rank for each GPU, or ask for fewer GPUs",
                paste=f"accelerate launch --num_machines {hosts} --num_processes {whole} …"
                if launch.launcher == "accelerate"
                else f"torchrun --nnodes={hosts} --nproc-per-node={granted.number} …",
            ),
        ),
    )


def in_the_script(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """The script has another number of ranks than the launch starts."""
    yield from written_ranks(plan, script)


def spawned(script: Script, launch: Launch) -> Iterator[Finding]:
    """The script starts another number of processes than its process group waits for."""
    if (launch.hosts or 1) > 1:
        return
    for starts in script.of("torch.multiprocessing.spawn"):
        count = launch.written(starts.argument("nprocs", 2))
        for joins in script.of("torch.distributed.init_process_group"):
            world = world_of(joins, script, launch)
            if count is not None and world is not None and count != world:
                yield Finding(
                    severity=Severity.ERROR,
                    confidence=Confidence.LIKELY,
                    because=f"{shown(starts.at)} starts {count} processes, and {shown(joins.at)} "
                    f"waits for {world}",
                    fixes=(
                        Fix.python(
                            summary="give both the same number",
                            paste="world_size = torch.cuda.device_count()",
                        ),
                    ),
                )
                return


def in_an_environment(environment: Environment) -> Iterator[Finding]:
    """A Slurm step with fewer tasks than the job has asked for, in an environment that was printed.

    Names: slurm.schedmd.com/srun.html, "Output environment variables".
    """
    others = any(environment.get(name) is not None for name in OF_OTHER_STARTERS)
    each = _plain(environment, "SLURM_NTASKS_PER_NODE")
    by = next((name for name in OF_TASKS if environment.get(name) is not None), "")
    started = _plain(environment, by)
    wanted = (each or 0) * (_plain(environment, "SLURM_NNODES") or 1)
    launched = environment.any_with("ACCELERATE_") or others
    if not environment.printed or launched or not started or started >= wanted:
        return
    size = _plain(environment, "WORLD_SIZE") or 0
    more = f"; WORLD_SIZE is {size}" if size > started else ""
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY if more else Confidence.POSSIBLE,
        because=f"Slurm started {started} task{'s' * (started > 1)} ({by}), and the job asks for "
        f"{each} on each node, {wanted} in all{more}; sound where torchrun is the task, which "
        "starts the ranks itself",
        evidence=(Observation(name="tasks", value=started, expected=wanted, source=by),),
        fixes=(
            Fix(
                summary="start all tasks of the job, or torchrun once on each node",
                paste=f"srun --ntasks={wanted} --ntasks-per-node={each} python train.py …\n"
                f"srun --ntasks-per-node=1 torchrun --nproc-per-node={each} …",
            ),
        ),
    )


def _plain(environment: Environment, name: str) -> int | None:
    """A variable that is a number; ``4(x2)`` is none."""
    told = environment.get(name) or ""
    return int(told) if re.fullmatch(r"[0-9]{1,7}", told) else None


def in_a_log(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    if log_events.failed_otherwise(run, log_events.JOINING):
        return  # A rank that fails before it joins is missed by the others.
    if any("timed out" in one.text for one in log.of("store-timeout")):
        return  # A rank was started and does not get there: network-unreachable reports it.
    for event in log.of("clients-joined", "store-barrier"):
        joined, wanted = int(event.values["joined"]), int(event.values["wanted"])
        if log_events.missed(event):
            return  # A rank was started and does not get there: rank-missing-at-init reports it.
        if joined < wanted:
            yield log_events.finding(
                [event],
                f"only {joined} of {wanted} processes reached the rendezvous: fewer were started, "
                "or some ended or were held up before",
                _start(),
                confidence=Confidence.POSSIBLE,
            )
            return
        if joined > wanted:
            yield log_events.finding(
                [event],
                f"{joined} processes joined a world of {wanted}: more were started, or an earlier "
                "attempt has left its entries in the store",
                _start(),
            )
            return
    yield from _started_twice(log, run)
    if misfit := log.first("ranks-not-divisible"):
        yield log_events.finding(
            [misfit],
            "the number of ranks does not fit the degrees of parallelism that share them",
            Fix(
                summary="start as many ranks as the product of all degrees, or a multiple of it",
                paste="ranks = tensor × pipeline × context × data (replicate × shard)",
                language="text",
            ),
        )


def _started_twice(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    """Each host starts the same ranks, as one that takes itself for the first one."""
    members = log.of("member")
    worlds = {int(one.values["wanted"]) for one in members}
    ranks = {one.rank for one in members}
    failed = run is not None and any(one.fell for one in run.ranks)
    # A run that starts anew says it again, and other hosts may have logs of their own.
    if len(worlds) == 1 and 1 < len(ranks) < (world := worlds.pop()):
        often = min(one.count for one in members)
        if often > 1 and often * len(ranks) <= world:
            yield log_events.finding(
                members,
                f"{len(ranks)} ranks were started {often} times each, and the other "
                f"{world - len(ranks)} of {world} never: each host takes itself for the first",
                Fix(
                    summary="let srun start a task for each device, as the Trainer's numbers say",
                    paste="#SBATCH --nodes=N\n#SBATCH --ntasks-per-node=M\n"
                    "srun python train.py  # Trainer(num_nodes=N, devices=M)",
                ),
                severity=Severity.ERROR if failed else Severity.NOTE,
                confidence=Confidence.LIKELY if failed else Confidence.POSSIBLE,
            )


def _start() -> Fix:
    return Fix(
        summary="start as many processes as the world has ranks",
        paste="srun python train.py …  # one per task: nodes × --ntasks-per-node\n"
        "torchrun --nnodes=N --nproc-per-node=M …  # on each of the N nodes",
    )


def _in_a_launch(because: str, at: Setting, paste: str) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=because,
        evidence=(Observation(name=at.name.replace("-", " "), value=at.value, source=at.at),),
        fixes=(Fix(summary="write the number that the others have", paste=paste),),
    )


def _finding(because: str, evidence: tuple[Observation, ...], where: Where) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=because,
        evidence=evidence,
        where=where,
        fixes=(
            Fix(
                summary="print the values on every host, and set the same numbers in all launchers",
                paste="env | grep -E '^(RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|SLURM_N)' | sort",
                caution="world size = hosts × ranks per host, on every host; each rank number once",
            ),
        ),
    )
