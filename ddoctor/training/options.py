"""The words of `… -m ddoctor.probe run [OPTIONS] SCRIPT ARGS`."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from math import inf
from pathlib import Path

STEPS = 60
SECONDS = 600.0
TRIAL_SECONDS = 120.0
"""What control arms may cost without being asked for."""


def parser() -> ArgumentParser:
    """The options that come before the script."""
    options = ArgumentParser(
        prog="torchrun … -m ddoctor.probe run",
        usage="%(prog)s [OPTIONS] SCRIPT [ARGUMENT ...]  (or: [OPTIONS] -m MODULE [ARGUMENT ...])",
        description="Let a training script run for some steps, unchanged, and say where they go.",
        epilog="All words from SCRIPT on belong to the script.",
        allow_abbrev=False,
    )
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
    prove = options.add_mutually_exclusive_group()
    prove.add_argument(
        "--prove",
        action="store_true",
        default=None,
        help="try the fixes of the first finding on the same script, however long it takes",
    )
    prove.add_argument(
        "--no-prove",
        dest="prove",
        action="store_false",
        help=f"run the script once only (by default fixes are tried within {TRIAL_SECONDS:.0f} s)",
    )
    return options


def parse(words: Sequence[str]) -> tuple[Namespace, tuple[str, ...]]:
    """Our options, and the words of the script."""
    ours = parser()
    head = _split(ours, words)
    options = ours.parse_args(words[:head])
    script = tuple(words[head:])
    if script[:1] == ("--",):
        script = script[1:]
    if not script or script == ("-m",):
        ours.error("say which script to run: … -m ddoctor.probe run train.py")
    return options, script


def _split(ours: ArgumentParser, words: Sequence[str]) -> int:
    """Where the script's words begin: at the first that is no option of ours, nor its value."""
    with_value = {
        name for action in ours._actions for name in action.option_strings if action.nargs is None
    }
    number = 0
    while number < len(words):
        word = words[number]
        if word in ("--", "-m") or not word.startswith("-"):
            return number
        number += 2 if word in with_value else 1
    return number


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
