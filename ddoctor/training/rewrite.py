"""Inserts `-m ddoctor.probe run` before the script of a launch command.

Every launcher runs ``python SCRIPT`` or, with ``-m``, ``python -m MODULE``. So ddoctor becomes the
module, and the script its first argument. The launcher's own parser finds the script.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import PurePath
from typing import Any

from ddoctor.errors import DoctorError

PYTHON = re.compile(r"python(\d+(\.\d+)?t?)?")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
SHELLS = ("bash", "dash", "ksh", "sh", "zsh")
# Python's short options can share a word; these letters take a value.
SHORT_OPTIONS = re.compile(r"-([^cmWX]*)(?:([cmWX])(.*))?", re.DOTALL)
# The launchers refuse these options together with -m.
NOT_WITH_MODULE = re.compile(r"--(no[-_]p|run[-_]p)\w*")
BY_HAND = (
    "put `-m ddoctor.probe run` before the script that Python or torchrun runs: `torchrun "
    "--nproc-per-node 2 -m ddoctor.probe run train.py`"
)


NO_RESTART = "--max-restarts=0"


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A launch command that runs its script under ddoctor."""

    words: tuple[str, ...]
    starter: int
    """Index of the word that starts Python, such as python, torchrun or accelerate."""
    script: tuple[str, ...]
    """The script and its arguments; for a module, ``-m`` comes first."""


@dataclass(frozen=True, kw_only=True)
class _Split:
    """The words after `python`, `torchrun` or `accelerate`."""

    head: Sequence[str]
    """The words before the module."""
    script: Sequence[str]

    @property
    def plausible(self) -> bool:
        """Whether it looks like a script: `python` may also be an argument of another command."""
        first = self.script[0]
        return first == "-m" or first.endswith(".py") or os.sep in first


def rewritten(
    command: Sequence[str], options: Sequence[str], *, restarts: bool = False
) -> Rewritten:
    """Rewrite a launch command so that it runs the same script under ddoctor.

    ``restarts``: whether the launcher may restart its ranks, if the command says so.

    Raises:
        DoctorError: the command has no script, or its launcher is unknown.
    """
    words = list(command)
    if not words:
        raise DoctorError("no command to run: ddoctor run -- torchrun --nproc-per-node 2 train.py")
    if "ddoctor.probe" in words:
        raise DoctorError("the command already contains ddoctor.probe: leave out `ddoctor run`")
    if ASSIGNMENT.match(words[0]):
        words.insert(0, "env")
    starter, split = _find(words)
    head = [word for word in split.head if not restarts or word != NO_RESTART]
    return Rewritten(
        words=(*words[: starter + 1], *head, "ddoctor.probe", "run", *options, *split.script),
        starter=starter,
        script=tuple(split.script),
    )


def _find(words: Sequence[str]) -> tuple[int, _Split]:
    """The index of the word that starts Python, and the split of the words after it."""
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
            f"ddoctor cannot see what {shell} starts: in that script, put `ddoctor run --` before "
            "the launch command, as in `ddoctor run -- torchrun --nproc-per-node 2 train.py`"
        )
    if words[0].endswith(".py") or words[0] == "-m":
        script = " ".join(words[:2] if words[0] == "-m" else words[:1])
        return DoctorError(
            f"{script} is not a launch command: ddoctor run -- torchrun --nproc-per-node 2 "
            f"{script}, or ddoctor run -- python {script}"
        )
    return DoctorError(f"ddoctor cannot see where {words[0]} starts Python: there, {BY_HAND}")


_Reader = Callable[[Sequence[str]], _Split]


def _reader(word: str) -> _Reader | None:
    name = PurePath(word).name
    return _python if PYTHON.fullmatch(name) else READERS.get(name)


def _python(words: Sequence[str]) -> _Split:
    number = 0
    while number < len(words) and words[number].startswith("-") and words[number] != "-":
        word = words[number]
        if word == "--":
            # After it Python would not read -m as an option.
            words = [*words[:number], *words[number + 1 :]]
            break
        if word.startswith("--"):
            number += 2 if word == "--check-hash-based-pycs" else 1
            continue
        flags, letter, value = SHORT_OPTIONS.fullmatch(word).groups()  # type: ignore[union-attr]
        if letter == "c":
            raise DoctorError("python -c has no script file to run: save the code in a file")
        if letter == "m":
            module = [*([value] if value else []), *words[number + 1 :]]
            return _module([*words[:number], f"-{flags}m"], module)
        number += 1 if value or not letter else 2
    if number >= len(words) or words[number] == "-":
        raise DoctorError("python has no script to run: ddoctor run -- python train.py")
    return _Split(head=[*words[:number], "-m"], script=words[number:])


def _module(head: Sequence[str], words: Sequence[str]) -> _Split:
    """Split the words after ``python -m``: a launcher's or the training's."""
    if not words:
        raise DoctorError("python -m has no module to run: ddoctor run -- python -m package.train")
    launcher = MODULES.get(words[0])
    if launcher is None:
        return _Split(head=head, script=["-m", *words])
    inner = launcher(words[1:])
    return _Split(head=[*head, words[0], *inner.head], script=inner.script)


def _accelerate(words: Sequence[str]) -> _Split:
    if words[:1] != ["launch"]:
        raise DoctorError("`accelerate` starts a training only with `accelerate launch`")
    inner = _accelerate_launch(words[1:])
    return _Split(head=["launch", *inner.head], script=inner.script)


def _launcher(
    name: str, module: str, function: str, words: Sequence[str], *, is_module: str = "-m"
) -> _Split:
    """Split the words with the function by which a launcher reads them.

    ``is_module``: its option that says that the script is a module.
    """
    said = StringIO()
    try:
        # Of deepspeed, the import itself prints.
        with redirect_stdout(StringIO()), redirect_stderr(said):
            parsed = _parsed(getattr(import_module(module), function), words)
    except ImportError as error:
        raise DoctorError(f"cannot import {name.split()[0]}: {error}") from error
    except SystemExit as error:
        if not error.code:
            raise DoctorError(f"{name} --help does not start a training") from error
        message = said.getvalue().rpartition("error: ")[2].strip()
        raise DoctorError(f"{name} refuses this command: {message}") from error
    script = [parsed.training_script, *parsed.training_script_args]
    # The parser drops a `--` after the script, so search backwards.
    begin = len(words) - len(script)
    while words[begin] != parsed.training_script:
        begin -= 1
    head = list(words[:begin])
    if head[-1:] == ["--"]:
        del head[-1]
    if getattr(parsed, "max_restarts", 0):
        # ddoctor exits with 1 if it has findings: torchrun must not restart the rank.
        head.append(NO_RESTART)
    if parsed.module:
        return _Split(head=head, script=["-m", *script])
    if parsed.no_python and (inner := _executed(script)) is not None:
        number, split = inner
        return _Split(head=[*head, *script[: number + 1], *split.head], script=split.script)
    head = [word for word in head if not NOT_WITH_MODULE.fullmatch(word)]
    return _Split(head=[*head, is_module], script=script)


def _parsed(read: Callable[..., Any], words: Sequence[str]) -> Namespace:
    if "parser" in read.__name__:
        parser: ArgumentParser = read()
        return parser.parse_args(list(words))
    parsed: Namespace = read(list(words))
    if hasattr(parsed, "user_script"):  # deepspeed; the others have torchrun's names
        parsed.training_script, parsed.training_script_args = parsed.user_script, parsed.user_args
    return parsed


def _executed(words: Sequence[str]) -> tuple[int, _Split] | None:
    """The split of a Python command that a launcher executes; None: the command is the script."""
    try:
        return _find(words)
    except DoctorError:
        if _reader(words[0]) is not None or _of_shell(words[0]):
            raise
        return None


_torchrun = partial(_launcher, "torchrun", "torch.distributed.run", "parse_args")
_torch_launch = partial(
    _launcher, "torch.distributed.launch", "torch.distributed.launch", "parse_args"
)
_deepspeed = partial(
    _launcher, "deepspeed", "deepspeed.launcher.runner", "parse_args", is_module="--module"
)
_accelerate_launch = partial(
    _launcher, "accelerate launch", "accelerate.commands.launch", "launch_command_parser"
)
READERS: dict[str, _Reader] = {
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "accelerate-launch": _accelerate_launch,
    "deepspeed": _deepspeed,
}
MODULES: dict[str, _Reader] = {
    "torch.distributed.run": _torchrun,
    "torch.distributed.launch": _torch_launch,
    "accelerate.commands.launch": _accelerate_launch,
    "accelerate.commands.accelerate_cli": _accelerate,
    "deepspeed.launcher.runner": _deepspeed,
}
