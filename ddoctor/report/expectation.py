"""Reference values of healthy machines, from the tables that ship with ddoctor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddoctor import knowledge
from ddoctor.evidence.known_hardware import AllReduceFigures, GpuModel, GpuModels
from ddoctor.evidence.probes import AllReduce, RankPlace
from ddoctor.report.wording import span

# A slowdown of less than 10 % is within what healthy devices of one kind differ by, so naming the
# slowest one would accuse it (docs/decisions.md; the rule that the checks follow).
APART = 0.9


@dataclass(frozen=True, kw_only=True)
class Healthy:
    """The all-reduce of healthy machines, in GB/s of bus bandwidth by message size in bytes."""

    name: str
    """The machines, such as ``8 × H100 SXM, nvls``."""
    text: str
    """The expected bus bandwidth at the largest measured size."""
    points: tuple[tuple[int, float], ...]
    source: str


def model(places: Iterable[RankPlace]) -> GpuModel | None:
    """Return the GPU model of all these devices; None: they differ, or no table has it."""
    names = {place.device_name for place in places}
    return knowledge.load(GpuModels).find(names.pop()) if len(names) == 1 else None


def all_reduce(measured: AllReduce) -> Healthy | None:
    """Return what healthy machines with these GPUs reach; None: several hosts, or no table."""
    gpu = model(measured.ranks)
    largest = max((point.bytes for point in measured.points), default=0)
    if gpu is None or not largest or len({place.host for place in measured.ranks}) > 1:
        return None
    figures = knowledge.load(AllReduceFigures)
    row = figures.find(gpu.name, len(measured.ranks), measured.algorithm)
    if row is None:
        return None
    low, high = row.published
    if row.points:
        due = row.at(largest)
        inside = (point for point in row.points if point[0] < largest)
        text, points, sources = f"about {due:.0f}", (*inside, (largest, due)), (row.points_source,)
    elif figures.due(row, largest) is not None:
        text, sources = span(f"{low:.0f}", f"{high:.0f}"), row.sources
        points = ((largest // 4, low), (largest, low))
    else:
        return None
    return Healthy(
        name=f"{row.ranks} × {row.model}, {row.algorithm}",
        text=text,
        points=points,
        source=figures.source(sources),
    )
