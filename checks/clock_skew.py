"""The clock of a host is not synchronised, so its log lines cannot be ordered with the others'.

Which rank failed first is told by comparing times across hosts; clocks that drift apart tell it
wrong. Tokens and certificates fail too when the clock is far off. Training itself does not mind.

Seen from outside: ``timedatectl`` or ``chronyc tracking``. A virtual machine may be kept in time by
its hypervisor without the kernel knowing.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.host import Clock
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where


def unsynchronised(clocks: tuple[Clock, ...]) -> Iterator[Finding]:
    """A note, unless other hosts of the same run are synchronised: then this one has failed."""
    loose = [clock for clock in clocks if clock.synchronised is False]
    kept = [clock for clock in clocks if clock.synchronised]
    if not loose:
        return
    hosts = tuple(clock.host for clock in loose)
    services = sorted({clock.service for clock in loose if clock.service})
    seen = f"{' and '.join(services)} runs" if services else "no time service was seen"
    share = f" on {len(loose)} of {len(clocks)} hosts" if len(clocks) > 1 else ""
    yield Finding(
        severity=Severity.WARNING if kept else Severity.NOTE,
        confidence=Confidence.LIKELY if kept else Confidence.POSSIBLE,
        because=(
            f"the kernel calls its clock unsynchronised{share}, and {seen}; "
            "`date +%s.%N` on all hosts at once settles how far they are apart"
        ),
        evidence=tuple(
            Observation(
                name=f"clock of {clock.host}",
                value="unsynchronised",
                expected="synchronised",
                source="adjtimex(2)",
            )
            for clock in loose
        ),
        where=Where(hosts=hosts),
        fixes=(
            Fix(
                summary="start a time service, as root",
                paste="apt-get install -y chrony && systemctl enable --now chrony",
                caution="in a container this belongs on the machine below; on Red Hat and its "
                "kin it is dnf and chronyd",
            ),
        )
        if not services
        else (
            Fix(
                summary="ask the time service why",
                paste="timedatectl timesync-status || chronyc tracking || ntpq -p",
            ),
        ),
    )
