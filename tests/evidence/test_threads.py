from __future__ import annotations

import pytest

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.threads import busiest
from tests.training_run import user

WAITS = user(8, "time.sleep(0.05)", "collect")
WORKS = user(6, "rows = [simulate(state) for _ in range(64)]", "collect")
ADDS = user(7, "buffer.extend(rows)", "collect")


@pytest.mark.parametrize(
    ("samples", "cpus", "line"),
    [
        # It computes now and then.
        ({WAITS: 80, WORKS: 15, ADDS: 5}, 0.2, WORKS),
        # It wakes up, and waits again.
        ({WAITS: 98, WORKS: 2}, 0.01, WAITS),
        # It polls: there is no other line.
        ({WAITS: 100}, 0.9, WAITS),
        ({ADDS: 3, WORKS: 90}, 0.9, WORKS),
    ],
)
def test_the_line_that_shows_what_a_thread_does(
    samples: dict[Frame, int], cpus: float, line: Frame
) -> None:
    assert busiest(samples, cpus) == line
