from __future__ import annotations

from io import StringIO

import msgspec
import pytest
from rich.console import Console

from ddoctor import engine
from ddoctor.evidence.plan import Plan, Source, StepTime
from ddoctor.evidence.section import Evidence
from ddoctor.forecast.closed_form import Model
from ddoctor.forecast.devices import find
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.planning import plan
from ddoctor.report import plan as plans
from ddoctor.report import terminal
from tests.forecast.test_roofline import work
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


def test_what_lies_in_the_memory_of_the_host() -> None:
    table = plans.table(planned(24))
    place = table.head.index("host")
    assert table.title == "GiB on each GPU; host: additional host memory of each rank"
    assert [row[place] for row in table.rows] == ["0.0", "49.2", "0.0", "0.0", "0.0", "24.6"]
    assert "host" not in plans.table(planned(80)).head
    assert "host" not in plans.table(planned(24), narrow=True).head
    told = dict(plans.seen(Evidence([planned(24)])))
    assert "each rank needs 49.2 GiB of its host's memory" in told["recommended"]


def test_the_head_of_the_report() -> None:
    told = dict(plans.seen(Evidence(SECTIONS)))
    assert told["recommended"] == "DDP on 8 GPUs: one GPU holds the whole model"
    assert told["batch"] == "64 samples: 8 on each of 8 GPUs"
    assert told["steps"] == "1,000 per epoch, 3,000 in total, about 0:15:00 by roofline"
    assert told["checkpoint"].startswith("5.0 GB with weights as trained (fp32), 2.5 GB")


def test_which_peak_is_forecast() -> None:
    """5 + 5 + 10 + 10 + 2 + 2 + 5 GB of tensors, 2 of CUDA's own, and 40 % of doubt."""
    (section,) = SECTIONS
    assert isinstance(section, Plan)
    told = dict(plans.seen(Evidence(SECTIONS)))
    assert told["peak"] == (
        "36.3 GiB allocated by tensors, 38.2 to 53.5 in nvidia-smi, which includes CUDA and NCCL"
    )
    assert "not included" not in told
    (row,) = section.rows
    parts = msgspec.structs.replace(row.parts, unused=3 * 2**30)
    row = msgspec.structs.replace(row, parts=parts)
    forecast = msgspec.structs.replace(section, rows=(row,), way="fake tensors", doubt=1.15)
    told = dict(plans.seen(Evidence([forecast])))
    assert "36.3 GiB allocated by tensors, 39.3 reserved by torch's allocator" in told["peak"]
    assert "41.2 to 47.4 in nvidia-smi" in told["peak"]
    assert "cuDNN" in told["not included"]


def test_a_step_by_roofline() -> None:
    (section,) = SECTIONS
    assert isinstance(section, Plan)
    table = plans.table(section)
    assert table.title == "GiB on each GPU; step times by roofline"
    assert table.head[-3:] == ("s/step", "samples/s", "")
    assert table.rows[0][-3:] == ("0.300", "213", "fits ← this")
    told = dict(plans.seen(Evidence(SECTIONS)))
    assert told["step"] == (
        "about 0.300 s by roofline, at 42% of the GPU's peak: 213 samples/s, efficiency 95%"
    )


def test_a_terminal_of_80_columns_has_room_for_all_of_it() -> None:
    model = Model(
        parameters=70e9,
        trainable=70e9,
        precision="bf16-mixed",
        optimizer="adamw",
        activations=30 * 2**30,
        work=work(10**16),
    )
    section = plan(model, find("h100-80"), (8, 64, 128), PlanRequest(micro_batch=1))
    evidence, written = Evidence([section]), StringIO()
    console = Console(file=written, width=80)
    terminal.render(engine.examine(evidence, "plan"), evidence, console)
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    (head,) = (line for line in lines if "samples/s" in line and "strategy" in line)
    assert head.split()[-3:] == ["free", "s/step", "samples/s"]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (None, "0:15:00"),
        ("as measured", "0:15:00 as measured"),
        ("by the measured step", "about 0:15:00 by the measured step"),
    ],
)
def test_its_time_says_where_it_is_from(source: Source | None, shown: str) -> None:
    (section,) = SECTIONS
    assert isinstance(section, Plan)
    assert section.schedule is not None
    schedule = msgspec.structs.replace(section.schedule, source=source)
    told = dict(plans.seen(Evidence([msgspec.structs.replace(section, schedule=schedule)])))
    assert told["steps"] == f"1,000 per epoch, 3,000 in total, {shown}"


def test_measured_steps_are_told_from_those_that_follow_from_them() -> None:
    (section,) = SECTIONS
    assert isinstance(section, Plan)
    own = StepTime(source="as measured", compute=0.2, exposed=None, loading=0.05)
    derived = StepTime(source="by the measured step", compute=0.2, exposed=0.05)
    rows = tuple(msgspec.structs.replace(section.rows[0], step=one) for one in (own, derived))
    found = msgspec.structs.replace(
        section, rows=rows, measured="0.25 s: DDP, 8 ranks", links="not known between hosts"
    )
    table = plans.table(found)
    assert table.title == "GiB on each GPU; step times as measured, ~: derived"
    assert [row[-3] for row in table.rows] == ["0.250", "~0.250"]
    told = dict(plans.seen(Evidence([found])))
    assert told["step"] == "0.250 s as measured: 256 samples/s, 0.0500 s of it waiting for data"
    assert told["measured"].startswith("0.25 s: DDP, 8 ranks")
    assert told["links"] == "not known between hosts"
    other = dict(plans.seen(Evidence([msgspec.structs.replace(found, chosen=1)])))
    assert other["step"] == "about 0.250 s by the measured step: 256 samples/s, efficiency 80%"


def test_a_step_that_nobody_knows_is_no_zero() -> None:
    (section,) = SECTIONS
    assert isinstance(section, Plan)
    (known,) = section.rows
    unknown = msgspec.structs.replace(known, gpus=16, step=None)
    table = plans.table(msgspec.structs.replace(section, rows=(known, unknown)))
    assert table.rows[1][-3:-1] == ("?", "?")
    without = msgspec.structs.replace(section, rows=(unknown,))
    assert plans.table(without).title == "GiB on each GPU"
    assert "s/step" not in plans.table(without).head
    assert "step" not in dict(plans.seen(Evidence([without])))


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.00312, "0.00312"), (1.4, "1.40"), (87.65, "87.7"), (4321, "4,321")]
)
def test_three_digits_mean_something(seconds: float, shown: str) -> None:
    (section,) = SECTIONS
    assert isinstance(section, Plan)
    step = StepTime(compute=seconds, exposed=0.0, share_of_peak=0.4)
    row = msgspec.structs.replace(section.rows[0], step=step)
    assert plans.table(msgspec.structs.replace(section, rows=(row,))).rows[0][-3] == shown


def test_what_nobody_knows_is_said() -> None:
    (section,) = SECTIONS
    assert isinstance(section, Plan)
    blank = msgspec.structs.replace(section, activations_known=False, schedule=None, chosen=None)
    told = dict(plans.seen(Evidence([blank])))
    assert "--activations" in told["not included"]
    assert "recommended" not in told
    assert "steps" not in told


def test_a_row_with_compile_and_one_without() -> None:
    section = planned(80)
    row = section.rows[1]
    other = msgspec.structs.replace(row, parts=msgspec.structs.replace(row.parts, activations=0))
    compiled = msgspec.structs.replace(section, chosen=1, without_compile=other)
    rows = plans.table(compiled).rows
    assert [one[0] for one in rows[:4]] == ["one GPU", "DDP", "without compile", "FSDP grad-op"]
    assert rows[1][-1].endswith(plans.TAKEN)
    assert rows[2][1] == rows[1][1]
    assert rows[2][2:] != rows[1][2:]
    told = dict(plans.seen(Evidence([compiled])))
    assert "each block compiled" in told["model"]
    exact = msgspec.structs.replace(compiled, way="fake tensors")
    assert "compile" not in dict(plans.seen(Evidence([exact])))["not included"]
