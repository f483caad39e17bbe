from __future__ import annotations

import pytest

from ddoctor.evidence.software import Package, Software, Torch
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "framework-version-bug"


def software(torch: str = "2.8.0+cu128", nccl: str | None = None, **packages: str) -> Software:
    return Software(
        host="a",
        python="3.11.9",
        torch=Torch(version=torch, cuda="12.8", nccl=nccl),
        packages=tuple(Package(name=name, version=version) for name, version in packages.items()),
    )


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (software(nccl="2.25.1"), "ncclCommAbort"),
        (software(nccl="2.29.2"), "2.29.3"),
        (software("2.4.0", deepspeed="0.14.0"), "importing it fails"),
        (software("2.6.0+cu124", deepspeed="0.13.5"), "importing it fails"),
        (software(transformers="4.52.4", accelerate="1.2.1"), "keep_torch_compile"),
        (software(transformers="4.39.3", accelerate="1.1.0"), "dispatch_batches"),
        (software("2.2.2+cpu", numpy="2.0.1"), "Numpy is not available"),
        (software("2.6.0", bitsandbytes="0.44.1", triton="3.2.0"), "triton.ops"),
        (software(peft="0.17.1", transformers="5.0.0"), "HybridCache"),
        (software(peft="0.14.0", transformers="4.39.3"), "EncoderDecoderCache"),
    ],
)
def test_known_bad_versions(findings: Findings, section: Software, words: str) -> None:
    (finding,) = findings(CAUSE, section)
    assert finding.severity >= Severity.WARNING
    assert words in finding.because
    assert finding.fixes[0].paste.startswith("pip install")


@pytest.mark.parametrize(
    "section",
    [software(transformers="4.46.2"), software("2.7.0+cu126"), software(deepspeed="0.18.1")],
)
def test_what_hurts_only_some_runs_is_a_note(findings: Findings, section: Software) -> None:
    (finding,) = findings(CAUSE, section)
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    "section",
    [
        software(),
        software(nccl="2.26.2"),
        software(nccl="2.27.3"),
        software("2.3.1", deepspeed="0.14.0"),
        software("2.4.0", deepspeed="0.14.4"),
        software("2.4.0a0+git1234", deepspeed="0.16.0"),
        software(transformers="4.52.4", accelerate="1.3.0"),
        software(transformers="4.51.3", accelerate="1.2.1"),
        software(transformers="4.52.4"),
        software(transformers="4.39.3", accelerate="0.34.2"),
        software(transformers="4.40.0", accelerate="1.1.0"),
        software(transformers="4.46.3"),
        software("2.7.1+cu126"),
        software("2.3.0", numpy="2.0.1"),
        software("2.2.2", numpy="1.26.4"),
        software("2.6.0", bitsandbytes="0.45.1", triton="3.2.0"),
        software("2.5.1", bitsandbytes="0.44.1", triton="3.1.0"),
        software(peft="0.18.0", transformers="5.0.0"),
        software(peft="0.17.1", transformers="4.57.1"),
        software(peft="0.13.2", transformers="4.39.3"),
        software(deepspeed="0.17.5"),
        software(deepspeed="0.18.3"),
        software(transformers="from a fork", accelerate="1.2.1"),
    ],
)
def test_quiet_about_versions_that_work(findings: Findings, section: Software) -> None:
    assert findings(CAUSE, section) == ()
