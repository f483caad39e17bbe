"""The ranks take different branches, so they wait in different collectives.

All ranks must call each collective, in the same order. A branch may depend on the rank, or on data
that differs between ranks: a skipped bad loss, early stopping, a metric under ``if rank == 0``.
Then one rank waits in a collective that the others never call, while they wait in another one.

Symptoms: all ranks wait, each in a collective, and their stacks show different lines.

To fix it, decide on all ranks alike: all-reduce the condition first.
"""

# Above 150 lines: runs, live runs, flight records, logs and the source show it differently.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median_low

from ddoctor.analysis import collective_mismatch, endings, log_events
from ddoctor.analysis.branch_fixes import TEST, leave_together, let_all_decide
from ddoctor.analysis.collective_mismatch import ALIKE, have_passed, held, left_behind, mismatch
from ddoctor.analysis.flight_records import RECORDER, by_nccl, difference_in, differing
from ddoctor.analysis.hung_run import seen_live
from ddoctor.analysis.live_ranks import named, places, stack
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.own_decisions import other_decisions, skipped_steps
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.flight_records import FlightDumps, FlightRecords
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")


FEWEST = 3
"""Steps that show a difference of each."""


def in_the_source(script: Script, run: TrainingRun | None) -> Iterator[Finding]:
    # Where the run hangs, it shows what the ranks wait for.
    if run is None or all(one.outcome != "hung" for one in run.ranks):
        yield from skipped_steps(script)
    yield from other_decisions(script)


def reductions_differ(steps: Steps) -> Iterator[Finding]:
    """DDP reduces gradients in other numbers of backward passes on other ranks."""
    counts = {one.place.rank: one.synced_backwards for one in steps.ranks}
    rows = list(zip(*counts.values(), strict=False))
    if len(rows) < FEWEST or not all(len(set(row)) > 1 for row in rows):
        return
    each = {rank: median_low(of) for rank, of in counts.items()}
    least, most = min(each, key=lambda rank: each[rank]), max(each, key=lambda rank: each[rank])
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"DDP reduces gradients in {each[least]} backward pass{'es' * (each[least] != 1)} of a "
            f"step on rank {least} and in {each[most]} on rank {most}: gradients of different "
            "passes are added up, until a rank waits forever"
        ),
        evidence=tuple(
            Observation(
                name=f"backward passes that reduce, rank {rank}",
                value=each[rank],
                unit="a step",
                source=f"the median of {len(rows)} steps",
            )
            for rank in (least, most)
        ),
        where=Where(ranks=tuple(sorted((least, most)))),
        fixes=(
            Fix.python(
                summary="enter no_sync in the same passes on all ranks",
                paste=(
                    "last = (index + 1) % accumulation == 0  # of the micro-batch alone\n"
                    "with contextlib.nullcontext() if last else model.no_sync():\n"
                    "    loss.backward()"
                ),
            ),
        ),
    )


def waiting_apart(run: TrainingRun, script: Script | None) -> Iterator[Finding]:
    waiting = held(run)
    if not waiting or left_behind(waiting) is not None:
        return
    hung = [one for one in waiting if one.stood]
    ways = endings.ways(waiting)
    apart: dict[str, list[RankEnding]] = {}
    for one in waiting:
        apart.setdefault(endings.stood(one, ways[one.rank]), []).append(one)
    longest = max(one.stood_seconds for one in hung)
    if len(apart) < 2:
        yield from _in_other_groups(waiting, next(iter(apart)), longest)
        return
    groups = " and ".join(
        f"{endings.ranks(one.rank for one in rows)} {place}{_calls(rows)}"
        for place, rows in apart.items()
    )
    live = seen_live(run)
    if live is not None and live.unmatched:
        return
    # The recorded call and the line of the stack agree.
    agree = (
        len({one.doing for one in hung}) > 1
        and len({*ways.values()} - {""}) > 1
        and not any(have_passed(waiting, one) for one in waiting)
    )
    yield _finding(
        f"all ranks wait, {groups}{_parted(live)}; nothing moved for {longest:.0f} s"
        f"{_caught(script)}",
        Confidence.CERTAIN if agree else Confidence.LIKELY,
        [(endings.ranks(one.rank for one in rows), place) for place, rows in apart.items()],
        _tracebacks(waiting),
        _together(live, script),
    )


def _in_other_groups(
    waiting: Sequence[RankEnding], place: str, seconds: float
) -> Iterator[Finding]:
    """One line, and a process group of which some ranks wait in another one."""
    groups: dict[int, list[RankEnding]] = {}
    for one in waiting:
        groups.setdefault(one.group, []).append(one)
    if all(len(rows) >= (rows[0].group_size or len(waiting)) for rows in groups.values()):
        return
    apart = [endings.ranks(one.rank for one in rows) for rows in groups.values()]
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"all ranks wait {place}, but in {len(groups)} process groups: {' and '.join(apart)}, "
            f"each in a group that needs more ranks; nothing moved for {seconds:.0f} s"
        ),
        evidence=tuple(
            Observation(
                name=f"waiting in the group of {who}",
                value=len(rows),
                expected=rows[0].group_size or len(waiting),
                unit="ranks",
            )
            for who, rows in zip(apart, groups.values(), strict=True)
        ),
        fixes=(
            Fix.python(
                summary="use the groups in the same order on all ranks",
                paste=(
                    "for group in (first, second):  # not by the rank\n"
                    "    dist.all_reduce(value, group=group)"
                ),
            ),
        ),
    )


def recorded_in_a_live_run(
    live: LiveState, records: tuple[FlightRecords, ...]
) -> Iterator[Finding]:
    found = differing(live, records)
    if found is None or found.same_call:
        return
    first = {one.ranks[0] for one in found.brought}
    yield _finding(
        f"{found.detail}, {found}, according to {RECORDER}; {live.standstill}",
        found.confidence,
        [
            *((endings.ranks(one.ranks), str(one)) for one in found.brought),
            *((row.name, str(row.value)) for row in by_nccl(records)),
        ],
        [stack(rank) for rank in live.ranks if rank.rank in first and rank.seen.stack][:2],
    )


def dumped(dumps: FlightDumps) -> Iterator[Finding]:
    found = difference_in(dumps)
    if found is None or found.same_call:
        return
    yield _finding(
        f"{found.detail}, {found}, according to the dumps of {RECORDER}",
        found.confidence,
        [(endings.ranks(one.ranks), str(one)) for one in found.brought],
        [],
    )


def in_a_live_run(live: LiveState, records: tuple[FlightRecords, ...] | None) -> Iterator[Finding]:
    if records and differing(live, records):
        return
    apart = places(live.ranks)
    if len(apart) < 2 or not live.blocked or live.unmatched:
        return
    # The host started what its GPU waits in at another line than the line that it waits at now.
    if any(rank.at_gpu for rank in live.ranks):
        return
    groups = " and ".join(f"{named(rows)} {where}" for where, rows in apart.items())
    yield _finding(
        f"all ranks wait, {groups}{_parted(live)}; {live.standstill}",
        Confidence.CERTAIN
        if len({rank.operation for rank in live.ranks}) > 1
        else Confidence.LIKELY,
        [(named(rows), where) for where, rows in apart.items()],
        [stack(rows[0]) for rows in apart.values()][:2],
        _together(live, None),
    )


def crashed(run: TrainingRun, script: Script | None) -> Iterator[Finding]:
    found = mismatch(run)
    if found is not None and not found.same_call:
        yield _finding(
            f"{found.told_by} reports ranks in different collectives: {found}{_caught(script)}",
            found.confidence,
            [(endings.ranks(one.ranks), str(one)) for one in found.brought],
            _tracebacks([one for one in run.ranks if one.stack]),
        )


def in_a_log(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    for event in log.of("collective-mismatch"):
        if not collective_mismatch.same_call(event.text):
            yield log_events.finding(
                [event],
                "the ranks call different collectives at the same point",
                _LET_ALL_DECIDE,
            )
            return
    if apart := collective_mismatch.different_calls(log):
        yield log_events.finding(
            apart,
            "the ranks wait in different collectives of the same number: "
            + " and ".join(sorted({one.values["operation"] for one in apart})),
            _LET_ALL_DECIDE,
            # Each group of ranks counts its own collectives, and a line does not say its group.
            confidence=Confidence.POSSIBLE,
        )
        return
    for number, calls in collective_mismatch.printed_calls(log).items():
        if len(operations := {one.values["operation"] for one in calls}) > 1:
            yield log_events.finding(
                calls,
                f"the last call of each rank has the number {number}, and is not the same "
                f"collective: {' and '.join(sorted(operations))}",
                _LET_ALL_DECIDE,
                # Of some ranks, the log may lack the communicator that belongs to the others'.
                confidence=Confidence.POSSIBLE,
            )
            return
    if run is not None and (found := _elsewhere(log, run)) is not None:
        yield found
        return
    ahead, behind = log_events.apart(log)
    # Few that are behind may only be late.
    if len(ahead) < len(behind) and [one.rank for one in ahead] != [0]:
        yield log_events.finding(
            [*ahead, *behind],
            f"{endings.ranks(one.rank for one in ahead if one.rank is not None)} wait in a "
            f"collective, and {endings.ranks(one.rank for one in behind if one.rank is not None)} "
            "had finished all that they called",
            _LET_ALL_DECIDE,
            confidence=Confidence.POSSIBLE,
            at=Where(ranks=tuple(one.rank for one in behind if one.rank is not None)),
        )
        return
    late = log.of("desync")
    waiting = {one.rank for one in log.of("watchdog") if one.rank is not None}
    if late and waiting != {0}:
        yield log_events.finding(
            late,
            "some ranks never joined the collective in which the others wait",
            _LET_ALL_DECIDE,
            at=Where(ranks=tuple(sorted({int(one.values["late"]) for one in late}))),
        )


_LET_ALL_DECIDE = let_all_decide()


def _together(live: LiveState | None, script: Script | None) -> Fix:
    """What makes the ranks agree, by the loop or the test that separates them, if it is known."""
    for block in live.parting if live is not None else ():
        if block.decides:
            return leave_together()
        if test := TEST.match(block.text):
            return let_all_decide(test[1], f"{block.file.rpartition('/')[2]}:{block.line}")
    known = [*_skipped(live, script), *_own_branch(live, script)]
    return known[0] if known else _LET_ALL_DECIDE


def _own_branch(live: LiveState | None, script: Script | None) -> Iterator[Fix]:
    """By the test of the script that led some ranks into their collective."""
    for branch in script.own_branches if script is not None else ():
        here = [
            any(map(branch.at.holds, rank.seen.stack))
            for rank in (live.ranks if live is not None else ())
        ]
        if any(here) and not all(here):
            yield let_all_decide(branch.test, f"{branch.at.file}, before line {branch.at.line}")


def _skipped(live: LiveState | None, script: Script | None) -> Iterator[Fix]:
    """By the test that leaves a step before its backward pass, in which some ranks wait."""
    lines = [rank.line for rank in live.ranks] if live is not None else []
    for call in script.of(".backward") if script is not None else ():
        here = [call.at.holds(line) for line in lines if line is not None]
        if call.unless and any(here) and not all(here):
            yield let_all_decide(call.unless, f"{call.at.file}, before line {call.at.line}")


def _parted(live: LiveState | None) -> str:
    """Which ranks are in the loop or branch that separates them, to follow a sentence."""
    return "".join([live.inside(block) for block in live.parting][:1]) if live is not None else ""


def _caught(script: Script | None) -> str:
    """The handler after which a rank may have left out a backward pass, to follow a sentence."""
    lines = script.own_catches[:1] if script is not None else ()
    return "".join(
        f"; {shown(line)} lets a rank continue after an error in its step, without its backward "
        "pass"
        for line in lines
    )


def _calls(rows: Sequence[RankEnding]) -> str:
    calls = {one.collectives for one in rows}
    number = calls.pop() if len(calls) == 1 else 0
    return f" (collective {number} of the script)" if number else ""


def _elsewhere(log: Log, run: TrainingRun) -> Finding | None:
    """Some ranks that failed in another collective than the one in which the others timed out."""
    timeouts = [one for one in log.of("watchdog") if one.rank is not None]
    calls = {(one.values.get("number"), one.values.get("operation")) for one in timeouts}
    late = {one.rank for one in timeouts}
    others = [one for one in run.echoes if one.rank not in {*late, -1} and one.stack and one.waits]
    if len(calls) != 1 or not others or None in next(iter(calls)):
        return None
    functions = [frame.function for frame in reversed(others[0].stack)]
    inner = next((name for name in functions if ALIKE.fullmatch(name)), functions[0])
    return log_events.finding(
        timeouts,
        f"{endings.ranks(one for one in late if one is not None)} timed out in this collective, "
        f"and {endings.ranks(one.rank for one in others)} in {inner}, until the others were gone",
        _LET_ALL_DECIDE,
        # It may have been late in what comes before, and then have met that the others are gone.
        confidence=Confidence.POSSIBLE,
        at=Where(ranks=tuple(one.rank for one in others)),
    )


def _finding(
    because: str,
    confidence: Confidence,
    rows: Sequence[tuple[str, str]],
    stacks: Sequence[str],
    together: Fix = _LET_ALL_DECIDE,
) -> Finding:
    branch = Fix(
        summary="compare the stacks, and find the branch that separates the ranks",
        paste="\n\n".join(stacks),
        language="text",
    )
    return Finding(
        severity=Severity.ERROR,
        confidence=confidence,
        because=because,
        evidence=tuple(Observation(name=name, value=value) for name, value in rows),
        # What names the test comes before what helps to find it.
        fixes=tuple(
            sorted(
                (*([branch] if stacks else []), together),
                key=lambda fix: fix in (branch, _LET_ALL_DECIDE),
            )
        ),
    )


def _tracebacks(every: Sequence[RankEnding]) -> Sequence[str]:
    """Those of the first rank at each place, two at most."""
    ways = endings.ways(every)
    first = {endings.stood(one, ways[one.rank]): one for one in reversed(every)}
    return [endings.traceback(one) for one in list(first.values())[:2]]
