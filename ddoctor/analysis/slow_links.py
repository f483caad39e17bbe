"""Which host, direction or path the slow transfers have in common.

A transfer tests two ends at once: the sender's way out and the receiver's way in. As in group
testing (COMP and DD of Aldridge, Baldassini and Johnson, "Group testing algorithms: bounds and
simulations", IEEE Trans. Inf. Theory 2014), a fast transfer clears both ends. A slow transfer
convicts an end whose opposite is cleared. So two bad partners cannot clear each other.

Noise on a machine only slows transfers down. So the figure of a flow is the best of its repeats,
and a slow path is slow in every repeat.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from statistics import median
from typing import Literal

from ddoctor.evidence.cluster_probes import Flow

What = Literal["host", "sending", "receiving", "link", "path", "rail"]
"""What is slow.

- host: an end in both directions.
- sending, receiving: an end in one direction.
- link: between two ends, in both directions.
- path: from one end to another.
- rail: the same NIC of all hosts.
"""

Key = tuple[int, int]
"""A flow: from a sender to a receiver."""

REPEATS = 5
"""The least number of repeats; a slow end or path is slow in all of them."""

# A least change of 10 % removed the false alarms of a published detector (GREYHOUND, ATC'25);
# NVIDIA's NVRx flags below 0.75 of the peers.
SLOWER_BY = 0.10
SLOWER_BY_OF_FEW = 0.25
SLOWER_BY_OF_ONE = 0.50
# Up to this number of flows (those between four hosts), the spread of healthy flows is uncertain.
FEW = 12
# Standard deviations (1.4826 × the median absolute deviation): one in 15,000 by chance.
FAR = 4.0
# Even its best repeat is slower than the worst tenth of the healthy repeats.
PEERS_AT_WORST = 0.10
# With a floor of a quarter of the usual rate, a link of 100 Mbit/s among links of 1 Gbit/s is still
# found, and hardly anything faster.
NOISY = 0.25
# More slow paths than this are how the network is built (racks, oversubscription), not a fault.
STRUCTURE = 0.10


@dataclass(frozen=True, kw_only=True)
class Slow:
    """One slow host, direction, link, path or rail, and its rate."""

    what: What
    ranks: tuple[int, ...]
    """Of a path: the sender, then the receiver; for several rails one after the other."""
    rate: float
    """GB/s, the best of all repeats."""
    repeats: int

    @classmethod
    def of(cls, what: What, ranks: tuple[int, ...], rates: Sequence[float]) -> Slow:
        """Make it from the rates of all its transfers; a host and a link have two directions."""
        directions = 2 if what in ("host", "link") else 1
        return cls(
            what=what,
            ranks=ranks,
            rate=max(rates, default=0.0),
            repeats=len(rates) // directions,
        )


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The result for all flows."""

    slow: tuple[Slow, ...]
    usual: float
    """GB/s: the median of the healthy flows."""
    floor: float
    """GB/s: a flow is slow if even its best repeat is below."""

    @property
    def noisy(self) -> bool:
        """Whether healthy flows differ so much that only far slower flows can be found."""
        return self.floor < NOISY * self.usual


def analyse(flows: Iterable[Flow], *, repeats: int = REPEATS) -> Analysis:
    """Find what is slow; each result needs at least ``repeats`` transfers."""
    rates: dict[Key, list[float]] = defaultdict(list)
    for flow in (one for one in flows if one.rates):
        rates[flow.sender, flow.receiver] += flow.rates
    if not rates:
        return Analysis(slow=(), usual=0.0, floor=0.0)
    best = {key: max(seen) for key, seen in rates.items()}
    # The first estimate is the best third: of three hosts, one bad host spoils four of six flows.
    # The next ones come from the healthy flows.
    usual = median(sorted(best.values())[-ceil(len(best) / 3) :])
    floor = usual * (1 - SLOWER_BY_OF_FEW)
    for _ in range(2):
        blame = _blame(best, floor)
        sound = [key for key in best if key not in blame.slow]
        if _is_structure(blame, best):
            sound += blame.paths
        usual = median(best[key] for key in sound)
        repeats_of_sound = sorted(rate for key in sound for rate in rates[key])
        at_worst = repeats_of_sound[ceil(len(repeats_of_sound) * PEERS_AT_WORST) - 1]
        floor = min(usual * (1 - _margin([best[key] for key in sound])), at_worst)
    found = (
        Slow.of(what, ranks, [rate for key in keys for rate in rates[key]])
        for what, ranks, keys in _named(_blame(best, floor), best)
    )
    slow = tuple(one for one in found if one.repeats >= repeats)
    return Analysis(slow=slow, usual=usual, floor=floor)


@dataclass(frozen=True)
class _Blame:
    slow: frozenset[Key]
    senders: frozenset[int]
    receivers: frozenset[int]
    paths: frozenset[Key]
    """Slow, and neither the sender nor the receiver is to blame."""


def _margin(rates: Sequence[float]) -> float:
    middle = median(rates)
    deviation = 1.4826 * median(abs(rate - middle) for rate in rates)
    if len(rates) > FEW:
        least = SLOWER_BY
    else:
        least = SLOWER_BY_OF_FEW if len(rates) > 1 else SLOWER_BY_OF_ONE
    return max(least, FAR * deviation / middle)


def _is_structure(blame: _Blame, keys: Collection[Key]) -> bool:
    return len(blame.paths) > max(2, STRUCTURE * len(keys))


def _blame(best: Mapping[Key, float], floor: float) -> _Blame:
    slow = frozenset(key for key, rate in best.items() if rate < floor)
    fast = [key for key in best if key not in slow]
    cleared = {("from", sender) for sender, _ in fast} | {("to", receiver) for _, receiver in fast}
    # One slow partner is a slow path; only two slow partners blame the same end.
    met = Counter(chain.from_iterable((("from", a), ("to", b)) for a, b in slow))
    accused = {
        (a, b): [end for end in (("from", a), ("to", b)) if end not in cleared and met[end] > 1]
        for a, b in slow
    }
    blamed = {ends[0] for ends in accused.values() if len(ends) == 1}
    while unsolved := [ends for ends in accused.values() if ends and not blamed & set(ends)]:
        votes = Counter(chain.from_iterable(unsolved))
        blamed.add(max(sorted(votes), key=lambda end: votes[end]))
    return _Blame(
        slow=slow,
        senders=frozenset(rank for way, rank in blamed if way == "from"),
        receivers=frozenset(rank for way, rank in blamed if way == "to"),
        paths=frozenset(key for key, ends in accused.items() if not blamed & set(ends)),
    )


def _named(
    blame: _Blame, keys: Collection[Key]
) -> Iterator[tuple[What, tuple[int, ...], list[Key]]]:
    """What is slow, with its ranks, and the flows that show it."""
    senders, receivers = blame.senders, blame.receivers
    for rank in sorted(senders | receivers):
        sends, receives = rank in senders, rank in receivers
        what: What = "host" if sends and receives else "sending" if sends else "receiving"
        yield (
            what,
            (rank,),
            [
                (a, b)
                for a, b in keys
                if (sends and a == rank and b not in receivers)
                or (receives and b == rank and a not in senders)
            ],
        )
    for a, b in () if _is_structure(blame, keys) else sorted(blame.paths):
        if (b, a) not in blame.paths:
            yield "path", (a, b), [(a, b)]
        elif a < b:
            yield "link", (a, b), [(a, b), (b, a)]
