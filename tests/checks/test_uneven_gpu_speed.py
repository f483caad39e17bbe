from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ddoctor.evidence.probes import Burn, Burning, Matmul, MemoryBandwidth, RankPlace, RankRate
from ddoctor.models import Confidence
from tests.conftest import Findings

CAUSE = "uneven-gpu-speed"
H100 = "NVIDIA H100 80GB HBM3"


def rates(
    figures: Sequence[float], names: Sequence[str] = (), *, device: str = "cuda", spread: float = 0
) -> tuple[RankRate, ...]:
    return tuple(
        RankRate(
            place=RankPlace(
                rank=n,
                host="a",
                device=f"{device}:{n}" if device == "cuda" else device,
                device_name=(names[n] if names else H100) if device == "cuda" else "",
                bus_id=f"0000:{n:02x}:00.0",
            ),
            rate=figure,
            spread=spread,
        )
        for n, figure in enumerate(figures)
    )


def matmul(*arguments: object, **options: object) -> Matmul:
    return Matmul(host="a", dtype="bfloat16", size=8192, rates=rates(*arguments, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("slow", [0, 3, 7])
def test_names_the_one_that_lags(findings: Findings, slow: int) -> None:
    figures = [720.0 + n for n in range(8)]
    figures[slow] = 610.0
    (finding,) = findings(CAUSE, matmul(figures))
    assert finding.where.ranks == (slow,)
    assert finding.where.devices == (f"cuda:{slow}",)
    assert "610 TFLOP/s" in finding.because
    assert f"0000:{slow:02x}:00.0" in finding.fixes[0].paste


def test_names_both_when_two_lag(findings: Findings) -> None:
    found = findings(CAUSE, matmul([720, 600, 721, 722, 590, 719, 720, 723]))
    assert sorted(finding.where.ranks for finding in found) == [(1,), (4,)]


def test_tells_it_by_memory_too(findings: Findings) -> None:
    section = MemoryBandwidth(host="a", rates=rates([2970, 2960, 2400, 2980]))
    (finding,) = findings(CAUSE, section)
    assert finding.where.ranks == (2,)
    assert "GB/s" in finding.because


def test_of_two_the_slower_one_only_when_it_is_plain(findings: Findings) -> None:
    assert findings(CAUSE, matmul([720, 620])) == ()
    (finding,) = findings(CAUSE, matmul([720, 560]))
    assert finding.confidence is Confidence.LIKELY


def test_all_alike_and_slow_is_a_weak_sign(findings: Findings) -> None:
    (finding,) = findings(CAUSE, matmul([400.0] * 8))
    assert finding.confidence is Confidence.POSSIBLE
    assert "would show why" in finding.because


def test_quiet_within_the_spread_of_a_healthy_node(findings: Findings) -> None:
    assert findings(CAUSE, matmul([720, 700, 735, 684, 720, 745, 710, 722])) == ()


def test_quiet_when_a_rank_wavers_more_than_it_lags(findings: Findings) -> None:
    assert findings(CAUSE, matmul([720, 640, 720, 720], spread=100.0)) == ()


def test_quiet_between_different_models(findings: Findings) -> None:
    names = [H100, H100, "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"]
    assert findings(CAUSE, matmul([720, 722, 255, 254], names)) == ()


def test_quiet_on_cpus(findings: Findings) -> None:
    assert findings(CAUSE, matmul([0.10, 0.05, 0.11], device="cpu")) == ()


def test_quiet_on_one_gpu(findings: Findings) -> None:
    assert findings(CAUSE, matmul([720])) == ()


def test_quiet_on_a_model_that_no_table_knows(findings: Findings) -> None:
    assert findings(CAUSE, matmul([40, 41, 40], ["NVIDIA H20"] * 3)) == ()


def burn(*falls: float, device: str = "cuda", parts: int = 60) -> Burn:
    """Ranks whose rates fall evenly by this share from the first part to the last."""
    return Burn(
        dtype="bfloat16",
        size=8192,
        seconds=60.0,
        ranks=tuple(
            Burning(
                place=rate.place,
                rates=tuple(720 * (1 - fall * part / max(1, parts - 1)) for part in range(parts)),
                products=1000,
                temperatures=(60, 87) if fall > 0.2 else (60, 65),
            )
            for fall, rate in zip(falls, rates([720.0] * len(falls), device=device), strict=True)
        ),
    )


def test_names_the_one_that_falls_in_the_course_of_a_burn(findings: Findings) -> None:
    (finding,) = findings(CAUSE, burn(0.02, 0.02, 0.4, 0.03))
    assert finding.where.ranks == (2,)
    assert finding.confidence is Confidence.CERTAIN
    assert "falls from 720 to 432 TFLOP/s within 60 s of load, at up to 87 °C" in finding.because
    assert "0000:02:00.0" in finding.fixes[0].paste


def test_of_two_the_one_that_falls_must_be_plain(findings: Findings) -> None:
    assert findings(CAUSE, burn(0.0, 0.2)) == ()
    (finding,) = findings(CAUSE, burn(0.0, 0.5))
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    "section",
    [
        burn(0.3, 0.3, 0.31, 0.3),
        burn(0.02, 0.05, 0.0, 0.07),
        burn(0.0, 0.4, 0.0, device="cpu"),
        burn(0.4),
        burn(0.0, 0.4, 0.0, parts=5),
    ],
    ids=["all alike", "a little", "CPUs", "one GPU", "too short to tell"],
)
def test_quiet_in_a_burn(findings: Findings, section: Burn) -> None:
    assert findings(CAUSE, section) == ()


def test_quiet_where_a_rate_wavers(findings: Findings) -> None:
    steady = burn(0.0, 0.0, 0.0)
    wavering = tuple(720.0 * (0.7 if part % 4 == 3 or part > 40 else 1.0) for part in range(60))
    waves = msgspec.structs.replace(steady.ranks[1], rates=wavering)
    section = msgspec.structs.replace(steady, ranks=(steady.ranks[0], waves, steady.ranks[2]))
    assert findings(CAUSE, section) == ()
