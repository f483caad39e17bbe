"""Clock offset of each host against the first rank's host, measured as by NTP."""

from __future__ import annotations

import secrets
from time import time as now

from ddoctor.evidence.cluster_probes import ClockOffset, ClockOffsets
from ddoctor.probing.world import ProbeWorld, Skip, by_host

USES_DEVICE = False
SPANS_HOSTS = True

# The shortest round trip is told least wrong: whatever delayed the others is not in it. NTP keeps
# the best of 8 (RFC 5905, section 10); hosts that are measured once get more, as long as they are
# not so many that their turns add up. An exchange took 0.17 ms over the store of one machine and
# takes about 1 ms with a network between: 8 s for 1,024 hosts, 33 s for 4,096. Each host is a step
# of its own, so one that does not ask stops the probe for no longer than any rank may be silent.
EXCHANGES = 20
EXCHANGES_OF_MANY = 8
MANY = 256

Stamps = tuple[float, float, float, float]


def measure(world: ProbeWorld) -> ClockOffsets | None:
    """One rank of each host after another exchanges time stamps with rank 0, over the store."""
    first = {host: ranks[0] for host, ranks in by_host(world.places()).items()}
    if len(first) < 2:
        raise Skip("there is only one host")
    talk = world.agree(secrets.token_hex(4))
    mine = (0.0, 0.0)
    exchanges = EXCHANGES if len(first) <= MANY else EXCHANGES_OF_MANY
    for host, rank in first.items():
        if rank == 0:
            continue
        if world.rank == 0:
            world.doing(f"answering {host}")
            _answer(world, f"{talk}/{rank}", exchanges)
        elif world.rank == rank:
            world.doing("asking rank 0 for the time")
            mine = offset(_ask(world, f"{talk}/{rank}", exchanges))
    told = world.gather(mine)
    if world.rank > 0:
        return None
    return ClockOffsets(
        offsets=tuple(
            ClockOffset(host=host, offset=told[rank][0], uncertainty=told[rank][1])
            for host, rank in first.items()
        )
    )


def offset(exchanges: list[Stamps]) -> tuple[float, float]:
    """Seconds that this clock is ahead, and the uncertainty, from the shortest NTP round trip.

    The stamps are those of RFC 5905, section 8: request sent, request received, answer sent, answer
    received.
    """
    trip, ahead = min(
        ((t4 - t1) - (t3 - t2), ((t1 - t2) + (t4 - t3)) / 2) for t1, t2, t3, t4 in exchanges
    )
    return ahead, max(0.0, trip) / 2


def _ask(world: ProbeWorld, talk: str, times: int) -> list[Stamps]:
    exchanges = []
    for number in range(times):
        asked = now()
        world.store.set(f"{talk}/{number}/asked", "")
        answer = world.store.get(f"{talk}/{number}/answered")
        received = now()
        there, back = map(float, answer.decode().split())
        exchanges.append((asked, there, back, received))
    return exchanges


def _answer(world: ProbeWorld, talk: str, times: int) -> None:
    for number in range(times):
        world.store.get(f"{talk}/{number}/asked")
        received = now()
        world.store.set(f"{talk}/{number}/answered", f"{received!r} {now()!r}")
