"""Host memory ran out: the OOM killer ended processes of a run, or the kernel swaps them out.

Common reasons are optimizer states offloaded to the CPU, many DataLoader workers with large
prefetch queues, Python lists of samples that every worker copies piece by piece, and ranks that
each load the whole model. A process dies with exit code -9, "Killed" or "DataLoader worker is
killed by signal: Killed", and the other ranks wait for it. With swap, the run continues at the
speed of a disk.

Symptoms: ``dmesg | grep -i 'killed process'``, ``memory.events`` of the cgroup, and the columns si
and so of ``vmstat 1``.

To fix it, keep less in host memory, or raise the memory limit.
"""

# Above 150 lines: plans, runs, live runs, swap, cgroup and kernel log each show it differently.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings, log_events
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.environment_fixes import raise_container_limit
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.live_ranks import named
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.named_models import memory as memory_granted
from ddoctor.analysis.trained_states import trained_states
from ddoctor.evidence.gpus import KernelLog
from ddoctor.evidence.host import Kernel, Memory
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.log import Log
from ddoctor.evidence.plan import GPUS_PER_HOST, Plan
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import MemoryOverTime
from ddoctor.evidence.training import RankEnding, Starts, TrainingRun
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "dead-rank",
    "first-failure-masked",
    "straggler-rank",
    "rank0-extra-work",
    "dataloader-bottleneck",
    "script-error",
)

SIGKILL = 9

# Names of interpreters, torch's threads and workers, and launchers in the kernel log.
OF_A_RUN = re.compile(
    r"\((python[\d.]*|pt_main_thread|pt_data_\w+|torchrun|accelerate|deepspeed)\)"
)

NAMED = re.compile(r"[Kk]ill(?:ed)? process \d+ \(")

# A page from a disk takes 0.1 to 10 ms: this many per second take a tenth of the time or more.
FAULTS_PER_SECOND = 100.0
# Swapped pages that no process touches slow nothing down.
SWAPPED_MIB = 64.0

# torch/utils/data/_utils/signal_handling.py: the name of SIGKILL, for a worker.
WORKER_KILLED = "is killed by signal: Killed"
# Memory is sampled only now and then, and the last sample is some time before the end.
NEARLY_ALL = 0.8


def in_a_launch(plan: LaunchPlan, script: Script | None) -> Iterator[Finding]:
    """Offloaded states need more than the scheduler grants on each host."""
    granted = memory_granted(plan.launch.get("memory-per-host"))
    hosts = plan.launch.hosts
    for one in trained_states(plan, script):
        if granted is None or not hosts or one.offloads is None:
            return
        needed = one.under("DDP").optimizer / hosts / GIB
        if needed > granted:
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"{one.offloads.name.rpartition('.')[2]} is {one.offloads.value} "
                f"({one.offloads.at}): AdamW's states of the {one.model.size} of "
                f"{one.model.place} take {needed:,.0f} GiB on each of {hosts} hosts, and each "
                f"gets {granted:,.0f}",
                evidence=(Observation(name="needed", value=round(needed), unit="GiB"),),
                fixes=(
                    Fix(
                        summary="ask for more memory on each host, or for more hosts",
                        paste=f"#SBATCH --mem={needed * 1.3:.0f}G   # of Kubernetes: memory: "
                        f"{needed * 1.3:.0f}Gi",
                    ),
                ),
            )
        return


def killed_in_training(
    run: TrainingRun,
    memory: Memory | None,
    log: KernelLog | None,
    growth: MemoryOverTime | None,
    kernel: Kernel | None,
    starts: Starts | None,
) -> Iterator[Finding]:
    host = memory.host if memory is not None else log.host if log is not None else ""
    for one in _killed(run):
        if host and one.host and one.host != host:
            continue
        because, confidence = next(_evidence(one, memory, log, growth, starts), ("", None))
        if confidence is None:
            continue
        whose = "a DataLoader worker of " if WORKER_KILLED in one.message else ""
        yield Finding(
            severity=Severity.ERROR,
            confidence=confidence,
            because=(
                f"{whose}{endings.who(one)} was killed by SIGKILL {endings.when(run, one)}: "
                f"{because}{endings.others(run, [one])}"
            ),
            evidence=(Observation(name="exit code", value=one.exit_code or 0),),
            where=Where.of([one]),
            fixes=(_FEWER_COPIES, *([_more(memory, kernel)] if memory is not None else [])),
        )
        return


def in_a_plan(plan: Plan) -> Iterator[Finding]:
    # Or a strategy that would fit the GPUs, but not the host.
    small = (one for one in plan.rows if one.fit == "host-too-small")
    row = plan.recommended or next(small, None)
    if row is None or plan.host_memory is None:
        return
    ranks = min(row.gpus, GPUS_PER_HOST)
    has = f"and the host has {plan.host_memory / GIB:.0f} GiB"
    kept, loaded = ranks * row.host, ranks * plan.checkpoint
    need, confidence, fix = kept, Confidence.LIKELY, _MORE_HOSTS
    because = f"'{row.title}' keeps {kept / GIB:.0f} GiB in the memory of each host, {has}"
    if kept <= NEARLY_ALL * plan.host_memory:
        need, confidence, fix = loaded, Confidence.POSSIBLE, _STRAIGHT_TO_THE_GPU
        because = (
            f"the weights, loaded into host memory once for each GPU of a host, take "
            f"{loaded / GIB:.0f} GiB, {has}; check whether the script loads them this way"
        )
        if loaded <= plan.host_memory:
            return
    yield Finding(
        severity=Severity.ERROR if kept > plan.host_memory else Severity.WARNING,
        confidence=confidence,
        because=because,
        evidence=(
            Observation(name="ranks per host", value=ranks),
            Observation(
                name="host memory per rank", value=round(need / ranks / GIB, 1), unit="GiB"
            ),
        ),
        cost=Cost(value=round((need - NEARLY_ALL * plan.host_memory) / GIB, 1), unit="GiB"),
        fixes=(fix,),
    )


def in_a_log(
    log: Log, run: TrainingRun | None, kernel_logs: tuple[KernelLog, ...] | None
) -> Iterator[Finding]:
    kills = [line for one in kernel_logs or () for line in one.oom_kills]
    if any(_names(line, one) for line in kills for one in _killed(run)):
        return  # told with the rank
    events = log.of("host-oom-kill", "slurm-oom", "pod-oom")
    # The kernel names the process, which may have nothing to do with the run.
    events = tuple(one for one in events if not NAMED.search(one.text) or OF_A_RUN.search(one.text))
    events = events or log.of("worker-killed", "no-host-memory")
    killed = log.of("sigkill")
    # That another rank is gone, the others raise.
    own = run is not None and any(one.exception and not one.echoes for one in run.ranks)
    if killed and not events and not own:
        yield log_events.finding(
            killed,
            "a process was killed and no error came before: mostly the host's memory ran out, "
            "which the kernel log would show (`dmesg -T`)",
            _FEWER_COPIES,
            confidence=Confidence.POSSIBLE,
        )
    if events:
        yield log_events.finding(
            events,
            "the memory of the host, or of its limit, ran out",
            _FEWER_COPIES,
            Fix(
                summary="ask for more memory",
                paste="#SBATCH --mem=0  # all memory of the node; or raise the limit of the pod",
            ),
        )


def _killed(run: TrainingRun | None) -> list[RankEnding]:
    """Ranks that SIGKILL ended, or ended a worker of; the earliest first."""
    failures = run.failures if run is not None else ()
    return [one for one in failures if one.exit_code == -SIGKILL or WORKER_KILLED in one.message]


def _names(line: str, one: RankEnding) -> bool:
    """Whether a line of the kernel log names this process; in a container it never does."""
    return re.search(rf"\b{one.pid}\b", line) is not None


def _evidence(
    one: RankEnding,
    memory: Memory | None,
    log: KernelLog | None,
    growth: MemoryOverTime | None,
    starts: Starts | None,
) -> Iterator[tuple[str, Confidence]]:
    """The evidence that memory was the reason, the surest first."""
    for line in log.oom_kills if log is not None else ():
        if _names(line, one):
            yield f"the kernel log says '{line}'", Confidence.CERTAIN
    mates = [row for row in starts.ranks if row.host == one.host] if starts is not None else []
    grown = sum(row.grown for row in mates)
    if mates and not one.steps and grown >= NEARLY_ALL * mates[0].memory:
        yield (
            f"its ranks had allocated {grown / GIB:.1f} of the {mates[0].memory / GIB:.1f} GiB of "
            f"{one.host} before the first step",
            Confidence.LIKELY,
        )
    if memory is None:
        return
    if memory.limit is not None and memory.kills:
        yield f"{_kills(memory)}; its limit is {memory.limit / GIB:.1f} GiB", Confidence.LIKELY
    rows = growth.ranks if growth is not None else ()
    used = 2**20 * sum(row.last for row in rows if row.host == one.host)
    most = min(memory.total, memory.limit or memory.total)
    if used >= NEARLY_ALL * most:
        yield (
            f"the ranks of {one.host} and their workers held {used / GIB:.1f} of {most / GIB:.1f} "
            "GiB at the last sample",
            Confidence.LIKELY,
        )


def killed_in_a_live_run(live: LiveState, logs: tuple[KernelLog, ...]) -> Iterator[Finding]:
    kills = {log.host: _of_a_run(log) for log in logs}
    for rank in live.gone:
        # A rank that finished was not killed.
        if rank.finished or not kills.get(rank.host):
            continue
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"rank {rank.rank} no longer runs on {rank.host}, and since the start of the run "
                f"the kernel log says '{kills[rank.host][-1]}'"
            ),
            where=Where(hosts=(rank.host,), ranks=(rank.rank,)),
            fixes=(_FEWER_COPIES,),
        )


def swapping_in_a_live_run(live: LiveState, hosts: tuple[Memory, ...] | None) -> Iterator[Finding]:
    rows = [
        rank
        for rank in live.ranks
        if rank.seen.faults >= FAULTS_PER_SECOND * rank.seconds and rank.seen.swapped >= SWAPPED_MIB
    ]
    if not rows or not live.moves:
        return
    worst = max(rows, key=lambda rank: rank.seen.faults / rank.seconds)
    short = ", ".join(
        f"{section.host} has {section.available / GIB:.1f} GiB left"
        for section in hosts or ()
        if section.host in {rank.host for rank in rows}
    )
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{named(rows)} {'have' if len(rows) > 1 else 'has'} memory in swap and "
            f"{'wait' if len(rows) > 1 else 'waits'} for it: {worst.seen.swapped / 1024:.1f} GiB "
            f"of rank {worst.rank} are on a disk, which had to read {worst.seen.faults} pages in "
            f"{worst.seconds:.0f} s{f'; {short}' if short else ''}"
        ),
        evidence=tuple(
            Observation(
                name=f"pages read from swap, rank {rank.rank}",
                value=round(rank.seen.faults / rank.seconds),
                unit="per second",
                expected=FAULTS_PER_SECOND,
                source="majflt of /proc/PID/stat",
            )
            for rank in rows
        ),
        where=Where.of(rows, every=live.ranks),
        fixes=(_FEWER_COPIES,),
    )


def killed_in_cgroup(
    memory: Memory, kernel: Kernel | None, run: TrainingRun | None
) -> Iterator[Finding]:
    here = any(one.host == memory.host for one in _killed(run))
    if memory.limit is None or not memory.kills or here:
        return
    used = "" if memory.used_in_limit is None else f", {memory.used_in_limit / GIB:.1f} in use now"
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"{_kills(memory)}; its limit is {memory.limit / GIB:.1f} GiB of the machine's "
            f"{memory.total / GIB:.1f}{used}"
        ),
        evidence=(
            Observation(name="processes killed for memory", value=memory.kills),
            Observation(name="memory limit", value=round(memory.limit / GIB, 1), unit="GiB"),
        ),
        fixes=(_FEWER_COPIES, _more(memory, kernel)),
    )


def killed_by_the_kernel(
    log: KernelLog, run: TrainingRun | None, live: LiveLook | None, lines: Log | None
) -> Iterator[Finding]:
    kills = _of_a_run(log)
    # What stands in a file with the run's log is of the run.
    if lines is not None and lines.of("host-oom-kill"):
        return
    if not kills or any(_names(line, one) for one in _killed(run) for line in kills):
        return
    if live is not None and live.missing and not live.supervised:
        return
    recorded = live is not None or (run is not None and not run.log)
    since = "the start of the run" if recorded else "boot"
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        because=(
            f"the kernel log since {since} reports {len(kills)} processes of a run killed for "
            f"memory, the last: {kills[-1]}; compare its time with that of the run (`dmesg -T`)"
        ),
        evidence=(
            Observation(name="processes killed for memory", value=len(kills), source=log.source),
        ),
        fixes=(_FEWER_COPIES,),
    )


def _kills(memory: Memory) -> str:
    number = "1 process" if memory.kills == 1 else f"{memory.kills} processes"
    since = "since the creation of the cgroup" if memory.kills_before is None else "during the run"
    return f"the kernel killed {number} of the cgroup for memory {since}"


def _of_a_run(log: KernelLog) -> list[str]:
    return [line for line in log.oom_kills if OF_A_RUN.search(line)]


def _more(memory: Memory, kernel: Kernel | None) -> Fix:
    gib = memory.total // GIB
    return raise_container_limit(
        kernel,
        "memory",
        pod=f"memory: {gib}Gi",
        options=f"--memory={gib}g --memory-swap={gib}g",
        most="or as much as the node can allocate",
    ) or Fix(
        summary="request all memory of the node from Slurm",
        paste="#SBATCH --mem=0",
    )


_MORE_HOSTS = Fix(
    summary="use more GPUs, so that each rank keeps less in host memory",
    paste="ddoctor plan ... --gpus 16,32",
)
_STRAIGHT_TO_THE_GPU = Fix.python(
    summary="load the weights directly onto the rank's GPU",
    paste='weights = safetensors.torch.load_file(path, device=f"cuda:{local_rank}")',
    caution="needs GPU memory for the weights in addition to the model, for a moment",
)
_FEWER_COPIES = Fix.python(
    summary="keep less in host memory",
    paste=(
        "DataLoader(..., num_workers=4, prefetch_factor=2)  # each worker holds its own batches\n"
        "samples = numpy.array(samples)  # reading a Python list copies it into every worker"
    ),
)
