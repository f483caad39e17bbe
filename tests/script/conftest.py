"""Sources that are written to files, read, and judged."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor import engine
from ddoctor.evidence.script import Script
from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding
from ddoctor.script.reader import read

Read = Callable[..., Script]
Review = Callable[..., Mapping[str, Finding]]


def written(folder: Path, source: str, modules: Mapping[str, str]) -> Path:
    """The script, with other files by their paths."""
    for name, text in {"train.py": source, **modules}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder / "train.py"


@pytest.fixture
def script(tmp_path: Path) -> Read:
    """Read a source, with modules by their paths."""

    def run(source: str, modules: Mapping[str, str] | None = None) -> Script:
        return read(written(tmp_path, source, modules or {}), ())

    return run


@pytest.fixture
def review(script: Read) -> Review:
    """The findings about a source by cause; lines to paste are Python, and no check crashes."""

    def run(source: str, modules: Mapping[str, str] | None = None) -> Mapping[str, Finding]:
        report = engine.examine(Evidence([script(source, modules)]), "doctor")
        assert report.crashed == ()
        for finding in report.findings:
            assert "train.py:" in finding.because or modules, finding
            for fix in finding.fixes:
                if fix.language == "python":
                    ast.parse(fix.paste.replace("…", "..."))
        return {finding.cause: finding for finding in report.findings}

    return run
