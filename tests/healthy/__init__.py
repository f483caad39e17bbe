"""One sound host with 8 H100s: every section there is, a module per family, list ``SECTIONS``.

``healthy(command)`` is what that command makes of it, and no more.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ddoctor.evidence.build_locks import BuildLocks
from ddoctor.evidence.environment import Environment
from ddoctor.evidence.flight_records import FlightRecords
from ddoctor.evidence.gpu_rates import GpuRates
from ddoctor.evidence.gpus import Gpus, KernelLog
from ddoctor.evidence.host import Cpus, Disks, Kernel, Limits, Memory, SharedMemory
from ddoctor.evidence.host_rates import HostRates
from ddoctor.evidence.joining import HostJoining, Joining, Reach
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.section import Evidence, Section
from ddoctor.evidence.training import RankUse
from tests.healthy.host import HOST

ATTACHING = (LiveLook, FlightRecords, BuildLocks, HostRates, GpuRates, RankUse)
BESIDE_A_LIVE_RUN = (Memory, Disks, Gpus, KernelLog)
AROUND_A_RUN = (Memory, Environment, Limits, SharedMemory, Kernel, Disks, Gpus, Cpus, KernelLog)
JOINING = (Joining, Reach, HostJoining)
COMMANDS = ("doctor", "probe", "run", "attach", "plan")


def healthy(command: str | None = None) -> Evidence:
    """Evidence that no check may find anything in: of one command, or of all of them together."""
    every = tuple(
        section
        for module in iter_modules(__path__)
        for section in import_module(f"{__name__}.{module.name}").SECTIONS
    )
    if command is None:
        return Evidence(every)
    found = Evidence(one for one in every if _makes(command, type(one)))
    if command == "run":
        # A recorded run says how many ranks there are, and measures nothing.
        return found.with_sections(ProbeRuns(host=HOST, runs=(), world_size=8, backend=""))
    return found


def _makes(command: str, kind: type[Section]) -> bool:
    if command == "plan":
        return kind.of_planning
    if command == "attach":
        return kind in ATTACHING or kind in BESIDE_A_LIVE_RUN
    if command == "run":
        return kind.of_training or kind in (*AROUND_A_RUN, MemoryHeadroom)
    of_a_host = not (kind.of_training or kind.of_attaching or kind.of_planning)
    if command == "doctor":
        return of_a_host and not kind.between_hosts and kind not in JOINING
    return of_a_host
