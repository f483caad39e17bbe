from __future__ import annotations

import msgspec

from ddoctor.evidence.plan import Plan
from ddoctor.evidence.section import Evidence
from ddoctor.report import plan as plans
from tests.healthy.plan import SECTIONS
from tests.plans import planned


def test_a_row_for_each_strategy() -> None:
    table = plans.table(planned(80))
    assert [row[:2] for row in table.rows] == [
        ("one GPU", "1"),
        ("DDP", "2"),
        ("FSDP grad-op", "2"),
        ("FSDP", "2"),
    ]
    assert table.head[2:5] == ("param.", "grad.", "optim.")
    assert table.rows[0][2:5] == ("8.2", "8.2", "32.8")
    assert table.rows[3][-1] == "fits ← this"
    assert [row[-1] for row in table.rows[:2]] == ["tight", "tight"]


def test_parts_that_no_row_has_are_left_out() -> None:
    assert "temp." not in plans.table(planned(80)).head


def test_where_there_is_no_room_several_parts_are_taken_together() -> None:
    narrow, wide = plans.table(planned(80), narrow=True), plans.table(planned(80))
    assert narrow.head[2:5] == ("model", "step", "CUDA")
    assert narrow.rows[0][2] == "49.2"
    assert [row[-3:] for row in narrow.rows] == [row[-3:] for row in wide.rows]


def test_the_head_of_the_report() -> None:
    told = dict(plans.seen(Evidence(SECTIONS)))
    assert told["take"] == "DDP on 8 GPUs: one GPU holds the whole model"
    assert told["batch"] == "64 samples: 8 on each of 8 GPUs"
    assert told["steps"] == "1,000 in an epoch, 3,000 in all, 0:15:00"
    assert told["checkpoint"].startswith("5.0 GB with weights as they are trained (fp32), 2.5 GB")


def test_what_nobody_knows_is_said() -> None:
    (section,) = SECTIONS
    assert isinstance(section, Plan)
    blank = msgspec.structs.replace(section, activations_known=False, schedule=None, chosen=None)
    told = dict(plans.seen(Evidence([blank])))
    assert "--activations" in told["forecast"]
    assert "take" not in told
    assert "steps" not in told
