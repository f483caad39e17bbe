"""The words of `… -m ddoctor.probe run [OPTIONS] SCRIPT ARGS`, and of `ddoctor run`."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import NoReturn

from ddoctor.errors import DoctorError
from ddoctor.probing.sweep_request import sizes

STEPS = 60
SECONDS = 600.0
LOCAL_RANK = ("--local-rank=", "--local_rank=")
TRIAL_SECONDS = 120.0
"""What control arms may cost without being asked for."""


class Parser(ArgumentParser):
    """A mistake is one line."""

    def error(self, message: str) -> NoReturn:
        raise DoctorError(f"{message}; see `{self.prog} --help`")


def parser() -> Parser:
    """The options that come before the script."""
    options = Parser(
        prog="python -m ddoctor.probe run",
        usage=(
            "torchrun … -m ddoctor.probe run [OPTIONS] SCRIPT [ARGUMENT ...]\n"
            "       torchrun … -m ddoctor.probe run [OPTIONS] -m MODULE [ARGUMENT ...]"
        ),
        description="Let a training script run for some steps, unchanged, and say where they go.",
        epilog="All words from SCRIPT on belong to the script.",
        allow_abbrev=False,
    )
    add(options)
    return options


def add(options: ArgumentParser) -> None:
    """The options themselves."""
    options.add_argument(
        "--steps",
        type=_count,
        metavar="N",
        default=STEPS,
        help="stop so many steps after the warm-up (%(default)s)",
    )
    options.add_argument(
        "--seconds",
        type=_seconds,
        metavar="S",
        default=SECONDS,
        help="stop after so many seconds, however many steps there were (%(default).0f)",
    )
    options.add_argument("--json", type=Path, metavar="PATH", help="the report as JSON; -: stdout")
    options.add_argument("--markdown", type=Path, metavar="PATH", help="the report as Markdown")
    options.add_argument("--html", type=Path, metavar="PATH", help="the report as one HTML file")
    options.add_argument("--bundle", type=Path, metavar="PATH", help="the evidence of all ranks")
    options.add_argument(
        "--memory",
        action="store_true",
        help="then run it once more, with more and more samples in its batches: how many fit",
    )
    options.add_argument(
        "--device-memory",
        metavar="SIZE,...",
        help="as if each rank's GPU had so much, 24GiB say; needed where there is none",
    )
    prove = options.add_mutually_exclusive_group()
    prove.add_argument(
        "--prove",
        action="store_true",
        default=None,
        help="try the fixes of the first finding, however long it takes: the script starts anew "
        "for each turn",
    )
    prove.add_argument(
        "--no-prove",
        dest="prove",
        action="store_false",
        help="run the script once only (by default fixes are tried if that takes "
        f"{TRIAL_SECONDS:.0f} s at most)",
    )


def parse(words: Sequence[str]) -> tuple[Namespace, tuple[str, ...]]:
    """Our options, and the words of the script.

    Raises:
        DoctorError: the options make no sense, or there is no script.
    """
    ours = parser()
    # torch.distributed.launch puts it before all other words; it is the script's.
    given = [word for word in words[:1] if word.startswith(LOCAL_RANK)]
    head, script = split(ours, words[len(given) :])
    options = ours.parse_args(head)
    if options.device_memory is not None and not options.memory:
        ours.error("--device-memory goes with --memory")
    sizes(options.device_memory)
    begin = 2 if script[:1] == ["-m"] else 1
    if len(script) < begin:
        ours.error("say which script to run: … -m ddoctor.probe run train.py")
    return options, (*script[:begin], *given, *script[begin:])


def split(ours: ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Before and from the first word that is no option of ours, nor the value of one."""
    with_value = {
        name for action in ours._actions for name in action.option_strings if action.nargs is None
    }
    number = 0
    while number < len(words):
        word = words[number]
        if word == "--":
            return list(words[:number]), list(words[number + 1 :])
        if word == "-m" or not word.startswith("-"):
            break
        number += 2 if word in with_value else 1
    return list(words[:number]), list(words[number:])


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise ArgumentTypeError(f"{word} is no number of steps: give 1 or more (60 tell enough)")
    return int(word)


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise ArgumentTypeError(f"{word} is no number of seconds")
    return seconds
