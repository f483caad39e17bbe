from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from ddoctor.evidence.loading import Loading
from ddoctor.evidence.steps import Phase, Steps
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.healthy.loading import SECTIONS
from tests.training_steps import USUAL, steps

CAUSE = "lengths-mixed-in-batches"
MIXED = (0.6, 0.55, 0.65, 0.6)


def loading(padded: Sequence[float], padding: Sequence[float] | None = None) -> Loading:
    (section,) = (one for one in SECTIONS if isinstance(one, Loading))
    shares = {"padded": tuple(padded), "padding": tuple(padding or [0.0] * len(padded))}
    return replace(section, loaders=tuple(replace(one, **shares) for one in section.loaders))


def passes(exponent: float = 1.0, *, spread: float = 0.5) -> Steps:
    """Steps whose inputs differ by this share, and whose passes take so much longer for it."""
    found = steps(USUAL, USUAL)
    times = [1 + spread * (step % 5) / 4 for step in range(found.count)]

    def longer(phase: Phase) -> Phase:
        if phase.name not in ("forward", "backward"):
            return phase
        pairs = zip(phase.seconds, times, strict=True)
        return replace(phase, seconds=tuple(one * time**exponent for one, time in pairs))

    return replace(
        found,
        ranks=tuple(
            replace(
                rank,
                elements=tuple(round(10_000 * one) for one in times),
                phases=tuple(map(longer, rank.phases)),
            )
            for rank in found.ranks
        ),
    )


def test_most_of_a_batch_is_padding(findings: Findings) -> None:
    (finding,) = findings(CAUSE, loading(MIXED), passes())
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "60% of the tokens in 4 batches" in finding.because
    assert "batch_sampler=LikeLengths" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("padded", "section"),
    [
        # Less of it; and batches of one width, of which it is not known what they cost.
        ((0.35, 0.3, 0.4, 0.35), passes()),
        (MIXED, passes(spread=0.02)),
    ],
)
def test_a_note(findings: Findings, padded: Sequence[float], section: Steps) -> None:
    (finding,) = findings(CAUSE, loading(padded), section)
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    ("loaders", "section"),
    [
        (loading(()), passes()),
        (loading((0.1, 0.15, 0.1, 0.1)), passes()),
        (loading(MIXED[:3]), passes()),
        # All of it is beyond the longest; and wide batches take no longer than narrow ones.
        (loading(MIXED, MIXED), passes()),
        (loading(MIXED), passes(0.0)),
    ],
)
def test_quiet(findings: Findings, loaders: Loading, section: Steps) -> None:
    assert findings(CAUSE, loaders, section) == ()
