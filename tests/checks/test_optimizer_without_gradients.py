from __future__ import annotations

import pytest

from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_run import ending, run

CAUSE = "optimizer-without-gradients"
ENDED = run(ending(0, "stopped"), ending(1, "stopped"), optimizers=("AdamW",))


def use(*ranks: bool) -> RankUse:
    flags = (RankFlags(rank=rank, without_gradients=one) for rank, one in enumerate(ranks))
    return RankUse(hosts=(), flags=tuple(flags))


def test_no_gradient_on_any_rank(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(True, True), ENDED)
    assert finding.severity is Severity.ERROR
    assert "no parameter of AdamW had a gradient" in finding.because


def test_only_zeros_on_all_ranks(findings: Findings) -> None:
    flags = tuple(RankFlags(rank=rank, zero_gradients=True) for rank in range(2))
    (finding,) = findings(CAUSE, RankUse(hosts=(), flags=flags), ENDED)
    assert "all were 0 in each of the first steps of AdamW" in finding.because
    assert finding.fixes[0].paste.index("zero_grad") < finding.fixes[0].paste.index("backward")


@pytest.mark.parametrize("ranks", [(), (False, False), (True, False)])
def test_quiet(findings: Findings, ranks: tuple[bool, ...]) -> None:
    assert findings(CAUSE, use(*ranks), ENDED) == ()
