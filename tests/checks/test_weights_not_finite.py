from __future__ import annotations

import pytest

from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_run import ending, run

CAUSE = "weights-not-finite"
ENDED = run(ending(0, "stopped"), ending(1, "stopped"))


def wrapping(*ranks: bool) -> Wrapping:
    wrappers = (
        Wrapper(
            rank=rank,
            kind="ddp",
            name="Net",
            parameters=100,
            parameter_bytes=400,
            trainable_bytes=400,
            spoiled=one,
        )
        for rank, one in enumerate(ranks)
    )
    return Wrapping(wrappers=tuple(wrappers))


def use(autocast: str = "") -> RankUse:
    flags = (RankFlags(rank=rank, autocast=autocast) for rank in range(2))
    return RankUse(hosts=(), flags=tuple(flags))


def test_on_all_ranks(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(True, True), ENDED, use())
    assert finding.severity is Severity.ERROR
    assert "trained weights of Net are NaN on all ranks" in finding.because
    assert finding.where.ranks == ()
    assert "find the operation" in finding.fixes[0].summary


def test_on_one_rank(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(False, True), ENDED, use())
    assert finding.where.ranks == (1,)


def test_in_float16_bfloat16_comes_first(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(True, True), ENDED, use("float16"))
    assert "bfloat16" in finding.fixes[0].summary


@pytest.mark.parametrize("ranks", [(), (False, False)])
@pytest.mark.parametrize("autocast", ["", "float16"])
def test_quiet(findings: Findings, ranks: tuple[bool, ...], autocast: str) -> None:
    assert findings(CAUSE, wrapping(*ranks), ENDED, use(autocast)) == ()
