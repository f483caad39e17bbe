"""The properties of a host, one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ddoctor.analysis.interface_choice import gloo_choice, nccl_choice
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Cpus, Kernel, Memory
from ddoctor.evidence.network import Network, Rdma
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.software import Software
from ddoctor.report.places import listed
from ddoctor.report.wording import counted, quantity, size


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


def _memory(evidence: Evidence, host: str, *, available: bool = True) -> str:
    memory = evidence.of(Memory, host)
    if memory is None:
        return ""
    now = f", {size(memory.available)} available" if available else ""
    limit = f", limit {size(memory.limit)}" if memory.limit is not None else ""
    return size(memory.total) + now + limit


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
    choices = (("NCCL", nccl_choice(network)), ("gloo", gloo_choice(network)))
    return "; ".join(
        f"{library} uses {listed(choice.interfaces) or 'no interface'} ({choice.rule})"
        for library, choice in choices
    )


def _choices(evidence: Evidence, host: str) -> str:
    network, told = evidence.of(Network, host), _network(evidence, host)
    for address in network.own_name.addresses if network is not None else ():
        told = told.replace(f"resolves to {address}", "resolves to its own address")
    return told


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


ALIKE: Mapping[str, Callable[[Evidence, str], str]] = {
    "memory": partial(_memory, available=False),
    "network": _choices,
}
"""The properties without those that always differ between hosts."""
