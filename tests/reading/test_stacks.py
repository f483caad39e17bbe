"""Stacks of running processes: of real ranks that wait, and by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from ddoctor import engine
from ddoctor.evidence.live import LiveLook
from ddoctor.models import JUDGING, Confidence, Report
from ddoctor.reading import reader
from tests.conftest import LIMIT_SECONDS, free_port
from tests.reading.conftest import Diagnose

SCRIPT = """
    import faulthandler, os, signal, sys, time
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    faulthandler.register(signal.SIGUSR1)

    class Dataset(torch.utils.data.Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            if index == 7:
                time.sleep(600)
            return index

    def evaluate():
        dist.barrier()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ones = torch.ones(4)
    if sys.argv[1] == "branch" and rank == 0:
        evaluate()
    if sys.argv[1] == "sleeps" and rank == 1:
        time.sleep(600)
    if sys.argv[1] == "loader" and rank == 1:
        for batch in DataLoader(Dataset(), num_workers=1):
            pass
    dist.all_reduce(ones)
"""
WAITS = {
    "branch": ("barrier",),
    "sleeps": ("train.py:27",),
    "loader": ("_try_get_data", "train.py:15"),
}
"""What the stacks of one rank and its workers show once it waits; the other is in all_reduce."""


def dump(pid: int) -> str:
    spy = Path(sys.executable).with_name("py-spy")
    command = [str(spy), "dump", "--subprocesses", "--pid", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@contextmanager
def ranks(folder: Path, what: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks that wait for each other, or for something else; stderr is in a file of each."""
    (folder / "train.py").write_text(dedent(SCRIPT))
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    with ExitStack() as stack:
        started = []
        for rank in (0, 1):
            error = stack.enter_context((folder / f"rank_{rank}.err").open("wb"))
            one = subprocess.Popen(
                [sys.executable, "train.py", what],
                env={**os.environ, **world, "RANK": str(rank)},
                cwd=folder,
                stderr=error,
            )
            stack.callback(one.wait)
            stack.callback(_end, one.pid)
            started.append(one)
        yield started


def _end(pid: int) -> None:
    for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        process.kill()


def dumps(folder: Path, what: str, *, signalled: bool = False) -> list[Path]:
    """The dumps of two ranks that wait, of py-spy or of faulthandler."""
    deadline = time.monotonic() + LIMIT_SECONDS
    with ranks(folder, what) as started:
        texts: dict[Path, str] = {}
        while time.monotonic() < deadline:
            time.sleep(0.5)
            texts = {folder / f"{one.pid}.txt": dump(one.pid) for one in started}
            where = "\n".join(texts.values())
            if all(word in where for word in ("all_reduce", *WAITS[what])):
                break
        else:
            pytest.fail(f"the ranks never waited:\n{where}")
        if signalled:
            for one in started:
                one.send_signal(signal.SIGUSR1)
            errors = [folder / f"rank_{rank}.err" for rank in (0, 1)]
            while not all("<module>" in path.read_text() for path in errors):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            # Before a rank is ended, which the other one would tell.
            texts = {path.with_suffix(".log"): path.read_text() for path in errors}
        for path, text in texts.items():
            path.write_text(text)
        return [*texts]


def report_of(paths: list[Path]) -> Report:
    evidence, _ = reader.read(paths)
    return engine.examine(evidence, "diagnose")


@pytest.mark.parametrize(
    ("what", "cause", "why"),
    [
        ("branch", "rank-dependent-control-flow", "rank 0 in barrier at train.py:19 in evaluate"),
        ("sleeps", "rank-stuck-outside-collective", "was stuck at train.py:27"),
        ("loader", "dataloader-worker-deadlock", "is stuck at train.py:15 in Dataset.__getitem__"),
    ],
)
def test_dumps_of_ranks_that_wait(tmp_path: Path, what: str, cause: str, why: str) -> None:
    report = report_of(dumps(tmp_path, what))
    (finding,) = report.findings
    assert (finding.cause, finding.confidence) == (cause, Confidence.POSSIBLE)
    assert why in finding.because
    assert " 0 s" not in finding.because


def test_what_faulthandler_prints_on_a_signal(tmp_path: Path) -> None:
    report = report_of(dumps(tmp_path, "branch", signalled=True))
    (finding,) = report.findings
    assert finding.cause == "rank-dependent-control-flow"
    assert "rank 0 in barrier at train.py:19 in evaluate and rank 1 in all_reduce" in (
        finding.because
    )


def look(report_text: Mapping[str, str], folder: Path) -> LiveLook | None:
    """The look that these files give."""
    for name, text in report_text.items():
        (folder / name).write_text(dedent(text).lstrip("\n"))
    evidence, _ = reader.read([folder / name for name in report_text])
    return evidence.of_run(LiveLook)


WAITING = """
Process 812: python -u tune.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 812 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2806)
    wrapper (torch/distributed/c10d_logger.py:81)
    step (tuning/loop.py:40)
        Arguments:
            loss: 0.3
            text: "Thread 5 (idle)"
    <module> (tune.py:9)
Thread 900 (idle): "Thread-1"
    wait (threading.py:327)
"""


def test_one_rank_alone_gives_no_finding(diagnose: Diagnose) -> None:
    report = diagnose(WAITING)
    assert report.findings == ()
    (why,) = [one.error for one in report.crashed if one.check == JUDGING]
    assert "rank 0 waits in all_reduce at loop.py:40 in step" in why


def test_all_ranks_at_one_place_give_no_finding(tmp_path: Path) -> None:
    for pid in (812, 813, 814):
        (tmp_path / f"{pid}.txt").write_text(WAITING.replace("812", str(pid)))
    assert report_of([tmp_path]).findings == ()


def test_a_launcher_is_no_rank(tmp_path: Path) -> None:
    launcher = """
        Thread 700 (idle): "MainThread"
            _invoke_run (torch/distributed/elastic/agent/server/api.py:923)
            main (torch/distributed/run.py:1028)
    """
    found = look({"700.txt": launcher, "812.txt": WAITING}, tmp_path)
    assert found is not None
    assert [one.pid for one in found.ranks] == [812]


def test_threads_with_one_stack_are_ranks_of_their_own(tmp_path: Path) -> None:
    text = """
        3 in:
        Thread 11 (active): "MainThread"
        Thread 12 (active): "MainThread"
        Thread 13 (idle): "MainThread"
            broadcast (torch/distributed/distributed_c10d.py:1191)
            train (megatron/training.py:904)
    """
    found = look({"grouped.txt": text}, tmp_path)
    assert found is not None
    assert [(one.rank, one.pid) for one in found.ranks] == [(0, 11), (1, 12), (2, 13)]


def test_a_thread_without_a_name_is_another_one_of_its_process(tmp_path: Path) -> None:
    text = """
        Thread 42 (idle): "MainThread"
            backward (torch/autograd/__init__.py:266)
            train (train.py:41)
        Thread 77 (active)
            all_gather_into_tensor (torch/distributed/distributed_c10d.py:2709)
    """
    found = look({"a.txt": text, "b.txt": text.replace("42", "52")}, tmp_path)
    assert found is not None
    assert [one.pid for one in found.ranks] == [42, 52]


def test_where_no_thread_has_a_name_each_is_a_process(tmp_path: Path) -> None:
    text = """
        Thread 42 (active)
            all_reduce (torch/distributed/distributed_c10d.py:2709)
        Thread 43 (active)
            all_reduce (torch/distributed/distributed_c10d.py:2709)
    """
    found = look({"a.txt": text}, tmp_path)
    assert found is not None
    assert [one.pid for one in found.ranks] == [42, 43]


def test_the_name_of_a_file_says_the_rank(tmp_path: Path) -> None:
    found = look({"stack_rank5.txt": WAITING}, tmp_path)
    assert found is not None
    assert [one.rank for one in found.ranks] == [5]
    assert found.unseen == ()


CRASH = """
    Fatal Python error: Segmentation fault

    Thread 0x00007f11 (most recent call first):
      File "/usr/lib/python3.11/threading.py", line 331 in wait

    Current thread 0x00007f22 (most recent call first):
      File "/home/ann/tune.py", line 12 in step
      File "/home/ann/tune.py", line 30 in <module>
"""
AFTER_A_TIME = """
    Timeout (0:05:00)!
    Thread 0x00007f11 (most recent call first):
      File "/usr/lib/python3.11/threading.py", line 331 in wait

    Thread 0x00007f22 (most recent call first):
      File "/home/ann/tune.py", line 12 in step
      File "/home/ann/tune.py", line 30 in <module>
"""


def test_the_stack_of_a_crash_is_no_look(tmp_path: Path) -> None:
    assert look({"train.log": CRASH}, tmp_path) is None


def test_the_last_thread_is_the_main_one(tmp_path: Path) -> None:
    found = look({"train.log": f"{AFTER_A_TIME}\nstep 5\n{AFTER_A_TIME}"}, tmp_path)
    assert found is not None
    (rank,) = found.ranks
    assert [(one.file, one.line) for one in rank.stack][-1] == ("/home/ann/tune.py", 12)
    assert rank.still


def test_a_rank_whose_dumps_differ_moves(tmp_path: Path) -> None:
    later = AFTER_A_TIME.replace("line 12", "line 14")
    found = look({"train.log": f"{AFTER_A_TIME}\nstep 5\n{later}"}, tmp_path)
    assert found is not None
    assert not found.ranks[0].still


@pytest.mark.parametrize(
    "text",
    [
        "Thread 12 (idle) has nothing to do\nstep 1\nstep 2\n",
        'Thread 12 (idle): "MainThread"\nstep 1\n',
        "The stack (most recent call first): see below\nstep 2\n",
    ],
)
def test_other_lines_are_no_stacks(tmp_path: Path, text: str) -> None:
    assert look({"train.log": text}, tmp_path) is None
