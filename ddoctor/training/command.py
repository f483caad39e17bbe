"""How the script of a rank is started: its command, its environment and its descriptors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

import msgspec

from ddoctor.recorder import recorded, trial
from ddoctor.training import answer, stderr
from ddoctor.training.messages import TurnOrder


def recorder_command(folder: str, words: Sequence[str]) -> list[str]:
    """The command that runs a script and records it in the folder; without one, it only runs it."""
    return [sys.executable, *_interpreter_options(), "-c", recorded.START, folder, *words]


def _interpreter_options() -> list[str]:
    """The options of the Python interpreter, such as -u or -X."""
    words = sys.orig_argv[1:]
    return words[: words.index("-m")] if "-m" in words else []


@cache
def inherited() -> tuple[int, ...]:
    """The descriptors that the launcher gave, such as that of ``train.py <(make-config)``.

    Python's own are not inheritable; torch's are not yet there at the first call.
    """
    with suppress(OSError):
        return tuple(filter(_inheritable, map(int, os.listdir("/dev/fd"))))
    return ()


def _inheritable(number: int) -> bool:
    try:
        return number > stderr.STDERR and os.get_inheritable(number)
    except OSError:
        return False  # that of the list itself


def environment(turn: int, order: TurnOrder) -> dict[str, str]:
    """The environment of the script in a turn."""
    environment = {name: one for name, one in os.environ.items() if name != answer.VARIABLE}
    if turn == 0:
        environment[recorded.ISOLATE] = "1"
    else:
        environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        environment["MASTER_PORT"] = str(order.port)
    if order.grow is not None:
        environment[recorded.GROW] = msgspec.json.encode(order.grow).decode()
    if order.change:
        environment[trial.VARIABLE] = json.dumps(order.change)
    for entry in order.change:
        name, _, value = entry.partition("=")
        if name == "torch.threads":
            environment["OMP_NUM_THREADS"] = value
    return environment
