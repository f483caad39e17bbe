from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from ddoctor.evidence.live import LiveLook, LiveRank
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import (
    COLLATING,
    LINE,
    STARVED,
    TRAINING,
    WAITING,
    in_reduction,
    loading_itself,
    look,
    moving,
    standing,
)

CAUSE = "dataloader-bottleneck"


def test_all_live_ranks_wait_for_their_workers(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(*(moving(one, STARVED, workers=2) for one in range(4))))
    assert finding.where.ranks == (0, 1, 2, 3)
    assert "60%" in finding.because
    assert "num_workers=4" in finding.fixes[0].paste


def test_one_live_rank_loads_its_batches_itself(findings: Findings) -> None:
    loading = {"loader": 70, "forward": 15, "backward-or-wait": 10, "optimizer": 5}
    (finding,) = findings(CAUSE, look(moving(0, WAITING, asleep=0.7), moving(1, loading)))
    assert finding.where.ranks == (1,)
    assert "loads batches itself" in finding.because
    assert "rank 0 waits for it" in finding.because


def test_one_batch_that_takes_all_of_the_look_is_a_note(findings: Findings) -> None:
    once = [moving(one, {"loader-wait": 99, "rest": 1}, workers=2, visits=1) for one in (0, 1)]
    (finding,) = findings(CAUSE, look(*once))
    assert finding.severity is Severity.NOTE
    assert "attach again" in finding.because
    # Batches come one after the other; it comes back to the loader.
    passing = (msgspec.structs.replace(one, wakes=300) for one in once)
    (finding,) = findings(CAUSE, look(*passing))
    assert finding.severity is Severity.WARNING


ALTERNATELY = {"loader-wait": 35, "backward-or-wait": 50, "forward": 10, "optimizer": 5}
LESS = {"loader-wait": 8, "backward-or-wait": 79, "forward": 10, "optimizer": 3}
LITTLE = {"loader-wait": 12, "backward-or-wait": 75, "forward": 10, "optimizer": 3}


def test_all_live_ranks_wait_for_a_part_of_the_time(findings: Findings) -> None:
    part = {"loader-wait": 27, "forward": 40, "backward-or-wait": 33}
    (finding,) = findings(CAUSE, look(*(moving(one, part, workers=1) for one in (0, 1))))
    assert finding.severity is Severity.WARNING
    assert "alternately" not in finding.because


@pytest.mark.parametrize(("met", "ranks"), [(ALTERNATELY, 2), (LITTLE, 6)])
def test_live_ranks_that_wait_alternately(
    findings: Findings, met: Mapping[str, int], ranks: int
) -> None:
    live = look(*(moving(one, met, workers=1, asleep=0.9) for one in range(ranks)))
    (finding,) = findings(CAUSE, live)
    assert finding.where.ranks == tuple(range(ranks))
    assert "alternately, each is the last" in finding.because


def test_a_small_part_of_the_time_is_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(*(moving(one, LITTLE, workers=1) for one in (0, 1))))
    assert finding.severity is Severity.NOTE


def test_the_lines_of_a_live_rank_that_loads_itself(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(*(loading_itself(one, 30, 10) for one in (0, 1))))
    assert (
        "itself at train.py:40 in train 40% of the time, mostly at train.py:12" in finding.because
    )
    assert "# train.py:40 in train" in finding.fixes[0].paste
    assert findings(CAUSE, look(*(loading_itself(one, 10, 30) for one in (0, 1)))) == ()


def test_a_sampler_that_takes_the_time_at_the_loader(findings: Findings) -> None:
    def drawing(one: LiveRank) -> LiveRank:
        rows = (
            msgspec.structs.replace(row, makes="_next_index") if row.name == "loader" else row
            for row in one.activities
        )
        return msgspec.structs.replace(one, activities=tuple(rows))

    ranks = [drawing(loading_itself(one, 30, 10)) for one in (0, 1)]
    (finding,) = findings(CAUSE, look(*ranks))
    assert "draws the indices of batches, which no worker does" in finding.because
    assert "torch.multinomial" in finding.fixes[0].paste


def on_gpu(one: LiveRank) -> LiveRank:
    return msgspec.structs.replace(one, on_gpu=True)


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        # A host that drives a GPU has time to wait; less than a tenth; restarts take the time.
        look(*(on_gpu(moving(one, ALTERNATELY, workers=1)) for one in (0, 1))),
        look(*(moving(one, LESS, workers=1, asleep=0.9) for one in (0, 1))),
        look(
            *(
                msgspec.structs.replace(moving(one, STARVED, workers=1, visits=3), restarts=3)
                for one in (0, 1)
            )
        ),
        look(moving(0, TRAINING, workers=4)),
        look(moving(0, WAITING, asleep=0.7), moving(1, {"forward": 80, "loader": 20})),
        # Putting the batches together is what takes the time.
        look(*(moving(one, STARVED, workers=2, makes=COLLATING) for one in (0, 1))),
        # They stand still; too few samples.
        look(in_reduction(0), standing(1, "loader-wait", LINE)),
        look(moving(0, {"loader-wait": 9})),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
