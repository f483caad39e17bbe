"""The tables of p2pBandwidthLatencyTest."""

from __future__ import annotations

import pytest

from ddoctor.evidence.printed import PeerBandwidth
from ddoctor.models import Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read


def table(title: str, rate: float, gpus: int) -> str:
    names = "".join(f"{name:>7}" for name in range(gpus))
    rows = "".join(
        f"{a:>6} " + " ".join(f"{900.0 if a == b else rate:6.2f}" for b in range(gpus)) + " \n"
        for a in range(gpus)
    )
    return f"{title} Matrix (GB/s)\n   D\\D{names} \n{rows}"


def printed(through_host: float, direct: float, *, gpus: int = 3, head: bool = True) -> str:
    devices = "".join(
        f"Device: {number}, NVIDIA RTX A6000, pciBusID: {number + 1}, pciDeviceID: 0, "
        "pciDomainID:0\n"
        for number in range(gpus)
    )
    begin = f"[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n{devices}" if head else ""
    note = "***NOTE: In case a device doesn't have P2P access to other one, it falls back.\n\n"
    connectivity = "P2P Connectivity Matrix\n     D\\D     0     1\n     0\t     1     1\n"
    return (
        begin
        + (note + connectivity if head else "")
        + table("Unidirectional P2P=Disabled Bandwidth", through_host, gpus)
        + table("Unidirectional P2P=Enabled Bandwidth (P2P Writes)", direct, gpus)
        + table("Bidirectional P2P=Disabled Bandwidth", 1.5 * through_host, gpus)
        + table("Bidirectional P2P=Enabled Bandwidth", 0.1 * direct, gpus)
        + "P2P=Disabled Latency Matrix (us)\n   GPU     0      1 \n     0   1.57  14.30 \n"
    )


@pytest.mark.parametrize("head", [True, False])
def test_the_tables_of_one_direction(read: Read, head: bool) -> None:
    (section,) = read(printed(13.0, 1.6, head=head)).all(PeerBandwidth)
    assert len(section.pairs) == 6
    one = section.pairs[0]
    assert (one.a, one.b, one.through_host, one.direct) == (0, 1, 13.0, 1.6)


@pytest.mark.parametrize("direct", [1.6, 5.9])
def test_direct_copies_that_are_slower(diagnose: Diagnose, direct: float) -> None:
    report = diagnose(printed(13.0, direct))
    assert [one.cause for one in report.findings] == ["pcie-acs-iommu"]
    assert report.findings[0].severity is Severity.WARNING


@pytest.mark.parametrize(
    ("through_host", "direct"),
    [(13.0, 13.1), (13.0, 12.2), (25.0, 52.0), (28.0, 390.0)],
    ids=["no peer access", "a little less", "PCIe", "NVLink"],
)
def test_sound_copies(diagnose: Diagnose, through_host: float, direct: float) -> None:
    assert diagnose(printed(through_host, direct)).findings == ()


def test_a_part_of_the_tables_says_nothing(read: Read) -> None:
    text = printed(13.0, 1.6)
    assert read(text[: text.index("Unidirectional P2P=Enabled")]).all(PeerBandwidth) == ()
