"""What was examined and what was measured, in a few lines: the head of every report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Cpus, Kernel, Memory
from ddoctor.evidence.network import Network, Rdma
from ddoctor.evidence.probes import (
    AllReduce,
    HostToDevice,
    Matmul,
    MemoryBandwidth,
    RankPlace,
    RankRate,
    StorageRead,
)
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.software import Software
from ddoctor.report import expectation
from ddoctor.report.wording import counted, listed, quantity, size

# A slowdown of less than 10 % is within what healthy devices of one kind differ by, so naming the
# slowest one would accuse it (docs/decisions.md; the rule that the checks follow).
APART = 0.9


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One line: what, and how much."""

    label: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One rate of every rank."""

    label: str
    unit: str
    rates: tuple[RankRate, ...]
    detail: str = ""
    published: float | None = None
    """What others reached on this model of GPU."""

    @property
    def median(self) -> float:
        return median(row.rate for row in self.rates)

    @property
    def slowest(self) -> RankRate:
        return min(self.rates, key=lambda row: row.rate)

    def __str__(self) -> str:
        text = quantity(self.median, self.unit) + (f" {self.detail}" if self.detail else "")
        if self.published is not None:
            text += f" (published: {quantity(self.published)})"
        if len(self.rates) == 1:
            return text
        least, most = quantity(self.slowest.rate), quantity(max(row.rate for row in self.rates))
        spread = f" ({least} to {most})" if least != most else ""
        text += f", median of {len(self.rates)}{spread}"
        if self.slowest.rate < APART * self.median:
            text += f", slowest {place_name(self.slowest.place)}"
        return text


def place_name(place: RankPlace, *, with_host: bool = False) -> str:
    """A GPU by its device; a rank without one by its number."""
    name = f"rank {place.rank}" if place.device == "cpu" else place.device
    return f"{place.host} {name}" if with_host else name


def facts(evidence: Evidence) -> tuple[Fact, ...]:
    """The head of a report: the machines, then what was measured."""
    return (*_machines(evidence), *_measured(evidence))


def comparisons(evidence: Evidence) -> tuple[Comparison, ...]:
    """Every rate that was measured on each rank, over all hosts."""
    matmuls = evidence.all(Matmul)
    copies = evidence.all(HostToDevice)
    computed = tuple(row for section in matmuls for row in section.rates)
    moved = tuple(row for section in evidence.all(MemoryBandwidth) for row in section.rates)
    gpu = expectation.model(row.place for row in (*computed, *moved))
    dtypes = sorted({section.dtype for section in matmuls})
    found = (
        Comparison(
            label="matmul",
            unit="TFLOP/s",
            rates=computed,
            detail=listed(dtypes),
            published=gpu.achievable if gpu and dtypes == ["bfloat16"] else None,
        ),
        Comparison(
            label="memory copy",
            unit="GB/s",
            rates=moved,
            published=gpu.copied if gpu else None,
        ),
        Comparison(
            label="host to device",
            unit="GB/s",
            rates=tuple(row for section in copies for row in section.to_device),
        ),
        Comparison(
            label="device to host",
            unit="GB/s",
            rates=tuple(row for section in copies for row in section.to_host),
        ),
    )
    return tuple(comparison for comparison in found if comparison.rates)


def _machines(evidence: Evidence) -> Iterator[Fact]:
    hosts = evidence.hosts
    if hosts:
        yield Fact(label="host" if len(hosts) == 1 else "hosts", text=listed(hosts))
    for label, of in MACHINE:
        yield from _same_or_each(label, evidence, of)


def _same_or_each(
    label: str, evidence: Evidence, of: Callable[[Evidence, str], str]
) -> Iterator[Fact]:
    """One line where all hosts agree, else one line for each group of hosts that do."""
    groups: dict[str, list[str]] = {}
    for host in evidence.hosts:
        groups.setdefault(of(evidence, host), []).append(host)
    for text, hosts in groups.items():
        if text:
            suffix = f" ({listed(hosts)})" if len(groups) > 1 else ""
            yield Fact(label=label, text=text + suffix)


def _system(evidence: Evidence, host: str) -> str:
    kernel = evidence.of(Kernel, host)
    if kernel is None:
        return ""
    inside = ", ".join(filter(None, (kernel.container, kernel.virtual_machine)))
    return f"Linux {kernel.release}" + (f", in {inside}" if inside else "")


def _cpus(evidence: Evidence, host: str) -> str:
    cpus = evidence.of(Cpus, host)
    if cpus is None:
        return ""
    quota = f" (quota {cpus.quota:g})" if cpus.quota is not None else ""
    model = f", {cpus.model}" if cpus.model else ""
    return f"{cpus.usable:g} usable of {cpus.logical}{quota}{model}"


def _memory(evidence: Evidence, host: str) -> str:
    memory = evidence.of(Memory, host)
    if memory is None:
        return ""
    limit = f", limit {size(memory.limit)}" if memory.limit is not None else ""
    return f"{size(memory.total)}, {size(memory.available)} available{limit}"


def _gpus(evidence: Evidence, host: str) -> str:
    section = evidence.of(Gpus, host)
    if section is None:
        why = evidence.why_absent(Gpus, host)
        return f"none: {why}" if why else ""
    if not section.gpus:
        return f"none, driver {section.driver}"
    names = [gpu.name for gpu in section.gpus]
    models = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    cuda = f" (CUDA up to {section.cuda[0]}.{section.cuda[1]})" if section.cuda else ""
    return f"{models}, driver {section.driver}{cuda}"


def _software(evidence: Evidence, host: str) -> str:
    software = evidence.of(Software, host)
    if software is None:
        return ""
    versions = (
        ("Python", software.python),
        ("torch", software.version("torch")),
        ("NCCL", software.version("nccl")),
    )
    missing = "" if software.torch else f", no torch: {software.torch_error}"
    return ", ".join(f"{name} {version}" for name, version in versions if version) + missing


def _network(evidence: Evidence, host: str) -> str:
    network = evidence.of(Network, host)
    if network is None:
        return ""
    choices = (("NCCL", network.nccl), ("gloo", network.gloo))
    return "; ".join(
        f"{library} takes {listed(choice.interfaces) or 'no interface'} ({choice.rule})"
        for library, choice in choices
    )


def _rdma(evidence: Evidence, host: str) -> str:
    rdma = evidence.of(Rdma, host)
    if rdma is None or not rdma.devices:
        return ""
    ports = [port for device in rdma.devices for port in device.ports if port.state == "ACTIVE"]
    kinds = [f"{quantity(port.rate or 0.0, 'Gbit/s')} {port.link_layer}".strip() for port in ports]
    active = ", ".join(f"{kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds))
    return f"{counted(len(rdma.devices), 'device')}, active: {active or 'none'}"


MACHINE: tuple[tuple[str, Callable[[Evidence, str], str]], ...] = (
    ("system", _system),
    ("CPUs", _cpus),
    ("memory", _memory),
    ("GPUs", _gpus),
    ("software", _software),
    ("network", _network),
    ("RDMA", _rdma),
)


def _measured(evidence: Evidence) -> Iterator[Fact]:
    for section in evidence.all(AllReduce):
        if section.points:
            first, *_, last = sorted((*section.points, section.points[0]), key=lambda p: p.bytes)
            healthy = expectation.all_reduce(section)
            due = f" (healthy: {healthy.text})" if healthy else ""
            yield Fact(
                label="all-reduce",
                text=f"{quantity(last.bus_bandwidth, 'GB/s')} busbw at {size(last.bytes)}{due}, "
                f"{quantity(first.p50 * 1e6, 'µs')} at {size(first.bytes)}; "
                f"{counted(len(section.ranks), 'rank')}, {section.backend}",
            )
    for comparison in comparisons(evidence):
        yield Fact(label=comparison.label, text=str(comparison))
    for storage in evidence.all(StorageRead):
        parts = (
            quantity(storage.sequential, "MB/s in one stream") if storage.sequential else "",
            quantity(storage.small_files, "small files/s") if storage.small_files else "",
        )
        cached = ", from the page cache" if storage.cold is False else ""
        yield Fact(
            label="storage", text=f"{', '.join(filter(None, parts))} from {storage.path}{cached}"
        )
