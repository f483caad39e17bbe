"""The host's own sections in an attached run: memory, disks, GPUs, kernel log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ddoctor.collect import collect
from ddoctor.collect.disks import disks
from ddoctor.collect.gpus import gpus
from ddoctor.collect.host import memory
from ddoctor.collect.kernel_log import kernel_log
from ddoctor.evidence.build_locks import BuildLocks
from ddoctor.evidence.gpus import KernelLog
from ddoctor.evidence.host import Disks
from ddoctor.evidence.section import Section
from ddoctor.live.build_locks import build_locks
from ddoctor.live.gpu_rates import gpu_rates
from ddoctor.live.rank_processes import RankProcess


def host_sections(rank_processes: Sequence[RankProcess]) -> tuple[Section, ...]:
    """Return the readable sections of these ranks' host; of the kernel log, only what is new.

    New is what the kernel has logged since the ranks started.
    """
    age = time.time() - min(one.process.create_time() for one in rank_processes)

    def log() -> KernelLog:
        return kernel_log(within=age)

    def written() -> Disks:
        return disks(lambda: _working_folder(rank_processes[0].process.pid))

    def locks() -> BuildLocks:
        return build_locks(rank_processes)

    found = collect(lambda label: None, (memory, written, gpus, gpu_rates, log, locks))
    return tuple(one for one in found if isinstance(one, Section))


def _working_folder(pid: int) -> Path:
    """Return a process's working folder, by path if it is the same outside of the container."""
    seen = Path(f"/proc/{pid}/cwd")
    here = seen.resolve()
    return here if here.exists() and here.samefile(seen) else seen
