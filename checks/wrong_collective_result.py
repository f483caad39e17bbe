"""A collective or a matrix multiplication returns a wrong number.

All training on this hardware is wrong as well: gradients are silently corrupted, losses become NaN
or merely bad, and replicas diverge. The test values are small whole numbers with exact sums in any
order, so a deviation is not rounding.

Symptoms: a loss that becomes NaN on one node only, runs that are not reproducible, or parameters
whose checksums differ between ranks.

To fix it, exclude the device until it is tested or replaced. If ``NCCL_P2P_DISABLE=1`` gives right
values, repair the peer-to-peer path (ACS, IOMMU, driver, NVLink).
"""

# Above 150 lines: probes and nccl-tests show it differently.

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis.describe import few, where
from ddoctor.evidence.cluster_probes import Collectives
from ddoctor.evidence.printed import NcclTests
from ddoctor.evidence.probes import AllReduce, Burn, Matmul, RankPlace, WrongValue
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("replicas-diverged",)
OF_MACHINE = True

FEW = 4
NO_NUMBER = "no number"
"""The most hosts that get a separate fix."""


def all_reduce(all_reduce: AllReduce) -> Iterator[Finding]:
    yield from _wrong(
        "all-reduce",
        all_reduce.wrong,
        all_reduce.ranks,
        Fix(
            summary="test whether the peer-to-peer path corrupts the data",
            paste="NCCL_P2P_DISABLE=1 ddoctor doctor --probe allreduce",
            caution=(
                "if the values are right with it, repair peer-to-peer (ACS, IOMMU, driver, "
                "NVLink); the variable itself is not a fix"
            ),
        ),
    )


def in_nccl_tests(nccl_tests: NcclTests) -> Iterator[Finding]:
    """Values beyond the tolerance of nccl-tests, which allows for rounding."""
    for test in nccl_tests.tests:
        bad = [point for point in test.points if point.wrong]
        if not bad:
            continue
        what = test.collective or "a collective"
        gpus = f" over {len(test.ranks)} GPUs" if test.ranks else ""
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.CERTAIN,
            because=(
                f"nccl-tests counted wrong values of {what}{gpus} at {len(bad)} of "
                f"{len(test.points)} message sizes: {bad[0].wrong} at {bad[0].bytes} bytes"
            ),
            evidence=tuple(
                Observation(
                    name=f"wrong values, {point.bytes} bytes",
                    value=point.wrong or 0,
                    expected=0,
                    source="column #wrong of nccl-tests",
                )
                for point in bad[:FEW]
            ),
            fixes=(
                Fix(
                    summary="test whether the peer-to-peer path corrupts the data",
                    paste="NCCL_P2P_DISABLE=1 ./build/all_reduce_perf -b 8 -e 1G -f 2 -g 8 -c 1",
                    caution="if the values are right with it, repair peer-to-peer (ACS, IOMMU, "
                    "driver, NVLink); the variable itself is not a fix",
                ),
            ),
        )


def other_collectives(collectives: Collectives) -> Iterator[Finding]:
    for sweep in collectives.sweeps:
        yield from _wrong(sweep.collective, sweep.wrong, collectives.ranks)


def matmul(matmul: Matmul) -> Iterator[Finding]:
    places = [rate.place for rate in matmul.rates]
    yield from _wrong(f"a {matmul.dtype} matmul", matmul.wrong, places)


def burn(burn: Burn) -> Iterator[Finding]:
    """Equal factors with a different product: the device is faulty, not the library."""
    bad = [rank for rank in burn.ranks if rank.wrong]
    if not bad:
        return
    places = tuple(rank.place for rank in bad)
    first = min(bad, key=lambda rank: rank.wrong_after or 0.0)
    others = f"; {len(bad) - 1} other ranks were wrong as well" if len(bad) > 1 else ""
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"rank {first.place.rank} ({first.place.device}) computed {first.wrong} of "
            f"{first.products} products of the same {burn.dtype} factors wrong: they differ from "
            f"the first one, after {first.wrong_after or 0:.0f} s of full load{others}"
        ),
        evidence=tuple(
            Observation(
                name=f"wrong products of rank {rank.place.rank}",
                value=rank.wrong,
                expected=0,
                source="its first product, bitwise",
            )
            for rank in bad
        ),
        where=where(places),
        fixes=tuple(_exclusion(tuple(rank.place for rank in burn.ranks), places)),
    )


def _wrong(
    what: str, wrong: Sequence[WrongValue], ranks: Sequence[RankPlace], *fixes: Fix
) -> Iterator[Finding]:
    if not wrong:
        return
    first, bad = wrong[0], {value.rank for value in wrong}
    places = [place for place in ranks if place.rank in bad]
    devices = few([f"rank {place.rank} ({place.device})" for place in places])
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"{what} returned {_told(first)} instead of {first.expected:g} at {first.bytes} bytes; "
            f"wrong values on {devices}"
        ),
        evidence=tuple(
            Observation(
                name=f"rank {value.rank}, {value.bytes} bytes",
                value=NO_NUMBER if value.got is None else value.got,
                expected=value.expected,
                source="exact sum of whole numbers",
            )
            for value in wrong
        ),
        where=where(places),
        fixes=(*fixes, *_exclusion(ranks, places)),
    )


def _told(value: WrongValue) -> str:
    return NO_NUMBER if value.got is None else f"{value.got:g}"


def _exclusion(ranks: Sequence[RankPlace], bad: Sequence[RankPlace]) -> Iterator[Fix]:
    """One shell line per affected host, if few hosts are affected."""
    hosts = dict.fromkeys(place.host for place in bad)
    several = len({place.host for place in ranks}) > 1
    for host in hosts if len(hosts) <= FEW else ():
        here = [place for place in ranks if place.host == host]
        sound = [place.device.removeprefix("cuda:") for place in here if place not in bad]
        if not sound or not all(place.device.startswith("cuda:") for place in here):
            continue
        yield Fix(
            summary="exclude the device until it is tested or replaced"
            + (f", on {host}" if several else ""),
            paste=f"export CUDA_VISIBLE_DEVICES={','.join(sound)}",
            caution="indices as torch counts them here; start one rank fewer per excluded GPU",
        )
