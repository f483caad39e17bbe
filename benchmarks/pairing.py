"""Whether the rounds of the pairs probe find the bad ones among 1,024 hosts. Simulated.

``make bench`` runs it; exit code 1: one was missed, or a sound one accused.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from itertools import chain
from statistics import mean

from ddoctor.analysis import slow_links
from ddoctor.evidence.cluster_probes import Flow
from ddoctor.probing import pair_schedule

HOSTS = 1024
BAD = (1, 2, 8)
SEEDS = 5
USUAL = 48.0  # GB/s: an NDR link of 400 Gbit/s.

# Of a transfer: its own noise, and at times somebody else's traffic on the way.
NOISE = 0.02
CROWDED, CROWDED_BY = 0.05, 0.5

# What a bad one still reaches: hardly noticed, and fallen back to a slower mode.
DOSES = (0.7, 0.1)

BYTES = 2**28
FIRST_REPEATS = 2
# Transfers while the size grows, from 64 KiB by factors of four.
GROWING = 7
# Store and journal, per round: a guess, on the safe side.
ROUND_SECONDS = 0.05

Bad = set[tuple[str, tuple[int, ...]]]
"""What is bad, as ``pairing.Slow`` names it: kind and ranks."""


def main() -> int:
    """Print a row for each kind and number of bad ones."""
    print(f"{HOSTS} hosts, {SEEDS} seeds each, at {DOSES[0]:.0%} and {DOSES[1]:.0%} of the rate")
    print(f"{'bad':>22} {'found':>8} {'false':>6} {'rounds':>7} {'measured':>9} {'analysis':>9}")
    right = True
    for kind in ("host", "sending", "receiving", "path"):
        for number in BAD:
            found, false, rounds, seconds, analysed = (
                list(column)
                for column in zip(
                    *(
                        _try(kind, number, dose, random.Random(f"{kind}{number}{dose}{seed}"))
                        for dose in DOSES
                        for seed in range(SEEDS)
                    ),
                    strict=True,
                )
            )
            right &= mean(found) == 1 and not any(false)
            print(
                f"{number:>9} {kind:>12} {mean(found):>8.0%} {sum(false):>6.0f} {max(rounds):>7.0f}"
                f" {max(seconds):>7.1f} s {max(analysed):>7.2f} s"
            )
    first = pair_schedule.first_rounds(range(HOSTS))
    met = 2 * sum(map(len, first)) / (HOSTS * (HOSTS - 1))
    print(f"a path: one that was measured; {len(first)} rounds measure {met:.1%} of all paths")
    return 0 if right else 1


def _try(kind: str, number: int, dose: float, chance: random.Random) -> Sequence[float]:
    """Share found, accused wrongly, rounds, and seconds of measuring and of analysing."""
    hosts = range(HOSTS)
    first = pair_schedule.first_rounds(hosts)
    bad: Bad
    if kind == "path":
        bad = {("path", one) for one in chance.sample([*chain(*first)], number)}
    else:
        bad = {(kind, (host,)) for host in chance.sample(hosts, number)}
    flows, seconds = _measured(first, bad, dose, chance, FIRST_REPEATS)
    begin = time.perf_counter()
    further = pair_schedule.further_rounds(hosts, flows)
    more, longer = _measured(further, bad, dose, chance, 1)
    slow = slow_links.analyse([*flows, *more]).slow
    analysed = time.perf_counter() - begin
    told = {(one.what, one.ranks) for one in slow}
    return (
        len(told & bad) / number,
        len(told - bad),
        len(first) + len(further),
        seconds + longer,
        analysed,
    )


def _measured(
    rounds: Sequence[Sequence[pair_schedule.Pair]],
    bad: Bad,
    dose: float,
    chance: random.Random,
    repeats: int,
) -> tuple[list[Flow], float]:
    """What the rounds show, and the seconds that they take: each as long as its slowest pair."""
    flows = []
    total = 0.0
    for pairs in rounds:
        longest = 0.0
        for a, b in pairs:
            took = 0.0
            for sender, receiver in ((a, b), (b, a)):
                accused: Bad = {("host", (sender,)), ("host", (receiver,)), ("sending", (sender,))}
                accused |= {("receiving", (receiver,)), ("path", (sender, receiver))}
                usual = USUAL * (dose if accused & bad else 1.0)
                rates = tuple(
                    usual
                    * (1 - abs(chance.gauss(0, NOISE)))
                    * (CROWDED_BY if chance.random() < CROWDED else 1)
                    for _ in range(repeats)
                )
                flows.append(Flow(sender=sender, receiver=receiver, bytes=BYTES, rates=rates))
                took += sum(BYTES / 1e9 / rate for rate in rates) * (1 + GROWING / repeats / 3)
            longest = max(longest, took)
        total += longest + ROUND_SECONDS
    return flows, total


if __name__ == "__main__":
    sys.exit(main())
