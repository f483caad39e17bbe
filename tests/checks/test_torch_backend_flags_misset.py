from __future__ import annotations

from typing import Any

import pytest

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import Phase, RankSteps, Steps
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

CAUSE = "torch-backend-flags-misset"


def flags(number: int = 0, **switches: Any) -> RankFlags:
    """An H100 that trains in bfloat16."""
    usual: dict[str, Any] = {
        "device_name": "NVIDIA H100 80GB HBM3",
        "capability": (9, 0),
        "parameter_dtype": "float32",
        "autocast": "bfloat16",
        "matmul_precision": "highest",
        "cudnn_benchmark": False,
        "cudnn_deterministic": False,
        "input_shapes": 1,
    }
    return RankFlags(rank=number, **(usual | switches))


def use(*ranks: RankFlags) -> RankUse:
    return RankUse(hosts=(), flags=ranks)


def steps(forward: float = 0.08, count: int = 60) -> Steps:
    """Of 0.1 s, with this share in the forward pass and the rest in the loader."""
    return Steps(
        warm_up=5,
        ranks=(
            RankSteps(
                place=RankPlace(rank=0, host="a", device="cuda:0"),
                phases=(
                    Phase(name="loader", seconds=(0.1 - forward,) * count),
                    Phase(name="forward", seconds=(forward,) * count),
                ),
            ),
        ),
    )


def float32(number: int = 0, **switches: Any) -> RankFlags:
    return flags(number, **({"autocast": ""} | switches))


def test_float32_without_tensor_cores(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(float32(0), float32(1)), steps())
    assert finding.severity is Severity.WARNING
    assert "on all ranks, float32 matmul runs with precision 'highest'" in finding.because
    assert finding.where.ranks == ()
    assert finding.fixes[0].settings == ("torch.matmul_precision=high",)


def test_one_rank_of_two(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(float32(0), float32(1, matmul_precision="high")))
    assert finding.where.ranks == (0,)
    assert finding.because.startswith("on rank 0, float32 matmul")


def test_a_note_where_convolutions_do_the_work(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(float32(convolutions=53, input_shapes=2)))
    assert finding.severity is Severity.NOTE
    assert finding.confidence is Confidence.POSSIBLE


def test_every_shape_is_benchmarked(findings: Findings) -> None:
    variable = flags(cudnn_benchmark=True, convolutions=53, input_shapes=55)
    (finding,) = findings(CAUSE, use(variable), steps())
    assert finding.severity is Severity.WARNING
    assert "in 60 steps rank 0 passed 55 different shapes to the model" in finding.because
    assert finding.fixes[0].paste == "torch.backends.cudnn.benchmark = False"


def test_a_note_where_the_only_shape_is_not(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(flags(convolutions=53)))
    assert finding.severity is Severity.NOTE
    assert finding.fixes[0].paste == "torch.backends.cudnn.benchmark = True"


@pytest.mark.parametrize(
    ("switch", "paste"),
    [
        ("deterministic", "torch.use_deterministic_algorithms(False)"),
        ("cudnn_deterministic", "torch.backends.cudnn.deterministic = False"),
    ],
)
def test_a_note_about_deterministic_algorithms(findings: Findings, switch: str, paste: str) -> None:
    (finding,) = findings(CAUSE, use(flags(convolutions=53, **{switch: True})))
    assert finding.severity is Severity.NOTE
    assert finding.fixes[0].paste == paste


@pytest.mark.parametrize(
    "sound",
    [
        pytest.param(flags(), id="autocast"),
        pytest.param(float32(parameter_dtype="bfloat16"), id="bfloat16 weights"),
        pytest.param(float32(matmul_precision="high"), id="TF32"),
        pytest.param(float32(matmul_precision="medium"), id="less still"),
        pytest.param(float32(capability=(7, 0)), id="a V100 has no TF32"),
        pytest.param(
            float32(device_name="", capability=None, deterministic=True, convolutions=53), id="CPU"
        ),
        pytest.param(
            flags(cudnn_benchmark=True, convolutions=53), id="benchmark of the only shape"
        ),
        pytest.param(
            flags(cudnn_benchmark=True, convolutions=53, input_shapes=12), id="a few buckets"
        ),
        pytest.param(flags(cudnn_benchmark=True, input_shapes=60), id="nothing to benchmark"),
        pytest.param(flags(convolutions=1), id="a transformer for images"),
        pytest.param(flags(convolutions=53, input_shapes=20), id="off with many shapes"),
        pytest.param(flags(convolutions=53, compiled=True), id="the compiler chooses"),
        pytest.param(flags(convolutions=53, cudnn_benchmark=None), id="not seen"),
    ],
)
def test_quiet(findings: Findings, sound: RankFlags) -> None:
    assert findings(CAUSE, use(sound), steps()) == ()


def test_quiet_where_the_step_is_all_loader(findings: Findings) -> None:
    assert findings(CAUSE, use(float32()), steps(forward=0.005)) == ()
