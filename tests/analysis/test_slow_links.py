from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import pytest

from ddoctor.analysis.slow_links import REPEATS, Analysis, analyse
from ddoctor.evidence.cluster_probes import Flow
from ddoctor.probing.pair_schedule import Pair, first_rounds, further_rounds

# GB/s of (sender, receiver).
Rate = Callable[[int, int], float]

USUAL = 12.0


def measured(rounds: Iterable[Iterable[Pair]], rate: Rate, repeats: int = 1) -> list[Flow]:
    """What these rounds show, with 2 % of noise."""
    chance = random.Random(1)
    return [
        Flow(
            sender=sender,
            receiver=receiver,
            bytes=2**26,
            rates=tuple(
                rate(sender, receiver) * (1 - abs(chance.gauss(0, 0.02))) for _ in range(repeats)
            ),
        )
        for pairs in rounds
        for a, b in pairs
        for sender, receiver in ((a, b), (b, a))
    ]


def examined(hosts: int, rate: Rate) -> Analysis:
    """All rounds of the probe."""
    ends = range(hosts)
    flows = measured(first_rounds(ends), rate, repeats=2)
    return analyse([*flows, *measured(further_rounds(ends, flows), rate)])


def told(analysis: Analysis) -> set[tuple[str, tuple[int, ...]]]:
    return {(one.what, one.ranks) for one in analysis.slow}


def slow_hosts(*bad: int, factor: float = 0.1) -> Rate:
    return lambda sender, receiver: USUAL * (factor if {sender, receiver} & set(bad) else 1)


def healthy(sender: int, receiver: int) -> float:
    return USUAL


@pytest.mark.parametrize("hosts", [2, 3, 4, 8, 16, 17, 64, 300])
def test_sound_hosts_are_not_accused(hosts: int) -> None:
    assert examined(hosts, healthy).slow == ()


def test_no_more_rounds_where_nothing_looks_slow() -> None:
    assert further_rounds(range(8), measured(first_rounds(range(8)), healthy)) == []


@pytest.mark.parametrize("hosts", [3, 4, 8, 16, 17, 64, 300])
@pytest.mark.parametrize("factor", [0.6, 0.1])
def test_a_slow_host_is_slow_with_everyone(hosts: int, factor: float) -> None:
    analysis = examined(hosts, slow_hosts(2, factor=factor))
    assert told(analysis) == {("host", (2,))}
    (slow,) = analysis.slow
    assert slow.rate == pytest.approx(USUAL * factor, rel=0.05)
    assert slow.repeats >= REPEATS
    assert analysis.usual == pytest.approx(USUAL, rel=0.05)


@pytest.mark.parametrize(("hosts", "bad"), [(4, (0, 3)), (8, (1, 2, 5)), (64, (7, 8, 40, 41))])
def test_bad_partners_do_not_clear_each_other(hosts: int, bad: Sequence[int]) -> None:
    assert told(examined(hosts, slow_hosts(*bad))) == {("host", (one,)) for one in bad}


def test_bad_ones_that_always_met_in_the_first_rounds() -> None:
    """Two hosts that met in the very first round, and two of the last."""
    first = first_rounds(range(64))
    bad = (*first[0][0], *first[-1][3])
    assert told(examined(64, slow_hosts(*bad))) == {("host", (one,)) for one in bad}


@pytest.mark.parametrize("hosts", [3, 4, 16, 64])
def test_a_slow_direction_of_a_host(hosts: int) -> None:
    sending = examined(hosts, lambda sender, _: USUAL * (0.1 if sender == 1 else 1))
    assert told(sending) == {("sending", (1,))}
    receiving = examined(hosts, lambda _, receiver: USUAL * (0.1 if receiver == 1 else 1))
    assert told(receiving) == {("receiving", (1,))}


@pytest.mark.parametrize("hosts", [4, 16])
def test_a_slow_link_between_two_hosts(hosts: int) -> None:
    both = examined(hosts, lambda a, b: USUAL * (0.3 if {a, b} == {1, 2} else 1))
    assert told(both) == {("link", (1, 2))}
    one = examined(hosts, lambda a, b: USUAL * (0.3 if (a, b) == (2, 1) else 1))
    assert told(one) == {("path", (2, 1))}


def test_a_slow_path_of_two_hosts_is_nobodys_fault() -> None:
    assert told(examined(2, lambda a, _: USUAL * (0.1 if a == 1 else 1))) == {("path", (1, 0))}


def test_a_link_among_many_hosts_when_it_was_measured() -> None:
    bad = set(first_rounds(range(64))[2][5])
    analysis = examined(64, lambda a, b: USUAL * (0.5 if {a, b} == bad else 1))
    assert told(analysis) == {("link", tuple(sorted(bad)))}


def test_two_racks_are_no_fault() -> None:
    assert examined(16, lambda a, b: USUAL * (1 if a // 8 == b // 8 else 0.4)).slow == ()


def test_a_weak_difference_among_few_is_not_told() -> None:
    assert examined(4, slow_hosts(2, factor=0.85)).slow == ()


def test_a_weak_difference_among_many_quiet_ones_is() -> None:
    assert told(examined(64, slow_hosts(2, factor=0.85))) == {("host", (2,))}


def test_a_slow_moment_is_not_persistent() -> None:
    rates = [(12.0, 11.8, 12.1, 11.9, 12.0, 12.1, 12.0)] * 12
    flows = [
        Flow(sender=a, receiver=b, bytes=1, rates=rate)
        for (a, b), rate in zip(
            [(a, b) for a in range(4) for b in range(4) if a != b], rates, strict=True
        )
    ]
    flows[0] = Flow(sender=0, receiver=1, bytes=1, rates=(1.0, 1.0, 1.1, 0.9, 1.0, 1.0, 11.0))
    assert analyse(flows).slow == ()
    flows[0] = Flow(sender=0, receiver=1, bytes=1, rates=(1.0, 1.0, 1.1, 0.9, 1.0, 1.0, 1.1))
    assert told(analyse(flows)) == {("path", (0, 1))}
    flows[0] = Flow(sender=0, receiver=1, bytes=1, rates=(1.0, 1.0))
    assert analyse(flows).slow == (), "seen too seldom"


def noisy(chance: random.Random, worst: float) -> list[Flow]:
    return [
        Flow(
            sender=a,
            receiver=b,
            bytes=2**26,
            rates=tuple(USUAL * chance.uniform(worst, 1) for _ in range(7)),
        )
        for a in range(4)
        for b in range(4)
        if a != b
    ]


@pytest.mark.parametrize("seed", range(40))
def test_noise_accuses_nobody(seed: int) -> None:
    analysis = analyse(noisy(random.Random(seed), 0.3))
    assert analysis.slow == ()
    assert not analysis.noisy


def test_too_much_noise_says_so() -> None:
    assert analyse(noisy(random.Random(1), 0.02)).noisy


def test_nothing_measured_tells_nothing() -> None:
    assert analyse([]).slow == ()
