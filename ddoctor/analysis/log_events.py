"""Findings about lines of a log: what a line says, where it stands, and who wrote it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ddoctor.evidence.log import LastLine, Log, LogEvent
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

MOST_QUOTED = 160
"""Characters of a line."""
FEW = 4
"""Lines that are shown."""
MOST_ABSENT = 3
"""Ranks that time out for each one that is absent."""
ECHOES = ("watchdog", "nccl-remote", "store-wait", "gloo-connect", "abort")
"""The patterns of what all ranks tell once one has failed or does not come."""
REFUSED = ("4", "8")
"""ibv_wc_status of rdma-core: local protection and local access errors."""
JOINING = re.compile(r"clients joined|store based barrier|divisible|Mesh|parallel dims")
"""What a rank says whose fellow does not come, or of which there are too few."""
OF_THE_WEB = re.compile(r"://|huggingface|wandb|urllib3|requests\.|HTTPS?Connection|aiohttp", re.I)
"""Texts of a download or a tracker: that it fails says nothing about the cluster's network."""


def _whence(event: LogEvent) -> str:
    """Where a line stands, who wrote it, and how often it comes."""
    who = f" of {event.who}" if event.who else ""
    often = f", {event.count} times" if event.count > 1 else ""
    return f"{event.place}{who}{often}"


def quoted(text: str) -> str:
    """The beginning of a line."""
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED - 1]}…"


def failed_otherwise(run: TrainingRun | None, words: re.Pattern[str]) -> bool:
    """Whether a rank raised an exception of which these words say nothing; the others may only
    have met its absence."""
    failures = run.failures if run is not None else ()
    return any(one.exception and not words.search(one.said) for one in failures)


def apart(log: Log) -> tuple[tuple[LogEvent, ...], tuple[LogEvent, ...]]:
    """The ranks that wait in their last collective, and those that have called none since.

    By NCCL's watchdog, in the default process group."""
    known = [one for one in log.of("enqueued") if one.rank is not None]
    most = max((int(one.values["enqueued"]) for one in known), default=0)
    ahead = [
        one for one in known if int(one.values["enqueued"]) == most > int(one.values["completed"])
    ]
    behind = [
        one for one in known if int(one.values["enqueued"]) == int(one.values["completed"]) < most
    ]
    return tuple(ahead), tuple(behind)


def absent(log: Log) -> Mapping[int, LastLine | None]:
    """The few ranks without a timeout of NCCL's watchdog, where it reports one of all others.

    Their last lines; None: they wrote none that is known.

    A rank that waits in a collective as well is reported at about the same time. Where more than a
    few are missing, their launcher may have ended them before.
    """
    late: dict[str, set[int]] = defaultdict(set)
    for one in log.of("watchdog"):
        if one.rank is not None:
            late[one.file].add(one.rank)
    every = set[int]().union(*late.values())
    waiting = {
        one.rank
        for one in log.of("enqueued")
        if int(one.values["enqueued"]) > int(one.values["completed"])
    }
    last = {one.rank: one for one in log.last}
    # A file holds ranks that follow one another, and the first of a run is 0.
    known = {rank for few in late.values() for rank in range(min(few), max(few))} | last.keys()
    known |= {0} if min(every, default=0) == 1 else set()
    found = sorted(known - every - waiting)
    return {rank: last.get(rank) for rank in found if len(found) * MOST_ABSENT <= len(every)}


def missed(joining: LogEvent) -> bool:
    """Whether one rank of several has not joined. A launch that starts too few lacks a host, or
    all but one."""
    joined, wanted = int(joining.values["joined"]), int(joining.values["wanted"])
    return wanted - joined == 1 and wanted > 2


def refused_access(log: Log) -> tuple[LogEvent, ...]:
    """The completions of RDMA adapters that were refused access to memory of their host."""
    return tuple(one for one in log.of("ib-completion") if one.values["status"] in REFUSED)


def where(events: Sequence[LogEvent]) -> Where:
    """The ranks and hosts that wrote these lines, as far as the log says it."""
    return Where(
        hosts=tuple(sorted({one.host for one in events if one.host})),
        ranks=tuple(sorted({one.rank for one in events if one.rank is not None})),
    )


def lines(events: Sequence[LogEvent]) -> tuple[Observation, ...]:
    """The first of these lines, as evidence."""
    return tuple(Observation(name=one.place, value=quoted(one.text)) for one in events[:FEW])


def finding(
    events: Sequence[LogEvent],
    because: str,
    *fixes: Fix,
    severity: Severity = Severity.ERROR,
    confidence: Confidence = Confidence.LIKELY,
    at: Where | None = None,
) -> Finding:
    """A finding about these lines; ``because`` says what the first of them means."""
    return Finding(
        severity=severity,
        confidence=confidence,
        because=f"{_whence(events[0])}: {because}",
        evidence=lines(events),
        where=where(events) if at is None else at,
        fixes=fixes,
    )
