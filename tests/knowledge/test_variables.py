"""The table of variables weighed for sense, and the rule that guesses what a name meant."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import get_args

import pytest
from packaging.version import Version

from ddoctor import knowledge
from ddoctor.analysis.variable_values import c_integer, intended, misread
from ddoctor.evidence.known_software import Kind, KnownVariables
from ddoctor.evidence.secret_forms import HIDDEN

KNOWN = knowledge.load(KnownVariables)
NAMES = tuple(row.name for row in KNOWN.variables)
ENUMERATED = ("choice", "exact", "list", "per-function-list")


def test_every_name_is_there_once() -> None:
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*[A-Z0-9]", name) for name in NAMES)


def test_the_families_are_filled() -> None:
    counts = {family: sum(name.startswith(family) for name in NAMES) for family in KNOWN.families}
    assert counts["NCCL_"] > 250
    assert min(counts.values()) >= 6


def test_every_row_has_a_source_and_every_source_a_row() -> None:
    rows = (KNOWN.variables, KNOWN.foreign, KNOWN.stopgaps, KNOWN.debugging)
    more = (KNOWN.contradictions, KNOWN.bounds)
    used = {row.source for row in itertools.chain(*rows, *more)}
    assert used == set(KNOWN.sources)
    assert all(len(source.text) > 10 and source.reader for source in KNOWN.sources.values())


def test_what_can_be_one_of_several_says_which() -> None:
    for row in KNOWN.variables:
        assert row.kind in get_args(Kind)
        assert bool(row.values) == (row.kind in ENUMERATED), row.name
        assert bool(row.otherwise) == (row.kind in (*ENUMERATED, "counts")), row.name
        assert row.minimum is None or row.maximum is None or row.minimum < row.maximum, row.name


def test_releases_are_in_order() -> None:
    for row in KNOWN.variables:
        if row.since and row.removed:
            assert Version(row.since) < Version(row.removed), row.name
        assert not row.now or row.now in NAMES, row.name
        assert not row.now or not KNOWN.by_name[row.now].removed, row.name


def test_what_is_judged_is_known() -> None:
    settings = {row.name for row in (*KNOWN.stopgaps, *KNOWN.debugging)}
    settings |= {name for row in KNOWN.debugging for name in row.only_with}
    settings |= {name for row in KNOWN.contradictions for name in row.settings}
    settings |= {name for row in KNOWN.bounds for name in (row.lower, row.upper)}
    assert settings <= set(NAMES)


def test_the_values_that_are_judged_are_taken_by_the_reader() -> None:
    judged = [
        (row.name, value) for row in (*KNOWN.stopgaps, *KNOWN.debugging) for value in row.values
    ]
    judged += [
        (name, value)
        for row in KNOWN.contradictions
        for name, values in row.settings.items()
        for value in values
    ]
    for name, value in judged:
        assert misread(KNOWN.by_name[name], value, "the reader") is None, (name, value)


def test_a_contradiction_names_what_to_unset() -> None:
    for row in KNOWN.contradictions:
        assert row.unset in row.settings
        assert len(row.settings) > 1


def test_no_foreign_prefix_hides_a_known_name() -> None:
    for row in KNOWN.foreign:
        assert row.prefix.startswith(KNOWN.families)
        assert not [name for name in NAMES if name.startswith(row.prefix)]


def test_a_new_name_is_seldom_taken_for_a_slip_of_an_old_one() -> None:
    """What would have happened had each known name been unknown: the rate of false alarms."""
    taken = {
        name: meant
        for name in NAMES
        if (meant := intended(name, tuple(other for other in NAMES if other != name)))
    }
    # A name's own successor or alias is no other name.
    kin = {name for name, meant in taken.items() if name in meant or meant in name}
    assert len(set(taken) - kin) <= 0.02 * len(NAMES), taken


SLIPS = [name for name in NAMES if name.startswith("NCCL_") and len(name) > 12]


@pytest.mark.parametrize("slip", ["transposed", "dropped", "doubled"])
def test_most_slips_in_a_long_word_are_understood(slip: str) -> None:
    def slipped(name: str) -> str:
        *words, last = name.split("_")
        middle = len(last) // 2
        wrong = {
            "transposed": last[: middle - 1] + last[middle] + last[middle - 1] + last[middle + 1 :],
            "dropped": last[:middle] + last[middle + 1 :],
            "doubled": last[:middle] + last[middle] + last[middle:],
        }[slip]
        return "_".join((*words, wrong))

    tried = {name: slipped(name) for name in SLIPS if len(name.rpartition("_")[2]) >= 5}
    tried = {name: wrong for name, wrong in tried.items() if wrong not in NAMES}
    understood = [name for name, wrong in tried.items() if intended(wrong, NAMES) == name]
    assert len(understood) >= 0.9 * len(tried)


@pytest.mark.parametrize(
    ("text", "number", "rest"),
    [
        ("1", 1, ""),
        (" -12", -12, ""),
        ("0x1F", 31, ""),
        ("010", 8, ""),
        ("4M", 4, "M"),
        ("0.5", 0, ".5"),
        ("true", 0, "true"),
        ("", 0, ""),
    ],
)
def test_numbers_are_read_as_c_reads_them(text: str, number: int, rest: str) -> None:
    assert c_integer(text) == (number, rest)


def test_a_hidden_value_is_no_value_of_anything() -> None:
    assert not any(HIDDEN in row.values for row in KNOWN.variables)
