"""What a plan says of host memory, as the guide shows it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ddoctor.evidence.plan import HostPeaks, Plan
from ddoctor.forecast import request
from ddoctor.forecast.options import PlanRequest
from ddoctor.report import plan_host
from tests.healthy.plan import SECTIONS

GUIDE = (Path(__file__).parents[2] / "docs/guides/plan.md").read_text(encoding="utf-8")
GB = 10**9


def told(peaks: HostPeaks | None, host_memory: int | None = None) -> dict[str, str]:
    (section,) = SECTIONS
    assert isinstance(section, Plan)
    return dict(
        plan_host.lines(msgspec.structs.replace(section, host_peaks=peaks, host_memory=host_memory))
    )


def test_as_the_guide_shows_it() -> None:
    plan = request.plan(PlanRequest(params="4.4B", activations=10 * GB, gpu="h100-80"))
    lines = dict(plan_host.lines(plan))
    assert set(lines) == {"loading", "saving"}
    assert all(f"{label} {text}" in " ".join(GUIDE.split()) for label, text in lines.items())


@pytest.mark.parametrize(
    ("peaks", "memory", "words"),
    [
        (HostPeaks(ranks=1, loading=GB), None, "as fp32, each rank holds 1.0 GB of host memory"),
        (
            HostPeaks(ranks=8, loading=GB),
            4 * GB,
            "8.0 GB on 8 ranks, or 1.0 if rank 0 loads alone; the host has 4.0 GB",
        ),
        (HostPeaks(ranks=8, loading=GB, mapped=True), None, "mapped without a copy; from other"),
    ],
)
def test_what_it_says(peaks: HostPeaks, memory: int | None, words: str) -> None:
    lines = told(peaks, memory)
    assert words in lines["loading"]
    assert "saving" not in lines


def test_only_what_is_too_small_is_named() -> None:
    assert "the host has" not in told(HostPeaks(ranks=8, loading=GB), 9 * GB)["loading"]
    assert told(None) == {}
