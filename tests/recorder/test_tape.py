"""The tape: what is written is there, also when whoever wrote it is killed in the next moment."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

from ddoctor.recorder import tape
from ddoctor.recorder.tape import BACKWARD, COLLECTIVE, COUNT, DONE, PHASE, Tape
from ddoctor.recorder.timeline import Timeline

WRITER = """
import os, signal, sys
from pathlib import Path
from ddoctor.recorder.tape import BACKWARD, COLLECTIVE, COUNT, Tape
from ddoctor.recorder.timeline import Timeline
timeline = Timeline(Tape(Path(sys.argv[1])))
for step in range(3):
    timeline.enter(BACKWARD)
    timeline.meeting(timeline.last, 0.25, 7.0, 3.0)
    timeline.counts[COUNT["samples"]] += 4 + step
    timeline.leave()
    timeline.end_step()
timeline.enter(COLLECTIVE)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tape"


def test_what_a_killed_process_wrote_is_there(path: Path) -> None:
    watched = Tape(path, create=True)
    done = subprocess.run([sys.executable, "-c", WRITER, str(path)])
    assert done.returncode == -signal.SIGKILL
    rows = list(watched.rows())
    assert [row.number for row in rows] == [0, 1, 2]
    assert [row.counts[COUNT["samples"]] for row in rows] == [4, 5, 6]
    assert [[one[1:] for one in row.meetings] for row in rows] == [[(0.25, 7.0, 3.0)]] * 3
    assert all(row.phases[BACKWARD] > 0 for row in rows)
    assert watched.head[PHASE] == COLLECTIVE, "where it was when it was killed"


def test_a_tape_that_nobody_has_written_to_has_no_steps(path: Path) -> None:
    assert list(Tape(path, create=True).rows()) == []


def test_only_its_maker_makes_the_file(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Tape(path)


def test_of_more_steps_than_it_holds_the_last_ones_are_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small(monkeypatch, rows=8, meetings=100)
    timeline, watched = _written(path, steps=21, meetings=1)
    rows = list(watched.rows())
    assert [row.number for row in rows] == list(range(13, 21))
    assert int(watched.head[DONE]) == timeline.done == 21
    assert [[one[1] for one in row.meetings] for row in rows] == [[13.0 + n] for n in range(8)]


def test_of_more_meetings_than_it_holds_the_last_ones_are_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small(monkeypatch, rows=100, meetings=7)
    _, watched = _written(path, steps=6, meetings=3)
    met = [[one[1] for one in row.meetings] for row in watched.rows()]
    assert met == [[], [], [], [3.0], [4.0] * 3, [5.0] * 3]


def _small(monkeypatch: pytest.MonkeyPatch, *, rows: int, meetings: int) -> None:
    at = tape.HEAD_BYTES + rows * tape.ROW.size
    ends = at + meetings * tape.MEETING.size
    for module in (tape, sys.modules[Timeline.__module__]):
        for name, value in (
            ("ROWS", rows),
            ("MEETING_ROWS", meetings),
            ("MEETINGS_AT", at),
            ("ENDS_AT", ends),
            ("SIZE", ends + tape.END_ROWS * 8),
        ):
            monkeypatch.setattr(module, name, value, raising=module is tape)


def _written(path: Path, *, steps: int, meetings: int) -> tuple[Timeline, Tape]:
    """Steps whose meetings took as many seconds as the number of the step."""
    watched = Tape(path, create=True)
    timeline = Timeline(Tape(path))
    for step in range(steps):
        for _ in range(meetings):
            timeline.meeting(timeline.last, float(step), 0.0, 3.0)
        timeline.end_step()
    return timeline, watched


def test_the_last_steps_are_timed_also_where_they_are_only_counted(path: Path) -> None:
    written = Tape(path, create=True)
    timeline = Timeline(written)
    assert written.last_seconds(20) == []
    for _ in range(tape.END_ROWS + 50):
        timeline.end_step()
    # The first one after a row, and far from the next.
    assert timeline.busy == -1
    recorded = {row.number for row in written.rows(timeline.done - 20)}
    assert recorded == set(), "these are only counted"
    for _ in range(3):
        time.sleep(0.02)
        timeline.end_step()
    seconds = written.last_seconds(20)
    assert len(seconds) == 20
    assert median(seconds) < 0.02 <= min(seconds[-3:])
