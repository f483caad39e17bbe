"""What a plan says of the lengths of samples, as the guide shows it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ddoctor.evidence.plan import Plan, SampleLengths
from ddoctor.report import plan_lengths
from tests.healthy.plan import SECTIONS

GUIDE = (Path(__file__).parents[2] / "docs/guides/plan.md").read_text(encoding="utf-8")
USUAL = SampleLengths(samples=5000, mean=540, longest=4096, padded=1053)


def told(lengths: SampleLengths | None) -> dict[str, str]:
    (section,) = SECTIONS
    assert isinstance(section, Plan)
    return dict(plan_lengths.lines(msgspec.structs.replace(section, lengths=lengths)))


def test_as_the_guide_shows_it() -> None:
    assert f"lengths {told(USUAL)['lengths']}" in " ".join(GUIDE.split())


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        (msgspec.structs.replace(USUAL, cut=600), "12% of the samples are longer and cut"),
        (msgspec.structs.replace(USUAL, packed=True), "those of full rows"),
    ],
)
def test_what_it_says(lengths: SampleLengths, words: str) -> None:
    assert words in told(lengths)["lengths"]
    assert ("padding" in told(lengths)["lengths"]) != lengths.packed


def test_nothing_without_lengths() -> None:
    assert told(None) == {}
