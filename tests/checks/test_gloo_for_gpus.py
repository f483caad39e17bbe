from __future__ import annotations

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall, SourceLine
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "gloo-for-gpus"


def script(backend: str, devices: str) -> Script:
    joins = SourceCall(
        name="torch.distributed.init_process_group",
        at=SourceLine(file="train.py", line=5, text=f"dist.init_process_group({backend})"),
        arguments=(backend,),
    )
    wraps = SourceCall(
        name="torch.nn.parallel.DistributedDataParallel",
        at=SourceLine(file="train.py", line=9, text="model = DDP(net)"),
        keywords={"device_ids": devices} if devices else {},
    )
    return Script(files=("train.py",), calls=(joins, wraps))


@pytest.mark.parametrize("backend", ["'gloo'", '"gloo"'])
def test_from_the_source(findings: Findings, backend: str) -> None:
    (finding,) = findings(CAUSE, script(backend, "[local_rank]"))
    assert finding.severity is Severity.WARNING
    assert "train.py:5" in finding.because


@pytest.mark.parametrize(
    ("backend", "devices"),
    [
        ("'nccl'", "[local_rank]"),
        ("'cpu:gloo,cuda:nccl'", "[local_rank]"),
        ("args.backend", "[local_rank]"),
        ("'gloo'", ""),
        ("'gloo'", "None"),
        ("'gloo'", "[local_rank] if torch.cuda.is_available() else None"),
    ],
)
def test_quiet(findings: Findings, backend: str, devices: str) -> None:
    assert findings(CAUSE, script(backend, devices)) == ()
