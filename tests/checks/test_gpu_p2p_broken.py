from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import msgspec
import pytest

from ddoctor.evidence.gpus import Gpus, PeerPath
from ddoctor.models import Confidence
from tests.conftest import Findings
from tests.healthy.gpus import otherwise

CAUSE = "gpu-p2p-broken"


def matrix(
    status: Mapping[tuple[int, int], str], usual: str = "ok", path: str = "pcie-switch"
) -> Gpus:
    peers = tuple(
        PeerPath(a=a, b=b, path=path, read=status.get((a, b), usual))
        for a, b in combinations(range(8), 2)
    )
    return msgspec.structs.replace(otherwise({}), peers=peers)


def test_pairs_that_fail_where_others_work(findings: Findings) -> None:
    bad = {(0, 3): "topology_not_supported", (3, 5): "topology_not_supported"}
    (finding,) = findings(CAUSE, matrix(bad))
    assert finding.confidence is Confidence.LIKELY
    assert "2 pairs of GPUs (0-3, 3-5) fails" in finding.because
    assert finding.where.devices == ("cuda:0", "cuda:3", "cuda:5")


def test_switched_off_by_hand(findings: Findings) -> None:
    (finding,) = findings(CAUSE, matrix({}, usual="disabled_by_regkey"))
    assert finding.confidence is Confidence.CERTAIN
    assert "NVreg" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "usual", ["ok", "chipset_not_supported", "gpu_not_supported", "not_supported", "unknown"]
)
def test_quiet_where_all_are_alike(findings: Findings, usual: str) -> None:
    assert findings(CAUSE, matrix({}, usual=usual)) == ()


def test_quiet_about_pairs_that_are_joined_otherwise(findings: Findings) -> None:
    far = tuple(
        PeerPath(a=a, b=b, path="system", read="topology_not_supported")
        if a < 4 <= b
        else PeerPath(a=a, b=b, path="pcie-switch", read="ok")
        for a, b in combinations(range(8), 2)
    )
    assert findings(CAUSE, msgspec.structs.replace(otherwise({}), peers=far)) == ()


def test_quiet_about_different_models(findings: Findings) -> None:
    gpus = matrix({(0, b): "gpu_not_supported" for b in range(1, 8)})
    other = msgspec.structs.replace(gpus.gpus[0], name="NVIDIA L4")
    assert findings(CAUSE, msgspec.structs.replace(gpus, gpus=(other, *gpus.gpus[1:]))) == ()


def test_quiet_without_a_matrix(findings: Findings) -> None:
    assert findings(CAUSE, otherwise({})) == ()
