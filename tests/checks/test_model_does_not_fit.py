from __future__ import annotations

import pytest

from ddoctor.evidence.plan import Plan
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.plans import planned

CAUSE = "model-does-not-fit"


def test_more_than_the_gpu_has(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(24))
    assert finding.severity is Severity.ERROR
    # 26.4 GB of parameters, gradients and states on each of two.
    assert finding.confidence is Confidence.CERTAIN
    assert "FSDP, all sharded on 2 GPUs needs least" in finding.because
    assert "T9 has 22.4 GiB" in finding.because
    assert finding.cost is not None
    assert finding.cost.value > 0


def test_how_many_gpus_it_takes(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(24))
    *_, sharded = finding.fixes
    number = int(sharded.summary.split(" GPUs")[0].rpartition(" ")[2])
    assert number > 2
    assert findings(CAUSE, planned(24, (number,))) == ()
    enough, fewer = planned(24, (number,)), planned(24, (number // 2,))
    assert [row.fit for row in enough.rows if row.strategy == "fsdp"] == ["fits"]
    assert all(row.fit != "fits" for row in fewer.rows)


def test_activations_alone_are_made_smaller(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(60, (1,), activations=30))
    assert "gradient checkpointing" in finding.fixes[0].summary
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    "section",
    [
        planned(80),
        planned(80, (1,)),
        planned(24, (8, 16)),
        planned(24, (1,), trainable=82e6, activations=1),
    ],
    ids=["shared by two", "tight", "shared by many", "adapters"],
)
def test_quiet(findings: Findings, section: Plan) -> None:
    assert findings(CAUSE, section) == ()
