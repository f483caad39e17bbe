from __future__ import annotations

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall, SourceLine, Within
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_steps import Work, steps

CAUSE = "computes-in-float64"
WORK: Work = {"loader": 0.02, "forward": 0.03, "backward": 0.05}
LOADING: Work = {"loader": 0.1, "forward": 0.003, "backward": 0.006}
MODEL = Wrapping(
    wrappers=(
        Wrapper(
            rank=0,
            kind="none",
            name="Net",
            parameters=2**20,
            parameter_bytes=2**23,
            trainable_bytes=2**23,
        ),
    )
)


def use(*dtypes: str) -> RankUse:
    flags = (RankFlags(rank=rank, parameter_dtype=one) for rank, one in enumerate(dtypes))
    return RankUse(hosts=(), flags=tuple(flags))


def test_parameters_in_float64(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(WORK, WORK), use("float64", "float64"), MODEL)
    assert finding.severity is Severity.NOTE
    assert "the 8 MiB of parameters are in float64" in finding.because
    assert finding.cost is not None
    assert 0.3 < finding.cost.value < 0.5


@pytest.mark.parametrize(
    ("work", "flags"),
    [
        (WORK, use("float32", "float32")),
        (WORK, use("float64", "float32")),
        (WORK, use("bfloat16", "bfloat16")),
        (LOADING, use("float64", "float64")),
        (WORK, use()),
    ],
)
def test_quiet(findings: Findings, work: Work, flags: RankUse) -> None:
    assert findings(CAUSE, steps(work, work), flags, MODEL) == ()


def source(name: str, *within: Within) -> Script:
    at = SourceLine(file="train.py", line=9, text=f"torch.set_default_dtype({name})", function="")
    call = SourceCall(name="torch.set_default_dtype", at=at, arguments=(name,), within=within)
    return Script(files=("train.py",), calls=(call,))


@pytest.mark.parametrize("name", ["torch.float64", "torch.double"])
def test_in_the_source(findings: Findings, name: str) -> None:
    (finding,) = findings(CAUSE, source(name))
    assert finding.severity is Severity.NOTE
    assert "train.py:9" in finding.because


@pytest.mark.parametrize(
    ("script", "more"),
    [
        (source("torch.bfloat16"), ()),
        (source("torch.float64", "condition"), ()),
        (source("args.dtype"), ()),
        (source("torch.float64"), (use("float32", "float32"),)),
    ],
)
def test_quiet_in_the_source(findings: Findings, script: Script, more: tuple[RankUse, ...]) -> None:
    assert findings(CAUSE, script, *more) == ()
