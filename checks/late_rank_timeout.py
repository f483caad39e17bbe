"""One rank works for long while all others wait in a collective, which will time out.

One rank tokenises a dataset, lists millions of files or compiles, alone or longer than the others.
That is no error, and the rank makes progress. But the other ranks wait for it in a collective,
which times out after ten minutes (NCCL) or thirty (gloo), with an error on ranks that only waited.

Symptoms: a timeout at the first barrier or the first step, always after the same time.

To fix it, prepare the data once before the run, divide the work among the ranks, or raise the
timeout.
"""

# Above 150 lines: live runs, interrupted runs, and four forms of logs.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings, log_events
from ddoctor.analysis.live_ranks import named, way_there
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import longer_limit
from ddoctor.evidence.frames import Block
from ddoctor.evidence.log import Log, LogEvent
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "straggler-rank",
    "rank0-extra-work",
    "rank-missing-at-init",
    "dead-rank",
    "first-failure-masked",
    "script-error",
)

# Words and units of progress bars that datasets, tokenizers and downloads show.
OF_DATA = re.compile(
    r"map|filter|token|prepar|process|load|download|build|index|generat|convert|cach|scan|evaluat"
    r"|valid|packing|shard|split|pars|comput|embed",
    re.IGNORECASE,
)
UNITS = re.compile(r"\s*(examples|[kMGT]?i?B|files?|docs?|rows?|lines?|tokens|samples)/s")

# Numbers of a run's first collective, by the version of torch.
FIRST = ("0", "1")

# Reading data and imports take the same on all ranks, and end soon.
STARTING = ("import", "loader-start")
# These have checks that say more.
OTHER_CAUSES = ("loader", "checkpoint")


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    found = live.straggler
    if found is None or found.in_model or found.activity.startswith((*STARTING, *OTHER_CAUSES)):
        return
    rank = found.rank
    if not found.never_arrives or not rank.works:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{rank.who} works{found.at} for all of the {rank.seconds:.0f} s"
            f"{live.others([rank])}, until that collective times out"
        ),
        evidence=found.waits,
        where=Where.of([rank]),
        fixes=(
            *_may_not_end(rank.within),
            Fix(
                summary=f"do it once before the run, so that {named(found.others)} need not wait",
                paste="python prepare.py  # what that line computes, written to a file",
                caution="or divide it among the ranks, with a separate file for each",
            ),
            longer_limit(),
            *(way_there(rank, found.calls) if found.calls else ()),
        ),
    )


def until_the_end(run: TrainingRun) -> Iterator[Finding]:
    for rank in endings.awaited(run):
        if not rank.busy:
            continue
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"{endings.who(rank)} had worked {endings.stood(rank)}{endings.quoted(rank.place)} "
                f"for {rank.doing_seconds:.0f} s when the run was ended"
                f"{endings.others(run, endings.awaited(run))}"
            ),
            evidence=(Observation(name="steps done", value=rank.steps),),
            where=Where.of([rank]),
            fixes=(
                *_may_not_end(rank.within),
                *_WORK_BEFORE,
                Fix(
                    summary="read the stack that leads there",
                    paste=endings.traceback(rank),
                    language="text",
                ),
            ),
        )


def _may_not_end(within: Sequence[Block]) -> Iterator[Fix]:
    """For work within a loop that only its condition ends."""
    loop = next((block for block in reversed(within) if block.loop), None)
    if loop is not None and loop.text.startswith("while"):
        name = loop.file.rpartition("/")[2]
        yield Fix.python(
            summary="see whether the loop around it ends at all",
            paste=f"{loop.text}  # {name}:{loop.line}: print what ends it",
        )


def in_a_log(log: Log) -> Iterator[Finding]:
    timeouts = log.of("watchdog", "store-wait")
    if not timeouts or log.of("desync", "collective-mismatch"):
        return
    waited = {one.rank for one in timeouts}
    for work in filter(_prepares, log.of("progress")):
        under_way = int(work.values["done"]) < int(work.values["total"])
        if work.file == timeouts[0].file and work.rank not in waited - {None} and under_way:
            yield log_events.finding(
                [timeouts[0], work],
                f"meanwhile another rank worked on '{work.values.get('task', 'data').strip()}' "
                f"({work.values['done']} of {work.values['total']}, {work.place})",
                *_WORK_BEFORE,
            )
            return
    if first := log.first("main-first"):
        yield log_events.finding(
            [timeouts[0], first],
            f"{first.place} waits for what the main process prepares, such as a dataset, and that "
            "takes longer than the timeout",
            *_WORK_BEFORE,
        )
        return
    early = [one for one in timeouts if one.values.get("number") in FIRST]
    # All ranks would report a connection that does not work.
    if early and len(early) == len(timeouts) and len(waited) == 1:
        yield log_events.finding(
            early,
            "this is the first collective of the run: another rank came too late to it, as one "
            "that prepares data, it never began, or it cannot be reached",
            *_WORK_BEFORE,
            confidence=Confidence.POSSIBLE,
        )
        return
    # A barrier is a reduction of one element.
    barriers = [one for one in timeouts if one.values.get("numel") == "1"]
    ahead, behind = log_events.apart(log)
    if len(ahead) < len(behind):
        return  # A few ranks call what the others never do.
    if barriers and len(barriers) == len(timeouts):
        yield log_events.finding(
            barriers,
            "the other ranks did not come to this barrier within the timeout, and the log does "
            "not say what they did; `ddoctor attach` on their hosts tells it while they wait",
            *_WORK_BEFORE,
            confidence=Confidence.POSSIBLE,
        )


def _prepares(bar: LogEvent) -> bool:
    """Whether a progress bar is of work on data, and not of the training itself."""
    task, unit = bar.values.get("task", ""), bar.values.get("unit", "")
    return bool(OF_DATA.search(task) or UNITS.fullmatch(unit))


_WORK_BEFORE = (
    Fix(
        summary="do that work once before the run, and let the ranks only read its result",
        paste="python prepare.py  # tokenise, index or download, and write a file",
    ),
    longer_limit(),
)
