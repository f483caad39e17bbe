"""The last words of ranks that are gone, as torch, torchrun and srun write them."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence.training import RankEnding
from ddoctor.live.logs import _lines, last_words

TRACEBACK = dedent(
    """
    Traceback (most recent call last):
      File "/home/u/train.py", line 30, in main
        step(batch)
        ~~~~^^^^^^^
      File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1773, in _call_impl
        return forward_call(*args, **kwargs)
    torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.
    Of the allocated memory 70 GiB is in use.
    """
).strip()
TABLE = dedent(
    """
    Root Cause (first observed failure):
    [0]:
      time      : 2026-11-22_04:00:00
      host      : node-0
      rank      : 1 (local_rank: 1)
      exitcode  : -9 (pid: 456)
      error_file: <N/A>
      traceback : Signal 9 (SIGKILL) received by PID 456
    """
)


def before_each(prefix: str, text: str = TRACEBACK) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def words(folder: Path, text: str, *gone: int, first: int = 0) -> tuple[RankEnding, ...]:
    path = folder / "train.log"
    path.write_text(text)
    return last_words([path], gone, first, "node-0")


@pytest.mark.parametrize(
    "prefix", ["[rank5]: ", "[default1]:", "[default1]:[rank5]: ", "5: ", " 5: ", ""]
)
def test_who_raised_what_and_where(tmp_path: Path, prefix: str) -> None:
    other = before_each("[rank4]: ", "Traceback (most recent call last):\nValueError: of another")
    log = f"step 40\n{other}{before_each(prefix)}[W1122 04:00:01 socket.cpp:1] late\n"
    (one,) = words(tmp_path, log, 5, first=4)
    assert (one.rank, one.host, one.outcome) == (5, "node-0", "failed")
    assert one.words.startswith("OutOfMemoryError: CUDA out of memory. Tried")
    assert one.message.endswith("70 GiB is in use.")
    assert one.place is not None
    assert (one.place.line, one.place.text) == (30, "step(batch)")
    assert [frame.of_user for frame in one.stack] == [True, False]


def test_the_last_of_several_is_what_ended_it(tmp_path: Path) -> None:
    caught = "Traceback (most recent call last):\nKeyError: 'x'\n\nDuring handling ..."
    (one,) = words(tmp_path, before_each("[rank1]: ", f"{caught}\n{TRACEBACK}"), 1)
    assert one.exception == "OutOfMemoryError"


def test_what_torchrun_lists(tmp_path: Path) -> None:
    (one,) = words(tmp_path, TABLE, 1)
    assert (one.outcome, one.exit_code, one.pid) == ("killed", -9, 456)


@pytest.mark.parametrize(
    ("log", "gone"),
    [
        ("", (1,)),
        ("step 40, loss 0.1\n", (1,)),
        # Of a rank that is there; of one of several; cut off; no traceback at all.
        (before_each("[rank0]: "), (1,)),
        (TRACEBACK, (1, 2)),
        ("\n".join(TRACEBACK.splitlines()[:4]), (1,)),
        ("[rank1]: ValueError: caught\n", (1,)),
        (TABLE, ()),
    ],
)
def test_nothing_is_made_up(tmp_path: Path, log: str, gone: tuple[int, ...]) -> None:
    assert words(tmp_path, log, *gone) == ()


def test_a_fifo_that_no_one_writes_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DoctorError, match="cannot be read"):
        last_words([tmp_path / "fifo"], [0], 0, "node-1")


def test_a_pipe_with_a_writer_is_read() -> None:
    """As `--log <(kubectl logs POD)`."""
    reading, writing = os.pipe()
    os.write(writing, b"ValueError: x\n")
    os.close(writing)
    assert _lines(Path(f"/dev/fd/{reading}")) == ["ValueError: x"]
    os.close(reading)
