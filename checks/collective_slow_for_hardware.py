"""All-reduce is slower than these GPUs and their links allow.

Every step of data-parallel training sums all gradients by all-reduce and waits for it. This check
compares the bus bandwidth (busbw) of large messages with healthy machines that have the same GPUs,
number of ranks and algorithm. For unknown GPUs it compares with the constants that NCCL plans with.
Small messages measure latency, so they are never judged. NVLS sums in the NVLink switch, so its bus
bandwidth may exceed the link rate.

Symptoms: GPU utilisation is high, since a waiting NCCL kernel counts as busy, but power is low. The
throughput per GPU falls as soon as a second GPU joins.

To fix it, unset ``NCCL_P2P_DISABLE`` and ``NCCL_P2P_LEVEL``, and check the NVLinks for errors.
"""

# Above 150 lines: known and unknown GPUs share one finding, and NVLink and PCIe have different
# fixes.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.known_hardware import AllReduceFigures, Expected, GpuModels, Links
from ddoctor.evidence.printed import NcclTest, NcclTestPoint, NcclTests
from ddoctor.evidence.probes import AllReduce, SweepPoint
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

# A healthy 4-node fabric shows 12.5 % of its rate at 16 MiB (performance notes of ml-engineering,
# network/benchmarks); within a node the curves are near their plateau from here on.
JUDGED_FROM = 256 * 2**20

# Share of NCCL's plan, which is its constant times the links. Healthy machines measure 93 %
# (8×B200) to 101 % (8×V100) of it. 70 % of the published figure
# is also where a known machine counts as bad.
PLANNED_SHARE = 0.7

# Hosts of four and more of these have 4 × 200 Gbit/s (Google's a3, HPE's with GH200) to
# 8 × 400 Gbit/s. TCP reaches a few GB/s there, and one port of 100 Gbit/s 12.5 GB/s.
FABRIC = re.compile(r"\b(?:H100 80GB HBM3|H200|H800|GH200|B200|GB200|B300|GB300)\b(?! NVL)")
FEWEST_PER_HOST = 4
LEAST_BETWEEN_HOSTS = 12.5
LARGE_BETWEEN_HOSTS = 64 * 2**20


def known_gpus(
    all_reduce: AllReduce, models: GpuModels, figures: AllReduceFigures, gpus: Gpus | None
) -> Iterator[Finding]:
    yield from _compared(all_reduce, models, figures, gpus)


def in_nccl_tests(
    nccl_tests: NcclTests, models: GpuModels, figures: AllReduceFigures, gpus: Gpus | None
) -> Iterator[Finding]:
    """What all_reduce_perf printed, for GPUs with known figures."""
    for test in nccl_tests.tests:
        if test.collective == "all_reduce":
            yield from _compared(test, models, figures, gpus)


def between_hosts(nccl_tests: NcclTests) -> Iterator[Finding]:
    """Less than a tenth of what the adapters of such hosts carry, whatever their make."""
    for test in nccl_tests.tests:
        hosts = {place.host for place in test.ranks}
        each = len(test.ranks) / len(hosts) if hosts else 0
        large = [point for point in test.points if point.bytes >= LARGE_BETWEEN_HOSTS]
        if len(hosts) < 2 or each < FEWEST_PER_HOST or test.collective != "all_reduce" or not large:
            continue
        point = max(large, key=lambda one: one.bytes)
        if FABRIC.search(test.device_name or "") and point.bus_bandwidth < LEAST_BETWEEN_HOSTS:
            yield _finding(
                test,
                point,
                f"hosts with {each:.0f} of these GPUs have adapters for several times that: NCCL "
                "may use TCP or one slow adapter (NCCL_DEBUG=INFO prints which)",
                expected=LEAST_BETWEEN_HOSTS,
                source="offers of clouds and vendors: 4 × 200 Gbit/s and more a host",
            )


def unknown_gpus(
    all_reduce: AllReduce, gpus: Gpus, models: GpuModels, figures: AllReduceFigures, links: Links
) -> Iterator[Finding]:
    point = _largest(all_reduce)
    if point is None or _row(all_reduce, models, figures, gpus)[0] is not None:
        return
    plans = set()
    for gpu in gpus.gpus:
        kind = links.nvlink(gpu.capability) if gpu.capability is not None else None
        switched = [link for link in gpu.nvlinks or () if link.active and link.remote == "switch"]
        if gpu.name == all_reduce.device_name and kind is not None:
            plans.add(len(switched) * kind.planned)
    planned = min(plans, default=0.0)
    if point.bus_bandwidth < planned * PLANNED_SHARE:
        yield _finding(
            all_reduce,
            point,
            f"NCCL plans with {planned:.0f} GB/s over their NVLinks; no published figure exists "
            "for them, and the same probe on an equal machine would confirm this",
            expected=planned,
            source=links.sources["nccl"],
        )


def _compared(
    all_reduce: AllReduce | NcclTest,
    models: GpuModels,
    figures: AllReduceFigures,
    gpus: Gpus | None,
) -> Iterator[Finding]:
    """All-reduce below what healthy machines with the same GPUs show."""
    point = _largest(all_reduce)
    row, lanes = _row(all_reduce, models, figures, gpus)
    due = figures.due(row, point.bytes) if point is not None and row is not None else None
    if point is None or row is None or due is None:
        return
    if point.bus_bandwidth < row.warn * due * lanes:
        low, high = (figure * due * lanes for figure in row.published)
        over = f"PCIe {row.generation} x{lanes * 16:.0f}" if row.generation else row.algorithm
        error = point.bus_bandwidth < row.bad * due * lanes
        yield _finding(
            all_reduce,
            point,
            f"healthy machines with {len(all_reduce.ranks)} of these GPUs show {low:.0f} to "
            f"{high:.0f} GB/s ({over})",
            expected=low,
            source=figures.source(row.sources),
            severity=Severity.ERROR if error else Severity.WARNING,
            confidence=Confidence.POSSIBLE if row.generation else Confidence.LIKELY,
            over_pcie=bool(row.generation),
        )


def _largest(all_reduce: AllReduce | NcclTest) -> SweepPoint | NcclTestPoint | None:
    if not all_reduce.within_node or all_reduce.device_name is None:
        return None
    large = [point for point in all_reduce.points if point.bytes >= JUDGED_FROM]
    return max(large, key=lambda point: point.bytes, default=None)


def _row(
    all_reduce: AllReduce | NcclTest,
    models: GpuModels,
    figures: AllReduceFigures,
    gpus: Gpus | None,
) -> tuple[Expected | None, float]:
    """The expected figures, and the PCIe width as a share of 16 lanes; 1 without PCIe."""
    model = models.find(all_reduce.device_name or "")
    if model is None:
        return None, 1.0
    equal = [gpu for gpu in gpus.gpus if gpu.name == all_reduce.device_name] if gpus else []
    bridged = bool(equal) and all(any(n.active for n in gpu.nvlinks or ()) for gpu in equal)
    if model.nvlink is not None and (bridged or not model.bridge):
        return figures.find(model.name, len(all_reduce.ranks), all_reduce.algorithm), 1.0
    slots = [gpu.pcie for gpu in equal if gpu.pcie is not None]
    generation = min((slot.maximum_generation or 0 for slot in slots), default=0)
    width = min((slot.width or 0 for slot in slots), default=0)
    peer_to_peer = (all_reduce.transport or "").split(", ")
    if width and all(way.startswith("P2P") for way in peer_to_peer):
        return figures.pcie(generation), width / 16
    return None, 1.0


def _finding(
    all_reduce: AllReduce | NcclTest,
    point: SweepPoint | NcclTestPoint,
    comparison: str,
    *,
    expected: float,
    source: str,
    severity: Severity = Severity.WARNING,
    confidence: Confidence = Confidence.POSSIBLE,
    over_pcie: bool = False,
) -> Finding:
    chosen = all_reduce.transport or "an unknown transport"
    return Finding(
        severity=severity,
        confidence=confidence,
        because=(
            f"all-reduce of {point.bytes / 2**20:.0f} MiB over {len(all_reduce.ranks)} × "
            f"{all_reduce.device_name} reaches {point.bus_bandwidth:.0f} GB/s bus bandwidth with "
            f"{all_reduce.algorithm or 'an unknown algorithm'} over {chosen}, and {comparison}"
        ),
        evidence=(
            Observation(
                name="bus bandwidth",
                value=round(point.bus_bandwidth, 1),
                unit="GB/s",
                expected=round(expected, 1),
                source=source,
            ),
            Observation(name="transport", value=chosen, source="NCCL's own log"),
        ),
        where=Where(ranks=tuple(place.rank for place in all_reduce.ranks)),
        cost=Cost(value=round(expected - point.bus_bandwidth, 1), unit="GB/s"),
        fixes=tuple(_fixes(all_reduce, over_pcie)),
    )


def _fixes(all_reduce: AllReduce | NcclTest, over_pcie: bool) -> Iterator[Fix]:
    again = "ddoctor doctor --probe allreduce"
    ways = (all_reduce.transport or "").split(", ")
    if any(way.startswith(("SHM", "NET")) for way in ways):
        yield Fix(
            summary="enable peer-to-peer in NCCL: the data goes through host memory now",
            paste=f"nvidia-smi topo -p2p r\nunset NCCL_P2P_DISABLE NCCL_P2P_LEVEL\n{again}",
            caution="if the first line shows no OK, the driver or the board forbids peer-to-peer",
            environment=("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"),
        )
    if over_pcie:
        yield Fix(
            summary="try more channels, and peer-to-peer across sockets",
            paste=f"NCCL_MIN_NCHANNELS=8 NCCL_P2P_LEVEL=SYS {again}",
            caution="keep it only if the bandwidth rises: channels use multiprocessors of the GPU",
            environment=("NCCL_MIN_NCHANNELS=8", "NCCL_P2P_LEVEL=SYS"),
        )
    else:
        yield Fix(
            summary="check whether an NVLink is down or counts errors",
            paste="nvidia-smi nvlink --status\nnvidia-smi nvlink --errorcounters",
        )
