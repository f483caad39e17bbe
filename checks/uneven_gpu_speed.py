"""A GPU is notably slower than equal GPUs in matrix multiplication or memory bandwidth.

In synchronous training every step takes as long as on the slowest GPU, so one slow GPU slows down
all ranks. Usually its clocks are low: heat, a power cap, a power brake. Otherwise its memory has
remapped rows, or another process uses the GPU.

Symptoms: at full load one GPU draws less power or runs at lower clocks than the others, and the
other ranks wait in collectives.

To fix it, check clocks, power and temperature with ``nvidia-smi -q``, or run without this GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ddoctor.analysis.describe import where
from ddoctor.analysis.peers import with_peers
from ddoctor.evidence.known_hardware import GpuModels
from ddoctor.evidence.probes import Burn, Matmul, MemoryBandwidth, RankPlace, RankRate
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

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
                        source=models.sources[model.sources[0]],
                    ),
                ),
                where=where([rate.place for rate in rates]),
                fixes=(_check(),),
            )


def in_the_course(burn: Burn) -> Iterator[Finding]:
    """One GPU slows down while equal GPUs keep their rate: heat, or a weak power supply."""
    falls = [(rank, rank.fallen) for rank in burn.ranks if rank.fallen is not None]
    for (rank, fallen), usual, peers in with_peers(
        falls, group=lambda row: row[0].place.device_name, value=lambda row: row[1]
    ):
        if rank.place.device == "cpu" or fallen - usual < _enough(peers):
            continue
        heat = f", at up to {max(rank.temperatures)} °C" if rank.temperatures else ""
        yield _finding(
            rank.place,
            f"falls from {rank.rates[0]:.0f} to {rank.rates[-1]:.0f} TFLOP/s within "
            f"{burn.seconds:.0f} s of load{heat}; equal GPUs fall by {usual:.0%}",
            Observation(
                name="rate lost during the burn",
                value=round(100 * fallen, 1),
                unit="%",
                expected=round(100 * usual, 1),
                source=f"median of {peers} other {rank.place.device_name}",
            ),
            fallen - usual,
            sure=peers > 1,
        )


def _laggards(rates: Sequence[RankRate], what: str, unit: str) -> Iterator[Finding]:
    for rate, usual, peers in with_peers(
        rates, group=lambda rate: rate.place.device_name, value=lambda rate: rate.rate
    ):
        behind = 1 - rate.rate / usual if usual else 0.0
        cpu = rate.place.device == "cpu"
        if cpu or behind < _enough(peers) or rate.rate + rate.spread >= usual:
            continue
        yield _finding(
            rate.place,
            f"reaches {rate.rate:.0f} {unit} in {what}, {behind:.0%} less than equal GPUs "
            f"({usual:.0f})",
            Observation(
                name=what,
                value=round(rate.rate, 1),
                unit=unit,
                expected=round(usual, 1),
                source=f"median of {peers} other {rate.place.device_name}",
            ),
            behind,
            sure=peers > 1,
        )


def _enough(peers: int) -> float:
    return SLOWER_BY if peers > 1 else SLOWER_BY_OF_TWO


def _finding(place: RankPlace, what: str, row: Observation, lost: float, *, sure: bool) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if sure else Confidence.LIKELY,
        because=f"rank {place.rank} ({place.device}) {what}",
        evidence=(row,),
        where=where([place]),
        cost=Cost(value=round(lost, 3), unit="share of speed"),
        fixes=(_check(place.bus_id),),
    )


def _check(bus_id: str = "") -> Fix:
    chosen = f" -i {bus_id}" if bus_id else ""
    return Fix(
        summary="check its clocks, power, temperature, ECC and other processes under load",
        paste=f"nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,ECC,PERFORMANCE,PIDS{chosen}",
        caution="if nothing can be fixed, run without this GPU",
    )
