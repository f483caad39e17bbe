"""A simulated cluster: sound hosts, each a little different, and a few with a known fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from msgspec.structs import replace

from ddoctor.evidence.cluster_probes import End, Flow, Pairs
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.host import Clock, Cpus, Memory, SharedMemory
from ddoctor.evidence.network import Address, Network, Rendezvous, ResolvedName, Route
from ddoctor.evidence.probes import (
    AllReduce,
    HostToDevice,
    Matmul,
    MemoryBandwidth,
    ProbeRun,
    ProbeRuns,
    RankPlace,
    RankRate,
    StorageRead,
    WrongValue,
)
from ddoctor.evidence.section import Evidence, Section
from ddoctor.evidence.software import Environment, Software
from ddoctor.models import Finding
from ddoctor.probing import pair_schedule
from tests.healthy import healthy
from tests.healthy.gpus import GPUS
from tests.healthy.host import HOST
from tests.healthy.probes import CURVE, sweep

SectionType = TypeVar("SectionType", bound=Section)

GPUS_PER_HOST = len(GPUS)
MIB = 2**20
FIRST_REPEATS = 2
LINK = 46.0
"""GB/s that a host sends over one 400 Gbit/s link."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of one host, and the cause that has to be told for it and for no other host."""

    cause: str
    host: int = 0
    sections: Callable[[dict[type[Section], Section]], Iterable[Section]] = lambda _: ()
    matmul: float = 1.0
    """Factor on the speed of its GPU ``device``."""
    device: int = 3
    link: float = 1.0
    """Factor on what it sends and receives."""


def name(index: int) -> str:
    return f"node-{index:04}"


def fleet(hosts: int, faults: Iterable[Fault] = (), seed: int = 7) -> Evidence:
    """Evidence of so many hosts with 8 GPUs each, as one run of all ranks leaves it."""
    chance = Random(seed)
    faulty = tuple(faults)
    sections: list[Section] = []
    for index in range(hosts):
        own = {type(one): one for one in _host(index, chance)}
        for fault in faulty:
            if fault.host == index:
                own |= {type(one): one for one in fault.sections(own)}
        sections += own.values()
    return Evidence((*sections, *_measured(hosts, faulty, chance)))


def planted(hosts: int) -> tuple[Fault, ...]:
    """One fault of each kind, on hosts that lie apart; for as many hosts as there are kinds."""
    step = hosts / len(KINDS)
    return tuple(
        dataclasses.replace(fault, host=int((number + 0.5) * step))
        for number, fault in enumerate(KINDS)
    )


def named(findings: Iterable[Finding]) -> set[tuple[str, str]]:
    """Cause and host of every finding, a pair for each host that it names."""
    return {(finding.cause, host) for finding in findings for host in finding.where.hosts or ("",)}


def _host(index: int, chance: Random) -> Iterator[Section]:
    """The sections that a host's collectors would make."""
    address = f"10.{index // 65025}.{index // 255 % 255}.{index % 255 + 1}"
    for section in healthy():
        if section.host != HOST or section.probe or isinstance(section, ProbeRuns):
            continue
        own = replace(section, host=name(index))
        if isinstance(own, Cpus):
            own = replace(own, load=(chance.uniform(0.5, 3.0), 1.0, 0.7))
        elif isinstance(own, Memory):
            own = replace(own, available=own.available - chance.randrange(20 * 2**30))
        elif isinstance(own, SharedMemory):
            own = replace(own, free=own.free - chance.randrange(2**30))
        elif isinstance(own, Clock):
            own = replace(own, estimated_error=chance.uniform(1e-5, 1e-4))
        elif isinstance(own, Environment):
            own = replace(
                own,
                variables=tuple(
                    replace(one, value=name(0)) if one.name == "MASTER_ADDR" else one
                    for one in own.variables
                ),
            )
        elif isinstance(own, Network):
            own = replace(
                own,
                interfaces=tuple(
                    replace(one, addresses=(Address(address=address, prefix=8),))
                    if one.name == "eth0"
                    else one
                    for one in own.interfaces
                ),
                own_name=ResolvedName(name=name(index), addresses=(address,)),
                announced_name=f"{name(index)}.cluster",
            )
        elif isinstance(own, Rendezvous):
            own = replace(
                own,
                master=ResolvedName(name=name(0), addresses=("10.0.0.1",)),
                master_here=index == 0,
                master_route=Route(to="10.0.0.1", interface="eth0") if index else None,
                port_free=True if index == 0 else None,
            )
        elif isinstance(own, Gpus):
            own = replace(own, gpus=tuple(_gpu(gpu, index, chance) for gpu in own.gpus))
        yield own


def _gpu(gpu: Gpu, index: int, chance: Random) -> Gpu:
    return replace(
        gpu,
        uuid=f"GPU-{index:08x}-0000-0000-0000-{gpu.index:012}",
        power=chance.uniform(65, 80),
        temperature=chance.randrange(27, 36),
    )


def _measured(hosts: int, faults: tuple[Fault, ...], chance: Random) -> Iterator[Section]:
    """What the probes of one run measure: a section of each for all hosts, a row for each rank."""
    places = tuple(
        RankPlace(
            rank=index * GPUS_PER_HOST + gpu.index,
            host=name(index),
            device=f"cuda:{gpu.index}",
            device_name=gpu.name,
            bus_id=gpu.bus_id,
        )
        for index in range(hosts)
        for gpu in GPUS
    )
    slow = {fault.host * GPUS_PER_HOST + fault.device: fault.matmul for fault in faults}

    def rates(usual: float, factors: dict[int, float]) -> tuple[RankRate, ...]:
        return tuple(
            RankRate(
                place=place,
                rate=usual * chance.uniform(0.97, 1.03) * factors.get(place.rank, 1.0),
                spread=usual * 0.005,
            )
            for place in places
        )

    wrong = tuple(
        WrongValue(
            rank=fault.host * GPUS_PER_HOST + fault.device, bytes=MIB, expected=36.0, got=35.0
        )
        for fault in faults
        if fault.cause == "wrong-collective-result"
    )
    yield AllReduce(
        backend="nccl",
        ranks=places,
        points=sweep({size: speed * 0.8 for size, speed in CURVE.items()}, len(places)),
        wrong=wrong,
        algorithm="nvlstree",
        transport="NET/IB",
        nccl="2.27.3",
    )
    yield Matmul(dtype="bfloat16", size=8192, rates=rates(720.0, slow))
    yield MemoryBandwidth(rates=rates(2970.0, {}))
    yield HostToDevice(to_device=rates(55.0, {}), to_host=rates(54.0, {}))
    yield _pairs(tuple(places[:: len(GPUS)]), faults, chance)
    yield ProbeRuns(
        runs=tuple(
            ProbeRun(probe=kind.probe, outcome="completed", seconds=3.0)
            for kind in (AllReduce, HostToDevice, Matmul, MemoryBandwidth, Pairs, StorageRead)
        ),
        backend="nccl",
        world_size=len(places),
    )


def _pairs(places: tuple[RankPlace, ...], faults: tuple[Fault, ...], chance: Random) -> Pairs:
    """One rank of each host, in the rounds that the probe would play."""
    slow = {fault.host * GPUS_PER_HOST: fault.link for fault in faults}
    ranks = [place.rank for place in places]

    def play(rounds: list[list[pair_schedule.Pair]], repeats: int) -> list[Flow]:
        return [
            Flow(
                sender=sender,
                receiver=receiver,
                bytes=64 * MIB,
                rates=tuple(LINK * factor * chance.uniform(0.98, 1.02) for _ in range(repeats)),
            )
            for pairs in rounds
            for a, b in pairs
            for sender, receiver in ((a, b), (b, a))
            for factor in (min(slow.get(a, 1.0), slow.get(b, 1.0)),)
        ]

    flows = play(pair_schedule.first_rounds(ranks), FIRST_REPEATS)
    flows += play(pair_schedule.further_rounds(ranks, flows), 1)
    return Pairs(
        backend="nccl", ends=tuple(End(place=place) for place in places), flows=tuple(flows)
    )


def _of(own: dict[type[Section], Section], kind: type[SectionType]) -> SectionType:
    found = own[kind]
    assert isinstance(found, kind)
    return found


def _small_shm(own: dict[type[Section], Section]) -> Iterator[Section]:
    yield replace(_of(own, SharedMemory), size=64 * MIB, free=64 * MIB)


def _hot(own: dict[type[Section], Section]) -> Iterator[Section]:
    yield _with_gpu(
        _of(own, Gpus),
        3,
        temperature=91,
        throttle_reasons=("hw_slowdown", "hw_thermal_slowdown"),
        sm_clock=900,
        utilisation=100,
        performance_state=0,
    )


def _nvlinks_down(own: dict[type[Section], Section]) -> Iterator[Section]:
    gpus = _of(own, Gpus)
    links = tuple(replace(link, active=link.index > 3) for link in gpus.gpus[3].nvlinks or ())
    yield _with_gpu(gpus, 3, nvlinks=links)


def _lost(own: dict[type[Section], Section]) -> Iterator[Section]:
    yield _with_gpu(_of(own, Gpus), 3, lost=True, error="GPU_IS_LOST")


def _other_nccl(own: dict[type[Section], Section]) -> Iterator[Section]:
    software = _of(own, Software)
    assert software.torch is not None
    libraries = tuple(replace(one, version="2.26.2") for one in software.nccl_libraries)
    torch = replace(software.torch, nccl="2.26.2")
    packages = tuple(
        replace(one, version="2.26.2") if one.name == "nvidia-nccl-cu12" else one
        for one in software.packages
    )
    yield replace(software, torch=torch, nccl_libraries=libraries, packages=packages)


def _clock_lost(own: dict[type[Section], Section]) -> Iterator[Section]:
    yield replace(_of(own, Clock), synchronised=False)


def _with_gpu(gpus: Gpus, index: int, **changes: object) -> Gpus:
    changed = (replace(gpu, **changes) if gpu.index == index else gpu for gpu in gpus.gpus)
    return replace(gpus, gpus=tuple(changed))


KINDS = (
    Fault(cause="shm-too-small", sections=_small_shm),
    Fault(cause="gpu-thermal-throttling", sections=_hot, matmul=0.5),
    Fault(cause="nvlink-degraded", sections=_nvlinks_down),
    Fault(cause="gpu-hardware-fault", sections=_lost),
    Fault(cause="nccl-library-mismatch", sections=_other_nccl),
    Fault(cause="clock-skew", sections=_clock_lost),
    Fault(cause="uneven-gpu-speed", matmul=0.75),
    Fault(cause="slow-network-link", link=0.5),
    Fault(cause="wrong-collective-result"),
)
