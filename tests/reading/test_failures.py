"""Which rank failed first, what is around its line, and what the others wrote last."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor import engine
from ddoctor.evidence.log import Excerpt, Log
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence
from ddoctor.reading import reader
from ddoctor.reading.log_lines import MOST_ALIKE
from tests.reading.conftest import Diagnose

LOST = "[127.0.0.1]:4711: Connection closed by peer"


def raises(rank: int, word: str, stamp: str = "") -> str:
    return (
        f"{stamp}[rank{rank}]: step 11\n"
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/home/ann/train.py", line 8, in main\n'
        f"[rank{rank}]:     labels = table[key]\n"
        f"[rank{rank}]: KeyError: '{word}'\n"
    )


def read(folder: Path, **files: str) -> tuple[Log, TrainingRun]:
    for name, text in files.items():
        (folder / f"{name}.log").write_text(text)
    evidence, refused = reader.read([folder])
    assert refused == ()
    (log,), (run,) = evidence.all(Log), evidence.all(TrainingRun)
    return log, run


def first(run: TrainingRun) -> int:
    return run.failures[0].rank


def excerpt(log: Log, place: str) -> Excerpt:
    return next(one for one in log.excerpts if one.place == place)


def test_within_a_file_the_lines_are_in_order(tmp_path: Path) -> None:
    later, earlier = "2026-11-25 10:00:09,000 ", "2026-11-25 10:00:05,000 "
    _, run = read(tmp_path, a=raises(1, "a", later) + raises(0, "b", earlier))
    assert (first(run), run.ordered) == (1, True)


def test_between_files_their_times_tell(tmp_path: Path) -> None:
    a = raises(0, "a", "2026-11-25 10:00:09,000 ")
    b = "[rank1]:[I1125 10:00:05.000000 socket.cpp:9] x\n" + raises(1, "b")
    _, run = read(tmp_path, a=a, b=b)
    assert (first(run), run.ordered) == (1, True)


@pytest.mark.parametrize(
    "stamp", ["", "2026-11-25T10:00:05Z "], ids=["no time", "a time with a zone"]
)
def test_without_comparable_times_the_order_is_not_known(tmp_path: Path, stamp: str) -> None:
    a = raises(0, "a", "2026-11-25 10:00:09,000 ")
    _, run = read(tmp_path, a=a, b=raises(1, "b", stamp))
    assert not run.ordered


def test_one_failure_needs_no_order(tmp_path: Path) -> None:
    """The file of each rank, without times: the other one only reports that it is gone."""
    (tmp_path / "0.log").write_text(f"[rank0]: RuntimeError: {LOST}\n")
    (tmp_path / "1.log").write_text(raises(1, "b"))
    evidence, _ = reader.read([tmp_path])
    (found,) = engine.examine(evidence, "diagnose").findings
    assert (found.cause, found.where.ranks) == ("dead-rank", (1,))
    assert found.confidence is Confidence.LIKELY


def test_a_rank_is_called_the_first_only_where_that_is_known(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(raises(0, "a"))
    (tmp_path / "b.log").write_text(raises(1, "b") + f"[rank2]: RuntimeError: {LOST}\n")
    evidence, _ = reader.read([tmp_path])
    found = engine.examine(evidence, "diagnose").findings[0]
    assert "one of 2 that failed, and the times in the logs do not say which" in found.because
    assert found.confidence is Confidence.POSSIBLE
    (tmp_path / "a.log").write_text((tmp_path / "b.log").read_text() + raises(0, "a"))
    (tmp_path / "b.log").unlink()
    evidence, _ = reader.read([tmp_path])
    (found,) = engine.examine(evidence, "diagnose").findings
    assert "rank 1 raised KeyError: 'b'" in found.because
    assert "the first of 2 that failed" in found.because
    assert found.confidence is Confidence.LIKELY


def test_the_table_of_torchrun_names_the_first_failure(tmp_path: Path) -> None:
    rows = "  time      : 2026-11-25_10:00:0{0}\n  rank      : {1} (local_rank: {1})\n"
    rows += "  exitcode  : {2} (pid: 4{1})\n"
    table = f"Failures:\n[1]:\n{rows.format(7, 0, -6)}"
    table += f"Root Cause (first observed failure):\n[0]:\n{rows.format(7, 1, -9)}"
    _, run = read(tmp_path, a=table)
    assert first(run) == 1


def test_the_lines_around_it(tmp_path: Path) -> None:
    secret = "hf_" + "aBcD1234" * 5
    text = f"login {secret}\r\x1b[31mstep 10\x1b[0m\n" + raises(1, "cat") + "x\ny\nz\n"
    log, _ = read(tmp_path, a=text)
    found = excerpt(log, "a.log:6")
    assert (found.first, found.lines[-1], len(found.lines)) == (2, "y", 7)
    assert found.lines[found.line - found.first] == "[rank1]: KeyError: 'cat'"
    long, _ = read(
        tmp_path,
        a=f"token={secret}\n[rank2]: CUDA error: invalid device ordinal\n" + raises(1, "cat"),
    )
    lines = excerpt(long, "a.log:2").lines
    assert secret[:12] not in "".join(lines)


def test_lines_far_apart_have_an_excerpt_of_the_block(tmp_path: Path) -> None:
    """A traceback may end in another block than that of the line that names it."""
    log, run = read(tmp_path, a=raises(1, "cat") + "a line without a rank\n" * 100_000)
    assert excerpt(log, "a.log:5").lines[3] == "[rank1]:     labels = table[key]"
    assert run.failures[0].logged == "a.log:5"


def test_the_last_line_of_ranks_that_only_stop(tmp_path: Path) -> None:
    log, _ = read(tmp_path, a="[rank0]: step 10\n[rank2]: step 11\n[rank2]: \n" + raises(1, "cat"))
    last = {one.rank: (one.text, one.place) for one in log.last}
    assert last[0] == ("step 10", "a.log:1")
    assert last[2] == ("step 11", "a.log:2")


def test_of_a_rank_with_a_file_of_its_own_its_last_line_counts(tmp_path: Path) -> None:
    log, _ = read(tmp_path, rank3="step 10\nstep 11\n\n", a=raises(1, "cat"))
    assert [(one.text, one.line) for one in log.last if one.rank == 3] == [("step 11", 2)]


def test_what_is_written_for_days_is_looked_at_no_more(tmp_path: Path) -> None:
    """Not from the first times on, and each file begins anew; what follows is told."""
    caught = "".join(f"[rank{n % 8}]: ValueError: no row {n}\n" for n in range(MOST_ALIKE + 5000))
    last = raises(3, "b")
    _, run = read(tmp_path, a=caught + last, b=raises(4, "c"))
    assert {one.exception for one in run.failures} >= {"KeyError"}
    assert {one.rank for one in run.failures if one.exception == "KeyError"} == {3, 4}


def test_the_next_line_of_a_logger_is_no_part_of_a_message(tmp_path: Path) -> None:
    """Its time was taken off, as one that a container's log puts before each line."""
    more = "[rank0]: 2026-11-25 10:01:01 - INFO - step: 12 loss: 0.3\n"
    _, run = read(tmp_path, a="[rank0]: ValueError: no row\n" + more + raises(1, "b"))
    assert run.failures[0].message == "no row"


CLOSED = "W1127 16:40:27.1 multiprocessing/api.py:1028] Sending process {} closing signal SIGTERM\n"
ENDED = "  rank      : {0} (local_rank: {0})\n  exitcode  : -15 (pid: {1})  (SIGTERM)\n"


def test_ranks_that_the_launcher_ended_count_where_nothing_else_is_known(tmp_path: Path) -> None:
    """It was told to end, and ended them."""
    text = "".join(CLOSED.format(4711 + rank) for rank in range(2))
    text += "".join(ENDED.format(rank, 4711 + rank) for rank in range(2))
    _, run = read(tmp_path, log=text)
    assert [(one.rank, one.exit_code) for one in run.ranks] == [(0, -15), (1, -15)]


def test_an_error_that_only_reports_another_rank_is_told_once(diagnose: Diagnose) -> None:
    (finding,) = diagnose(
        """
        [rank1]: Traceback (most recent call last):
        [rank1]:   File "/home/ann/train.py", line 9, in <module>
        [rank1]:     loss.backward()
        [rank1]: RuntimeError: [gloo/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:13
        """
    ).findings
    assert (finding.cause, finding.confidence) == ("first-failure-masked", Confidence.POSSIBLE)
    assert "came to its end before the others" in finding.because
