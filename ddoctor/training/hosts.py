"""The sections of a host around a recorded run: collected before its first step and after its end.

Only the rank with local rank 0 collects. It does so in the supervisor's process, while the script
still imports torch and after the script has ended, so that no step is slower for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Thread

from msgspec.structs import replace

from ddoctor.evidence.gpus import KernelLog
from ddoctor.evidence.host import Memory
from ddoctor.evidence.section import Absence, Section

LIMIT_SECONDS = 10.0
"""Limit of each of the two collections; rank 0 waits 30 s for the records of all ranks."""


class HostSections:
    """Collects in the background from its creation, and again when ``packed`` is called."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._first: list[Section | Absence] = []
        self._thread = Thread(target=self._begin, daemon=True)
        # Where no thread is to be had, there are only the sections of the end.
        with suppress(RuntimeError):
            self._thread.start()

    def _begin(self) -> None:
        from ddoctor.collect import disks, environment, gpus, host, kernel

        # Importing torch takes seconds, and RDMA and host names add nothing to a run.
        self._first = _collected(
            (
                host.memory,
                environment.environment,
                host.limits,
                host.shared_memory,
                kernel.kernel,
                disks.disks,
                gpus.gpus,
                host.cpus,
            )
        )

    def packed(self, name: str) -> str:
        """All sections of the host, with the changes of its counters during the run."""
        from ddoctor.cluster.supervisor import pack
        from ddoctor.collect import gpus, host, kernel_log, with_absent

        def log() -> KernelLog:
            return kernel_log.kernel_log(within=time.monotonic() - self._began)

        if self._thread.ident is not None:
            self._thread.join(LIMIT_SECONDS)
        last = _collected((host.memory, log))
        if any(isinstance(one, KernelLog) and one.xids for one in last):
            # A GPU may have failed and left the PCIe bus.
            last += _collected((gpus.gpus,))
        sections: dict[type[Section], Section] = {}
        absences: list[Absence] = []
        for one in (*self._first, *last):
            if isinstance(one, Section):
                before = sections.get(type(one))
                if isinstance(one, Memory) and isinstance(before, Memory):
                    one = replace(one, kills_before=before.kills_in_limit)
                sections[type(one)] = one
            else:
                # The report of the training does not need it.
                absences.append(replace(one, crashed=False))
        return pack(with_absent((*sections.values(), *absences)), name)


def _collected(collectors: Iterable[Callable[[], Section]]) -> list[Section | Absence]:
    from ddoctor.collect import collect

    return list(collect(lambda label: None, collectors, limit=LIMIT_SECONDS))
