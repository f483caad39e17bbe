"""A rank makes no progress while the others wait for it in a collective.

All ranks of a group have to enter a collective before it can end. A rank that is stopped by a
signal, held by a debugger, frozen with its container, or asleep in a read from a dead file system
keeps the others waiting until a timeout, which then names them and not the culprit.

Seen from outside: the run hangs; the waiting ranks use a full core each, the stuck one uses none.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.probes import ProbeRun, ProbeRuns, RankState
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# psutil's names of process states, and what holds a process in them.
HOLDERS = {
    "stopped": "stopped by a signal (SIGSTOP, Ctrl-Z, a job scheduler)",
    "tracing-stop": "held by a debugger or tracer",
    "disk-sleep": "asleep in the kernel, in a read or write that does not return",
    "silent": "not heard of any more: stopped as a whole, cut off, or its host is down",
}


def from_probes(probe_runs: ProbeRuns) -> Iterator[Finding]:
    for run in probe_runs.runs:
        if run.outcome != "hung" or len(run.ranks) < 2:
            continue
        held = [state for state in run.ranks if state.status in HOLDERS]
        front = max(state.steps for state in run.ranks)
        behind = [state for state in run.ranks if state.steps < front]
        for state in held or behind:
            yield _finding(run, state, front)


def _finding(run: ProbeRun, state: RankState, front: int) -> Finding:
    holder = HOLDERS.get(state.status)
    if holder is not None:
        why = f"it was {holder}"
    else:
        why = (
            f"it had made {state.steps} steps and the others up to {front}; its stack would tell "
            "what it waited for"
        )
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if holder is not None else Confidence.LIKELY,
        because=(
            f"rank {state.rank} (pid {state.pid} on {state.host}) of the probe {run.probe} made no "
            f"progress for {state.age:.0f} s at '{state.last}': {why}"
        ),
        evidence=(
            Observation(name="state", value=state.status, source="psutil"),
            Observation(name="last step", value=state.last, source="the rank's own journal"),
            Observation(name="since", value=round(state.age, 1), unit="s"),
        ),
        where=Where(hosts=(state.host,), ranks=(state.rank,)),
        fixes=(_fix(run, state),),
    )


def _fix(run: ProbeRun, state: RankState) -> Fix:
    again = f"ddoctor doctor --probe {run.probe}"
    if state.status == "disk-sleep":
        return Fix(
            summary="find the file system that does not answer",
            paste="ps -eo pid,stat,wchan:32,args | awk '$2 ~ /D/'\ndmesg | tail -50",
        )
    if state.status == "silent":
        return Fix(
            summary="see whether the host is there, and how its processes are",
            paste=f"ping -c 3 {state.host}; ssh {state.host} 'ps -eo pid,ppid,stat,args | "
            "grep ddoctor.probe'",
        )
    if state.status in HOLDERS:
        return Fix(
            summary="find out who stops processes here; SIGCONT lets a stopped process go on",
            paste="ps -eo pid,ppid,stat,user,args | awk '$3 ~ /T/'\nkill -CONT PID",
            caution="the stopped process of the probe itself has been ended",
        )
    return Fix(
        summary="repeat it, and look at the stack of that rank while it hangs",
        paste=f"{again} &\nsleep 10; pgrep -f ddoctor.worker | xargs -n1 py-spy dump --pid",
    )
