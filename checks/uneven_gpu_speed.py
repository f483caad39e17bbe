"""A GPU is notably slower than equal GPUs in matrix multiplication or memory bandwidth.

In synchronous training every step takes as long as on the slowest GPU, so one slow GPU slows down
all ranks. Usually its clocks are low: heat, a power cap, a power brake. Otherwise its memory has
remapped rows, or another process uses the GPU.

Symptoms: at full load one GPU draws less power or runs at lower clocks than the others, and the
other ranks wait in collectives.

To fix it, check clocks, power and temperature with ``nvidia-smi -q``, or run without this GPU.
"""

# Above 150 lines: four measurements, compared with peers, with the table and over time.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ddoctor.analysis.peers import median_of_others
from ddoctor.evidence.burn import Burn
from ddoctor.evidence.known_hardware import GpuModels
from ddoctor.evidence.probes import Matmul, MemoryBandwidth, RankRate
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("straggler-rank",)
OF_MACHINE = True

# The spread between the 8 GPUs of a healthy node is up to 5 % (ml-engineering: cooling, silicon);
# a threshold of 10 % removed the false alarms of a published detector (GREYHOUND, ATC'25).
SLOWER_BY = 0.10
# With only one peer either GPU may be the unusual one, so the difference must be larger.
SLOWER_BY_OF_TWO = 0.20

# Share of the best rate of this model over all matrix shapes (MAMF, ml-engineering). One square
# shape with random values reaches less; below this share, something lowers the clocks.
REACHED_SHARE = 0.70


def computing(matmul: Matmul) -> Iterator[Finding]:
    yield from _laggards(matmul.rates, f"{matmul.dtype} matmul", "TFLOP/s")


def memory(memory_bandwidth: MemoryBandwidth) -> Iterator[Finding]:
    yield from _laggards(memory_bandwidth.rates, "device memory copies", "GB/s")


def all_of_them(matmul: Matmul, models: GpuModels) -> Iterator[Finding]:
    """All equal GPUs are slow: a weaker sign, because the matrix shape matters, too."""
    for name in sorted({rate.place.device_name for rate in matmul.rates}):
        model = models.find(name)
        if model is None or model.achievable is None or matmul.dtype != "bfloat16":
            continue
        rates = [rate for rate in matmul.rates if rate.place.device_name == name]
        usual = median(rate.rate for rate in rates)
        if usual < REACHED_SHARE * model.achievable:
            source = models.sources[model.sources[0]]
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.POSSIBLE,
                because=(
                    f"the {name} here reach {usual:.0f} TFLOP/s in a {matmul.dtype} matmul, but "
                    f"other machines reach {model.achievable:.0f}; their clocks and power limits "
                    "under load would show why"
                ),
                evidence=(
                    Observation(
                        name="matmul",
                        value=round(usual, 1),
                        unit="TFLOP/s",
                        expected=model.achievable,
                        source=source,
                    ),
                ),
                where=_where(rates),
                fixes=(_check(),),
            )


def in_the_course(burn: Burn) -> Iterator[Finding]:
    """One GPU slows down while equal GPUs keep their rate: heat, or a weak power supply."""
    fallen = [(rank, rank.fallen) for rank in burn.ranks if rank.place.device != "cpu"]
    for name in sorted({rank.place.device_name for rank, _ in fallen}):
        equal = [
            (rank, fall)
            for rank, fall in fallen
            if rank.place.device_name == name and fall is not None
        ]
        ordered = sorted(fall for _, fall in equal)
        peers = len(equal) - 1
        for rank, fall in equal if peers else ():
            usual = median_of_others(ordered, fall)
            if fall - usual < (SLOWER_BY if peers > 1 else SLOWER_BY_OF_TWO):
                continue
            heat = f", at up to {max(rank.temperatures)} °C" if rank.temperatures else ""
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.CERTAIN if peers > 1 else Confidence.LIKELY,
                because=(
                    f"rank {rank.place.rank} ({rank.place.device}) falls from {rank.rates[0]:.0f} "
                    f"to {rank.rates[-1]:.0f} TFLOP/s within {burn.seconds:.0f} s of load{heat}; "
                    f"equal GPUs fall by {usual:.0%}"
                ),
                evidence=(
                    Observation(
                        name="rate lost during the burn",
                        value=round(100 * fall, 1),
                        unit="%",
                        expected=round(100 * usual, 1),
                        source=f"median of {peers} other {name}",
                    ),
                ),
                where=_where([rank.sustained]),
                cost=Cost(value=round(fall - usual, 3), unit="share of speed"),
                fixes=(_check(rank.place.bus_id),),
            )


def _laggards(rates: Sequence[RankRate], what: str, unit: str) -> Iterator[Finding]:
    for name in sorted({rate.place.device_name for rate in rates if rate.place.device != "cpu"}):
        equal = [rate for rate in rates if rate.place.device_name == name]
        ordered = sorted(rate.rate for rate in equal)
        peers = len(equal) - 1
        for rate in equal if peers else ():
            usual = median_of_others(ordered, rate.rate)
            enough = SLOWER_BY if peers > 1 else SLOWER_BY_OF_TWO
            behind = 1 - rate.rate / usual
            if behind < enough or rate.rate + rate.spread >= usual:
                continue
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.CERTAIN if peers > 1 else Confidence.LIKELY,
                because=(
                    f"rank {rate.place.rank} ({rate.place.device}) reaches {rate.rate:.0f} {unit} "
                    f"in {what}, {behind:.0%} less than equal GPUs ({usual:.0f})"
                ),
                evidence=(
                    Observation(
                        name=what,
                        value=round(rate.rate, 1),
                        unit=unit,
                        expected=round(usual, 1),
                        source=f"median of {peers} other {name}",
                    ),
                ),
                where=_where([rate]),
                cost=Cost(value=round(behind, 3), unit="share of speed"),
                fixes=(_check(rate.place.bus_id),),
            )


def _where(rates: Sequence[RankRate]) -> Where:
    return Where(
        hosts=tuple(sorted({rate.place.host for rate in rates})),
        ranks=tuple(rate.place.rank for rate in rates),
        devices=tuple(rate.place.device for rate in rates),
    )


def _check(bus_id: str = "") -> Fix:
    chosen = f" -i {bus_id}" if bus_id else ""
    return Fix(
        summary="check its clocks, power, temperature, ECC and other processes under load",
        paste=f"nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,ECC,PERFORMANCE,PIDS{chosen}",
        caution="if nothing can be fixed, run without this GPU",
    )
