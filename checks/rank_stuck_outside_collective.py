"""A rank makes no progress while the others wait for it in a collective.

All ranks of a group have to enter a collective before it can end. A rank that is stopped by a
signal, held by a debugger, frozen with its container, or asleep in a read from a dead file system
keeps the others waiting until a timeout, which then names them and not the culprit.

Seen from outside: the run hangs; the waiting ranks use a full core each, the stuck one uses none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddoctor.analysis import endings
from ddoctor.analysis.flight_records import RECORDER, Awaited, awaited, by_nccl, named
from ddoctor.analysis.live_ranks import (
    HELD,
    LiveRankState,
    others,
    places,
    stack,
)
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.flight_records import FlightRecords
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.probes import ProbeRun, ProbeRuns, RankState
from ddoctor.evidence.training import Frame, RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("first-failure-masked",)

# What holds a rank of a probe, by psutil's name of its state, or the probe's own.
HOLDERS = {
    **HELD,
    "silent": "not heard of any more: stopped as a whole, cut off, or its host is down",
}

# What code of the standard library, and of much used packages, a thread stands in, and why.
STANDS_IN = {
    "bdb.py": "for somebody at the prompt of a debugger",
    "pdb.py": "for somebody at the prompt of a debugger",
    "subprocess.py": "until a child process ends",
    "popen_fork.py": "until a child process ends",
    "threading.py": "for a lock or another thread",
    "queues.py": "for a queue that another process fills",
    "queue.py": "for a queue that another thread fills",
    "selectors.py": "for the network or a pipe",
    "socket.py": "for the network",
    "ssl.py": "for the network",
    "connection.py": "for the network or a pipe",
    "_api.py": "for a file lock",
    "_unix.py": "for a file lock",
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


def from_training(run: TrainingRun, loading: Loading | None) -> Iterator[Finding]:
    if run.failures:
        return
    hung = [one for one in run.ranks if one.outcome == "hung"]
    held = [
        one
        for one in hung
        if not one.waits and not endings.on_workers(one, loading) and (one.doing or one.stack)
    ]
    places: dict[str, list[RankEnding]] = {}
    for one in held:
        places.setdefault(endings.stood(one), []).append(one)
    for place, rows in places.items():
        yield _in_training(run, place, rows, held)


def recorded_in_a_live_run(
    live: LiveState, records: tuple[FlightRecords, ...]
) -> Iterator[Finding]:
    # Where all stacks were seen, these tell more.
    if any(rank.held for rank in live.ranks) or not any(rank.seen.unseen for rank in live.ranks):
        return
    found = awaited(live, records)
    if found is not None:
        yield _awaited(found, live, records)


def in_a_live_run(live: LiveState, records: tuple[FlightRecords, ...] | None) -> Iterator[Finding]:
    held = [rank for rank in live.ranks if rank.held]
    # One that is held stops the others, sooner or later, whether they stand by now or not.
    apart = held or [rank for rank in live.ranks if not rank.waits and rank.doing != "loader-wait"]
    # Where all of a run stand so, nothing tells who does it; those not seen wait for these.
    some = len(apart) < len(live.ranks) or not live.whole
    if not held and not (live.hung and some):
        return
    for where, rows in places(apart).items():
        finding = _stuck(where, rows, live.ranks, apart)
        yield replace(finding, evidence=(*finding.evidence, *by_nccl(records)))


def _awaited(found: Awaited, live: LiveState, records: Sequence[FlightRecords]) -> Finding:
    rows = [rank for rank in live.ranks if rank.rank in found.ranks]
    first = rows[0]
    last = f"collective {found.last.number} ({named(found.last)})" if found.last else "none"
    wait = "wait" if len(found.waiting) > 1 else "waits"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{first.who if len(rows) == 1 else endings.ranks(found.ranks)} did not come to "
            f"collective {found.call.number} of the group {found.group}, {named(found.call)}, in "
            f"which {endings.ranks(found.waiting)} {wait}; nothing was called for "
            f"{first.seconds:.0f} s, as {RECORDER} tells"
        ),
        evidence=(
            Observation(name="the last that it called there", value=last, source=RECORDER),
            Observation(name="its process is", value=first.seen.state),
            *by_nccl(records),
        ),
        where=Where.of(rows),
        fixes=(
            Fix(
                summary="look at its stack, as root or where ptrace is permitted",
                paste=f"py-spy dump --pid {first.seen.pid}  # on {first.host}",
            ),
        ),
    )


def _stuck(
    where: str,
    rows: Sequence[LiveRankState],
    every: Sequence[LiveRankState],
    apart: Sequence[LiveRankState],
) -> Finding:
    first = rows[0]
    text = endings.quoted(first.line)
    why = first.held or _for_what(first.seen.stack)
    subject = first.who if len(rows) == 1 else endings.ranks(rank.rank for rank in rows)
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if first.held else Confidence.LIKELY,
        because=(
            f"{subject} stood {where}{text} for all of the {first.seconds:.0f} s, outside of any "
            f"collective{f', {why}' if why else ''}{others(every, apart)}"
        ),
        evidence=(
            Observation(name="its process is", value=first.seen.state),
            Observation(
                name="its main thread was on a CPU", value=first.seen.main_cpu_seconds, unit="s"
            ),
        ),
        where=Where.of(rows),
        fixes=(
            Fix(
                summary="let it go on",
                paste=f"kill -CONT {first.seen.pid}  # on {first.host}",
                caution="first find out who stopped it, and why",
            )
            if first.seen.state == "stopped"
            else _repair(stack(first)),
        ),
    )


def _in_training(
    run: TrainingRun, place: str, rows: Sequence[RankEnding], held: Sequence[RankEnding]
) -> Finding:
    first = rows[0]
    text = first.place.text if first.place is not None else ""
    waits = _for_what(first.stack)
    subject = endings.who(first) if len(rows) == 1 else endings.ranks(one.rank for one in rows)
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if len(held) < len(run.ranks) else Confidence.LIKELY,
        because=(
            f"{subject} stood {place}{f' (`{text}`)' if text else ''} for "
            f"{first.doing_seconds:.0f} s, outside of any collective{f', {waits}' if waits else ''}"
            f"{endings.others(run, held)}"
        ),
        evidence=(
            Observation(name="steps taken", value=first.steps),
            Observation(name="stood there for", value=round(first.doing_seconds, 1), unit="s"),
        ),
        where=Where.of(rows),
        fixes=(
            _repair(endings.traceback(first))
            if first.stack
            else Fix(
                summary="repeat it, and look at the stack of that rank while it hangs",
                paste=(
                    f"{endings.again(run)} &\n"
                    f"pgrep -f {run.command[0]} | xargs -n1 py-spy dump --pid"
                ),
            ),
        ),
    )


def _repair(stack: str) -> Fix:
    return Fix(
        summary="repair what that line waits for, or give it a limit of its own",
        paste=stack,
        language="text",
    )


def _for_what(stack: Sequence[Frame]) -> str:
    """What the innermost frames of libraries tell of the reason; empty: nothing."""
    for frame in reversed(stack):
        if frame.of_user:
            return ""
        if reason := STANDS_IN.get(frame.file.rpartition("/")[2]):
            return f"waiting {reason}"
    return ""


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
        paste=f"{again} &\nsleep 10; pgrep -f ddoctor.probing.worker | xargs -n1 py-spy dump --pid",
    )
