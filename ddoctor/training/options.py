"""The options of `ddoctor run` and of `torchrun … -m ddoctor.probe run`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from ddoctor.errors import DoctorError
from ddoctor.options import seconds
from ddoctor.report.options import ReportOptions

ALL = "all"
MOST_DIGITS = 9
TRIAL_SECONDS = 120.0
"""Time limit of control runs without --prove."""


def _steps(text: str) -> str:
    if text != ALL and not (text.isdecimal() and len(text) <= MOST_DIGITS and int(text)):
        raise typer.BadParameter(f"'{text}' is neither a number of steps above 0 nor {ALL}.")
    return text


@dataclass(frozen=True, kw_only=True)
class RunOptions(ReportOptions):
    """How long to record, and which control runs to make afterwards."""

    steps: Annotated[
        str,
        typer.Option(
            metavar="N|all",
            callback=_steps,
            help="Stop this many steps after the warm-up; all: follow the run to its own end.",
        ),
    ] = "60"
    seconds: Annotated[float, seconds("Stop after this time, even with fewer steps.", "S")] = 600
    events: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="With --steps all: append what happens to PATH, one JSON object a line.",
        ),
    ] = None
    on_event: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="With --steps all: start COMMAND at each event, with its JSON on stdin.",
        ),
    ] = ""
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS:]PORT",
            help="With --steps all: serve metrics on rank 0's host for Prometheus.",
        ),
    ] = None
    end_hung: Annotated[
        bool,
        typer.Option("--end-hung", help="With --steps all: end a run that hangs, once reported."),
    ] = False
    quiet: Annotated[
        bool,
        typer.Option("--quiet", help="With --steps all: write no lines about events to stderr."),
    ] = False
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
    def whole(self) -> bool:
        """Whether the run is followed to its own end, and nothing is stopped."""
        return self.steps == ALL

    def of_attempt(self, number: int) -> RunOptions:
        """The options of a restart by the launcher: each attempt has its own reports."""
        if not number or not self.whole:
            return self
        names = ("bundle", "json", "markdown", "html")
        paths = {name: getattr(self, name) for name in names}
        return replace(
            self,
            **{
                name: path.with_name(f"{path.stem}.attempt-{number}{path.suffix}")
                for name, path in paths.items()
                if path is not None and str(path) != "-"
            },
        )

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
        reruns = {"--prove": self.prove, "--memory": self.memory}
        whole = {
            "--events": self.events,
            "--on-event": self.on_event,
            "--prometheus": self.prometheus,
            "--end-hung": self.end_hung,
            "--quiet": self.quiet,
        }
        for name in (name for name, given in reruns.items() if given and self.whole):
            raise DoctorError(f"{name} runs the script again, which --steps all never does")
        for name in (name for name, given in whole.items() if given and not self.whole):
            raise DoctorError(f"{name} needs --steps all")
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
