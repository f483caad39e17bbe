"""`ddoctor run [OPTIONS] -- COMMAND`: rewrite the launch command and execute it."""

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

from ddoctor import console
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.errors import DoctorError
from ddoctor.evidence import redaction
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.secret_forms import HIDDEN
from ddoctor.evidence.section import Evidence
from ddoctor.options import words
from ddoctor.recorder import script
from ddoctor.report import launch
from ddoctor.training import review
from ddoctor.training.options import RunOptions
from ddoctor.training.rewrite import PYTHON, Rewritten, rewritten

IMPORT_SECONDS = 30.0
LAUNCHER = "ddoctor.training.launcher"


def start(options: RunOptions, command: Sequence[str]) -> NoReturn:
    """Run the launch command under ddoctor: this process becomes the launcher.

    Raises:
        DoctorError: the options or the command are wrong, or the command's Python lacks ddoctor.
    """
    options.check()
    changed = rewritten(command, words(RunOptions, options), restarts=options.whole)
    if changed.starter == 0:
        # Python starts on this host, so the files and the script can be checked here.
        options.outputs(Path(changed.script[0]))
        _check(changed)
    _execute(_with_exit_code(changed), changed.words, review.give(command))


def _check(changed: Rewritten) -> None:
    """Check that the command's Python has ddoctor, and that the script exists."""
    command = which(changed.words[0])
    python = _interpreter(command) if command is not None else None
    if python is not None and Path(python).parent != Path(sys.executable).parent:
        _check_other(str(command), python)
        if changed.script[0] == "-m":
            # Only that Python can find its modules.
            return
    elif find_spec("torch") is None:
        raise DoctorError("torch is not installed here: use the environment of the training")
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
            f"ddoctor is not installed for {python}{of}: install it there, or use the "
            f"commands in {Path(sys.executable).parent}"
        ) from None
    except (OSError, subprocess.TimeoutExpired):
        # The command itself will report it.
        return


def _interpreter(command: str) -> str | None:
    """The Python of a command: the command itself, or the interpreter in its first line."""
    if PYTHON.fullmatch(Path(command).name):
        return command
    try:
        with open(command, "rb") as file:
            first = file.readline(500).decode(errors="replace").split()
    except OSError:
        # What may be started need not be readable.
        return None
    named = first[0].removeprefix("#!") if first and first[0].startswith("#!") else ""
    if Path(named).name == "env" and len(first) == 2:
        named = which(first[1]) or ""
    return named if PYTHON.fullmatch(Path(named).name) else None


def _with_exit_code(changed: Rewritten) -> tuple[str, ...]:
    """The command whose launcher ends with the report's exit code, where it is Python's."""
    words = changed.words
    command = which(words[0])
    python = _interpreter(command) if command is not None else None
    if sys.platform != "linux" or changed.starter or command is None or python is None:
        return words
    if command != python:
        return (python, "-m", LAUNCHER, command, *words[1:])
    at = words.index("-m")
    if words[at + 1] == "ddoctor.probe":
        return words
    return (*words[:at], "-m", LAUNCHER, *words[at:])


def _execute(command: tuple[str, ...], shown: tuple[str, ...], reviewed: Evidence) -> NoReturn:
    said = (word if HIDDEN in word else shlex.quote(word) for word in redaction.words(shown))
    console.say(" ".join(("ddoctor:", *said)))
    # Of one process, the command says enough.
    several = any(LaunchPlan(launch=one).ranks != 1 for one in reviewed.all(Launch))
    rows = dict(launch.starts(reviewed)) if several else {}
    width = max(map(len, rows), default=0)
    for label, text in rows.items():
        console.say(f"ddoctor:   {label:{width}}  {text}")
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        near = Path(sys.executable).parent / command[0]
        hint = f"; did you mean {near}?" if near.is_file() else ""
        raise DoctorError(f"{command[0]}: {error.strerror}{hint}") from error
