"""A probe notices one wrong number among all."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.cluster import local_probes
from ddoctor.evidence.cluster_probes import Collectives
from ddoctor.evidence.probes import AllReduce, Matmul
from ddoctor.evidence.section import Evidence

ROOT = Path(__file__).parent.parent.parent


def measured(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Evidence:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Evidence(local_probes.measure([f"tests.faulty.{name}"], limit=120, data=folder))


@pytest.mark.ward
def test_in_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (section,) = measured("wrong_sums", tmp_path, monkeypatch).all(AllReduce)
    assert {value.rank for value in section.wrong} == {1}
    assert [value.bytes for value in section.wrong] == [point.bytes for point in section.points]
    assert all(value.got == value.expected + 1 for value in section.wrong)


@pytest.mark.ward
def test_in_a_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (section,) = measured("wrong_products", tmp_path, monkeypatch).all(Matmul)
    (value,) = section.wrong
    assert value.rank == 1
    assert value.got is not None
    assert abs(value.got - value.expected) == 1


@pytest.mark.ward
def test_in_what_comes_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (section,) = measured("wrong_exchanges", tmp_path, monkeypatch).all(Collectives)
    wrong = {sweep.collective: sweep.wrong for sweep in section.sweeps if sweep.wrong}
    assert set(wrong) == {"all-to-all"}
    for value in wrong["all-to-all"]:
        assert value.rank == 1
        assert value.got == value.expected + 1
