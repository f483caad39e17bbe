"""The properties of a host, one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ddoctor.analysis.interface_choice import gloo_choice, nccl_choice
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Cpus, Kernel, Memory, SharedMemory
from ddoctor.evidence.network import Network, Rdma
from ddoctor.evidence.section import Evidence, SectionType
from ddoctor.evidence.software import Software
from ddoctor.report.places import listed
from ddoctor.report.wording import counted, quantity, size

Property = Callable[[Evidence, str], str]
"""Its text for a host; empty: not known."""


def _of(section: type[SectionType], text: Callable[[SectionType], str]) -> Property:
    def of(evidence: Evidence, host: str) -> str:
        found = evidence.of(section, host)
        return text(found) if found is not None else ""

    return of


def _system(kernel: Kernel) -> str:
    inside = ", ".join(filter(None, (kernel.container, kernel.virtual_machine)))
    return f"Linux {kernel.release}" + (f", in {inside}" if inside else "")


def _cpus(cpus: Cpus) -> str:
    quota = f" (quota {cpus.quota:g})" if cpus.quota is not None else ""
    model = f", {cpus.model}" if cpus.model else ""
    return f"{cpus.usable:g} usable of {cpus.logical}{quota}{model}"


def _memory(memory: Memory, *, available: bool = True) -> str:
    now = f", {size(memory.available)} available" if available else ""
    limit = f", limit {size(memory.limit)}" if memory.limit is not None else ""
    return size(memory.total) + now + limit


def _gpus(evidence: Evidence, host: str) -> str:
    section = evidence.of(Gpus, host)
    if section is None:
        why = evidence.why_absent(Gpus, host)
        return f"none: {why}" if why else ""
    driver = f", driver {section.driver}" if section.driver else ""
    if not section.gpus:
        return f"none{driver}"
    models = _counts([gpu.name or "GPU" for gpu in section.gpus])
    cuda = f" (CUDA up to {section.cuda[0]}.{section.cuda[1]})" if section.cuda else ""
    return f"{models}{driver}{cuda}"


def _counts(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def _software(software: Software) -> str:
    versions = {
        "Python": software.python,
        "torch": software.version("torch"),
        "NCCL": software.version("nccl"),
    }
    missing = f", no torch: {software.torch_error}" if software.torch_error else ""
    return ", ".join(f"{name} {known}" for name, known in versions.items() if known) + missing


def _network(network: Network, *, own_address: bool = True) -> str:
    if network.printed:
        return f"{listed([one.name for one in network.interfaces if one.usable])} can be used"
    choices = {"NCCL": nccl_choice(network), "gloo": gloo_choice(network)}
    text = "; ".join(
        f"{library} uses {listed(choice.interfaces) or 'no interface'} ({choice.rule})"
        for library, choice in choices.items()
    )
    for address in () if own_address else network.own_name.addresses:
        text = text.replace(f"resolves to {address}", "resolves to its own address")
    return text


def _rdma(rdma: Rdma) -> str:
    if not rdma.devices:
        return ""
    ports = [port for device in rdma.devices for port in device.ports if port.state == "ACTIVE"]
    kinds = [f"{quantity(port.rate or 0.0, 'Gbit/s')} {port.link_layer}".strip() for port in ports]
    return f"{counted(len(rdma.devices), 'device')}, active: {_counts(kinds) or 'none'}"


MACHINE: Mapping[str, Property] = {
    "system": _of(Kernel, _system),
    "CPUs": _of(Cpus, _cpus),
    "memory": _of(Memory, _memory),
    "GPUs": _gpus,
    "software": _of(Software, _software),
    "network": _of(Network, _network),
    "RDMA": _of(Rdma, _rdma),
}
SHARED_MEMORY: Mapping[str, Property] = {
    "/dev/shm": _of(SharedMemory, lambda shm: f"{size(shm.size)}, {size(shm.free)} free")
}
ALIKE: Mapping[str, Property] = {
    "memory": _of(Memory, partial(_memory, available=False)),
    "network": _of(Network, partial(_network, own_address=False)),
}
"""The properties without those that always differ between hosts."""
