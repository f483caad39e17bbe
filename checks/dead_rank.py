"""A rank has died, and the others cannot go on without it.

The others wait in their next collective, or fail in it with an error that only says that their peer
is gone; the first failure is the one to repair. A rank that a signal killed leaves no Python error:
SIGKILL is nearly always the kernel's or the container's answer to too much memory, SIGBUS a full
/dev/shm, SIGSEGV and SIGABRT are faults in native code.

Seen from outside: exit code -9 (137), -7 (135), -11 (139) or -6 (134) of one worker in torchrun's
summary, and connection or timeout errors in all the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.evidence.probes import ProbeRun, ProbeRuns, RankState
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("first-failure-masked",)

# How gloo ("… reset by peer", "… closed by peer") and NCCL (ncclRemoteError: "… a remote process
# exiting prematurely") tell a rank that another one is gone.
VICTIM = re.compile(r"by peer|remote process exit", re.IGNORECASE)

FEW = 8
"""Hosts that fit what is pasted."""

SIGNALS = {
    4: ("SIGILL", "a binary that was built for another processor"),
    6: ("SIGABRT", "native code gave up"),
    7: ("SIGBUS", "mostly a full /dev/shm, or a file that shrank"),
    8: ("SIGFPE", "a division by zero in native code"),
    9: (
        "SIGKILL",
        "mostly for memory, by the kernel or the container; else by a person or scheduler",
    ),
    11: ("SIGSEGV", "a fault in native code"),
    15: ("SIGTERM", "somebody asked it to end"),
}


def from_probes(probe_runs: ProbeRuns) -> Iterator[Finding]:
    for run in probe_runs.runs:
        if run.outcome != "crashed":
            continue
        dead = [state for state in run.ranks if state.exit_code is not None or state.words]
        culprits = [state for state in dead if not VICTIM.search(state.words) or _signal(state)]
        # The same error everywhere is no rank's own, and told as the crash of the probe.
        everywhere = len(culprits) == len(run.ranks) and len({one.words for one in culprits}) == 1
        silent = [state for state in run.ranks if state.status == "silent"]
        if culprits and (not everywhere or _signal(culprits[0])):
            yield _finding(run, max(culprits, key=lambda one: (_signal(one) > 0, one.age)))
        elif silent and not culprits:
            yield _vanished(run, silent)


def _signal(state: RankState) -> int:
    """The number of the signal that killed it, or 0."""
    return max(0, -(state.exit_code or 0))


def _finding(run: ProbeRun, state: RankState) -> Finding:
    number = _signal(state)
    name, meaning = SIGNALS.get(number, (f"signal {number}", "an unusual signal"))
    if number:
        why = f"was killed by {name} ({meaning})"
    elif state.words:
        why = f"failed with '{state.words}'"
    else:
        why = f"ended with exit code {state.exit_code} and without a word"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"rank {state.rank} (pid {state.pid} on {state.host}) of the probe {run.probe} {why}, "
            f"at '{state.last}'; {len(run.ranks) - 1} others needed it"
        ),
        evidence=(
            Observation(name="exit code", value=state.exit_code or 0, source="torchrun"),
            Observation(name="last step", value=state.last, source="the rank's own journal"),
            Observation(name="last words", value=state.words),
        ),
        where=Where(hosts=(state.host,), ranks=(state.rank,)),
        fixes=(_fix(run, name if number else ""),),
    )


def _vanished(run: ProbeRun, silent: Sequence[RankState]) -> Finding:
    first = silent[0]
    who = f"rank {first.rank} (pid {first.pid} on {first.host})"
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    hosts = tuple(sorted({state.host for state in silent}))
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"nothing was heard any more of {who}{more} in the probe {run.probe}, for "
            f"{first.age:.0f} s, last at '{first.last}': killed with all its processes, or its "
            f"host is down or cut off; {len(run.ranks) - len(silent)} others needed it"
        ),
        evidence=(
            Observation(name="last heard of", value=round(first.age, 1), unit="s", source="store"),
            Observation(name="last step", value=first.last, source="the rank's own journal"),
        ),
        where=Where(hosts=hosts, ranks=tuple(state.rank for state in silent)),
        fixes=(
            Fix(
                summary="see whether the host is there, and who ended its processes",
                paste="\n".join(
                    f"ping -c 3 {host}; ssh {host} 'uptime; dmesg -T | tail -50'"
                    for host in hosts[:FEW]
                ),
            ),
        ),
    )


def _fix(run: ProbeRun, signal: str) -> Fix:
    if signal == "SIGKILL":
        return Fix(
            summary="see whether it was killed for memory",
            paste="dmesg -T | grep -i -E 'killed process|out of memory|oom' | tail",
            caution="needs the right to read the kernel log; in a container look at its host",
        )
    if signal == "SIGBUS":
        return Fix(summary="see how full shared memory is", paste="df -h /dev/shm")
    if signal:
        return Fix(
            summary="see where in native code it died",
            paste=f"PYTHONFAULTHANDLER=1 ddoctor doctor --probe {run.probe}",
        )
    return Fix(
        summary="repair that error, then measure again",
        paste=f"ddoctor doctor --probe {run.probe}",
    )
