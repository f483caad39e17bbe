"""The memory sweep that the command line requests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ddoctor import units
from ddoctor.errors import DoctorError

if TYPE_CHECKING:
    from ddoctor.probing.options import ProbeOptions

PROBE = "memory_headroom"


class SweepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A memory sweep; the supervisor sends it to the measuring process as JSON."""

    workload: str = ""
    """``package.module:factory``; empty: the script of `ddoctor run`."""
    folder: str = ""
    """The folder to search for the module, after the installed packages."""
    micro_batch: int | None = None
    """Current samples per rank and micro-batch of the training."""
    sequence: int | None = None
    """Current tokens per sample; None: the workload takes none."""
    sharded: bool = False
    """Whether FSDP shards the model."""
    device_memory: tuple[int, ...] = ()
    """Memory limits in bytes: one for all ranks, or one per local rank; empty: the GPU's memory."""
    too_large: tuple[int, ...] = ()
    """Micro-batches that do not fit, as known before the sweep."""

    def memory_of(self, local_rank: int, local_size: int) -> int | None:
        """The memory limit of one rank in bytes; None: no limit.

        Raises:
            DoctorError: the number of sizes is not the number of local ranks.
        """
        given = self.device_memory
        if len(given) > 1 and len(given) != local_size:
            raise DoctorError(
                f"--device-memory has {len(given)} sizes, but {local_size} ranks run on a host: "
                "give one size, or one per local rank"
            )
        return given[local_rank % len(given)] if given else None


def sizes(given: str | None) -> tuple[int, ...]:
    """Bytes of ``--device-memory 24GiB,20GiB``; empty: the option is not set.

    Raises:
        DoctorError: one of them is not a size.
    """
    words = given.split(",") if given is not None else ()
    return tuple(units.size("--device-memory", one) for one in words)


def asked(options: ProbeOptions, probes: Sequence[str]) -> str:
    """The request as JSON; empty: no sweep.

    Raises:
        DoctorError: an option is wrong or missing.
    """
    if options.workload is None:
        for option in ("micro_batch", "sequence", "fsdp", "device_memory"):
            if getattr(options, option) not in (None, False):
                raise DoctorError(f"--{option.replace('_', '-')} needs --workload")
        if PROBE in probes:
            raise DoctorError(f"{PROBE} needs a training: --workload package.module:factory")
        return ""
    module, _, name = options.workload.partition(":")
    if not name.isidentifier() or not all(one.isidentifier() for one in module.split(".")):
        raise DoctorError(f"--workload {options.workload}: give it as package.module:factory")
    folder = str(Path.cwd())
    package = module.partition(".")[0]
    # The measuring process checks the rest: importing more would run the user's code here.
    if PathFinder.find_spec(package, [*sys.path, folder]) is None:
        raise DoctorError(
            f"--workload {options.workload}: no module {package} in {folder} or in the installed "
            "packages"
        )
    samples, tokens = options.micro_batch, options.sequence
    wanted = SweepRequest(
        workload=options.workload,
        folder=folder,
        micro_batch=None if samples is None else units.product("--micro-batch", samples),
        sequence=None if tokens is None else units.product("--sequence", tokens),
        sharded=bool(options.fsdp),
        device_memory=sizes(options.device_memory),
    )
    return msgspec.json.encode(wanted).decode()
