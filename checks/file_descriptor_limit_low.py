"""The limit of open files is lower than the ranks and their DataLoader workers need.

Every batch that a DataLoader worker hands over travels as an open file descriptor, every connection
between ranks is one, and CUDA opens some for each GPU. A rank that reaches its limit dies with "Too
many open files" or "received 0 items of ancdata", often only after some time.

Seen from outside: ``ulimit -n`` in the shell that launches the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.host import Kernel, Limits
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("dataloader-too-many-open-files",)

# Measured with torch 2.13, gloo and 2 ranks: 10 descriptors a rank, and about 5 more for each
# DataLoader worker with one tensor a batch: 96 with 16 workers, before CUDA and files open any.
FAILS_BELOW = 128
# The soft limit that Linux itself gives (INR_OPEN_CUR) and that systemd keeps
# (DefaultLimitNOFILE=1024:524288): below it somebody has lowered it.
USUAL = 1024
# Well within the hard limit of 524288 that systemd leaves.
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
            f"a process may open {soft} files, and a rank with 16 DataLoader workers takes about "
            f"100 before it opens any data; the usual limit is {USUAL}"
        ),
        evidence=(
            Observation(
                name="limit of open files",
                value=soft,
                expected=USUAL,
                source="the kernel's and systemd's default",
            ),
        ),
        fixes=(_fix(hard, kernel),),
    )


def _fix(hard: int | None, kernel: Kernel | None) -> Fix:
    if hard is None or hard >= USUAL:
        return Fix(
            summary="raise it in the shell or script that launches the ranks",
            paste=f"ulimit -n {AMPLE if hard is None else min(hard, AMPLE)}",
        )
    if kernel is not None and kernel.engine:
        return Fix(
            summary=f"the hard limit is {hard}: start a new container with a higher one",
            paste=f"{kernel.engine} run --ulimit nofile={AMPLE} …",
        )
    return Fix(
        summary=f"the hard limit is {hard}: raise it for every login, as root",
        paste=(
            f"printf '* - nofile {AMPLE}\\nroot - nofile {AMPLE}\\n' "
            "> /etc/security/limits.d/90-nofile.conf"
        ),
        caution="needs a new login; a service takes LimitNOFILE= of its unit instead",
    )
