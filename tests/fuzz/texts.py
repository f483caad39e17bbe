"""Texts and launch files that are changed: whatever a user may have of a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from random import Random
from textwrap import dedent

from tests.fuzz import mutation, seeds
from tests.launch import files
from tests.launch.test_garbled import COMMANDS, FILES
from tests.reading import test_causes, test_stacks, test_writers
from tests.reading.conftest import LINES
from tests.reading.machine import test_outputs
from tests.script import sound, sources

TEXTS = tuple(
    dedent(text)
    for text in (
        *(one["text"] for kind in ("sick", "harmless", "sound") for one in LINES[kind]),
        *(text for text in test_outputs.TEXTS if "PATH=" not in text),
        *(test_stacks.WAITING, test_stacks.CRASH, test_stacks.AFTER_A_TIME),
        *(test_writers.INTERLEAVED, test_writers.CHAIN, test_causes.TABLE),
        seeds.LOG.decode(),
    )
)
"""All but the variables of this shell, which no number brings back."""
PREFIXES = (
    *("", "", "[rank3]:", "[default1]:[rank1]: ", "worker-1: [rank9] ", "3: ", "[1,0]<stderr>:"),
    *("(RayTrainWorker pid=7, ip=10.0.0.1) ", "2026-11-25T10:00:01.5Z ", "\x1b[31m", "\r"),
    *("[pod/job-worker-0/pytorch] ", "node-3:41:77 [2] NCCL INFO "),
)
SOURCES = (*sources.SOUND.values(), Path(sound.__file__).read_text(), dedent(files.SCRIPT))
WORDS = (
    *("", "-", "--", "--nnodes=0:0", "--nproc-per-node", "9" * 400, "--nnodes", "-1", "2:8"),
    *(
        "$X",
        "$(id)",
        "`id`",
        "'",
        '"',
        "\\",
        "|",
        ";",
        "&&",
        ">",
        "train.py",
        "-m",
        "--config_file",
    ),
    *(
        "--",
        "--config_file",
        "srun",
        "torchrun",
        "accelerate",
        "deepspeed",
        "mpirun",
        "-np",
        "env",
        "A=1",
    ),
)


def text(random: Random) -> bytes:
    """One to three of the texts, line by line behind one another or mixed, and damaged."""
    parts = [_prefixed(random.choice(TEXTS), random) for _ in range(random.choice((1, 1, 2, 3)))]
    if random.random() < 0.4:
        parts = ["".join(_mixed([part.splitlines(keepends=True) for part in parts], random))]
    raw = "\n".join(parts).encode()
    for _ in range(random.randint(0, 5)):
        raw = mutation.damaged(raw, random)
    return raw


def _prefixed(text: str, random: Random) -> str:
    prefix = random.choice(PREFIXES)
    return "".join(prefix + line for line in text.splitlines(keepends=True))


def _mixed(parts: list[list[str]], random: Random) -> list[str]:
    lines = list[str]()
    while parts := [part for part in parts if part]:
        lines.append(random.choice(parts).pop(0))
    return lines


def launch(random: Random, folder: Path) -> list[str]:
    """The words of a command whose files lie in the folder; one of the files is damaged."""
    command = random.choice(list(COMMANDS))
    for name, content in FILES.items():
        raw = dedent(content).lstrip("\n").encode()
        if name == "train_py":
            raw = random.choice(SOURCES).encode()
        if name in (COMMANDS[command], "train_py"):
            for _ in range(random.randint(0, 3)):
                raw = mutation.damaged(raw, random)
        (folder / ".".join(name.rsplit("_", 1))).write_bytes(raw)
    words = shlex.split(command)
    for _ in range(random.choice((0, 0, 1, 2, 4))):
        words.insert(random.randrange(len(words) + 1), random.choice(WORDS))
    return words
