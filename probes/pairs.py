"""Bandwidth between disjoint pairs of hosts, each direction separately, and lagging ranks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist

from ddoctor.analysis import slow_rails
from ddoctor.analysis.slow_links import Analysis
from ddoctor.evidence.cluster_probes import End, Flow, LocalWork, Pairs
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Unseen
from ddoctor.probing.pair_schedule import Pair, first_rounds, further_rounds, slots
from ddoctor.probing.world import ProbeWorld, Skip, by_host

SPANS_HOSTS = True

SMALLEST = 2**16
LARGEST = {"gloo": 2**26, "nccl": 2**28}
GROWTH = 4
# Latency and the bursts that a shaper lets pass weigh little in a transfer of this length, and a
# link of 100 Mbit/s needs no more than a few of them.
LONG_ENOUGH = 0.05
FIRST_REPEATS = 2
# Rails come one after the other, so that those who share a NIC do not slow each other; what is
# left of them is not begun after this.
RAILS_SECONDS = 60.0

# Twice the period of a CPU quota (cfs_period_us is 100 ms), so that an allowance of a share of it
# is used up; each rank needs about this long for one repeat.
WORK_SECONDS = 0.2
WORK_REPEATS = 5
WORK_BYTES = b"\1" * 2**20
# Of a machine's CPUs: the others are for the threads of the network and the neighbours.
BUSY_SHARE = 2


def measure(world: ProbeWorld) -> Pairs | None:
    """Rank 0 schedules the pairs; each pair times itself."""
    if world.size < 2:
        raise Skip("there is only one rank, and no other to send to")
    places = world.places()
    lanes = _lanes(places)
    machines = world.machines()
    # Two at least, or nobody could meet.
    capacity = {name: max(2, cpus // BUSY_SHARE) for name, cpus in machines}
    names = {rank: name for rank, (name, _) in enumerate(machines)}
    size = min(LARGEST[world.backend], world.memory())
    meetings = _Meetings(world, torch.zeros(size, dtype=torch.uint8, device=world.device))

    def meet(rounds: Iterable[Sequence[Pair]], repeats: int) -> list[Flow]:
        steps = [step for pairs in rounds for step in slots(pairs, names, capacity)]
        return [flow for step in world.agree(steps) for flow in meetings.hold(step, repeats)]

    def examine(lane: Sequence[int]) -> tuple[list[Flow], int]:
        first = first_rounds(lane)
        found = meet(first, FIRST_REPEATS)
        further = further_rounds(lane, found) if world.rank == 0 else []
        return found + meet(further, 1), len(first) + len(further)

    begin = time.perf_counter()
    flows, rounds = examine(lanes[0])
    chosen = world.nccl()
    ends = [End(place=places[rank]) for rank in lanes[0]]
    # Only RDMA takes another NIC for each GPU: sockets share the interfaces of the host.
    networks = [one for one in chosen.transports if one.startswith("NET/")]
    own_nics = networks and not any(one.startswith("NET/Socket") for one in networks)
    for rail, lane in enumerate(lanes[1:] if own_nics else (), start=1):
        left = RAILS_SECONDS * world.share_of_time - (time.perf_counter() - begin)
        if not world.agree(left > 0):
            break
        found, more = examine(lane)
        flows, rounds = flows + found, rounds + more
        ends += [End(place=places[rank], rail=rail) for rank in lane]
    work = _work(world, machines)
    if world.rank > 0:
        return None
    analysis = slow_rails.analyse(flows, ends)
    return Pairs(
        backend=world.backend,
        ends=tuple(ends),
        flows=_joined(flows),
        transport=", ".join(chosen.transports) or None,
        work=tuple(
            LocalWork(place=place, seconds=tuple(seconds), cpu=tuple(cpu), queued=tuple(queued))
            for place, (seconds, cpu, queued) in zip(places, work, strict=True)
        ),
        rounds=rounds,
        unseen=(_too_noisy(analysis),) if analysis.noisy else (),
    )


def _lanes(places: Sequence[RankPlace]) -> list[list[int]]:
    """All ranks of a single host; of several hosts rank i of each, if all have as many."""
    ranks = list(by_host(places).values())
    if len(ranks) == 1:
        return ranks
    as_many = len({len(members) for members in ranks}) == 1
    return [[members[rail] for members in ranks] for rail in range(len(ranks[0]) if as_many else 1)]


class _Meetings:
    """One rank's part in the transfers."""

    def __init__(self, world: ProbeWorld, data: torch.Tensor) -> None:
        self._world = world
        self._data = data
        self._length = torch.zeros(1, dtype=torch.int64, device=world.device)
        self._sizes: dict[int, int] = {}
        """By receiver, a size that takes long enough."""

    def hold(self, pairs: Sequence[Pair], repeats: int) -> list[Flow]:
        """Run these pairs at the same time; rank 0 receives their measurements."""
        rank = self._world.rank
        # Every rank writes one line a step: whoever has written fewer is behind.
        partner = next((a if b == rank else b for a, b in pairs if rank in (a, b)), None)
        self._world.doing(
            "waiting for the other pairs"
            if partner is None
            else f"sending to and receiving from rank {partner}"
        )
        mine = None
        if partner is not None:
            for sender in sorted((rank, partner)):
                if sender == rank:
                    mine = (partner, *self._send(partner, repeats))
                else:
                    self._receive(partner)
        told = enumerate(self._world.collect(mine))
        # All have arrived when rank 0 goes on: the next pairs do not disturb these.
        self._world.agree(None)
        return [
            Flow(sender=sender, receiver=one[0], bytes=one[1], rates=tuple(one[2]))
            for sender, one in told
            if one is not None
        ]

    def _send(self, receiver: int, repeats: int) -> tuple[int, list[float]]:
        size = self._sizes.get(receiver, 0)
        if not size:
            size = min(SMALLEST, len(self._data))
            while self._once(receiver, size) < LONG_ENOUGH and size < len(self._data):
                size = min(size * GROWTH, len(self._data))
            self._sizes[receiver] = size
        rates = [size / 1e9 / self._once(receiver, size) for _ in range(repeats)]
        self._tell(receiver, 0)
        return size, rates

    def _once(self, receiver: int, size: int) -> float:
        self._tell(receiver, size)
        begin = time.perf_counter()
        dist.send(self._data[:size], receiver)
        dist.recv(self._length, receiver)
        self._finish()
        return time.perf_counter() - begin

    def _receive(self, sender: int) -> None:
        while True:
            dist.recv(self._length, sender)
            size = int(self._length)
            if not size:
                return
            dist.recv(self._data[:size], sender)
            dist.send(self._length, sender)
            self._finish()

    def _tell(self, receiver: int, size: int) -> None:
        self._length.fill_(size)
        dist.send(self._length, receiver)
        self._finish()

    def _finish(self) -> None:
        if self._world.on_gpu:
            torch.cuda.synchronize(self._world.device)


def _work(world: ProbeWorld, machines: Sequence[tuple[str, int]]) -> list[list[list[float]]]:
    """Repeats of the same work by all ranks: seconds, share on a CPU, share in the run queue.

    Ranks on one machine alternate if it has few CPUs: they must not wait for each other.
    """
    amount = round(WORK_SECONDS / min(world.gather(min(_busy(1)[0] for _ in range(5)))))
    turns: dict[str, list[int]] = {}
    for rank, (name, _) in enumerate(machines):
        turns.setdefault(name, []).append(rank)
    at_once = {name: max(1, cpus // BUSY_SHARE) for name, cpus in machines}
    mine = machines[world.rank][0]
    my_turn = turns[mine].index(world.rank) // at_once[mine]
    last = max((len(ranks) - 1) // at_once[name] for name, ranks in turns.items())
    told: list[tuple[float, float, float | None]] = []
    for number in range(WORK_REPEATS):
        for turn in range(last + 1):
            world.doing(f"local work, repeat {number + 1}, turn {turn + 1}")
            if turn == my_turn:
                told.append(_busy(amount))
            world.collect(None)
            world.agree(None)
    seconds, cpu, queued = map(list, zip(*told, strict=True))
    everybody: list[list[list[float]]] = world.gather(
        (seconds, cpu, [share for share in queued if share is not None])
    )
    return everybody


def _busy(amount: int) -> tuple[float, float, float | None]:
    """Do the work; returns seconds, and the shares on a CPU and in the run queue."""
    begin, on_cpu, queued = time.perf_counter(), time.thread_time(), _queued()
    for _ in range(amount):
        hashlib.sha256(WORK_BYTES).digest()
    seconds = time.perf_counter() - begin
    waited = _queued()
    return (
        seconds,
        min(1.0, (time.thread_time() - on_cpu) / seconds),
        None if queued is None or waited is None else min(1.0, (waited - queued) / seconds),
    )


def _queued() -> float | None:
    """Seconds that this thread was ready and waited for a CPU (sched-stats.rst)."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return None


def _joined(flows: Iterable[Flow]) -> tuple[Flow, ...]:
    """One flow for each direction of each pair."""
    rows: dict[Pair, list[Flow]] = {}
    for flow in flows:
        rows.setdefault((flow.sender, flow.receiver), []).append(flow)
    return tuple(
        Flow(
            sender=sender,
            receiver=receiver,
            bytes=row[-1].bytes,
            rates=tuple(chain.from_iterable(flow.rates for flow in row)),
        )
        for (sender, receiver), row in sorted(rows.items())
    )


def _too_noisy(analysis: Analysis) -> Unseen:
    return Unseen(
        what="a slow link",
        why=(
            f"too noisy: healthy links reach {analysis.usual:.3g} GB/s and sometimes less than "
            f"{analysis.floor:.3g}, so only slower links would be found; "
            "repeat it while nothing else runs on the hosts and the network"
        ),
    )
