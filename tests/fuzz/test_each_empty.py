"""Each field of each section without a value, one at a time: what was not seen crashes no check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddoctor import engine
from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle
from ddoctor.models import JUDGING
from tests.fuzz import seeds
from tests.fuzz.kinds import OF_OTHERS


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each holder with one of its keys; of a list, the first and the last row stand for all."""
    if isinstance(value, dict):
        for key in value.keys() - {"type"}:
            yield value, key
            yield from places(value[key])
    elif isinstance(value, list):
        for row in value[:1] + value[1:][-1:]:
            yield from places(row)


def crashed(document: Any, path: Path) -> list[str]:
    path.write_bytes(msgspec.json.encode(document))
    try:
        evidence = bundle.read(path)
    except DoctorError:
        return []
    rows = engine.examine(evidence, "diagnose").crashed
    return [f"{row.check}: {row.error}" for row in rows if row.check != JUDGING]


@pytest.mark.ward
@pytest.mark.parametrize("name", seeds.bundles())
def test_no_check_needs_what_may_be_absent(name: str, tmp_path: Path) -> None:
    document = msgspec.json.decode(seeds.bundles()[name])
    for section in document["sections"]:
        for holder, key in places(section):
            held = holder[key]
            nothing: tuple[Any, ...] = ([], None)
            for empty in nothing:
                holder[key] = empty
                found = crashed(document, tmp_path / "bundle.json")
                assert [one for one in found if not one.startswith(OF_OTHERS)] == [], (name, key)
            holder[key] = held
