"""`ddoctor run [OPTIONS] -- COMMAND`: this process becomes the launch command, rewritten."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import NoReturn

from ddoctor.errors import DoctorError
from ddoctor.recorder import script
from ddoctor.report.output import Outputs
from ddoctor.training import options
from ddoctor.training.rewrite import PYTHON, Rewritten, rewritten

IMPORT_SECONDS = 30.0


def start(words: Sequence[str]) -> None:
    """Run the launch command with ddoctor in it; returns only where help was asked for.

    Raises:
        DoctorError: the options or the command make no sense, or ddoctor is not where Python is.
    """
    ours = _parser()
    head, command = options.split(ours, words)
    if {"-h", "--help"} & set(head):
        print(ours.format_help(), end="")
        return
    asked = ours.parse_args(head)
    changed = rewritten(command, head)
    if changed.starter == 0:
        # It starts here, so all that is to be there can be looked at before.
        Outputs(json=asked.json, markdown=asked.markdown, html=asked.html, bundle=asked.bundle)
        _check(changed)
    _execute(changed.words)


def _parser() -> options.Parser:
    ours = options.Parser(
        prog="ddoctor run",
        usage="ddoctor run [OPTIONS] -- COMMAND ...",
        description=(
            "Start a training under ddoctor: COMMAND is the launch command as it is, say "
            "`torchrun --nproc-per-node 2 train.py` or `accelerate launch train.py`. It is "
            "rewritten with `-m ddoctor.probe run` before the script, shown, and executed."
        ),
        epilog="ddoctor lets the script run for some steps, unchanged, and says where they go.",
        allow_abbrev=False,
    )
    options.add(ours)
    return ours


def _check(changed: Rewritten) -> None:
    """Whether ddoctor is where the command's Python is, and the script is there."""
    command = which(changed.words[0])
    python = _interpreter(command) if command is not None else None
    if python is not None and Path(python).parent != Path(sys.executable).parent:
        _check_other(str(command), python)
        if changed.script[0] == "-m":
            # What modules there are is known there.
            return
    elif find_spec("torch") is None:
        raise DoctorError("torch is not installed here: use the environment of the run")
    try:
        script.check(changed.script)
    except script.Failed as error:
        raise DoctorError(str(error)) from error


def _check_other(command: str, python: str) -> None:
    try:
        subprocess.run(
            [python, "-c", "import ddoctor"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=IMPORT_SECONDS,
            check=True,
        )
    except subprocess.CalledProcessError:
        of = "" if command == python else f", which runs {command}"
        raise DoctorError(
            f"ddoctor is not installed for {python}{of}: install it there, too, or use the "
            f"commands in {Path(sys.executable).parent}"
        ) from None
    except (OSError, subprocess.TimeoutExpired):
        # The command itself will tell.
        return


def _interpreter(command: str) -> str | None:
    """The Python behind a command: it is one, or its first line names one."""
    if PYTHON.fullmatch(Path(command).name):
        return command
    with open(command, "rb") as file:
        first = file.readline(500).decode(errors="replace").split()
    named = first[0].removeprefix("#!") if first and first[0].startswith("#!") else ""
    if Path(named).name == "env" and len(first) == 2:
        named = which(first[1]) or ""
    return named if PYTHON.fullmatch(Path(named).name) else None


def _execute(words: tuple[str, ...]) -> NoReturn:
    print(f"ddoctor: {shlex.join(words)}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    try:
        os.execvp(words[0], words)
    except OSError as error:
        near = Path(sys.executable).parent / words[0]
        hint = f"; there is {near}" if near.is_file() else ""
        raise DoctorError(f"{words[0]}: {error.strerror}{hint}") from error
