"""The tables obey physics: three widely used public ones do not."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from ddoctor import knowledge
from ddoctor.evidence.known_hardware import (
    AllReduceFigures,
    Expected,
    GpuModel,
    GpuModels,
    Links,
    NetworkKind,
    NvLinkKind,
)

MODELS = knowledge.load(GpuModels)
LINKS = knowledge.load(Links)
FIGURES = knowledge.load(AllReduceFigures)
NAMED = {model.name: model for model in MODELS.models}

# In the switch (NVLS) each value travels once each way, and not 2(n-1)/n times: over 8 ranks the
# same wire can show 1.75 times the bus bandwidth of a ring.
SHARP_FACTOR = 1.75

# The sparse TFLOP/s (bf16) that the vendors' sheets print.
SPARSE = {
    "A100 40GB SXM": 624,
    "A100 80GB SXM": 624,
    "A100 80GB PCIe": 624,
    "L4": 242,
    "H100 SXM": 1979,
    "H200 SXM": 1979,
}

gpus = pytest.mark.parametrize("model", MODELS.models, ids=lambda model: model.name)
rows = pytest.mark.parametrize(
    "row", FIGURES.expected, ids=lambda row: f"{row.ranks}x {row.model} {row.algorithm}"
)
curves = pytest.mark.parametrize(
    "row", [row for row in FIGURES.expected if row.points], ids=lambda row: row.model
)


@gpus
def test_a_gpu_is_plausible(model: GpuModel) -> None:
    dense = model.bf16 or model.fp16
    assert dense is None or 10 < dense < 3000
    assert model.memory_bandwidth is None or 100 < model.memory_bandwidth < 10_000
    assert model.fp32 is None or (dense is not None and 5 < model.fp32 < dense)
    if model.tf32 is not None:
        assert model.bf16 is not None
        assert model.tf32 == pytest.approx(model.bf16 / 2, rel=0.02)
    if model.fp8 is not None:
        assert model.bf16 is not None
        assert model.fp8 == pytest.approx(model.bf16 * 2, rel=0.02)
    if model.achievable is not None:
        assert model.bf16 is not None
        assert 0.5 * model.bf16 < model.achievable < model.bf16
    if model.sustained is not None:
        assert dense is not None
        assert 0.6 * dense < model.sustained < (model.achievable or dense)
    assert model.multiprocessors is None or 20 < model.multiprocessors < 200
    if model.copied is not None:
        assert model.memory_bandwidth is not None
        assert 0.8 * model.memory_bandwidth < model.copied < model.memory_bandwidth


@gpus
def test_a_gpu_has_sources(model: GpuModel) -> None:
    assert model.sources
    assert set(model.sources) <= set(MODELS.sources)


@pytest.mark.parametrize(("name", "sparse"), SPARSE.items())
def test_throughput_is_dense(name: str, sparse: float) -> None:
    dense = NAMED[name].bf16
    assert dense is not None
    assert dense <= sparse / 2


@pytest.mark.parametrize(
    ("device", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB SXM"),
        ("A100-SXM4-40GB", "A100 40GB SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L4", "L4"),
    ],
)
def test_devices_are_found_by_their_names(device: str, model: str) -> None:
    found = MODELS.find(device)
    assert found is not None
    assert found.name == model


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA A10G",  # slower than the A10
        "NVIDIA L40",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "",
    ],
)
def test_relatives_are_not_taken_for_them(device: str) -> None:
    assert MODELS.find(device) is None


@pytest.mark.parametrize("kind", LINKS.nvlinks, ids=lambda kind: str(kind.capability))
def test_nccl_plans_with_less_than_the_wire(kind: NvLinkKind) -> None:
    assert kind.wire is None or 0.75 * kind.wire < kind.planned < kind.wire
    assert kind.source in LINKS.sources


def test_pcie_doubles_with_each_generation() -> None:
    for older, newer in pairwise(LINKS.pcie):
        assert newer.generation == older.generation + 1
        assert newer.planned == 2 * older.planned
        assert newer.planned < newer.wire


def test_a_newer_gpu_has_the_link_of_its_family() -> None:
    assert LINKS.nvlink((9, 0)) == LINKS.nvlink((9, 1))
    assert LINKS.nvlink((6, 0)) is None


@rows
def test_nobody_measured_more_than_the_wire_carries(row: Expected) -> None:
    nvlink = NAMED[row.model].nvlink
    assert nvlink is not None
    assert row.published[1] <= nvlink * (SHARP_FACTOR if row.sharp else 1)
    assert row.sharp == (row.algorithm == "nvls")


def test_what_a_public_health_check_expects_would_fail_these_rules() -> None:
    """AWS's sample asks for 500 GB/s over NVLink of 8×H100; no machine has shown more than 480."""
    (row,) = (r for r in FIGURES.expected if (r.model, r.algorithm) == ("H100 SXM", "nvls"))
    assert row.published[1] <= 480
    assert row.warn < row.published[0]


@pytest.mark.parametrize("row", [*FIGURES.expected, *FIGURES.over_pcie], ids=str)
def test_lines_lie_below_what_healthy_machines_show(row: Expected) -> None:
    low, high = row.published
    assert row.bad < row.warn <= low <= high
    assert row.bad >= 0.5 * low
    assert row.sources
    assert set(row.sources) <= set(FIGURES.sources)


def test_a_row_per_setup() -> None:
    setups = Counter((row.model, row.ranks, row.algorithm) for row in FIGURES.expected)
    assert set(setups.values()) == {1}


@pytest.mark.parametrize("row", FIGURES.over_pcie, ids=lambda row: f"PCIe {row.generation}")
def test_pcie_figures_fit_the_wire(row: Expected) -> None:
    (kind,) = (kind for kind in LINKS.pcie if kind.generation == row.generation)
    assert row.published[1] < kind.wire
    assert 0.75 * kind.planned < row.published[1]


@pytest.mark.parametrize("row", FIGURES.networks, ids=str)
def test_networks_carry_less_than_their_adapters(row: NetworkKind) -> None:
    low, high = row.published
    assert 0.9 * row.adapters * row.gigabits / 8 < low <= high < row.adapters * row.gigabits / 8
    assert set(row.sources) <= set(FIGURES.sources)
    for model in row.models:
        assert FIGURES.network(model) is row
        # Within a host they have more.
        nvlink = NAMED[model].nvlink
        assert nvlink is not None
        assert high < nvlink


@curves
def test_curves_climb_and_end_within_the_published_figures(row: Expected) -> None:
    for (smaller, slower), (larger, faster) in pairwise(row.points):
        assert smaller < larger
        assert slower < faster
    assert row.points_source in FIGURES.sources
    assert row.published[0] * 0.99 <= row.points[-1][1] <= row.published[1] * 1.01


@curves
def test_curves_are_interpolated_between_their_points(row: Expected) -> None:
    for (smaller, slower), (larger, faster) in pairwise(row.points):
        assert slower < row.at((smaller + larger) // 2) < faster
        assert row.at(larger) == pytest.approx(faster)
    assert row.at(1) == row.points[0][1]
    assert row.at(2**40) == row.points[-1][1]
