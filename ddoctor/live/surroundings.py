"""What the host itself tells beside a look at its ranks: the GPUs, and the kernel's log."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ddoctor.collect import collect
from ddoctor.collect.gpus import gpus
from ddoctor.collect.kernel_log import kernel_log
from ddoctor.evidence.gpus import KernelLog
from ddoctor.evidence.section import Section
from ddoctor.live.patients import Patient


def surroundings(patients: Sequence[Patient]) -> tuple[Section, ...]:
    """Of the host of these ranks, as far as it can be seen; of the log, what came since they were
    started."""
    age = time.time() - min(one.process.create_time() for one in patients)

    def log() -> KernelLog:
        return kernel_log(within=age)

    found = collect(lambda label: None, (gpus, log))
    return tuple(one for one in found if isinstance(one, Section))
