"""The open-files limit is lower than the ranks and their DataLoader workers need.

Every batch from a DataLoader worker travels as an open file descriptor. Every connection between
ranks uses one, and CUDA opens some for each GPU. A rank that reaches its limit dies, often only
after some time.

Symptoms: "Too many open files" or "received 0 items of ancdata", and a low ``ulimit -n`` in the
shell that launches the ranks.

To fix it, raise the limit with ``ulimit -n`` in the launch script.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.host import Kernel, Limits
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

# Measured with torch 2.13, gloo and 2 ranks: 10 descriptors a rank, and about 5 more for each
# DataLoader worker with one tensor a batch: 96 with 16 workers, before CUDA and files open any.
FAILS_BELOW = 128
# The default soft limit of Linux (INR_OPEN_CUR) and of systemd (DefaultLimitNOFILE=1024:524288): a
# lower value was set on purpose.
USUAL = 1024
# Well within systemd's hard limit of 524288.
AMPLE = 65536


def low(limits: Limits, kernel: Kernel | None) -> Iterator[Finding]:
    soft, hard = limits.open_files.soft, limits.open_files.hard
    if soft is None or soft >= USUAL:
        return
    fails = soft < FAILS_BELOW
    yield Finding(
        severity=Severity.ERROR if fails else Severity.WARNING,
        confidence=Confidence.CERTAIN if fails else Confidence.LIKELY,
        because=(
            f"a process may open {soft} files, but a rank with 16 DataLoader workers needs about "
            f"100, besides data files; the usual limit is {USUAL}"
        ),
        evidence=(
            Observation(
                name="open-files limit",
                value=soft,
                expected=USUAL,
                source="default of Linux and systemd",
            ),
        ),
        fixes=(_IN_THE_SCRIPT if limits.printed else _fix(hard, kernel),),
    )


_IN_THE_SCRIPT = Fix(
    summary="raise the open-files limit in the launch script",
    paste=f"ulimit -n {AMPLE}",
    caution="if the hard limit is lower (`ulimit -Hn`), root has to raise it first",
)


def _fix(hard: int | None, kernel: Kernel | None) -> Fix:
    if hard is None or hard >= USUAL:
        return Fix(
            summary="raise the open-files limit in the launch script",
            paste=f"ulimit -n {AMPLE if hard is None else min(hard, AMPLE)}",
        )
    if kernel is not None and kernel.engine:
        return Fix(
            summary=f"start a new container with a higher hard limit (now {hard})",
            paste=f"{kernel.engine} run --ulimit nofile={AMPLE} …",
        )
    return Fix(
        summary=f"raise the hard limit (now {hard}) for every login, as root",
        paste=(
            f"printf '* - nofile {AMPLE}\\nroot - nofile {AMPLE}\\n' "
            "> /etc/security/limits.d/90-nofile.conf"
        ),
        caution="needs a new login; for a systemd service, set LimitNOFILE= in its unit instead",
    )
