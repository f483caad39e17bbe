"""What somebody wants swept, as it was written on the command line."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import msgspec

from ddoctor import units
from ddoctor.errors import DoctorError

PROBE = "memory_headroom"


class SweepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """It travels to the process that measures as JSON."""

    workload: str = ""
    """``package.module:factory``; empty: a script, which is run."""
    folder: str = ""
    """Where that is looked for, after all that is installed."""
    micro_batch: int | None = None
    """Which the training uses now."""
    sequence: int | None = None
    """Tokens of a sample, as the training has them now; None: the workload is not asked."""
    sharded: bool = False
    """By FSDP."""
    device_memory: tuple[int, ...] = ()
    """Bytes that each rank may take: one for all, or one for each rank of a host; empty: what
    there is."""
    too_large: tuple[int, ...] = ()
    """Micro-batches of which that is known."""

    def memory_of(self, local_rank: int, local_size: int) -> int | None:
        """Bytes of one rank; None: it was not said.

        Raises:
            DoctorError: it was said of another number of ranks.
        """
        said = self.device_memory
        if len(said) > 1 and len(said) != local_size:
            raise DoctorError(
                f"--device-memory gives {len(said)} sizes, and {local_size} ranks run on a host: "
                "give one for all, or one for each of them"
            )
        return said[local_rank % len(said)] if said else None


def sizes(said: str | None) -> tuple[int, ...]:
    """Bytes of ``--device-memory 24GiB,20GiB``; empty: nothing was said.

    Raises:
        DoctorError: that is none.
    """
    words = said.split(",") if said is not None else ()
    return tuple(units.size("--device-memory", one) for one in words)


def asked(arguments: Namespace, probes: Sequence[str]) -> str:
    """The request as JSON; empty: no sweep is asked for.

    Raises:
        DoctorError: an option says nothing that can be swept, or one is missing.
    """
    if arguments.workload is None:
        for option in ("micro_batch", "sequence", "fsdp", "device_memory"):
            if getattr(arguments, option) is not None:
                raise DoctorError(f"--{option.replace('_', '-')} goes with --workload")
        if PROBE in probes:
            raise DoctorError(f"{PROBE}: say what is trained: --workload package.module:factory")
        return ""
    module, _, name = arguments.workload.partition(":")
    if not name.isidentifier() or not all(one.isidentifier() for one in module.split(".")):
        raise DoctorError(f"--workload {arguments.workload}: give it as package.module:factory")
    folder = str(Path.cwd())
    package = module.partition(".")[0]
    # Of the rest the measuring process tells: to look there would run the user's code here.
    if PathFinder.find_spec(package, [*sys.path, folder]) is None:
        raise DoctorError(
            f"--workload {arguments.workload}: there is no module {package} in {folder}, and none "
            "installed"
        )
    samples, tokens = arguments.micro_batch, arguments.sequence
    wanted = SweepRequest(
        workload=arguments.workload,
        folder=folder,
        micro_batch=None if samples is None else units.product("--micro-batch", samples),
        sequence=None if tokens is None else units.product("--sequence", tokens),
        sharded=bool(arguments.fsdp),
        device_memory=sizes(arguments.device_memory),
    )
    return msgspec.json.encode(wanted).decode()
