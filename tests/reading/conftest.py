"""What is told of a log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor import engine
from ddoctor.models import JUDGING, Report
from ddoctor.reading import reader

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Diagnose = Callable[[str], Report]
LINES = tomllib.loads(Path(__file__).with_name("lines.toml").read_text(encoding="utf-8"))


@pytest.fixture
def diagnose(tmp_path: Path) -> Diagnose:
    """Diagnose a text as a file; a check that crashes fails the test."""

    def run(text: str) -> Report:
        path = tmp_path / "train.log"
        path.write_text(dedent(text).strip("\n") + "\n")
        evidence, refused = reader.read([path])
        assert refused == ()
        report = engine.examine(evidence, "diagnose")
        assert [one for one in report.crashed if one.check != JUDGING] == []
        return report

    return run
