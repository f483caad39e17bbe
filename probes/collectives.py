"""Bandwidth of five collectives: within each host, across the hosts, and over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from ddoctor.evidence.cluster_probes import Collective, Collectives, Scope, Sweep
from ddoctor.evidence.probes import SweepPoint, WrongValue
from ddoctor.probing import size_sweep
from ddoctor.probing.world import ProbeWorld, Skip, bus_bandwidth, by_host, first_difference

SPANS_HOSTS = True

# Of one collective in one scope, all sizes together.
SECONDS = 2.0

# Below that it is latency, which the all-reduce probe tells.
SMALLEST = 2**20

BYTES = 4
# Small whole numbers: exact in float32, and their sums as well.
PRIME = 251

# The names that torch.distributed has from 2.13 on, before those that it had.
_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """Buffers of one rank: ``large`` holds ``small`` once per rank, and ``other`` is as large."""

    large: torch.Tensor
    other: torch.Tensor
    small: torch.Tensor
    world: ProbeWorld

    @property
    def pattern(self) -> torch.Tensor:
        """Numbers that vary by position, of the length of ``small``."""
        return torch.arange(len(self.small), device=self.small.device) % PRIME

    def by_rank(self, of: Callable[[int], torch.Tensor | float]) -> torch.Tensor:
        """A tensor of the size of ``large``, with the result of ``of`` in each rank's part."""
        parts = torch.empty_like(self.large).view(self.world.size, -1)
        for rank, part in enumerate(parts):
            part[:] = of(rank)
        return parts.view(-1)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One collective: how to run it, and its expected output."""

    run: Callable[[Buffers], object]
    fill: Callable[[Buffers], object]
    result: Callable[[Buffers], torch.Tensor]
    expected: Callable[[Buffers], torch.Tensor]
    bandwidth: Callable[[int, float, int], float]
    """GB/s of bytes, seconds and ranks: nccl-tests' busbw (doc/PERFORMANCE.md)."""


def _parts(size: int, seconds: float, ranks: int) -> float:
    """Each rank keeps one of n parts; the bytes are those of all parts."""
    return size / seconds * (ranks - 1) / ranks / 1e9


def _whole(size: int, seconds: float, ranks: int) -> float:
    return size / seconds / 1e9


def _sum_of_ranks(of: Buffers) -> int:
    return sum(range(of.world.size))


def _fill_large(of: Buffers) -> None:
    of.large.copy_(of.by_rank(lambda part: of.pattern + part + of.world.rank))


KINDS: Mapping[Collective, Kind] = {
    "all-reduce": Kind(
        run=lambda of: dist.all_reduce(of.large, group=of.world.group),
        fill=_fill_large,
        result=lambda of: of.large,
        expected=lambda of: of.by_rank(
            lambda part: (of.pattern + part) * of.world.size + _sum_of_ranks(of)
        ),
        bandwidth=bus_bandwidth,
    ),
    "all-gather": Kind(
        run=lambda of: _gather(of.large, of.small, group=of.world.group),
        fill=lambda of: of.small.copy_(of.pattern + of.world.rank),
        result=lambda of: of.large,
        expected=lambda of: of.by_rank(lambda part: of.pattern + part),
        bandwidth=_parts,
    ),
    "reduce-scatter": Kind(
        run=lambda of: _scatter(of.small, of.large, group=of.world.group),
        fill=_fill_large,
        result=lambda of: of.small,
        expected=lambda of: (of.pattern + of.world.rank) * of.world.size + _sum_of_ranks(of),
        bandwidth=_parts,
    ),
    "all-to-all": Kind(
        run=lambda of: dist.all_to_all_single(of.other, of.large, group=of.world.group),
        fill=_fill_large,
        result=lambda of: of.other,
        expected=lambda of: of.by_rank(lambda part: of.pattern + of.world.rank + part),
        bandwidth=_parts,
    ),
    "broadcast": Kind(
        run=lambda of: dist.broadcast(of.large, group=of.world.group, group_src=0),
        fill=lambda of: of.large.copy_(of.by_rank(lambda part: of.pattern + part - of.world.rank)),
        result=lambda of: of.large,
        expected=lambda of: of.by_rank(lambda part: of.pattern + part),
        bandwidth=_whole,
    ),
}


def measure(world: ProbeWorld) -> Collectives | None:
    """Scope after scope; the hosts measure within themselves at the same time."""
    if world.size < 2:
        raise Skip("there is only one rank, and no other to communicate with")
    places = world.places()
    sweeps: list[Sweep] = []
    for scope, parts in _scopes(list(by_host(places).values())).items():
        ranks = next((part for part in parts if world.rank in part and len(part) > 1), None)
        world.doing(f"joining the groups of the scope: {scope}")
        whole = ranks is not None and len(ranks) == world.size
        part = world.within(ranks, f"{scope}/{ranks[0]}") if ranks and not whole else world
        host = world.host if scope == "within" else ""
        for collective in KINDS:
            world.doing(f"{collective}, {scope}")
            row = None
            if ranks is not None:
                row = _sweep(part, collective, scope, ranks, host)
            # The one that speaks for its part.
            told = world.collect(msgspec.to_builtins(row) if ranks and part.rank == 0 else None)
            sweeps += [msgspec.convert(one, Sweep) for one in told if one is not None]
            world.agree(None)
    if world.rank > 0:
        return None
    return Collectives(backend=world.backend, ranks=places, sweeps=tuple(sweeps))


def _scopes(hosts: Sequence[list[int]]) -> dict[Scope, list[list[int]]]:
    """The groups of ranks of each scope, as far as they differ."""
    everybody = sorted(rank for ranks in hosts for rank in ranks)
    several_ranks = any(len(ranks) > 1 for ranks in hosts)
    scopes: dict[Scope, list[list[int]]] = {}
    if len(hosts) > 1 and several_ranks:
        scopes["within"] = list(hosts)
        scopes["across"] = [[ranks[0] for ranks in hosts]]
    scopes["all"] = [everybody]
    return scopes


def _sweep(
    world: ProbeWorld, collective: Collective, scope: Scope, ranks: Sequence[int], host: str
) -> Sweep:
    kind = KINDS[collective]
    # Two large buffers, and as much again for gloo, which keeps its own.
    top = size_sweep.largest(world.memory() // 4)
    points: list[SweepPoint] = []
    wrong: tuple[WrongValue, ...] = ()
    refused = ""
    for size, left in size_sweep.sizes(world, points, first=SMALLEST, top=top, seconds=SECONDS):
        buffers = _buffers(world, size)
        if not points and (refused := _refusal(partial(kind.run, buffers))):
            break
        points.append(
            size_sweep.point(
                world,
                f"{collective}, {scope},",
                partial(kind.run, buffers),
                size=buffers.large.nbytes,
                bandwidth=kind.bandwidth,
                seconds=left,
            )
        )
        wrong += _verify(world, kind, buffers, ranks)
    return Sweep(
        collective=collective,
        scope=scope,
        host=host,
        ranks=tuple(ranks),
        points=tuple(points),
        wrong=wrong,
        skipped=refused,
    )


def _buffers(world: ProbeWorld, size: int) -> Buffers:
    """Buffers of about this many bytes, with an equal part for each rank."""
    part = max(1, size // BYTES // world.size)
    large, other = torch.zeros(2, part * world.size, device=world.device)
    return Buffers(
        large=large,
        other=other,
        small=torch.zeros(part, device=world.device),
        world=world,
    )


def _refusal(run: Callable[[], object]) -> str:
    """Why this backend lacks the collective; it refuses on every rank alike."""
    try:
        run()
    except (NotImplementedError, RuntimeError) as error:
        if "support" not in str(error) and not isinstance(error, NotImplementedError):
            raise
        return str(error).partition("\n")[0]
    return ""


def _verify(
    world: ProbeWorld, kind: Kind, buffers: Buffers, ranks: Sequence[int]
) -> tuple[WrongValue, ...]:
    """The first wrong value on each rank."""
    kind.fill(buffers)
    world.doing(f"collective of {buffers.large.nbytes} bytes, to verify its values")
    kind.run(buffers)
    mine = first_difference(kind.expected(buffers).float(), kind.result(buffers))
    return world.wrong_values(buffers.large.nbytes, mine, ranks)
