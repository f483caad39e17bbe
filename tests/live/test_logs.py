"""The last words of ranks that are gone, as torch, torchrun and srun write them."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor import engine
from ddoctor.errors import DoctorError
from ddoctor.evidence.log import Log
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.live import logs
from tests.live_look import look, moving

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
    (folder / "train.log").write_text(text)
    found = sections(folder / "train.log", *gone, first=first).all(TrainingRun)
    return found[0].ranks if found else ()


def sections(path: Path, *gone: int, first: int = 0) -> Evidence:
    return Evidence(logs.sections([path], gone, first=first, host="node-0", command=("train.py",)))


@pytest.mark.parametrize(
    ("prefix", "of_another"),
    [
        ("[rank5]: ", "[rank4]: "),
        ("[default1]:", "[default0]:"),
        ("[default1]:[rank5]: ", "[default0]:[rank4]: "),
        ("5: ", "4: "),
        (" 5: ", " 4: "),
        ("", "[rank4]: "),
    ],
)
def test_who_raised_what_and_where(tmp_path: Path, prefix: str, of_another: str) -> None:
    other = before_each(of_another, "Traceback (most recent call last):\nValueError: of another")
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
        sections(tmp_path / "fifo", 0)


def test_a_pipe_with_a_writer_is_read() -> None:
    """As `--log <(kubectl logs POD)`."""
    reading, writing = os.pipe()
    os.write(writing, f"{TRACEBACK}\n".encode())
    os.close(writing)
    (run,) = sections(Path(f"/dev/fd/{reading}"), 0).all(TrainingRun)
    assert run.ranks[0].exception == "OutOfMemoryError"
    os.close(reading)


def test_of_a_long_log_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 2**20)
    path = tmp_path / "train.log"
    steps = "".join(f"step {number}\n" for number in range(200_000))
    path.write_text(f"[rank0]: NCCL WARN Invalid rank requested : 9/8\n{steps}{TRACEBACK}\n")
    evidence = sections(path, 0)
    (log,) = evidence.all(Log)
    assert log.files == ("train.log (its last 1 MiB)",)
    assert log.host == "node-0"
    assert "nccl-invalid-rank" not in {one.pattern for one in log.events}
    assert evidence.all(TrainingRun)[0].ranks[0].exception == "OutOfMemoryError"


def test_a_message_of_the_log_explains_a_rank_that_waits(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("node-0:9:9 [0] NCCL WARN Invalid rank requested : 9/8\n")
    evidence = sections(path).with_sections(look(moving(0), moving(1)))
    report = engine.examine(evidence, "attach")
    assert [one.cause for one in report.findings] == ["world-size-mismatch"]
    assert report.findings[0].evidence[0].name == "train.log:1"
    assert not [one for one in report.skipped if "log evidence" in one.reason]


@pytest.mark.parametrize("text", ["", "step 40, loss 0.1\n", "NCCL INFO Channel 00 : 0 -> 1\n"])
def test_a_sound_log_says_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(text)
    evidence = sections(path).with_sections(look(moving(0), moving(1)))
    assert engine.examine(evidence, "attach").findings == ()
