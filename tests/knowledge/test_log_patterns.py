"""The lines of logs that mean something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddoctor import check_catalog, knowledge
from ddoctor.evidence.log import LogPattern, LogPatterns, Messages
from ddoctor.reading.log_lines import DIGITS

ROOT = Path(__file__).parents[2]
ROWS = knowledge.load(LogPatterns).patterns


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row(row: LogPattern) -> None:
    assert re.compile(row.text).search("") is None
    assert row.holds
    for text in row.holds:
        assert text == text.lower()
        # A form of a line has no digits: too short a rest would be in every line.
        assert len(text.encode().translate(None, DIGITS)) >= (2 if row.latest else 4)


def test_each_name_is_there_once_and_is_asked_for() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    checks = {check.name.replace("-", "_") for check in check_catalog.discover()}
    texts = [(ROOT / f"checks/{name}.py").read_text() for name in checks]
    # What a rank printed as it ended belongs to its ending.
    texts.append((ROOT / "ddoctor/reading/logs.py").read_text())
    texts.append((ROOT / "ddoctor/analysis/log_events.py").read_text())
    texts.append((ROOT / "ddoctor/analysis/collective_mismatch.py").read_text())
    # What NCCL chose is shown.
    texts.append((ROOT / "ddoctor/report/nccl.py").read_text())
    texts += [f'"{row.unless}"' for row in knowledge.load(Messages).messages]
    assert [name for name in names if not any(f'"{name}"' in text for text in texts)] == []
