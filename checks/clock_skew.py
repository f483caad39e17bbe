"""The clock of a host is not synchronised, so its log lines cannot be ordered with other hosts'.

The rank that failed first is found by comparing times across hosts. Clocks that drift apart give
the wrong answer. Tokens and certificates also fail if the clock is far off. Training itself is not
affected.

Symptoms: ``timedatectl`` or ``chronyc tracking`` reports an unsynchronised clock. The hypervisor
may synchronise a virtual machine without the knowledge of its kernel.

To fix it, start chrony or another NTP service on every host.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ddoctor.evidence.cluster_probes import ClockOffsets
from ddoctor.evidence.host import Clock
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# Above this offset NTP steps the clock instead of slewing it: STEPT, RFC 5905, appendix A.1.1 and
# section 11.3. Synchronised hosts of one network are within milliseconds (section 1).
STEP_SECONDS = 0.128

FEW = 4
"""Hosts that one finding lists."""


def apart(measured: tuple[ClockOffsets, ...]) -> Iterator[Finding]:
    """Compares each clock with the median of all hosts; of two hosts, either may be wrong."""
    for section in measured:
        rows = section.offsets
        if len(rows) < 2:
            continue
        usual = median(row.offset for row in rows) if len(rows) > 2 else rows[0].offset
        widest = max(row.uncertainty for row in rows)
        away = [row for row in rows if abs(row.offset - usual) - 2 * widest > STEP_SECONDS]
        if not away:
            continue
        several = len(rows) > 2
        hosts = [row.host for row in (away if several else rows)]
        worst = max(away, key=lambda row: abs(row.offset - usual))
        direction = "ahead of" if worst.offset > usual else "behind"
        others = f"the median of {len(rows)} hosts" if several else rows[0].host
        more = f" ({len(away)} hosts are off)" if len(away) > 1 else ""
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN if several else Confidence.LIKELY,
            because=(
                f"the clock of {worst.host} is {abs(worst.offset - usual):.3g} s {direction} "
                f"{others}{more}, measured to within {1e3 * 2 * widest:.2g} ms"
                + ("" if several else "; a time server would show which of the two is wrong")
            ),
            evidence=tuple(
                Observation(
                    name=f"clock of {row.host}",
                    value=round(row.offset - usual, 4),
                    unit="s",
                    expected=0.0,
                    source=f"NTP slews offsets up to ±{STEP_SECONDS} s (RFC 5905)",
                )
                for row in sorted(away, key=lambda row: -abs(row.offset - usual))[:FEW]
            ),
            where=Where(hosts=tuple(sorted(hosts))),
            fixes=(
                Fix(
                    summary="set the clock and keep it synchronised, as root on these hosts",
                    paste="systemctl enable --now chronyd 2>/dev/null || systemctl enable --now "
                    "chrony\nchronyc makestep && chronyc tracking",
                    caution="a clock step disturbs programs that rely on wall-clock time; for a "
                    "container, run this on its host",
                ),
            ),
        )


def unsynchronised(clocks: tuple[Clock, ...]) -> Iterator[Finding]:
    """A note if no host of the run is synchronised; a warning if only some are not."""
    loose = [clock for clock in clocks if clock.synchronised is False]
    kept = [clock for clock in clocks if clock.synchronised]
    if not loose:
        return
    services = sorted({clock.service for clock in loose if clock.service})
    seen = f"{' and '.join(services)} runs" if services else "no time service was found"
    share = f" on {len(loose)} of {len(clocks)} hosts" if len(clocks) > 1 else ""
    yield Finding(
        severity=Severity.WARNING if kept else Severity.NOTE,
        confidence=Confidence.LIKELY if kept else Confidence.POSSIBLE,
        because=(
            f"the kernel reports its clock as unsynchronised{share}, and {seen}; "
            "`date +%s.%N` on all hosts at once would show how far they are apart"
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
        where=Where(hosts=tuple(clock.host for clock in loose)),
        fixes=(
            Fix(
                summary="query the time service for the reason",
                paste="timedatectl timesync-status || chronyc tracking || ntpq -p",
            )
            if services
            else Fix(
                summary="start a time service, as root",
                paste="apt-get install -y chrony && systemctl enable --now chrony",
                caution="for a container, run this on its host; on Red Hat and its derivatives, "
                "use dnf and chronyd",
            ),
        ),
    )
