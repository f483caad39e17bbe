"""The rounds of the pairs probe: which GPUs or hosts send to each other, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, log2

from ddoctor.analysis.slow_links import REPEATS, analyse
from ddoctor.evidence.cluster_probes import Flow

Pair = tuple[int, int]
"""The ranks of two ends that send to each other."""

ALL_PAIRS_UP_TO = 16
"""Up to this number of ends, every end is paired with every other one."""

MOST = 4
"""At most ``MOST * REPEATS`` rounds are added, even if many links seem slow."""


def first_rounds(ends: Sequence[int]) -> list[list[Pair]]:
    """Rounds that pair all ends with each other, or each of many ends with about log2(ends)."""
    rounds = max(1, len(ends) - 1 + len(ends) % 2)
    if len(ends) <= ALL_PAIRS_UP_TO:
        return [_round(ends, number) for number in range(rounds)]
    wanted = ceil(log2(len(ends)))
    return [_round(ends, number * rounds // wanted) for number in range(wanted)]


def further_rounds(ends: Sequence[int], flows: Iterable[Flow]) -> list[list[Pair]]:
    """Rounds that repeat each pair that seems slow ``REPEATS`` times, to confirm or clear it."""
    flows = list(flows)
    suspicion = analyse(flows, repeats=1)
    if not suspicion.slow and not suspicion.noisy:
        return []
    if len(ends) <= ALL_PAIRS_UP_TO:
        return first_rounds(ends) * REPEATS
    alone = {one.ranks: REPEATS for one in suspicion.slow if len(one.ranks) == 1}
    paths = {one.ranks: REPEATS for one in suspicion.slow if one.what in ("path", "link")}
    suspects = {rank for ranks in alone for rank in ranks}
    paired = Counter((flow.sender, flow.receiver) for flow in flows)
    rounds: list[list[Pair]] = []
    while (any(alone.values()) or any(paths.values())) and len(rounds) < MOST * REPEATS:
        free = dict.fromkeys(ends)
        pairs = []
        # Pairs with the most repeats left come first.
        for a, b in sorted(paths, key=lambda path: -paths[path]):
            if paths[a, b] and a in free and b in free:
                pairs.append((a, b))
                paths[a, b] -= 1
                del free[a], free[b]
        good = [rank for rank in free if rank not in suspects]
        for (suspect,), left in sorted(alone.items(), key=lambda row: -row[1]):
            if left and suspect in free and good:
                partner = min(good, key=lambda rank: paired[suspect, rank])
                paired[suspect, partner] += 1
                pairs.append((suspect, partner))
                alone[suspect,] -= 1
                good.remove(partner)
        # The other ends, paired with each other, give the usual rate at this time.
        pairs += zip(good[::2], good[1::2], strict=False)
        rounds.append(pairs)
    return rounds


def slots(
    pairs: Iterable[Pair], machines: Mapping[int, str], capacity: Mapping[str, int]
) -> list[list[Pair]]:
    """Split one round so that at most ``capacity`` ends of a machine work at the same time."""
    parted: list[tuple[Counter[str], list[Pair]]] = []
    for pair in pairs:
        load = Counter(machines[rank] for rank in pair)
        for taken, members in parted:
            if all(taken[name] + more <= capacity[name] for name, more in load.items()):
                taken.update(load)
                members.append(pair)
                break
        else:
            parted.append((load, [pair]))
    return [members for _, members in parted]


def _round(ends: Sequence[int], number: int) -> list[Pair]:
    """One round of a round-robin tournament (circle method): the last end stays, others rotate."""
    places: list[int | None] = [*ends, *([None] if len(ends) % 2 else [])]
    if not places:
        return []
    *turning, fixed = places
    turned = [fixed, *turning[number:], *turning[:number]]
    half = len(turned) // 2
    pairs = zip(turned[:half], reversed(turned[half:]), strict=True)
    return [(a, b) for a, b in pairs if a is not None and b is not None]
