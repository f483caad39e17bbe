"""What a plan says of DPO and GRPO, as the guide shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddoctor.evidence.plan import MemoryParts, Plan
from ddoctor.evidence.section import Evidence
from ddoctor.report import plan as plans
from ddoctor.report import plan_method
from tests.healthy.plan import SECTIONS

GIB = 2**30
GUIDE = (Path(__file__).parents[2] / "docs/guides/plan.md").read_text(encoding="utf-8")


def told(parts: dict[str, int] | None = None, other: int = 0, **fields: Any) -> dict[str, str]:
    (section,) = SECTIONS
    assert isinstance(section, Plan)
    (row,) = section.rows
    rows = tuple(
        msgspec.structs.replace(row, parts=MemoryParts(**one))
        for one in (parts or {}, {"reference": other})
    )
    return dict(plan_method.lines(msgspec.structs.replace(section, rows=rows, **fields)))


def test_supervised_training_needs_no_words() -> None:
    assert told() == {}


def test_as_the_guide_shows_it() -> None:
    found = told(
        method="grpo", parts={"reference": round(2.3 * GIB), "generation": round(23.5 * GIB)}
    )
    plain = " ".join(GUIDE.split())
    assert all(f"{label} {text}" in plain for label, text in found.items())
    assert set(found) == {"method", "generation"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"method": "dpo", "parts": {"reference": GIB}}, "takes 1.0 GiB of each GPU"),
        ({"method": "dpo"}, "the model without its adapters"),
        ({"method": "dpo", "other": 5}, "in host memory"),
        ({"method": "grpo:beta=0", "cache": GIB // 2}, "take 0.50 GiB per sample"),
        ({"method": "grpo:beta=0"}, "on other GPUs"),
    ],
)
def test_what_it_says(fields: dict[str, Any], words: str) -> None:
    found = told(**fields)
    assert words in "; ".join(found.values())
    assert ("reference" in found["method"]) == (fields["method"] != "grpo:beta=0")


def test_its_parts_are_in_the_table() -> None:
    (section,) = SECTIONS
    assert isinstance(section, Plan)
    (row,) = section.rows
    parts = msgspec.structs.replace(row.parts, reference=2 * GIB, generation=3 * GIB)
    plan = msgspec.structs.replace(
        section, rows=(msgspec.structs.replace(row, parts=parts),), method="grpo"
    )
    table, before = plans.table(plan), plans.table(section)
    assert [table.rows[0][table.head.index(one)] for one in ("ref.", "gener.")] == ["2.0", "3.0"]
    narrow, usual = (plans.table(one, narrow=True).rows[0][2:4] for one in (plan, section))
    grown = [float(one) - float(other) for one, other in zip(narrow, usual, strict=True)]
    assert grown == pytest.approx([2.0, 3.0], abs=0.11)
    assert "ref." not in before.head
    # vLLM's memory holds no tensor of the training.
    peaks = [dict(plans.seen(Evidence([one])))["peak"] for one in (plan, section)]
    assert [float(peak.split()[0]) for peak in peaks] == [pytest.approx(38.3, abs=0.1), 36.3]
    assert "includes CUDA, vLLM and NCCL" in peaks[0]
