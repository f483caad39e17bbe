"""The words of a launch command, with `-m ddoctor.probe run` put before the script in it.

Every launcher runs its script with ``python SCRIPT`` or, told ``-m``, with ``python -m MODULE``; so
ddoctor takes the module's place, and the script becomes its first argument. Where the script begins
is told by the launcher's own parser.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ddoctor.errors import DoctorError

PYTHON = re.compile(r"python(\d+(\.\d+)?t?)?")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
SHELLS = ("bash", "dash", "ksh", "sh", "zsh")
# A cluster of Python's short options; what follows one of these letters is its value.
SHORT_OPTIONS = re.compile(r"-([^cmWX]*)(?:([cmWX])(.*))?", re.DOTALL)
# The script takes their place as a module: both ways of starting it exclude that.
NOT_WITH_MODULE = re.compile(r"--(no[-_]p|run[-_]p)\w*")
BY_HAND = (
    "put `-m ddoctor.probe run` before what Python or torchrun is given to run, as in `torchrun "
    "--nproc-per-node 2 -m ddoctor.probe run train.py`"
)


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A launch command that runs its script under ddoctor."""

    words: tuple[str, ...]
    starter: int
    """Which of them starts Python: python, torchrun or accelerate; those before it start that."""
    script: tuple[str, ...]
    """The script and its arguments; a module after ``-m``."""


@dataclass(frozen=True, kw_only=True)
class _Split:
    """What follows the word that starts Python."""

    head: Sequence[str]
    """Up to where a module is to be named."""
    script: Sequence[str]

    @property
    def plausible(self) -> bool:
        """Whether it looks like a script: the word before may be anybody's argument."""
        first = self.script[0]
        return first == "-m" or first.endswith(".py") or os.sep in first


def rewritten(command: Sequence[str], options: Sequence[str]) -> Rewritten:
    """The command that runs the same script under ddoctor, with these options of ddoctor.

    Raises:
        DoctorError: where the script begins cannot be told, or nothing can be put before it.
    """
    words = list(command)
    if not words:
        raise DoctorError("say what to run: ddoctor run -- torchrun --nproc-per-node 2 train.py")
    if "ddoctor.probe" in words:
        raise DoctorError("the command has ddoctor.probe in it already: start it as it is")
    if ASSIGNMENT.match(words[0]):
        words.insert(0, "env")
    starter, split = _find(words)
    return Rewritten(
        words=(*words[: starter + 1], *split.head, "ddoctor.probe", "run", *options, *split.script),
        starter=starter,
        script=tuple(split.script),
    )


def _find(words: Sequence[str]) -> tuple[int, _Split]:
    """The word that starts Python, and what follows it."""
    mistake: DoctorError | None = None
    for number, word in enumerate(words):
        read = _reader(word)
        if read is None:
            continue
        try:
            split = read(words[number + 1 :])
        except DoctorError as error:
            if number == 0:
                raise
            mistake = mistake or error
            continue
        if number == 0 or split.plausible:
            return number, split
    raise mistake or _unclear(words)


def _of_shell(word: str) -> bool:
    return word.endswith(".sh") or PurePath(word).name in SHELLS


def _unclear(words: Sequence[str]) -> DoctorError:
    shell = next((word for word in words if _of_shell(word)), None)
    if shell is not None:
        return DoctorError(
            f"what {shell} starts cannot be seen from here: in the script, {BY_HAND}"
        )
    if words[0].endswith(".py") or words[0] == "-m":
        script = " ".join(words[:2] if words[0] == "-m" else words[:1])
        return DoctorError(
            f"{script} alone is no launch command: ddoctor run -- torchrun --nproc-per-node 2 "
            f"{script}, or ddoctor run -- python {script}"
        )
    return DoctorError(f"where {words[0]} starts Python cannot be told: there, {BY_HAND}")


_Reader = Callable[[Sequence[str]], _Split]


def _reader(word: str) -> _Reader | None:
    name = PurePath(word).name
    return _python if PYTHON.fullmatch(name) else READERS.get(name)


def _python(words: Sequence[str]) -> _Split:
    number = 0
    while number < len(words) and words[number].startswith("-") and words[number] != "-":
        word = words[number]
        if word == "--":
            # What follows it would not be taken for -m any more.
            words = [*words[:number], *words[number + 1 :]]
            break
        if word.startswith("--"):
            number += 2 if word == "--check-hash-based-pycs" else 1
            continue
        flags, letter, value = SHORT_OPTIONS.fullmatch(word).groups()  # type: ignore[union-attr]
        if letter == "c":
            raise DoctorError("python -c has no script that can be run again: put it into a file")
        if letter == "m":
            module = [*([value] if value else []), *words[number + 1 :]]
            return _module([*words[:number], f"-{flags}m"], module)
        number += 1 if value or not letter else 2
    if number >= len(words) or words[number] == "-":
        raise DoctorError("python is given no script: ddoctor run -- python train.py")
    return _Split(head=[*words[:number], "-m"], script=words[number:])


def _module(head: Sequence[str], words: Sequence[str]) -> _Split:
    """``python -m`` of a launcher, or of the training itself."""
    if not words:
        raise DoctorError("python -m is given no module: ddoctor run -- python -m package.train")
    launcher = MODULES.get(words[0])
    if launcher is None:
        return _Split(head=head, script=["-m", *words])
    inner = launcher(words[1:])
    return _Split(head=[*head, words[0], *inner.head], script=inner.script)


def _torchrun(words: Sequence[str]) -> _Split:
    return _launcher("torchrun", _torchrun_parser(), words)


def _torchrun_parser() -> ArgumentParser:
    try:
        from torch.distributed.run import get_args_parser
    except ImportError as error:
        raise DoctorError(f"torchrun's options are not known here: {error}") from error
    return get_args_parser()


def _distributed_launch(words: Sequence[str]) -> _Split:
    parser = _torchrun_parser()
    parser.add_argument("--use-env", "--use_env", action="store_true")
    return _launcher("torch.distributed.launch", parser, words)


def _accelerate(words: Sequence[str]) -> _Split:
    if words[:1] != ["launch"]:
        raise DoctorError("of accelerate, `accelerate launch` alone starts a training")
    inner = _accelerate_launch(words[1:])
    return _Split(head=["launch", *inner.head], script=inner.script)


def _accelerate_launch(words: Sequence[str]) -> _Split:
    try:
        from accelerate.commands.launch import (  # type: ignore[import-untyped]
            launch_command_parser,
        )
    except ImportError as error:
        raise DoctorError(f"accelerate cannot be used here: {error}") from error
    return _launcher("accelerate launch", launch_command_parser(), words)


def _deepspeed(words: Sequence[str]) -> _Split:
    raise DoctorError(
        "the deepspeed launcher cannot start ddoctor; a script that uses deepspeed runs under "
        "torchrun as well: ddoctor run -- torchrun --nproc-per-node 8 train.py"
    )


def _launcher(name: str, parser: ArgumentParser, words: Sequence[str]) -> _Split:
    """What torchrun's parser, or one with the same positional arguments, says of its words."""

    def complain(message: str) -> None:
        raise DoctorError(f"{name} would refuse this: {message}")

    def show_help() -> None:
        raise DoctorError(f"{name} would show its help, and start nothing")

    setattr(parser, "error", complain)  # noqa: B010 - of this parser alone
    setattr(parser, "print_help", show_help)  # noqa: B010
    told = parser.parse_args(list(words))
    script = [told.training_script, *told.training_script_args]
    # Of a `--` behind the script nothing is left in its arguments.
    begin = len(words) - len(script)
    while words[begin] != told.training_script:
        begin -= 1
    head = list(words[:begin])
    if head[-1:] == ["--"]:
        del head[-1]
    if told.max_restarts:
        # A rank that ends with 1 has found something, and is not to be started again.
        head.append("--max-restarts=0")
    if told.module:
        return _Split(head=head, script=["-m", *script])
    if told.no_python and (inner := _executed(script)) is not None:
        number, split = inner
        return _Split(head=[*head, *script[: number + 1], *split.head], script=split.script)
    head = [word for word in head if not NOT_WITH_MODULE.fullmatch(word)]
    return _Split(head=[*head, "-m"], script=script)


def _executed(words: Sequence[str]) -> tuple[int, _Split] | None:
    """The Python in a command that a launcher executes; None: it is itself a script."""
    try:
        return _find(words)
    except DoctorError:
        if _reader(words[0]) is not None or _of_shell(words[0]):
            raise
        return None


READERS: dict[str, _Reader] = {
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "accelerate-launch": _accelerate_launch,
    "deepspeed": _deepspeed,
}
MODULES: dict[str, _Reader] = {
    "torch.distributed.run": _torchrun,
    "torch.distributed.launch": _distributed_launch,
    "accelerate.commands.launch": _accelerate_launch,
    "accelerate.commands.accelerate_cli": _accelerate,
    "deepspeed.launcher.runner": _deepspeed,
}
