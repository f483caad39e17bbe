from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.software import Software, Torch
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "cuda-driver-or-arch-mismatch"
CU128 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")


def build(
    cuda: str | None = "12.8", architectures: tuple[str, ...] = CU128, hip: str | None = None
) -> Software:
    torch = Torch(version="2.8.0", cuda=cuda, hip=hip, architectures=architectures)
    return Software(host="a", python="3.11.9", torch=torch)


def machine(
    driver: str = "570.86.15",
    cuda: tuple[int, int] | None = (12, 8),
    capability: tuple[int, int] | None = (9, 0),
    count: int = 8,
) -> Gpus:
    return Gpus(
        host="a",
        driver=driver,
        cuda=cuda,
        gpus=tuple(
            Gpu(
                index=index,
                name="NVIDIA X",
                capability=capability,
                memory_total=80,
                memory_used=0,
            )
            for index in range(count)
        ),
    )


@pytest.mark.parametrize(
    ("gpus", "index"),
    [
        (machine("580.65.06", (13, 0)), "cu130"),
        (machine("570.86.15", (12, 8)), "cu126"),
        (machine("525.60.13", (12, 0)), "cu126"),
        (machine("570.86.15", (12, 8), (10, 0)), "cu128"),
        (machine("580.65.06", (13, 0), (7, 0)), "cu126"),
        (machine("470.57.02", (11, 4)), "cu118"),
        (machine("470.57.02", None), "cu118"),
    ],
)
def test_a_build_for_the_cpu_on_a_machine_with_gpus(
    findings: Findings, gpus: Gpus, index: str
) -> None:
    (finding,) = findings(CAUSE, build(None, ()), gpus)
    assert finding.severity is Severity.ERROR
    assert "none of the 8 GPUs" in finding.because
    assert finding.fixes[0].paste.endswith(f"/whl/{index}")


@pytest.mark.parametrize(
    ("cuda", "gpus", "needs", "index"),
    [
        ("12.8", machine("470.57.02", (11, 4)), "525.60.13", "cu118"),
        ("13.0", machine("570.86.15", (12, 8)), "580.65.06", "cu126"),
        ("13.0", machine("570.86.15", None), "580.65.06", "cu126"),
        ("13.0", machine("570.86.15", (12, 8), (12, 0)), "580.65.06", "cu128"),
    ],
)
def test_a_driver_that_is_too_old(
    findings: Findings, cuda: str, gpus: Gpus, needs: str, index: str
) -> None:
    (finding,) = findings(CAUSE, build(cuda), gpus)
    assert finding.severity is Severity.ERROR
    assert f"needs driver {needs} or newer" in finding.because
    assert f"/whl/{index}" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("architectures", "capability"),
    [
        (CU126, (10, 0)),
        (CU126, (12, 0)),
        (CU128, (7, 0)),
        (("sm_37", "sm_50", "sm_60", "sm_70", "sm_75", "sm_80"), (9, 0)),
        (("sm_90a",), (10, 0)),
        (("sm_86",), (8, 0)),
    ],
)
def test_no_code_for_the_gpu(
    findings: Findings, architectures: tuple[str, ...], capability: tuple[int, int]
) -> None:
    gpus = machine("580.65.06", (13, 0), capability, count=2)
    (finding,) = findings(CAUSE, build("12.8", architectures), gpus)
    assert finding.severity is Severity.ERROR
    assert finding.where.devices == ("cuda:0", "cuda:1")
    assert ".".join(map(str, capability)) in finding.because


@pytest.mark.parametrize(
    ("software", "gpus"),
    [
        (build(), machine()),
        (build("12.8"), machine("525.60.13", (12, 0))),  # minor version compatibility
        (build("12.8"), machine("525.60.13", None)),
        (build("11.8", CU126), machine("580.65.06", (13, 0))),  # drivers run older CUDA
        (build("12.8"), machine(capability=(8, 9))),  # sm_86 runs on 8.9
        (build("12.8", ("sm_80", "compute_80")), machine(capability=(9, 0))),  # PTX
        (build("12.8", ("sm_90a",)), machine(capability=(9, 0))),
        (build("12.8", ()), machine()),
        (build("12.8", ("sm_new",)), machine()),
        (build("12.8"), machine(capability=None)),
        (build(None, ()), machine(count=0)),
        (build(None, (), hip="6.3"), machine()),
        (Software(host="a", python="3.11.9", torch_error="No module named 'torch'"), machine()),
    ],
)
def test_quiet_where_it_fits(findings: Findings, software: Software, gpus: Gpus) -> None:
    assert findings(CAUSE, software, gpus) == ()
