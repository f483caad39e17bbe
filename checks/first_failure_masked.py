"""The visible error only reports that another rank is gone; another rank failed first.

When one rank fails, all other ranks fail as well, in the collective that they wait in. Their
messages from gloo or NCCL mention a closed connection, a remote process or a timeout. These
messages are many and long, and often rank 0 prints them last. None of them is the cause.

Symptoms: "Connection closed by peer", "ncclRemoteError" or "Watchdog caught collective operation
timeout", and somewhere above, on another rank, a single error that differs.

To fix it, read the error of the rank that failed first. The ``@record`` decorator makes torchrun
print it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings, log_events
from ddoctor.evidence.log import Log
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

LATE = re.compile(r"timed out|timeout", re.I)


def from_training(run: TrainingRun) -> Iterator[Finding]:
    echoes = run.echoes
    if not echoes:
        return
    seen = endings.ranks(one.rank for one in echoes)
    said = f"{seen} failed with '{echoes[0].words}'"
    if not run.failures and any(one.outcome == "finished" for one in run.ranks):
        return  # uneven-inputs-per-rank or dead-rank reports who has left the others.
    at: Sequence[RankEnding] = ()
    severity, confidence = Severity.ERROR, Confidence.LIKELY
    if run.failures:
        first = run.failures[0]
        at = (first,)
        severity, confidence = Severity.NOTE, Confidence.CERTAIN
        why = (
            f", which is only a consequence: {endings.who(first)} failed "
            f"{'before' if run.ordered and first.time <= echoes[0].time else 'as well'}, with "
            f"'{first.words or f'exit code {first.exit_code}'}'"
        )
        fix = Fix(
            summary=f"read only the error of {endings.ranks([first.rank])}",
            paste=endings.traceback(first),
            language="text",
        )
    else:
        at = [one for one in run.ranks if one.outcome == "vanished"]
        why = (
            ", which only reports that another rank is gone; its own end was not recorded"
            f"{endings.others(run, echoes)}"
        )
        fix = _RECORD
    title = ""
    if run.only_told and not run.failures:
        # Whatever else a log tells comes first.
        severity, confidence = Severity.WARNING, Confidence.POSSIBLE
        if all(LATE.search(one.words) for one in echoes):
            title = "A rank waited too long for another one, and no line says what held that up"
            why, fix = ": another rank did not come in time", _LOOK
        else:
            title = "The errors only report that another rank is gone, and no line says why"
            why, fix = ": another rank failed, or came to its end before the others", _NEXT
        why += endings.others(run, echoes)
    yield Finding(
        title=title,
        severity=severity,
        confidence=confidence,
        because=said + why,
        evidence=tuple(
            Observation(name=f"error of {endings.who(one)}", value=one.words) for one in echoes[:4]
        ),
        where=Where(
            hosts=tuple(sorted({one.host for one in at})), ranks=tuple(one.rank for one in at)
        ),
        fixes=(fix,),
    )


def in_a_log(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    if (run is not None and (run.failures or run.echoes)) or log_events.absent(log):
        return  # The log tells how ranks ended, or which one did not come.
    # Every cause explains these.
    events = log.of(*log_events.ECHOES)
    if events:
        yield log_events.finding(
            events,
            "this reports that another rank has failed, or did not come, and the log does not say "
            "why: look for the first error of every rank and host",
            _NEXT,
            # Whatever else is found comes first.
            severity=Severity.WARNING,
            confidence=Confidence.POSSIBLE,
        )


_NEXT = Fix(
    summary="let the next run say which rank is missing, and where",
    paste="export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 NCCL_DEBUG=INFO\n"
    "torchrun --redirects 3 --log-dir logs …  # a file per rank\n"
    "ddoctor attach  # while it hangs, on each host",
)
_LOOK = Fix(
    summary="look at the ranks while they wait, or let the next run keep its collectives",
    paste="ddoctor attach  # on each host\nexport TORCH_FR_BUFFER_SIZE=2000",
)
_RECORD = Fix.python(
    summary="record the error and time of every rank",
    paste=(
        "from torch.distributed.elastic.multiprocessing.errors import record\n\n"
        "@record   # torchrun then prints the first error of all ranks at the end\n"
        "def main(): ..."
    ),
)
