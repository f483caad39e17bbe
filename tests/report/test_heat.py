from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path

import pytest

from ddoctor.evidence.cluster_probes import End, Flow, Pairs
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Evidence
from ddoctor.models import Verdict
from ddoctor.report import html
from ddoctor.report.facts import facts
from ddoctor.report.heat import ALL, OF_MANY, Heat, heats
from tests.report import sample
from tests.report.test_html import READABLE, STYLE, contrast

USUAL = 11.0


def pairs(count: int, slow: dict[tuple[int, int], float], *, hosts: bool = True) -> Pairs:
    """Every pair in both directions at the usual rate, but for these."""
    return Pairs(
        backend="gloo",
        ends=tuple(
            End(place=RankPlace(rank=n, host=f"n{n:03}" if hosts else "n", device=f"cuda:{n}"))
            for n in range(count)
        ),
        flows=tuple(
            Flow(sender=a, receiver=b, bytes=2**26, rates=(0.9 * rate, rate, 0.8 * rate))
            for a, b in permutations(range(count), 2)
            for rate in (slow.get((a, b), USUAL),)
        ),
    )


def heat(section: Pairs) -> Heat:
    (made,) = heats(Evidence([section]))
    return made


def told(section: Pairs) -> list[str]:
    return [f"{fact.label}: {fact.text}" for fact in facts(Evidence([section]))]


def test_a_slow_direction_is_told_and_its_way_back_is_not() -> None:
    section = pairs(4, {(1, 2): 0.5})
    assert told(section) == [
        "pair by pair: 11.0 GB/s, median of 12 directions between 4 (0.5 to 11.0)",
        "slowest: n001 → n002: 0.5 GB/s",
    ]
    made = heat(section)
    assert made.shade(made.links["n001", "n002"]) == 4
    assert made.shade(made.links["n002", "n001"]) == 0


def test_links_that_differ_by_little_are_not_marked() -> None:
    assert heat(pairs(4, {(0, 3): 0.92 * USUAL})).slow == ()
    assert len(told(pairs(4, {(0, 3): 0.92 * USUAL}))) == 1


def test_a_slow_host_is_told_in_few_lines() -> None:
    slow = {(a, b): 1.0 for a, b in permutations(range(12), 2) if 5 in (a, b)}
    lines = told(pairs(12, slow))
    assert lines[-1] == "slowest: and 19 more"
    assert len(lines) == 5


def test_within_one_host_its_devices_are_named() -> None:
    assert heat(pairs(3, {}, hosts=False)).names == ("cuda:0", "cuda:1", "cuda:2")


def test_of_many_hosts_the_ends_of_slow_links_are_shown() -> None:
    made = heat(pairs(ALL + 1, {(1, 2): 0.5, (40, 1): 2.0}))
    assert made.names == ("n001", "n002", "n040")
    assert made.total == ALL + 1
    assert heat(pairs(ALL + 1, {})).names == ()
    every = {(0, b): 0.5 for b in range(1, ALL + 1)}
    assert len(heat(pairs(ALL + 1, every)).names) == OF_MANY
    assert len(heat(pairs(ALL, {})).names) == ALL


def page(section: Pairs) -> str:
    return html.render(sample.report(verdict=Verdict.HEALTHY), Evidence([section]))


def test_the_page_tells_each_cell_in_words() -> None:
    source = page(pairs(4, {(1, 2): 0.5}))
    assert '<td class="shade-4" title="n001 → n002: 0.5 GB/s">0.5</td>' in source
    assert '<td title="n002 → n001: 11.0 GB/s">11.0</td>' in source
    assert source.count('class="shade-') == 1


def test_the_largest_matrix_is_bounded() -> None:
    source = page(pairs(ALL, {(1, 2): 0.5}))
    assert 'title="n001 → n002: 0.5 GB/s">▼</td>' in source
    assert len(source) < 2**20


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("shade", [1, 2, 3, 4])
def test_figures_are_readable_on_every_shade(scheme: str, shade: int) -> None:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[:2]
    values = dict(re.findall(r"--([\w-]+): #(\w{6})", light if scheme == "light" else dark))
    assert contrast(values["ink"], values[f"shade-{shade}"]) >= READABLE


def test_the_style_has_every_shade() -> None:
    style = Path(html.__file__).with_name("page.css.j2").read_text()
    assert all(f".heat .shade-{n} " in style for n in range(1, 5))
