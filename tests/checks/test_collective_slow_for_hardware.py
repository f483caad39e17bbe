from __future__ import annotations

import msgspec
import pytest

from ddoctor import knowledge
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.known_hardware import AllReduceFigures
from ddoctor.evidence.probes import AllReduce, RankPlace
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.healthy.gpus import GPUS
from tests.healthy.probes import sweep

CAUSE = "collective-slow-for-hardware"
MIB, GIB = 2**20, 2**30
H100, H200, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-80GB"


def all_reduce(
    name: str,
    curve: dict[int, float],
    *,
    ranks: int = 8,
    hosts: int = 1,
    algorithm: str | None = "ring",
    transport: str | None = "P2P/CUMEM",
) -> AllReduce:
    places = tuple(
        RankPlace(rank=n, host=f"n{n % hosts}", device=f"cuda:{n}", device_name=name)
        for n in range(ranks)
    )
    return AllReduce(
        host="n0",
        backend="nccl",
        ranks=places,
        points=sweep(curve, ranks),
        algorithm=algorithm,
        transport=transport,
    )


def gpus(name: str, **fields: object) -> Gpus:
    changed = tuple(msgspec.structs.replace(gpu, name=name, **fields) for gpu in GPUS)
    return Gpus(host="n0", driver="570.86.15", gpus=changed)


def published(model: str) -> dict[int, float]:
    figures = knowledge.load(AllReduceFigures)
    (row,) = (row for row in figures.expected if row.model == model and row.points)
    return dict(row.points)


@pytest.mark.parametrize(
    ("name", "model", "algorithm"),
    [(A100, "A100 80GB SXM", "ring"), (H100, "H100 SXM", "nvls"), (H200, "H200 SXM", "nvls")],
)
@pytest.mark.parametrize("largest", [64 * 2**10, 128 * MIB, 512 * MIB, GIB, 8 * GIB])
def test_quiet_on_every_prefix_of_a_published_curve(
    findings: Findings, name: str, model: str, algorithm: str, largest: int
) -> None:
    curve = {size: figure for size, figure in published(model).items() if size <= largest}
    for told in (algorithm, None):
        assert findings(CAUSE, all_reduce(name, curve, algorithm=told), gpus(name)) == ()


def test_quiet_above_the_wire(findings: Findings) -> None:
    """8×H200 sum in the switch: 482 GB/s on a wire of 450."""
    assert findings(CAUSE, all_reduce(H200, {8 * GIB: 482.0}, algorithm="nvls")) == ()


def test_quiet_below_what_a_public_health_check_wrongly_expects(findings: Findings) -> None:
    """500 GB/s are asked for 8×H100 there; healthy machines show 475 to 480."""
    assert findings(CAUSE, all_reduce(H100, {16 * GIB: 475.0}, algorithm="nvls")) == ()


def test_quiet_with_a_ring_where_the_switch_could_sum(findings: Findings) -> None:
    assert findings(CAUSE, all_reduce(H100, {8 * GIB: 362.0}, algorithm="ring")) == ()
    assert findings(CAUSE, all_reduce(H100, {8 * GIB: 362.0}, algorithm=None)) == ()


def test_small_messages_are_never_judged(findings: Findings) -> None:
    assert findings(CAUSE, all_reduce(H100, {MIB: 0.1, 128 * MIB: 5.0}), gpus(H100)) == ()


def test_quiet_on_gloo(findings: Findings) -> None:
    places = tuple(RankPlace(rank=n, host="a", device="cpu") for n in range(2))
    slow = AllReduce(host="a", backend="gloo", ranks=places, points=sweep({GIB: 0.02}, 2))
    assert findings(CAUSE, slow) == ()


def test_quiet_across_nodes(findings: Findings) -> None:
    assert findings(CAUSE, all_reduce(H100, {8 * GIB: 48.0}, hosts=2), gpus(H100)) == ()


def test_quiet_where_there_is_no_peer_to_peer_by_design(findings: Findings) -> None:
    name = "NVIDIA GeForce RTX 4090"
    staged = all_reduce(name, {GIB: 5.0}, ranks=2, transport="SHM/direct/direct")
    assert findings(CAUSE, staged, gpus(name, nvlinks=())) == ()


def test_quiet_without_the_bridge_that_others_have(findings: Findings) -> None:
    """Two A100 PCIe reach 193 GB/s over a bridge; these have none, and 22 over PCIe is healthy."""
    name = "NVIDIA A100 80GB PCIe"
    pair = all_reduce(name, {GIB: 22.0}, ranks=2)
    slot = msgspec.structs.replace(GPUS[0].pcie, maximum_generation=4)  # type: ignore[type-var]
    assert findings(CAUSE, pair, gpus(name, nvlinks=(), pcie=slot)) == ()
    assert findings(CAUSE, pair) == ()


def test_quiet_on_an_unknown_gpu_that_reaches_what_nccl_plans(findings: Findings) -> None:
    name = "NVIDIA H800"
    links = GPUS[0].nvlinks
    assert links is not None
    told = gpus(name, nvlinks=links[:8])
    assert findings(CAUSE, all_reduce(name, {GIB: 160.0}), told) == ()
    assert findings(CAUSE, all_reduce(name, {GIB: 30.0}), gpus(name, nvlinks=())) == ()


@pytest.mark.parametrize(
    ("figure", "severity"),
    [(425.0, Severity.WARNING), (335.0, Severity.WARNING), (320.0, Severity.ERROR)],
)
def test_fires_below_the_lines_of_these_gpus(
    findings: Findings, figure: float, severity: Severity
) -> None:
    slow = all_reduce(H100, {8 * GIB: figure}, algorithm="nvls")
    (finding,) = findings(CAUSE, slow, gpus(H100))
    assert finding.severity is severity
    assert f"{figure:.0f} GB/s" in finding.because
    assert "475 to 480" in finding.because
    assert "AI-benchmarking-guide" in finding.evidence[0].source


@pytest.mark.parametrize("model", ["A100 80GB SXM", "H100 SXM", "H200 SXM"])
def test_fires_on_a_published_curve_a_quarter_lower(findings: Findings, model: str) -> None:
    name = {"A100 80GB SXM": A100, "H100 SXM": H100, "H200 SXM": H200}[model]
    curve = {size: 0.75 * figure for size, figure in published(model).items()}
    algorithm = "ring" if name == A100 else "nvls"
    for largest in (512 * MIB, 8 * GIB):
        part = {size: figure for size, figure in curve.items() if size <= largest}
        assert len(findings(CAUSE, all_reduce(name, part, algorithm=algorithm))) == 1


def test_names_the_detour_through_host_memory(findings: Findings) -> None:
    slow = all_reduce(H100, {GIB: 18.0}, transport="SHM/direct/direct")
    (finding,) = findings(CAUSE, slow)
    assert finding.severity is Severity.ERROR
    assert "SHM/direct/direct" in finding.because
    assert "unset NCCL_P2P_DISABLE" in finding.fixes[0].paste


def test_an_unknown_gpu_is_compared_with_nccls_own_plan(findings: Findings) -> None:
    name = "NVIDIA H800"
    links = GPUS[0].nvlinks
    assert links is not None
    (finding,) = findings(CAUSE, all_reduce(name, {GIB: 90.0}), gpus(name, nvlinks=links[:8]))
    assert finding.confidence is Confidence.POSSIBLE
    assert "NCCL plans with 165 GB/s" in finding.because


def test_pcie_is_judged_by_generation_and_width(findings: Findings) -> None:
    name = "NVIDIA GeForce RTX 3090"
    half = msgspec.structs.replace(GPUS[0].pcie, maximum_generation=4, width=8)  # type: ignore[type-var]
    slots = gpus(name, nvlinks=(), pcie=half)
    assert findings(CAUSE, all_reduce(name, {GIB: 11.0}, ranks=2), slots) == ()
    (finding,) = findings(CAUSE, all_reduce(name, {GIB: 6.0}, ranks=2), slots)
    assert "PCIe 4 x8" in finding.because
    assert "NCCL_MIN_NCHANNELS" in finding.fixes[0].paste
