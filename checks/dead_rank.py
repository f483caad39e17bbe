"""A rank has died, and the other ranks cannot continue without it.

The other ranks wait in their next collective, or fail in it with an error that only names the lost
connection. The first failure is the one to fix. A rank killed by a signal leaves no Python error:
SIGKILL usually means that the kernel or the container ran out of memory, SIGBUS a full /dev/shm,
and SIGSEGV and SIGABRT errors in native code.

Symptoms: exit code -9 (137), -7 (135), -11 (139) or -6 (134) of one worker in torchrun's summary,
and connection or timeout errors in all others.

To fix it, find the first failure: the traceback, or the line of the kernel log.
"""

# Above 150 lines: probes, training and live runs show it differently; each signal has a meaning.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddoctor.analysis import cuda_oom, endings, log_events
from ddoctor.analysis.data_overlap import even
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.log import Log
from ddoctor.evidence.probes import ProbeRun, ProbeRuns, RankState
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("first-failure-masked",)

ZOMBIES = 2
"""A single one may be a worker that ends just now."""

# How gloo ("… reset by peer", "… closed by peer") and NCCL (ncclRemoteError: "… a remote process
# exiting prematurely") report that another rank is gone.
VICTIM = re.compile(r"by peer|remote process exit", re.IGNORECASE)

FEW = 8
"""The most hosts in a pasted command."""

# By Linux's numbers, because another system may read the bundle.
SIGNALS = {
    4: "SIGILL (a binary for another processor)",
    6: "SIGABRT (native code aborted)",
    7: "SIGBUS (mostly a full /dev/shm, or a file that shrank)",
    8: "SIGFPE (a division by zero in native code)",
    9: "SIGKILL (usually out of memory, by the kernel or the container; "
    "else by a user or scheduler)",
    11: "SIGSEGV (an invalid memory access in native code)",
    15: "SIGTERM (a user, launcher or scheduler ended it)",
}
SIGBUS, SIGKILL = 7, 9


def from_probes(probe_runs: ProbeRuns) -> Iterator[Finding]:
    for run in probe_runs.runs:
        if run.outcome != "crashed":
            continue
        dead = [state for state in run.ranks if state.exit_code is not None or state.words]
        culprits = [state for state in dead if not VICTIM.search(state.words) or _signal(state)]
        # The same error on all ranks is an error of the probe, which is reported as such.
        everywhere = len(culprits) == len(run.ranks) and len({one.words for one in culprits}) == 1
        silent = [state for state in run.ranks if state.status == "silent"]
        if culprits and (not everywhere or _signal(culprits[0])):
            yield _crashed(run, max(culprits, key=lambda one: (_signal(one) > 0, one.age)))
        elif silent and not culprits:
            yield _vanished(run, silent)


def from_training(run: TrainingRun) -> Iterator[Finding]:
    failures = run.failures
    if not failures:
        return
    first = failures[0]
    if cuda_oom.read(first.message) is not None:
        return  # The checks of GPU memory report it.
    if run.only_told and _signal(first) == SIGKILL and not first.exception:
        return  # host-ram-oom reports it.
    if endings.failed_alike(run) or endings.raised_alone(run):
        return  # An error of the script: script-error reports it.
    alone = len(run.ranks) == 1 and not run.log
    shown = [one for one in failures if one.exception and one.words == first.words] or [first]
    why = endings.went_wrong(first)
    if _signal(first) and not first.exception:
        said = f", its last output '{first.words}'," if first.words else ""
        why = f"{_ended(first)}{said}{endings.at(first.place)}"
    more = len(failures) - len(shown)
    finding = _finding(
        f"{_who(run, shown)} {why} {endings.when(run, first)}"
        f"{'' if run.log else f', {first.time:.1f} s after the start'}"
        f"{endings.of_several(run, more + 1)}"
        f"{endings.thread(first)}{endings.others(run, shown)}",
        () if alone else shown,
        _training_fix(run, first),
        *(
            ()
            if run.only_told
            else (
                Observation(name="exit code", value=first.exit_code or 0),
                Observation(name="last phase", value=first.doing),
                Observation(name="last output", value=first.words),
            )
        ),
    )
    yield replace(
        finding,
        confidence=_told(run, first) if run.only_told else endings.confidence(first),
        title="The only process of the run has died" if alone else "",
    )


def _told(run: TrainingRun, first: RankEnding) -> Confidence:
    """How sure a log is: the other ranks report that this one is gone, or none does."""
    # Files without times have no order, and one failure needs none.
    alone = run.ordered or len(run.failures) == 1
    known = first.rank >= 0 and bool(run.echoes) and alone
    return Confidence.LIKELY if known else Confidence.POSSIBLE


def _who(run: TrainingRun, shown: Sequence[RankEnding]) -> str:
    if len(shown) == 1:
        return endings.who(shown[0])
    return endings.ranks((one.rank for one in shown), every=run.ranks)


TOGETHER = """\
stop = torch.tensor(float(stop), device=device)  # what one rank decides
dist.all_reduce(stop, op=dist.ReduceOp.MAX)
if stop:
    break"""


def that_left_the_others(run: TrainingRun, loading: Loading) -> Iterator[Finding]:
    """It ended by itself, though all ranks have the same number of batches."""
    gone = endings.gone_before(run)
    if not gone or not even(loading):
        return
    first = gone[0]
    yield replace(
        _finding(
            f"{endings.left_alone(run, gone)}; all have the same number of batches",
            gone,
            Fix.python(
                summary="let all ranks leave the loop at the same step",
                paste=TOGETHER,
            ),
            Observation(name="exit code", value=first.exit_code or 0),
        ),
        confidence=Confidence.LIKELY,
        title="A rank has left the training, and the other ranks cannot continue without it",
    )


def that_vanished(run: TrainingRun) -> Iterator[Finding]:
    gone = [one for one in run.ranks if one.outcome == "vanished"]
    if not gone or run.failures:
        return
    hosts = sorted({one.host for one in gone if one.host})
    first, more = gone[0], f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    yield _finding(
        f"{endings.who(first)}{more} did not respond any more after {endings.steps(first)}: killed "
        f"with all its processes, or its host is down or disconnected{endings.others(run, gone)}",
        gone,
        _look_at(hosts),
        Observation(name="last phase", value=first.doing),
    )


def in_a_live_run(live: LiveState, runs: tuple[TrainingRun, ...] | None) -> Iterator[Finding]:
    known = {rank.rank for run in runs or () for rank in run.failures}
    dead = [rank for rank in live.gone if not rank.finished and rank.rank not in known]
    if not dead or not live.blocked:
        return
    hosts = tuple(sorted({rank.host for rank in dead}))
    who = endings.ranks(rank.rank for rank in dead)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{who} of {live.looks[0].job} no longer {'runs' if len(dead) == 1 else 'run'} on "
            f"{' and '.join(hosts[:FEW])}; {live.standstill}"
            f"{live.others(())}"
        ),
        evidence=(
            Observation(
                name="ranks of these hosts",
                value=len(live.ranks),
                expected=len(live.ranks) + len(dead),
                source="the environment of the running ranks",
            ),
        ),
        where=Where(hosts=hosts, ranks=tuple(rank.rank for rank in dead)),
        fixes=(
            Fix(
                summary="find what ended it, in its log and in the kernel log",
                paste="dmesg -T | grep -i -E 'killed process|out of memory|segfault' | tail",
                caution="the others wait forever: end them, and resume from the last checkpoint",
            ),
            Fix(
                summary="use a launcher that ends all ranks when one fails",
                paste=f"torchrun --nproc-per-node {len(live.ranks) + len(dead)} "
                f"{' '.join(live.looks[0].command)}",
            ),
        ),
    )


def _training_fix(run: TrainingRun, first: RankEnding) -> Fix:
    if first.exception:
        return Fix(
            summary=f"correct the error{endings.at(first.place)}",
            paste=endings.traceback(first),
            language="text",
        )
    if not _signal(first) and first.stack:
        return Fix(
            summary=f"find why it exits{endings.at(first.place)}",
            paste=endings.traceback(first),
            language="text",
        )
    if not _signal(first) and run.command:
        return Fix(
            summary="find the call that ends the process",
            paste=f"grep -nE '_exit\\(|exit\\(|abort\\(' {run.command[0]}",
        )
    return _fix(_signal(first), endings.again(run))


def _signal(state: RankState | RankEnding) -> int:
    """The number of the signal that killed it, or 0."""
    return max(0, -(state.exit_code or 0))


def _ended(state: RankState | RankEnding) -> str:
    number = _signal(state)
    if not number:
        return f"ended with exit code {state.exit_code}"
    return f"was killed by {SIGNALS.get(number, f'signal {number} (an unusual signal)')}"


def _finding(
    because: str, at: Sequence[RankState | RankEnding], fix: Fix, *evidence: Observation
) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=because,
        evidence=evidence,
        where=Where.of(at),
        fixes=(fix,),
    )


def zombies_in_a_list(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    """By what `ps` printed of the processes of a host."""
    ended = log.first("zombie")
    if run is None and ended is not None and ended.count >= ZOMBIES:
        yield log_events.finding(
            [ended],
            "these processes have ended, and their parent still runs: others wait for them",
            Fix(
                summary="find what ended them in their logs and the kernel log, and end the job",
                paste="dmesg -T | tail -50; grep -rn -A20 Traceback logs/ | head -60",
            ),
            severity=Severity.WARNING,
            confidence=Confidence.POSSIBLE,
        )


def ended_in_a_log(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    """By what a launcher says of a rank that left no word."""
    if run is not None and run.failures:
        return
    signalled, aborted = log.of("task-signal"), log.of("mpi-abort")
    for event in (*signalled[:1], *aborted[:1]):
        signal = event.values.get("signal", "").lower()
        yield log_events.finding(
            [event],
            f"the rank was ended by a signal ({signal}), in compiled code"
            if signal
            else "the rank ended all others by MPI_Abort, mostly after an exception",
            Fix(
                summary="look for its last lines, and have the next crash leave a stack",
                paste="PYTHONFAULTHANDLER=1 …  # and ulimit -c unlimited for a core",
            ),
            confidence=Confidence.LIKELY if signal else Confidence.POSSIBLE,
        )
        return


def _crashed(run: ProbeRun, state: RankState) -> Finding:
    number = _signal(state)
    why = _ended(state)
    if not number:
        why = f"failed with '{state.words}'" if state.words else f"{why} and without a message"
    return _finding(
        f"rank {state.rank} (pid {state.pid} on {state.host}) of the probe {run.probe} {why}, "
        f"at '{state.last}'; {len(run.ranks) - 1} other ranks need it",
        [state],
        _fix(number, f"ddoctor doctor --probe {run.probe}"),
        Observation(name="exit code", value=state.exit_code or 0, source="torchrun"),
        Observation(name="last step", value=state.last, source="the rank's own journal"),
        Observation(name="last output", value=state.words),
    )


def _vanished(run: ProbeRun, silent: Sequence[RankState]) -> Finding:
    first = silent[0]
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    hosts = sorted({state.host for state in silent})
    return _finding(
        f"rank {first.rank} (pid {first.pid} on {first.host}){more} of the probe {run.probe} did "
        f"not respond for {first.age:.0f} s, last at '{first.last}': killed with all its "
        f"processes, or its host is down or disconnected; {len(run.ranks) - len(silent)} other "
        "ranks need it",
        silent,
        _look_at(hosts),
        Observation(
            name="time since its last response", value=round(first.age, 1), unit="s", source="store"
        ),
        Observation(name="last step", value=first.last, source="the rank's own journal"),
    )


def _look_at(hosts: Sequence[str]) -> Fix:
    return Fix(
        summary="check that the host responds, and find what ended its processes",
        paste="\n".join(
            f"ping -c 3 {host}; ssh {host} 'uptime; dmesg -T | tail -50'" for host in hosts[:FEW]
        ),
    )


def _fix(number: int, again: str) -> Fix:
    if number == SIGKILL:
        return Fix(
            summary="check whether the OOM killer ended it",
            paste="dmesg -T | grep -i -E 'killed process|out of memory|oom' | tail",
            caution="needs the right to read the kernel log; for a container, look on its host",
        )
    if number == SIGBUS:
        return Fix(summary="check how full shared memory is", paste="df -h /dev/shm")
    if number:
        return Fix(
            summary="find where in native code it died", paste=f"PYTHONFAULTHANDLER=1 {again}"
        )
    return Fix(summary="correct that error, then run the probe again", paste=again)
