"""The options of `ddoctor run` and of `torchrun … -m ddoctor.probe run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from ddoctor.errors import DoctorError
from ddoctor.options import seconds
from ddoctor.report.options import ReportOptions

TRIAL_SECONDS = 120.0
"""Time limit of control runs without --prove."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(ReportOptions):
    """How long to record, and which control runs to make afterwards."""

    steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="Stop this many steps after the warm-up.")
    ] = 60
    seconds: Annotated[float, seconds("Stop after this time, even with fewer steps.", "S")] = 600
    memory: Annotated[
        bool,
        typer.Option(
            "--memory", help="Then run again with growing batches: how many samples fit the GPU."
        ),
    ] = False
    device_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE,...",
            help="Memory limit per GPU for --memory, e.g. 24GiB. Required without a GPU.",
        ),
    ] = None
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Test the fixes of finding 1 with control runs, however long they take. "
            f"Default: test them if that takes at most {TRIAL_SECONDS:.0f} s.",
        ),
    ] = False
    no_prove: Annotated[
        bool, typer.Option("--no-prove", help="Run the script only once, without control runs.")
    ] = False

    @property
    def trials(self) -> bool | None:
        """Whether to run control runs; None: if they take at most ``TRIAL_SECONDS``."""
        return True if self.prove else False if self.no_prove else None

    def check(self) -> None:
        """Refuse options that exclude or need each other.

        Raises:
            DoctorError: the options have such a conflict.
        """
        from ddoctor.probing.sweep_request import sizes

        if self.prove and self.no_prove:
            raise DoctorError("--prove and --no-prove exclude each other: give one of them")
        if self.device_memory is not None and not self.memory:
            raise DoctorError("--device-memory needs --memory")
        sizes(self.device_memory)


def refuse_options(words: list[str], program: str = "ddoctor run") -> None:
    """Refuse an unknown option of ddoctor before the command.

    Raises:
        DoctorError: the first of ``words`` is one.
    """
    if words[:1] != ["-m"] and words and words[0].startswith("-"):
        raise DoctorError(f"No such option: {words[0]}. See `{program} --help`.")
