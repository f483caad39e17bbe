"""The work of a diagnosis grows as the ranks do: a run may have ten thousand."""

from __future__ import annotations

import io
import sys
from typing import Any

import msgspec
import pytest
from rich.console import Console

from ddoctor import engine
from ddoctor.evidence.section import Evidence, Section
from ddoctor.report import markdown, terminal
from tests.fuzz import seeds

FEW, MANY = 200, 1_600
OF_RANKS = [name for name in seeds.bundles() if name.startswith(("run", "attach", "recorded"))]
OF_RANKS += ["failed-rank", "late-rank", "slow-loader", "probe, filled"]


def repeated(section: Section, ranks: int) -> Section:
    """The section with as many rows of ranks, all like those that it has."""
    fields: dict[str, Any] = {}
    for name in section.__struct_fields__:
        rows = getattr(section, name)
        if isinstance(rows, tuple) and rows and hasattr(rows[0], "rank"):
            made = (rows[number % len(rows)] for number in range(ranks))
            fields[name] = tuple(
                msgspec.structs.replace(row, rank=number) for number, row in enumerate(made)
            )
    return msgspec.structs.replace(section, **fields)


def calls(name: str, ranks: int) -> int:
    """Calls of functions to judge and show it; unlike seconds, they are the same each time."""
    evidence = Evidence(repeated(one, ranks) for one in seeds.evidence()[name])
    count = 0

    def counted(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        report = engine.examine(evidence, "diagnose")
        terminal.render(report, evidence, Console(file=io.StringIO(), width=100))
        markdown.render(report, evidence)
    finally:
        sys.setprofile(None)
    return count


def check(name: str) -> None:
    calls(name, 2)  # what is made once
    assert calls(name, MANY) < 12 * calls(name, FEW)


@pytest.mark.ward
@pytest.mark.parametrize("name", ["run", "attach"])
def test_eight_times_the_ranks_are_no_64_times_the_work(name: str) -> None:
    check(name)


@pytest.mark.ward
@pytest.mark.parametrize("name", OF_RANKS)
def test_eight_times_the_ranks_are_no_64_times_the_work_in_any_bundle(name: str) -> None:
    check(name)
