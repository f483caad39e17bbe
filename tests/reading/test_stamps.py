"""The time stamps of lines, in the forms of loggers."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from ddoctor.reading.stamps import stamp_of

MOMENT = datetime(2026, 11, 25, 10, 3, 12, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("line", "ahead"),
    [
        ("2026-11-25 10:03:12,000 - INFO - step 1", None),
        ("[2026-11-25 10:03:12,000] [INFO] [engine.py:90] step 1", None),
        ("2026-11-25T10:03:12Z [rank1]: step 1", 0),
        ("2026-11-25T11:03:12.000+01:00 step 1", 1),
        ("2026-11-25 05:03:12 -0500 step 1", -5),
        ("[rank3]:[E1125 10:03:12.000000 ProcessGroupNCCL.cpp:616] late", None),
        ("[default0]:11/25/2026 10:03:12 - INFO - __main__ - step 1", None),
        ("(RayTrainWorker pid=4711, ip=10.0.0.3) 2026-11-25 10:03:12 step 1", None),
        ("INFO 11-25 10:03:12 [core.py:58] step 1", None),
        ("Nov 25 10:03:12 node-3 kernel: eth0 is down", None),
        ("[Wed Nov 25 10:03:12 2026] eth0 is down", None),
        ("  time      : 2026-11-25_10:03:12", None),
    ],
)
def test_the_forms_of_loggers(line: str, ahead: int | None) -> None:
    stamp = stamp_of(line.encode())
    assert stamp is not None
    assert stamp.seconds(2026) == MOMENT
    told = None if stamp.ahead is None else stamp.ahead.total_seconds() / 3600
    assert told == ahead


@pytest.mark.parametrize(
    "line",
    [
        "step 10: loss 0.3",
        "Epoch 1:  12%|#  | 3/24 [00:31<00:29, 16.5it/s]",
        "the reservation ends at 2027-01-01 00:00:00",
        "2026-13-45 10:03:12 step 1",
        "Foo 25 10:03:12 step 1",
        "10:03:12 step 1",
        "v2026-11-25 10:03:12",
        "",
    ],
)
def test_what_is_no_stamp(line: str) -> None:
    assert stamp_of(line.encode()) is None


def test_a_day_that_the_year_does_not_have() -> None:
    stamp = stamp_of(b"Feb 29 10:03:12 node-3 kernel: eth0 is down")
    assert stamp is not None
    assert stamp.seconds(2026) is None
    assert stamp.seconds(2028) is not None


@pytest.mark.parametrize("year", ["0226", "1969"])
def test_a_year_before_any_log_is_no_time(year: str) -> None:
    stamp = stamp_of(f"{year}-11-20 10:03:12 step 1".encode())
    assert stamp is None or stamp.seconds(2026) is None
