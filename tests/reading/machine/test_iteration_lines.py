"""Lines with the time of an iteration and that of its data."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest

from ddoctor.evidence.printed_figures import PrintedTimes
from ddoctor.models import Report
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read

Form = Callable[[int, float, float, float, float], str]
FORMS: dict[str, Form] = {
    "mmengine": lambda n, whole, data, mean, its_data: (
        f"2026/11/27 10:00:{n % 60:02d} - mmengine - INFO - Epoch(train)  [1][{10 * n}/900]  "
        f"lr: 1.0e-03  eta: 1:02:00  time: {whole:.4f}  data_time: {data:.4f}  memory: 4211  x: 1"
    ),
    "detectron2": lambda n, whole, data, mean, its_data: (
        f"[11/27 10:00:{n % 60:02d} d2.utils.events]:  eta: 2:10:11  iter: {20 * n}  loss: 1.2"
        f"  time: {whole:.4f}  last_time: {whole:.4f}  data_time: {data:.4f}  lr: 0.0002"
    ),
    "torchvision": lambda n, whole, data, mean, its_data: (
        f"Epoch: [0]  [{10 * n}/2502]  eta: 0:20:00  lr: 0.1  img/s: 210.1  loss: 6.9 (6.9)  "
        f"time: {whole:.4f}  data: {data:.4f}  max mem: 5211"
    ),
    "CenterNet": lambda n, whole, data, mean, its_data: (
        f"ctdet/coco |###     | train: [5][{n}/14785]|Tot: 0:15:23 |ETA: 2:50:59 |loss 1.7357 "
        f"|Data {data:.3f}s({data:.3f}s) |Net {whole - data:.3f}s"
    ),
    "imagenet": lambda n, whole, data, mean, its_data: (
        f"Epoch: [0][{n:4d}/5005]\tTime {whole:.3f} ({mean:6.3f})\t"
        f"Data {data:.3f} ({its_data:6.3f})"
        "\tLoss 6.9e+00 (6.9e+00)"
    ),
    "timm": lambda n, whole, data, mean, its_data: (
        f"Train: 0 [{n:4d}/1251 (  1%)]  Loss: 6.93 (6.93)  Time: {whole:.3f}s,  820.11/s  "
        f"({mean:.3f}s,  812.30/s)  LR: 1.000e-05  Data: {data:.3f} ({its_data:.3f})"
    ),
}


OF_MEANS = ("imagenet", "timm")


def log(name: str, data: float, *, lines: int = 12, first: float | None = None) -> str:
    """Lines of iterations of 0.5 s; ``first``: what the data of the first one take."""
    seconds = [data] * lines
    if first is not None:
        seconds[0] = first
    return written(name, seconds)


def written(name: str, seconds: list[float], begin: int = 0) -> str:
    """Lines of iterations of at least 0.5 s, whose data take these seconds."""
    wholes = [max(0.5, one + 0.1) for one in seconds]
    rows = [
        FORMS[name](n, whole, data, fmean(wholes[: n + 1]), fmean(seconds[: n + 1]))
        for n, (whole, data) in enumerate(zip(wholes, seconds, strict=True))
    ]
    return "".join(f"{row}\n" for row in rows[begin:])


@pytest.mark.parametrize("name", FORMS)
def test_each_form(read: Read, name: str) -> None:
    (section,) = read(log(name, 0.4)).all(PrintedTimes)
    (table,) = section.tables
    times = table.count if table.in_all else 1
    assert table.whole == pytest.approx(0.5 * times)
    assert table.loader == pytest.approx(0.4 * times)
    assert table.in_all is (name in OF_MEANS)
    assert table.count >= 11


def causes(report: Report) -> list[str]:
    assert report.crashed == ()
    return [one.cause for one in report.findings]


@pytest.mark.parametrize("name", FORMS)
def test_data_that_take_most_of_it_are_told(diagnose: Diagnose, name: str) -> None:
    assert causes(diagnose(log(name, 0.4))) == ["dataloader-bottleneck"]


@pytest.mark.parametrize("name", OF_MEANS)
def test_workers_that_are_late_together(diagnose: Diagnose, name: str) -> None:
    late = [30.0 if n % 8 == 0 else 0.01 for n in range(40)]
    assert causes(diagnose(written(name, late))) == ["dataloader-bottleneck"]
    # Of an epoch of which only some lines are kept, too.
    assert causes(diagnose(written(name, late, begin=30))) == ["dataloader-bottleneck"]
    # The second epoch begins with the start of its workers, as the first one did.
    sound = written(name, [6.0, *[0.01] * 39])
    assert causes(diagnose(sound + sound)) == []


@pytest.mark.parametrize("name", FORMS)
def test_quiet_where_they_take_little(diagnose: Diagnose, name: str) -> None:
    assert causes(diagnose(log(name, 0.01))) == []


@pytest.mark.parametrize("name", FORMS)
def test_quiet_where_only_the_workers_start(diagnose: Diagnose, name: str) -> None:
    assert causes(diagnose(log(name, 0.01, first=9.0))) == []


@pytest.mark.parametrize("name", FORMS)
def test_quiet_on_a_single_line(diagnose: Diagnose, name: str) -> None:
    assert causes(diagnose(log(name, 0.4, lines=1))) == []


def test_quiet_on_an_evaluation(diagnose: Diagnose) -> None:
    assert causes(diagnose(log("mmengine", 0.4).replace("(train)", "(val)"))) == []
