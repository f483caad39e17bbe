from __future__ import annotations

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceImport
from ddoctor.evidence.source_lines import SourceCall, SourceLine
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "checkpoint-of-one-shard"
AT = SourceLine(file="train.py", line=40, text="torch.save(model.state_dict(), path)")
SHARD = SourceCall(name="torch.distributed.fsdp.fully_shard", at=AT, arguments=("model",))
GATHER = SourceCall(
    name="torch.distributed.checkpoint.state_dict.get_model_state_dict", at=AT, arguments=("model",)
)


def save(what: str = "model.state_dict()", path: str = "'model.pt'") -> SourceCall:
    return SourceCall(name="torch.save", at=AT, arguments=(what, path))


def script(*calls: SourceCall) -> Script:
    imports = (SourceImport(framework="FSDP2", at=AT),)
    return Script(files=("train.py",), imports=imports, calls=calls)


@pytest.mark.parametrize("what", ["model.state_dict()", "{'model': model.state_dict()}"])
def test_the_parts_of_one_rank(findings: Findings, what: str) -> None:
    (finding,) = findings(CAUSE, script(SHARD, save(what)))
    assert finding.severity is Severity.ERROR
    assert "get_model_state_dict(model" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "calls",
    [
        (SHARD, GATHER, save()),
        (SHARD, save(path="f'part-{rank}.pt'")),
        (SHARD, save("other.state_dict()")),
        (save(),),
    ],
)
def test_quiet(findings: Findings, calls: tuple[SourceCall, ...]) -> None:
    assert findings(CAUSE, script(*calls)) == ()
