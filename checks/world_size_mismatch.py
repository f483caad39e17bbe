"""The launchers disagree about how many ranks there are.

WORLD_SIZE (or ``--nnodes`` times ``--nproc-per-node``, or ``num_processes`` in accelerate's
configuration) is one number for the whole run. Where more ranks are expected than processes were
started, all wait for ranks that nobody will start; where two processes have one rank, one of them
overwrites what the other says.

Seen from outside: a hang in init_process_group with every process alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddoctor.evidence.joining import HostJoining, Joining
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("rank-missing-at-init", "rank-stuck-outside-collective")

FEW = 8
"""Names that fit a sentence."""


def processes(joinings: tuple[Joining, ...]) -> Iterator[Finding]:
    """Slurm or MPI started another number of processes."""
    for joining in joinings:
        launched, size, by = joining.launched, joining.world_size, joining.launched_by
        if launched in (None, size) or all(one.came for one in joining.ranks):
            continue
        yield _finding(
            f"the ranks were told that they are {size}, and {by}={launched} processes were started",
            (Observation(name="processes", value=launched or 0, expected=size, source=by),),
            Where(),
        )


def words(joinings: tuple[Joining, ...]) -> Iterator[Finding]:
    """Ranks that came were told different sizes, or one rank came twice."""
    for joining in joinings:
        yield from _words(joining)


def _words(joining: Joining) -> Iterator[Finding]:
    came = [one for one in joining.ranks if one.came]
    sizes = Counter(one.world_size for one in came if one.world_size is not None)
    twice = [rank for rank, times in Counter(one.rank for one in came).items() if times > 1]
    if len(sizes) > 1:
        usual = sizes.most_common(1)[0][0]
        odd = [one for one in came if one.world_size not in (None, usual)]
        told = " and ".join(f"{times} ranks {size}" for size, times in sizes.most_common())
        yield _finding(
            f"the ranks were told different world sizes: {told}",
            tuple(
                Observation(name=f"world size of rank {one.rank}", value=one.world_size or 0)
                for one in odd[:FEW]
            ),
            Where(
                hosts=tuple(sorted({one.host for one in odd})),
                ranks=tuple(sorted({one.rank for one in odd})),
            ),
        )
    elif twice:
        hosts = sorted({one.host for one in came if one.rank in twice})
        yield _finding(
            f"rank {', '.join(map(str, twice[:FEW]))} came more than once, from {', '.join(hosts)}",
            (Observation(name="processes of one rank", value=2, expected=1, source="the store"),),
            Where(hosts=tuple(hosts), ranks=tuple(twice)),
        )


def hosts(host_joinings: tuple[HostJoining, ...]) -> Iterator[Finding]:
    """The hosts were given different ``--nnodes``."""
    for joining in host_joinings:
        others = [one for one in joining.callers if one.expected != joining.expected]
        if others:
            told = ", ".join(f"{one.host} of {one.expected}" for one in others[:FEW])
            yield _finding(
                f"{joining.host} was told of {joining.expected} hosts, and {told}",
                tuple(
                    Observation(
                        name=f"--nnodes on {one.host}", value=one.expected, source="its command"
                    )
                    for one in joining.callers[:FEW]
                ),
                Where(hosts=tuple(sorted(one.host for one in others))),
            )


def _finding(because: str, evidence: tuple[Observation, ...], where: Where) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=because,
        evidence=evidence,
        where=where,
        fixes=(
            Fix(
                summary="see what each launcher tells its ranks, and give all the same numbers",
                paste="env | grep -E '^(RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|SLURM_N)' | sort",
                caution="world size = hosts × ranks per host, on every host; each rank once",
            ),
        ),
    )
