"""One round: a command of ddoctor, and a signal to one of its processes at some moment."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import re
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

import ddoctor
from ddoctor.proc import folder, processes
from tests.conftest import STEERING

MARK = "DDOCTOR_TEST_ROUND"

SCRIPT = """
    import os, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    model = nn.Linear(16, 16)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    loader = DataLoader(TensorDataset(torch.randn(4096, 16)), batch_size=16, num_workers=2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in loader:
        time.sleep(0.005)
        model(batch).sum().backward()
        sgd.step()
        sgd.zero_grad()
"""
# What `attach` looks at: it outlives the round.
PATIENT = """
    import time
    import torch
    print("ready", flush=True)
    while True:
        time.sleep(0.002)
        sum(range(10000))
"""

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=2")
RUN = ("-m", "ddoctor", "run", "--no-prove", "--steps=150", "--")
COMMANDS: Mapping[str, tuple[Sequence[str], float]] = {
    "run script": ((*RUN, "python", "train.py"), 8.0),
    "run torchrun": ((*RUN, *TORCHRUN, "train.py"), 11.0),
    "doctor": (("-m", "ddoctor", "doctor", "--probe=allreduce", "--probe=storage_read"), 9.0),
    "probe": (
        ("-m", "torch.distributed.run", *TORCHRUN[1:], "-m", "ddoctor.probe", "matmul"),
        12.0,
    ),
    "attach": (("-m", "ddoctor", "attach", "--seconds=3"), 5.0),
}
"""Arguments of Python, and how many seconds the command usually takes."""

SIGNALS = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL),
    *(signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGPIPE, signal.SIGALRM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGSTOP),
)
STOPPED_SECONDS = 2.0
END_SECONDS = 90.0
"""The launcher gives its ranks 30 s, and a script may use 10 s to save its work."""
LEFT_SECONDS = 15.0
"""torch's workers look every 5 s whether their script still runs."""
OF_OTHERS = ("torchelastic_", "torchinductor_")
"""What torchrun itself leaves in TMPDIR if it is killed, and torch's cache."""
OF_LOADER = re.compile(r"tmp\w{8}")
"""Empty files by which torch's DataLoader counts free descriptors when a worker has died: its
signal handler may raise before such a file is removed. ddoctor names all of its own files."""


@dataclass
class Round:
    """What one round did, and what was wrong with it afterwards."""

    seed: int
    command: str
    signal: str
    moment: float
    victim: str = ""
    seconds: float = 0.0
    """From the signal to the end of the command."""
    gone: float = 0.0
    """From the end of the command to the end of all its processes."""
    code: int | None = None
    output: str = ""
    wrong: list[str] = field(default_factory=list)


def play(seed: int, path: Path, patient: int) -> Round:
    """Play the round of this seed in an empty folder; ``patient``: the PID to attach to."""
    chance = random.Random(seed)
    command = chance.choice(sorted(COMMANDS))
    number = chance.choice(SIGNALS)
    words, usual = COMMANDS[command]
    played = Round(seed, command, number.name, chance.uniform(0, usual))
    temporary = path / "t"
    temporary.mkdir()
    (path / "train.py").write_text(dedent(SCRIPT))
    shared = set(os.listdir("/dev/shm"))
    pids: set[int] = set()
    watched = [str(patient)] if command == "attach" else []
    with _terminal() as (keyboard, output):
        mark = {MARK: uuid.uuid4().hex}
        before = termios.tcgetattr(keyboard)
        process = _start((*words, *watched), path, keyboard, mark, chance.random() < 0.5)
        try:
            _hit(played, process, chance, mark, pids)
            _end(played, process, mark, pids)
        finally:
            processes.end(0.0, **mark)
            process.wait()
        if termios.tcgetattr(keyboard) != before:
            played.wrong.append("the terminal has another mode")
        if psutil.Process(patient).status() == psutil.STATUS_STOPPED:
            played.wrong.append("the run that attach looked at is stopped")
        time.sleep(0.05)
        played.output = "".join(output) + (path / "output").read_text(errors="replace")
    played.wrong += _left(temporary)
    names = set(os.listdir("/dev/shm")) - shared
    played.wrong += [f"/dev/shm/{one}" for one in names if pids & {*map(int, _numbers(one))}]
    played.wrong += _own_words(played.output)
    return played


def _numbers(name: str) -> list[str]:
    return re.findall(r"\d+", name)


@contextmanager
def _terminal() -> Iterator[tuple[int, list[str]]]:
    """A terminal, and what is written to it."""
    screen, keyboard = pty.openpty()
    output: list[str] = []

    def read() -> None:
        with suppress(OSError):
            while data := os.read(screen, 65536):
                output.append(data.decode(errors="replace"))

    threading.Thread(target=read, daemon=True).start()
    try:
        yield keyboard, output
    finally:
        os.close(keyboard)


@contextmanager
def patient() -> Iterator[int]:
    """The PID of a run to attach to, for any number of rounds."""
    command = [sys.executable, "-c", dedent(PATIENT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def _start(
    words: Sequence[str], path: Path, keyboard: int, mark: Mapping[str, str], on_terminal: bool
) -> subprocess.Popen[bytes]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with open(path / "output", "wb") as file:
        return subprocess.Popen(
            [sys.executable, *words],
            env={**inherited, **mark, "TMPDIR": str(path / "t"), "PATH": tools},
            cwd=path,
            stdin=keyboard,
            stdout=file,
            stderr=keyboard if on_terminal else file,
            start_new_session=True,
            preexec_fn=_as_a_shell_does,
        )


def _as_a_shell_does() -> None:
    """Take the terminal, and ignore no signal that the tests were started to ignore."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in set(SIGNALS) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


def _alive(mark: Mapping[str, str]) -> list[psutil.Process]:
    found = []
    for one in processes.carrying(**mark):
        with suppress(psutil.Error):
            if one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def _hit(
    played: Round,
    process: subprocess.Popen[bytes],
    chance: random.Random,
    mark: Mapping[str, str],
    pids: set[int],
) -> None:
    """Send the signal to one of the processes; the last moments may find none."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(played.moment)
    alive = _alive(mark)
    pids.update(one.pid for one in alive)
    if not alive:
        played.victim = "none"
        return
    victim = chance.choice(alive)
    with suppress(psutil.Error):
        words = victim.cmdline()
        shown = "itself" if victim.pid == process.pid else f"{victim.name()} {' '.join(words)}"
        played.victim = shown[-120:]
        number = signal.Signals[played.signal]
        victim.send_signal(number)
        if number == signal.SIGSTOP:
            time.sleep(STOPPED_SECONDS)
            victim.send_signal(signal.SIGCONT)


def _end(
    played: Round, process: subprocess.Popen[bytes], mark: Mapping[str, str], pids: set[int]
) -> None:
    began = time.monotonic()
    try:
        played.code = process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        played.wrong.append(f"it still runs after {END_SECONDS:.0f} s")
        return
    played.seconds = time.monotonic() - began
    deadline = time.monotonic() + LEFT_SECONDS
    while (left := _alive(mark)) and time.monotonic() < deadline:
        pids.update(one.pid for one in left)
        time.sleep(0.1)
    played.gone = time.monotonic() - began - played.seconds
    for one in left:
        with suppress(psutil.Error):
            played.wrong.append(f"still there: {one.pid} {' '.join(one.cmdline())[-200:]}")


def _left(temporary: Path) -> list[str]:
    """What is in TMPDIR after the next command of ddoctor has swept it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        folder.sweep()
    return [
        f"in TMPDIR: {one.name}: {sorted(os.listdir(one)) if one.is_dir() else 'a file'}"
        for one in temporary.iterdir()
        if not (one.name.startswith(OF_OTHERS) or _of_loader(one))
    ]


def _of_loader(one: Path) -> bool:
    empty = one.is_file() and one.stat().st_size == 0
    return empty and OF_LOADER.fullmatch(one.name) is not None


def _own_words(output: str) -> list[str]:
    """Tracebacks that go through ddoctor, and its internal errors."""
    own = re.escape(str(Path(ddoctor.__file__).parent))
    found = re.findall(rf"Traceback (?:.*\n)*?.*{own}.*\n.*", output)
    return ["a traceback of ddoctor"] * bool(found) + ["an internal error"] * (
        "internal error" in output
    )
