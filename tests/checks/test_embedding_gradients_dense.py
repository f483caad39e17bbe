from __future__ import annotations

import pytest

from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Severity
from tests.analysis.test_live_loop import STEP, rank
from tests.conftest import Findings
from tests.live_look import look
from tests.training_steps import Work, steps

CAUSE = "embedding-gradients-dense"
SPARSE: Work = {"forward": 0.01, "backward": 0.02, "optimizer": 0.05, "rest": 0.001}
PASSES: Work = {"forward": 0.04, "backward": 0.08, "optimizer": 0.008}


def wrapping(tables: int = 95, rows: float = 0.01, ranks: int = 2, last: float = 0.01) -> Wrapping:
    """A model of 100 MB, so many of them in tables, of which this share of rows is used."""
    return Wrapping(
        wrappers=tuple(
            Wrapper(
                rank=rank,
                kind="ddp",
                name="Towers",
                parameters=1,
                parameter_bytes=100_000_000,
                trainable_bytes=100_000_000,
                table_bytes=tables * 1_000_000,
                table_rows=rows if rank else last,
            )
            for rank in range(ranks)
        )
    )


@pytest.mark.parametrize(
    ("transfer", "work", "severity"),
    [
        (0.03, SPARSE, Severity.WARNING),
        (0.03, {**SPARSE, "forward": 0.05, "backward": 0.1}, Severity.NOTE),
    ],
)
def test_tables_of_which_a_batch_uses_few_rows(
    findings: Findings, transfer: float, work: Work, severity: Severity
) -> None:
    (finding,) = findings(CAUSE, steps(work, work, transfer=transfer), wrapping())
    assert finding.severity is severity
    assert "90.6 of the 95.4 MiB" in finding.because
    assert "of 1.0% of their rows" in finding.because
    assert "sparse=True" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("work", "models"),
    [
        # No tables, small ones, and some whose rows most batches use; the passes take the time.
        (SPARSE, wrapping(0)),
        (SPARSE, wrapping(10)),
        (SPARSE, wrapping(rows=0.9)),
        (SPARSE, wrapping(last=0.9)),
        (PASSES, wrapping()),
    ],
)
def test_quiet(findings: Findings, work: Work, models: Wrapping) -> None:
    assert findings(CAUSE, steps(work, work, transfer=0.01), models) == ()


TABLE = SourceLine(file="train.py", line=8, text="self.items = nn.Embedding(10**6, 64)")


def live(updates: int) -> LiveLook:
    """Two ranks with so many samples in the optimizer."""
    *passes, (name, _, calls) = STEP
    return look(*(rank(one, step=(*passes, (name, updates, calls))) for one in (0, 1)))


def test_in_a_live_run(findings: Findings) -> None:
    (finding,) = findings(CAUSE, live(200), Script(files=("train.py",), large_tables=(TABLE,)))
    assert finding.severity is Severity.WARNING
    assert "train.py:8 (`self.items = nn.Embedding(10**6, 64)`)" in finding.because
    assert "sparse=True" in finding.fixes[0].paste


@pytest.mark.parametrize(("sampled", "tables"), [(live(200), ()), (live(10), (TABLE,))])
def test_quiet_in_a_live_run(
    findings: Findings, sampled: LiveLook, tables: tuple[SourceLine, ...]
) -> None:
    assert findings(CAUSE, sampled, Script(files=("train.py",), large_tables=tables)) == ()
