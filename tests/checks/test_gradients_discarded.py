from __future__ import annotations

import pytest

from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_steps import USUAL, steps

CAUSE = "gradients-discarded"
STEPS = steps(USUAL, USUAL)


def wrapping(*shares: float) -> Wrapping:
    """A generator on each rank, with this share of the backward passes for nothing."""
    return Wrapping(
        wrappers=tuple(
            Wrapper(
                rank=rank,
                kind="ddp",
                name="Generator",
                parameters=1,
                parameter_bytes=4,
                trainable_bytes=4,
                discarded=share,
            )
            for rank, share in enumerate(shares)
        )
    )


@pytest.mark.parametrize(("share", "severity"), [(0.5, Severity.WARNING), (0.25, Severity.NOTE)])
def test_what_comes_after_the_last_gradient_taken(
    findings: Findings, share: float, severity: Severity
) -> None:
    (finding,) = findings(CAUSE, STEPS, wrapping(share, share))
    assert finding.severity is severity
    assert "goes through Generator" in finding.because
    assert "made.detach()" in finding.fixes[0].paste
    assert finding.cost is not None
    # The backward pass is 60 ms of steps of 105.
    assert finding.cost.value == pytest.approx(share * 0.57, abs=0.01)


def test_two_models_of_one_class(findings: Findings) -> None:
    wrappers = (*wrapping(0.5, 0.5).wrappers, *wrapping(0.0, 0.0).wrappers)
    assert len(findings(CAUSE, STEPS, Wrapping(wrappers=wrappers))) == 1


@pytest.mark.parametrize("shares", [(0.0, 0.0), (0.5, 0.0), (0.1, 0.1)])
def test_quiet(findings: Findings, shares: tuple[float, ...]) -> None:
    """Nowhere, on one rank alone, or for a short time."""
    assert findings(CAUSE, STEPS, wrapping(*shares)) == ()
