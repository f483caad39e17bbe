from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.loading import Loading
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall, SourceLine
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.healthy.loading import SECTIONS
from tests.training_steps import USUAL, steps

CAUSE = "padding-beyond-longest"
STEPS = steps(USUAL, USUAL)


def loading(*padding: float) -> Loading:
    (section,) = (one for one in SECTIONS if isinstance(one, Loading))
    return replace(section, loaders=tuple(replace(one, padding=padding) for one in section.loaders))


@pytest.mark.parametrize(
    ("shares", "severity"),
    [((0.6, 0.5, 0.7, 0.6), Severity.WARNING), ((0.15,) * 8, Severity.NOTE)],
)
def test_columns_that_no_sample_uses(
    findings: Findings, shares: tuple[float, ...], severity: Severity
) -> None:
    (finding,) = findings(CAUSE, loading(*shares), STEPS)
    assert finding.severity is severity
    assert f"in each of {len(shares)} batches" in finding.because
    assert "padding=True" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "shares",
    [
        (),
        (0.0, 0.0, 0.0, 0.0),
        # A batch is as long as its longest sample; so few may be so by chance.
        (0.6, 0.5, 0.0, 0.6),
        (0.6, 0.6, 0.6),
    ],
)
def test_quiet(findings: Findings, shares: tuple[float, ...]) -> None:
    assert findings(CAUSE, loading(*shares), STEPS) == ()


def test_quiet_where_the_model_takes_little_of_the_step(findings: Findings) -> None:
    work = {"forward": 0.004, "backward": 0.008, "rest": 0.1}
    assert findings(CAUSE, loading(0.6, 0.6, 0.6, 0.6), steps(work, work)) == ()


PADS = SourceLine(file="train.py", line=9, text="ids += [0] * (LENGTH - len(ids))")
PADDING = Script(files=("train.py",), fixed_padding=(PADS,))
COMPILES = SourceCall(
    name="torch.compile",
    at=SourceLine(file="train.py", line=30, text="model = torch.compile(model)"),
)


def test_from_the_source(findings: Findings) -> None:
    (finding,) = findings(CAUSE, PADDING)
    assert finding.severity is Severity.NOTE
    assert "train.py:9 (`ids += [0] * (LENGTH - len(ids))`) pads to a fixed" in finding.because


def test_quiet_from_the_source(findings: Findings) -> None:
    assert findings(CAUSE, Script(files=("train.py",))) == ()
    # Few shapes are what a compiled model wants; batches that were looked at are better evidence.
    assert findings(CAUSE, replace(PADDING, calls=(COMPILES,))) == ()
    assert findings(CAUSE, PADDING, loading(0.0, 0.0, 0.02, 0.0), STEPS) == ()
