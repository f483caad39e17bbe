"""`ddoctor run`: start a training under ddoctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from ddoctor.options import BEFORE_A_COMMAND
from ddoctor.training.options import RunOptions, refuse_options

SETTINGS = {"options_metavar": "[OPTIONS] [--]", "context_settings": BEFORE_A_COMMAND}


@dataclass(frozen=True, kw_only=True)
class StartOptions(RunOptions):
    """The options of ``ddoctor run``."""

    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="Launch command, e.g. `torchrun --nproc-per-node 2 train.py`.",
        ),
    ] = None


def run(options: StartOptions) -> None:
    """Record a training script and report where its time goes.

    Inserts `-m ddoctor.probe run` before the script in COMMAND, prints it and what it starts, and
    runs it.
    """
    from ddoctor.training import start

    refuse_options(command := options.command or [])
    start.start(options, command)
