"""The stream's clock, on a played stream: this machine may have no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddoctor.recorder.device_clock import MOST_PENDING, DeviceClock
from ddoctor.recorder.tape import (
    BACKWARD,
    COLLECTIVE,
    COUNTS,
    FORWARD,
    LOADER,
    PHASES,
    REST,
    StepRow,
    Tape,
)
from ddoctor.recorder.timeline import Timeline

ON_DEVICE = COUNTS.index("on_device")


class Stream:
    """Work that is given to it takes its time after what was given before."""

    def __init__(self) -> None:
        self.given = 0.0
        self.now = 0.0

    def work(self, milliseconds: float) -> None:
        self.given += milliseconds

    def idle(self) -> bool:
        return self.given <= self.now


class Event:
    """CUDA's timing event, as far as it is used."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.at = 0.0

    def record(self) -> None:
        self.at = self._stream.given

    def query(self) -> bool:
        return self.at <= self._stream.now

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def timeline(tmp_path: Path, stream: Stream) -> Timeline:
    timeline = Timeline(Tape(tmp_path / "tape", create=True))
    clock = DeviceClock(timeline.memory, lambda: Event(stream), lambda: False, stream.idle)
    timeline.use_device(clock)
    return timeline


def step(timeline: Timeline, stream: Stream, *, waits: float = 0.0) -> None:
    """The host gives all work out at once; the stream takes 2 + 3 + 5 + ``waits`` + 1 ms."""
    timeline.enter(LOADER)
    stream.work(2)
    timeline.leave()
    timeline.enter(FORWARD)
    stream.work(3)
    timeline.leave()
    timeline.enter(BACKWARD)
    stream.work(5)
    timeline.enter(COLLECTIVE)
    mark, arrival = timeline.marked, timeline.last
    stream.work(waits)
    timeline.leave()
    timeline.leave()
    timeline.meeting(arrival, timeline.last - arrival, 0, 0, mark)
    stream.work(1)
    timeline.end_step()


def rows(timeline: Timeline, tmp_path: Path) -> list[StepRow]:
    return list(Tape(tmp_path / "tape").rows())


def test_a_step_has_the_streams_time(timeline: Timeline, stream: Stream, tmp_path: Path) -> None:
    step(timeline, stream, waits=7)
    stream.now = stream.given
    step(timeline, stream)
    first, second = rows(timeline, tmp_path)
    assert first.counts[ON_DEVICE] == 1
    expected = {LOADER: 2, FORWARD: 3, BACKWARD: 5, COLLECTIVE: 7, REST: 1}
    for phase in range(len(PHASES)):
        assert first.phases[phase] * 1e3 == pytest.approx(expected.get(phase, 0)), PHASES[phase]
    assert first.end - first.begin == pytest.approx(0.018)
    ((_, seconds, _, _),) = first.meetings
    assert seconds == pytest.approx(0.007)
    assert second.counts[ON_DEVICE] == 0, "the stream has not come so far"


def test_a_step_that_is_not_over_is_left_until_it_is(
    timeline: Timeline, stream: Stream, tmp_path: Path
) -> None:
    for _ in range(5):
        step(timeline, stream)
    assert [row.counts[ON_DEVICE] for row in rows(timeline, tmp_path)] == [0] * 5
    stream.now = stream.given
    step(timeline, stream)
    assert [row.counts[ON_DEVICE] for row in rows(timeline, tmp_path)] == [1] * 5 + [0]
    assert all(row.end - row.begin == pytest.approx(0.011) for row in rows(timeline, tmp_path)[:5])


def test_a_stream_that_never_answers_costs_bounded_memory(
    timeline: Timeline, stream: Stream, tmp_path: Path
) -> None:
    for _ in range(3 * MOST_PENDING):
        step(timeline, stream)
    stream.now = stream.given
    step(timeline, stream)
    resolved = [row.counts[ON_DEVICE] for row in rows(timeline, tmp_path)]
    assert sum(resolved) <= MOST_PENDING


def test_events_are_used_again(tmp_path: Path, stream: Stream) -> None:
    made = 0

    def new_event() -> Event:
        nonlocal made
        made += 1
        return Event(stream)

    timeline = Timeline(Tape(tmp_path / "tape", create=True))
    timeline.use_device(DeviceClock(timeline.memory, new_event, lambda: False, stream.idle))
    for _ in range(100):
        step(timeline, stream)
        stream.now = stream.given
    assert made < 40
    # Of steps as short as these it had seen enough, and marked them no more.
    assert timeline.marking is None


def test_a_capture_is_left_alone(tmp_path: Path, stream: Stream) -> None:
    class Script:
        captures = False

    class Watched(Event):
        def record(self) -> None:
            assert not Script.captures
            super().record()

        def query(self) -> bool:
            assert not Script.captures
            return super().query()

    def idle() -> bool:
        assert not Script.captures
        return stream.idle()

    timeline = Timeline(Tape(tmp_path / "tape", create=True))
    clock = DeviceClock(timeline.memory, lambda: Watched(stream), lambda: Script.captures, idle)
    timeline.use_device(clock)
    for Script.captures in (False, False, True, True, False):
        step(timeline, stream)
    stream.now = stream.given
    step(timeline, stream)
    assert [row.counts[ON_DEVICE] for row in rows(timeline, tmp_path)] == [1, 1, 0, 0, 1, 0]


def test_a_stream_that_keeps_up_with_the_host_is_idle_at_the_ends_of_passes(
    timeline: Timeline, stream: Stream, tmp_path: Path
) -> None:
    timeline.enter(FORWARD)
    stream.work(3)
    stream.now = stream.given
    timeline.leave()
    timeline.enter(BACKWARD)
    stream.work(5)
    stream.now = stream.given
    # A collective within a pass does not end it.
    timeline.enter(COLLECTIVE)
    stream.work(1)
    timeline.leave()
    timeline.leave()
    timeline.end_step()
    step(timeline, stream)
    stream.now = stream.given
    step(timeline, stream)
    kept, behind, _ = rows(timeline, tmp_path)
    forward, backward = COUNTS.index("idle_forwards"), COUNTS.index("idle_backwards")
    assert (kept.counts[forward], kept.counts[backward]) == (1, 0)
    assert (behind.counts[forward], behind.counts[backward]) == (0, 0)


FORKED = """
import gc, os, sys
from pathlib import Path
from ddoctor.recorder.device_clock import DeviceClock
from ddoctor.recorder.tape import FORWARD, Tape
from ddoctor.recorder.timeline import Timeline

PARENT = os.getpid()

class Event:
    def record(self):
        pass
    def query(self):
        return False
    def __del__(self):
        if os.getpid() != PARENT:
            os._exit(7)  # as CUDA's events do, which end the process

timeline = Timeline(Tape(Path(sys.argv[1]), create=True))
timeline.use_device(DeviceClock(timeline.memory, Event, lambda: False, lambda: False))
for _ in range(3):
    timeline.enter(FORWARD)
    timeline.leave()
    timeline.end_step()
child = os.fork()
if not child:
    gc.collect()
    sys.exit(0)  # with all that Python frees then
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_frees_no_event(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", FORKED, str(tmp_path / "tape")], timeout=60)
    assert run.returncode == 0
