"""A GPU is notably slower than equal GPUs in matrix multiplication or in moving memory.

In synchronous training every step takes as long as on the slowest GPU, so one that lags costs the
speed of all. The usual reasons are its clocks: heat, a power cap, a thermal brake; then memory with
remapped rows, or another process on the device.

Seen from outside: one GPU draws less power or runs at lower clocks than the others at full load,
and the others wait in the collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ddoctor.analysis.peers import median_of_others
from ddoctor.evidence.burn import Burn
from ddoctor.evidence.known_hardware import GpuModels
from ddoctor.evidence.probes import Matmul, MemoryBandwidth, RankRate
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("straggler-rank",)

# The spread between the 8 GPUs of a healthy node is up to 5 % (ml-engineering: cooling, silicon);
# asking for 10 % is what took a published detector's false alarms away (GREYHOUND, ATC'25).
SLOWER_BY = 0.10
# With one peer only there is no telling which of the two is unusual, so it must be plain.
SLOWER_BY_OF_TWO = 0.20

# Of what was reached at best on this model over all matrix shapes (MAMF, ml-engineering). One
# square shape with random values reaches less of it; below this, something holds the clocks down.
REACHED_SHARE = 0.70


def computing(matmul: Matmul) -> Iterator[Finding]:
    yield from _laggards(matmul.rates, f"{matmul.dtype} matmul", "TFLOP/s")


def memory(memory_bandwidth: MemoryBandwidth) -> Iterator[Finding]:
    yield from _laggards(memory_bandwidth.rates, "copying device memory", "GB/s")


def all_of_them(matmul: Matmul, models: GpuModels) -> Iterator[Finding]:
    """Equal among themselves, and all slow: a weaker sign, because the shape matters, too."""
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
                    f"the {name} here reach {usual:.0f} TFLOP/s in a {matmul.dtype} matmul, and "
                    f"{model.achievable:.0f} were reached elsewhere; their clocks and power limits "
                    "under load would settle it"
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
                fixes=(_look(),),
            )


def in_the_course(burn: Burn) -> Iterator[Finding]:
    """One falls while its equals hold their rate: heat, or a power supply that gives way."""
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
                    f"to {rank.rates[-1]:.0f} TFLOP/s in the course of {burn.seconds:.0f} s{heat}; "
                    f"its equal peers fall by {usual:.0%}"
                ),
                evidence=(
                    Observation(
                        name="rate lost in the course of the burn",
                        value=round(100 * fall, 1),
                        unit="%",
                        expected=round(100 * usual, 1),
                        source=f"median of {peers} other {name}",
                    ),
                ),
                where=_where([rank.sustained]),
                cost=Cost(value=round(fall - usual, 3), unit="share of speed"),
                fixes=(_look(rank.place.bus_id),),
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
                    f"in {what}, {behind:.0%} less than the {usual:.0f} of its equal peers"
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
                fixes=(_look(rate.place.bus_id),),
            )


def _where(rates: Sequence[RankRate]) -> Where:
    return Where(
        hosts=tuple(sorted({rate.place.host for rate in rates})),
        ranks=tuple(rate.place.rank for rate in rates),
        devices=tuple(rate.place.device for rate in rates),
    )


def _look(bus_id: str = "") -> Fix:
    chosen = f" -i {bus_id}" if bus_id else ""
    return Fix(
        summary="under load, see what holds it back: clocks, power, heat, ECC, other processes",
        paste=f"nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,ECC,PERFORMANCE,PIDS{chosen}",
        caution="leave the GPU out of the run if nothing of it can be mended",
    )
