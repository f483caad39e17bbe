from __future__ import annotations

from pathlib import Path

from ddoctor.evidence import bundle
from ddoctor.evidence.cluster_probes import Collectives, Sweep
from ddoctor.evidence.probes import AllReduce, Matmul, RankPlace, RankRate, WrongValue
from ddoctor.evidence.section import Evidence
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.healthy.probes import sweep

CAUSE = "wrong-collective-result"
PLACES = tuple(
    RankPlace(rank=n, host="a", device=f"cuda:{n}", device_name="NVIDIA L4") for n in range(4)
)
WRONG = (WrongValue(rank=2, bytes=4096, expected=10.0, got=10.5),)


def all_reduce(wrong: tuple[WrongValue, ...], places: tuple[RankPlace, ...] = PLACES) -> AllReduce:
    return AllReduce(host="a", backend="nccl", ranks=places, points=sweep({4096: 1.0}), wrong=wrong)


def collectives(wrong: tuple[WrongValue, ...]) -> Collectives:
    sweeps = (
        Sweep(collective="all-gather", scope="all", ranks=(0, 1, 2, 3), points=sweep({4096: 1.0})),
        Sweep(collective="all-to-all", scope="all", ranks=(0, 1, 2, 3), wrong=wrong),
    )
    return Collectives(backend="nccl", ranks=PLACES, sweeps=sweeps)


def matmul(wrong: tuple[WrongValue, ...]) -> Matmul:
    rates = tuple(RankRate(place=place, rate=100.0) for place in PLACES)
    return Matmul(host="a", dtype="bfloat16", size=8192, rates=rates, wrong=wrong)


def test_a_wrong_sum_names_rank_device_and_values(findings: Findings) -> None:
    (finding,) = findings(CAUSE, all_reduce(WRONG))
    assert finding.severity is Severity.ERROR
    assert "10.5 instead of 10 at 4096 bytes" in finding.because
    assert finding.where.ranks == (2,)
    assert finding.where.devices == ("cuda:2",)
    assert "NCCL_P2P_DISABLE=1" in finding.fixes[0].paste
    assert finding.fixes[1].paste == "export CUDA_VISIBLE_DEVICES=0,1,3"


def test_what_is_no_number_survives_the_bundle(findings: Findings, tmp_path: Path) -> None:
    section = all_reduce((WrongValue(rank=2, bytes=4096, expected=10.0, got=None),))
    bundle.write(tmp_path / "b.json", Evidence([section]))
    (read,) = bundle.read(tmp_path / "b.json")
    (finding,) = findings(CAUSE, read)
    assert "no number instead of 10 at 4096 bytes" in finding.because


def test_a_wrong_product_names_its_own_device(findings: Findings) -> None:
    (finding,) = findings(CAUSE, matmul(WRONG))
    assert finding.where.devices == ("cuda:2",)
    assert finding.fixes[0].paste == "export CUDA_VISIBLE_DEVICES=0,1,3"


def test_no_gpu_is_left_out_where_there_is_none(findings: Findings) -> None:
    places = tuple(RankPlace(rank=n, host="a", device="cpu") for n in range(4))
    (finding,) = findings(CAUSE, all_reduce(WRONG, places))
    assert not any("CUDA_VISIBLE_DEVICES" in fix.paste for fix in finding.fixes)


def test_quiet_when_every_sum_is_right(findings: Findings) -> None:
    assert findings(CAUSE, all_reduce(())) == ()


def test_quiet_when_every_product_is_right(findings: Findings) -> None:
    assert findings(CAUSE, matmul(())) == ()


def test_quiet_when_both_are_right(findings: Findings) -> None:
    assert findings(CAUSE, all_reduce(()), matmul(())) == ()


def test_a_wrong_exchange_names_its_collective(findings: Findings) -> None:
    (finding,) = findings(CAUSE, collectives(WRONG))
    assert "all-to-all returned" in finding.because
    assert finding.where.hosts == ("a",)
    assert finding.where.ranks == (2,)


def test_quiet_when_every_exchange_is_right(findings: Findings) -> None:
    assert findings(CAUSE, collectives(())) == ()


def test_of_two_hosts_only_the_devices_of_the_bad_one_are_named(findings: Findings) -> None:
    places = tuple(
        RankPlace(rank=n, host="ab"[n // 4], device=f"cuda:{n % 4}", device_name="H")
        for n in range(8)
    )
    (finding,) = findings(CAUSE, all_reduce(WRONG, places))
    assert finding.fixes[1].paste == "export CUDA_VISIBLE_DEVICES=0,1,3"
    assert finding.fixes[1].summary.endswith("on a")


def test_where_every_rank_of_many_is_wrong_few_are_listed(findings: Findings) -> None:
    places = tuple(RankPlace(rank=n, host=f"h{n}", device="cuda:0") for n in range(1000))
    wrong = tuple(WrongValue(rank=n, bytes=8, expected=1.0, got=2.0) for n in range(1000))
    (finding,) = findings(CAUSE, all_reduce(wrong, places))
    assert finding.because.endswith("rank 3 (cuda:0) and 996 more")
    assert len(finding.fixes) == 1
    assert len(finding.where.ranks) == 1000
