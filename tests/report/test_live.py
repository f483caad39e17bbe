from __future__ import annotations

import msgspec

from ddoctor.evidence.section import Evidence
from ddoctor.report import live
from tests.live_look import in_reduction, look, moving, standing
from tests.training_run import user

LINE = user(30, "wait_for_file(path)", "load")


def test_each_of_a_few_ranks_has_its_row() -> None:
    first, second = live.rows(Evidence([look(moving(0), standing(1, "rest", LINE))]))
    assert (first.rank, second.rank) == ("rank 0", "rank 1")
    assert first.doing == "backward 35%, forward 30%, optimizer 10%"
    assert second.doing == "stuck at train.py:30 in load"
    assert (first.state, second.state) == ("90% on a CPU", "0% on a CPU")


def test_many_that_do_the_same_share_theirs() -> None:
    ranks = [in_reduction(rank) for rank in range(64)]
    ranks[37] = standing(37, "rest", LINE, state="disk-sleep")
    most, other = live.rows(Evidence([look(*ranks)]))
    assert most.rank == "ranks 0-36, 38-63"
    assert most.doing == "stuck in backward at train.py:40 in train"
    assert (other.rank, other.state) == ("rank 37", "disk-sleep")


def test_ranks_on_hosts_that_were_not_seen_are_told() -> None:
    section = look(moving(0), moving(1))
    whole = dict(live.seen(Evidence([section])))
    assert whole["sampled"] == "2 of 2 ranks, for 10 s"
    assert "not sampled" not in whole
    half = dict(live.seen(Evidence([msgspec.structs.replace(section, world=4)])))
    assert half["sampled"] == "2 of 4 ranks, for 10 s"
    assert half["not sampled"].startswith("2 ranks")


def test_nothing_where_nobody_looked() -> None:
    assert live.rows(Evidence([])) == ()
    assert list(live.seen(Evidence([]))) == []
