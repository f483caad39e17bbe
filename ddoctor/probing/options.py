"""The options of `ddoctor probe` and of `torchrun … -m ddoctor.probe`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddoctor.options import seconds
from ddoctor.report.options import ReportOptions

if TYPE_CHECKING:
    from ddoctor.report.output import Outputs

JOIN_SECONDS = 120


def complete(typed: str) -> list[str]:
    """The probes whose names begin so."""
    from ddoctor.probing import catalog

    return [name for name in catalog.names() if name.startswith(typed)]


DataFolder = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Training data whose read speed is measured.")
]
Force = Annotated[bool, typer.Option("--force", help="Also measure GPUs that other processes use.")]


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(ReportOptions):
    """Measure all hosts of a run together; rank 0 writes the report."""

    probes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Probes to run; default: all.", autocompletion=complete
        ),
    ] = None
    hosts: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the names of good and bad hosts: fit.txt, unfit.txt."
        ),
    ] = None
    data: DataFolder = Path()
    join_timeout: Annotated[float, seconds("Seconds to wait for missing hosts and ranks.")] = (
        JOIN_SECONDS
    )
    force: Force = False
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Measure for a quarter of the time, without control runs."),
    ] = False
    burn: Annotated[
        float | None,
        seconds("Also stress the GPUs this long: finds throttling and wrong results."),
    ] = None
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FACTORY",
            help="Also find the largest micro-batch of this training (memory_headroom).",
        ),
    ] = None
    micro_batch: Annotated[
        str | None,
        typer.Option(metavar="N", help="Current samples per rank and micro-batch of --workload."),
    ] = None
    sequence: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Current tokens per sample of --workload; also finds the longest sequence that "
            "fits. The loss function takes them as third argument.",
        ),
    ] = None
    fsdp: Annotated[
        bool, typer.Option("--fsdp", help="Shard --workload with FSDP instead of DDP.")
    ] = False
    device_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE[,...]",
            help="Memory limit of each rank's device for --workload, e.g. 24GiB; one size, or "
            "one per local rank. Required without a GPU.",
        ),
    ] = None
    no_arms: Annotated[
        bool,
        typer.Option("--no-arms", help="Skip the control runs that test suggested variables."),
    ] = False

    def outputs(self, *reads: Path) -> Outputs:
        """Return the output files, the lists of hosts among them."""
        return replace(super().outputs(*reads), hosts=self.hosts)
