from __future__ import annotations

import pytest

from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.memory_sweep.sample import swept

CAUSE = "batch-size-too-small"


def test_much_is_free_and_more_samples_train_faster(findings: Findings) -> None:
    (finding,) = findings(CAUSE, swept(4))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    # 0.14 s for 2 × 4 samples, 0.39 s for 2 × 29.
    assert finding.because == (
        "micro-batches of 4, which leave 14 of 24 GiB free, train 57.14 samples/s; "
        "micro-batches of 29, which fit with 5% to spare, train 148.7"
    )
    (fix,) = finding.fixes
    assert fix.paste == "DataLoader(..., batch_size=29)  # now 4, on each rank"
    assert fix.expected_gain == "57.14 to 148.7 samples/s"
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(1 - 57.14 / 148.7, abs=1e-3)


def test_of_a_device_that_was_played_the_rates_are_the_cpus(findings: Findings) -> None:
    (finding,) = findings(CAUSE, swept(4, played=True))
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.POSSIBLE)
    assert "measured on this CPU" in finding.because


def test_the_smaller_of_two_devices_decides(findings: Findings) -> None:
    (finding,) = findings(CAUSE, swept(4, limits=(24.0, 16.0)))
    assert "14" in finding.fixes[0].paste
    assert "6 of 16 GiB" in finding.because


@pytest.mark.parametrize(
    "section",
    [
        swept(None),
        swept(28),
        swept(15),
        swept(4, step=0.001),
        swept(4, step=0.0, sample=0.01),
        swept(40),
        swept(1, fixed=23.6),
        swept(4, fixed=30.0),
    ],
    ids=[
        "the current size is unknown",
        "all is used",
        "no room for twice as many",
        "busy already",
        "no step has a cost of its own",
        "too many",
        "not one",
        "nothing fits",
    ],
)
def test_quiet(findings: Findings, section: MemoryHeadroom) -> None:
    assert findings(CAUSE, section) == ()
