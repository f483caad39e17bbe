"""A rank makes no progress while the other ranks wait for it in a collective.

All ranks of a group must enter a collective before it can end. One rank may be stopped by a signal,
held by a debugger, frozen with its container, or blocked in a read from a dead file system. The
other ranks then wait until a timeout, which names them and not the stuck rank.

Symptoms: the run hangs; each waiting rank uses a full core, the stuck rank uses none.

To fix it, resume the stopped process, or fix what its line waits for.
"""

# Above 150 lines: it judges probes, a run that ended, stacks of a live run, and the flight
# recorder.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from ddoctor.analysis import endings, held_locks, log_events
from ddoctor.analysis.flight_records import RECORDER, absence_in, awaited, by_nccl, named
from ddoctor.analysis.held_locks import Holder
from ddoctor.analysis.live_ranks import HELD, LiveRankState, places, stack, subject
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.flight_records import FlightDumps, FlightRecords
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.log import Log
from ddoctor.evidence.probes import ProbeRun, ProbeRuns, RankState
from ddoctor.evidence.threads import ScriptThread, ScriptThreads
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("first-failure-masked", "dead-rank")

# A dump that a timeout wrote is minutes younger than the last call.
STILL_SECONDS = 10.0

# Why a rank of a probe is held, by psutil's name of its state, or the probe's own name.
HOLDERS = {
    **HELD,
    "silent": "no longer responding: stopped, disconnected, or its host is down",
}

# Log lines that say more of a rank that did not come.
TOLD = ("desync", "collective-mismatch", "main-first", "saving")

OF_A_QUEUE = "for a queue that another thread fills"
_NO_THREAD = ", and no other thread of it runs code of the script: what filled it has ended"

OF_A_FULL_PIPE = "until another process reads what it sends, for the pipe is full"
SENDS = ("_send", "_send_bytes", "send_bytes", "put")
"""Functions of ``multiprocessing`` that write to a pipe of 64 KiB (man 7 pipe)."""

# Why a thread blocks in a file of the standard library, or of a common package.
BLOCKS_IN = {
    "bdb.py": "for input at a debugger prompt",
    "pdb.py": "for input at a debugger prompt",
    "subprocess.py": "until a child process ends",
    "popen_fork.py": "until a child process ends",
    "threading.py": "for a lock or another thread",
    "queues.py": "for a queue that another process fills",
    "queue.py": OF_A_QUEUE,
    "selectors.py": "for the network or a pipe",
    "socket.py": "for the network",
    "ssl.py": "for the network",
    "connection.py": "for the network or a pipe",
    "_api.py": "for a file lock",
    "_unix.py": "for a file lock",
}

# torch's stores have no frames: the user's own line tells.
OF_A_STORE = "for a key of the store that no rank has set"
ASKS_A_STORE = re.compile(r"store\.(?:wait|get|multi_get)\(", re.IGNORECASE)


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


def until_the_end(run: TrainingRun) -> Iterator[Finding]:
    for one in endings.awaited(run):
        if not one.busy:
            found = _in_training(run, endings.stood(one), [one], endings.awaited(run))
            # It may not have waited for long enough.
            yield replace(found, severity=Severity.WARNING, confidence=Confidence.LIKELY)


def recorded_in_a_live_run(
    live: LiveState, records: tuple[FlightRecords, ...]
) -> Iterator[Finding]:
    # If all stacks are known, they say more.
    if any(rank.held for rank in live.ranks) or not any(rank.seen.unseen for rank in live.ranks):
        return
    found = awaited(live, records)
    if found is None:
        return
    rows = [rank for rank in live.ranks if rank.rank in found.ranks]
    first = rows[0]
    last = f"collective {found.last.number} ({named(found.last)})" if found.last else "none"
    wait = "wait" if len(found.waiting) > 1 else "waits"
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{subject(rows)} did not enter collective {found.call.number} of the group "
            f"{found.group}, {named(found.call)}, in which {endings.ranks(found.waiting)} {wait}; "
            f"according to {RECORDER}, no rank called a collective for {first.seconds:.0f} s"
        ),
        evidence=(
            Observation(name="its last collective in this group", value=last, source=RECORDER),
            Observation(name="state of its process", value=first.seen.state),
            *by_nccl(records),
        ),
        where=Where.of(rows),
        fixes=(
            Fix(
                summary="dump its stack, as root or where ptrace is permitted",
                paste=f"py-spy dump --pid {first.seen.pid}  # on {first.host}",
            ),
        ),
    )


def in_a_live_run(
    live: LiveState,
    records: tuple[FlightRecords, ...] | None,
    script_threads: tuple[ScriptThreads, ...] | None,
) -> Iterator[Finding]:
    held = [rank for rank in live.ranks if rank.held]
    # A held rank blocks the others sooner or later, even if they still move.
    apart = held or [rank for rank in live.ranks if not rank.waits and rank.doing != "loader-wait"]
    threads = [one for section in script_threads or () for one in section.threads]
    locks = {one: _lock(one, threads) for one in apart}
    # If all ranks are stuck outside collectives, the culprit is unknown; unseen ranks wait. A key
    # that all of them wait for comes from none, and a lock of a rank from no other rank.
    known = all(_wants_a_key(one) or locks[one] for one in apart)
    some = len(apart) < len(live.ranks) or not live.whole or known
    if not held and not (live.hung and some):
        return
    alive = {one.rank for one in threads}
    for where, rows in places(apart).items():
        more = live.others(apart)
        if script_threads and OF_A_QUEUE in _for_what(rows[0].seen.stack):
            left = [row for row in rows if row.rank not in alive]
            more = f"{_NO_THREAD * (len(left) == len(rows))}{more}"
        yield _stuck(where, rows, locks[rows[0]], more, by_nccl(records))


def dumped(dumps: FlightDumps) -> Iterator[Finding]:
    found = absence_in(dumps)
    if found is None:
        return
    last = f"collective {found.last.number} ({named(found.last)})" if found.last else "none"
    at = endings.at(found.last.line) if found.last else ""
    idle = min(one.idle_seconds for one in dumps.ranks)
    yield Finding(
        severity=Severity.ERROR,
        # A run that moves may have a rank that is only late at the moment of the dump.
        confidence=Confidence.LIKELY if idle >= STILL_SECONDS else Confidence.POSSIBLE,
        because=(
            f"{endings.ranks(found.ranks)} did not enter collective {found.call.number} of the "
            f"group {found.group}, {named(found.call)}{endings.at(found.call.line)}, in which "
            f"{endings.ranks(found.waiting)} waited; the last that "
            f"{endings.ranks(found.ranks[:1])} called is {last}{at}"
        ),
        evidence=(Observation(name="its last collective", value=last, source=RECORDER),),
        where=Where(ranks=found.ranks),
        fixes=(
            Fix(
                summary="see what it does instead, while the run stands",
                paste="ddoctor attach PID --seconds 10  # on the host of that rank",
            ),
        ),
    )


def absent_in_a_log(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    timeouts = [one for one in log.of("watchdog") if one.rank is not None]
    found = log_events.absent(log)
    # A barrier is a reduction of one element: mostly, the others prepare something.
    if not found or log.of(*TOLD) or all(one.values.get("numel") == "1" for one in timeouts):
        return
    if run is not None and any(one.rank in found for one in run.ranks):
        return  # It ended: others tell how.
    late = endings.ranks({one.rank for one in timeouts if one.rank is not None})
    which = "is the only one" if len(found) == 1 else "are the only ones"
    wrote = "".join(
        f"; its last line is '{log_events.quoted(one.text)}' ({one.place})"
        for one in found.values()
        if one is not None and len(found) == 1
    )
    yield log_events.finding(
        timeouts,
        f"{late} timed out in a collective, and {endings.ranks(found)} {which} of which NCCL's "
        f"watchdog reports nothing, as of a rank that is in no collective{wrote}",
        Fix(
            summary=f"see what {endings.ranks(found)} does while it hangs, on its host",
            paste="ddoctor attach  # before the timeout",
        ),
        confidence=Confidence.LIKELY if len(found) == 1 else Confidence.POSSIBLE,
        at=Where(ranks=tuple(found)),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("hung-task"):
        yield log_events.finding(
            [event],
            f"process {event.values['pid']} waits in the kernel, mostly for a file system that "
            "does not answer",
            Fix(
                summary="see what it waits for, on its host",
                paste=f"cat /proc/{event.values['pid']}/stack; dmesg -T | grep -A 20 'blocked for'",
                caution="such a process cannot be killed before its file system answers",
            ),
        )


def _stuck(
    where: str,
    rows: Sequence[LiveRankState],
    lock: Holder | None,
    others: str,
    nccl: Iterator[Observation],
) -> Finding:
    first = rows[0]
    why = first.held or _for_what(first.seen.stack)
    was = "was" if len(rows) == 1 else "were"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if first.held else Confidence.LIKELY,
        because=(
            f"{subject(rows)} {was} stuck {where}{endings.quoted(first.line)} "
            f"{first.throughout}, outside any collective{f', {why}' if why else ''}{lock or ''}"
            f"{others}"
        ),
        evidence=(
            Observation(name="state of its process", value=first.seen.state),
            *(
                Observation(name="CPU time of its main thread", value=seconds, unit="s")
                for seconds in [first.seen.main_cpu_seconds] * (not first.dumped)
            ),
            *nccl,
        ),
        where=Where.of(rows),
        fixes=(
            Fix(
                summary="resume the stopped process",
                paste=f"kill -CONT {first.seen.pid}  # on {first.host}",
                caution="find out first what stopped it, and why",
            )
            if first.seen.state == "stopped"
            else _repair(stack(first), why, lock),
        ),
    )


def _in_training(
    run: TrainingRun, place: str, rows: Sequence[RankEnding], held: Sequence[RankEnding]
) -> Finding:
    first = rows[0]
    lock = held_locks.holder(first.place, first.contexts, first.threads)
    why = _for_what(first.stack)
    who = endings.who(first) if len(rows) == 1 else endings.ranks(one.rank for one in rows)
    was = "was" if len(rows) == 1 else "were"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if len(held) < len(run.ranks) else Confidence.LIKELY,
        because=(
            f"{who} {was} stuck {place}{endings.quoted(first.place)} for "
            f"{first.doing_seconds:.0f} s, outside any collective{f', {why}' if why else ''}"
            f"{lock or ''}{endings.thread(first)}{endings.others(run, held)}"
        ),
        evidence=(
            Observation(name="steps done", value=first.steps),
            Observation(name="time stuck there", value=round(first.doing_seconds, 1), unit="s"),
        ),
        where=Where.of(rows),
        fixes=(
            _repair(endings.traceback(first), why, lock)
            if first.stack
            else Fix(
                summary="run it again, and dump the stack of that rank while it hangs",
                paste=(
                    f"{endings.again(run)} &\npgrep -f {run.script} | xargs -n1 py-spy dump --pid"
                ),
            ),
        ),
    )


def _repair(stack: str, why: str, lock: Holder | None = None) -> Fix:
    if lock is not None and lock.itself:
        return Fix(
            summary="call a function there that does not take the lock, or make the lock a "
            "threading.RLock(), which a thread may take again",
            paste=stack,
            language="text",
        )
    return Fix(
        summary="let the process that gets this read while the ranks run, and join them afterwards"
        if OF_A_FULL_PIPE in why
        else "find what the innermost line waits for, or give that wait a timeout",
        paste=stack,
        language="text",
    )


def _for_what(stack: Sequence[Frame]) -> str:
    """The reason that the innermost library frames show, or the line itself; empty: none."""
    inner = list(takewhile(lambda frame: not frame.of_user, reversed(stack)))
    reasons = [BLOCKS_IN.get(frame.file.rpartition("/")[2], "") for frame in inner]
    if any(
        "multiprocessing/" in frame.file and frame.function.rpartition(".")[2] in SENDS
        for frame in inner
    ):
        reasons = [OF_A_FULL_PIPE]
    if not inner and stack and ASKS_A_STORE.search(stack[-1].text):
        reasons = [OF_A_STORE]
    # A queue waits by a lock.
    found = OF_A_QUEUE if OF_A_QUEUE in reasons else next(filter(None, reasons), "")
    return f"waiting {found}" if found else ""


def _lock(rank: LiveRankState, threads: Sequence[ScriptThread]) -> Holder | None:
    of_rank = [one for one in threads if one.rank == rank.rank]
    return held_locks.holder(rank.line, rank.seen.within, of_rank)


def _wants_a_key(rank: LiveRankState) -> bool:
    return OF_A_STORE in _for_what(rank.seen.stack)


def _finding(run: ProbeRun, state: RankState, front: int) -> Finding:
    holder = HOLDERS.get(state.status)
    if holder is not None:
        why = f"its process was {holder}"
    else:
        why = (
            f"it had done {state.steps} steps and the others up to {front}; its stack would show "
            "what it waits for"
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
            Observation(name="time without progress", value=round(state.age, 1), unit="s"),
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
            summary="check that the host responds, and the state of its processes",
            paste=f"ping -c 3 {state.host}; ssh {state.host} 'ps -eo pid,ppid,stat,args | "
            "grep ddoctor.probe'",
        )
    if state.status in HOLDERS:
        return Fix(
            summary="find out what stops processes here; SIGCONT resumes a stopped process",
            paste="ps -eo pid,ppid,stat,user,args | awk '$3 ~ /T/'\nkill -CONT PID",
            caution="ddoctor has already ended the stopped process of the probe",
        )
    return Fix(
        summary="run it again, and dump the stack of that rank while it hangs",
        paste=f"{again} &\nsleep 10; pgrep -f ddoctor.probing.worker | xargs -n1 py-spy dump --pid",
    )
