from __future__ import annotations

import pytest

from ddoctor.evidence.training import NotLoaded, RankFlags, RankUse
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.training_run import user

CAUSE = "checkpoint-names-differ"
LINE = user(12, "model.load_state_dict(state, strict=False)", "main")


def use(*loaded: NotLoaded | None) -> RankUse:
    return RankUse(
        hosts=(),
        flags=tuple(RankFlags(rank=rank, not_loaded=one) for rank, one in enumerate(loaded)),
    )


def lost(has: str = "module.body.weight", lacks: str = "body.weight") -> NotLoaded:
    return NotLoaded(at=LINE, entries=14, has=has, lacks=lacks)


@pytest.mark.parametrize(
    ("one", "paste"),
    [
        (lost(), 'consume_prefix_in_state_dict_if_present(state, "module.")'),
        (lost("_orig_mod.module.a", "a"), '(state, "_orig_mod.module.")'),
        (lost("body.weight", "module.body.weight"), "model.module.load_state_dict(state)"),
        (lost("encoder.weight", "head.bias"), "model.load_state_dict(state)  # strict"),
    ],
)
def test_none_of_the_names(findings: Findings, one: NotLoaded, paste: str) -> None:
    (finding,) = findings(CAUSE, use(one, one))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert "all ranks loaded a state of 14 tensors" in finding.because
    assert "`model.load_state_dict(state, strict=False)`" in finding.because
    assert f"the state has {one.has}, the model {one.lacks}" in finding.because
    assert paste in finding.fixes[0].paste


def test_on_one_rank(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(lost(), None))
    assert finding.where.ranks == (0,)


def test_quiet(findings: Findings) -> None:
    assert findings(CAUSE, use(None, None)) == ()
