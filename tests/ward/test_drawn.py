"""The drawn scripts: the same for the same seed, of all parts, and right in themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ward.drawn.draw import Patient, draw
from tests.ward.drawn.faults import FAULTS
from tests.ward.drawn.loaders import LOADERS
from tests.ward.drawn.loops import LOOPS
from tests.ward.drawn.models import MODELS
from tests.ward.drawn.telling import recorded
from tests.ward.drawn.traits import TRAITS


@pytest.fixture(scope="module")
def patients() -> list[Patient]:
    return [draw(1, number) for number in range(400)]


def test_each_script_compiles_and_has_no_slot_left(patients: list[Patient]) -> None:
    for patient in patients:
        compile(patient.source, patient.case.name, "exec")
        assert not {"[[", "$", "# HERE"} & {*patient.source.split()}
        assert "[[" not in patient.source


def test_a_seed_always_gives_the_same(patients: list[Patient]) -> None:
    assert [draw(1, number) for number in range(100)] == patients[:100]
    assert len({patient.source for patient in patients}) > 350


def test_all_parts_are_drawn(patients: list[Patient]) -> None:
    drawn = {part for patient in patients for part in patient.parts}
    assert drawn == {one.name for some in (MODELS, LOADERS, LOOPS, FAULTS, TRAITS) for one in some}


def test_a_third_is_sound_and_a_fault_has_its_lines(patients: list[Patient]) -> None:
    sound = [patient for patient in patients if not patient.case.sick]
    assert len(sound) >= 0.3 * len(patients)
    assert not any(patient.here for patient in sound)
    for patient in patients:
        if patient.case.graded is not None:
            assert patient.here, patient.case.name


@pytest.mark.ward
def test_a_drawn_fault_is_told(tmp_path: Path) -> None:
    """Items without workers at twice the step: far from every threshold."""
    found = (draw(7, number) for number in range(4_000))
    patient = next(
        one
        for one in found
        if one.parts[1] == "map" and one.parts[3] == "slow items" and one.case.dose == 2.0
    )
    case = patient.at(tmp_path)
    examined = recorded(case, tmp_path)
    assert not examined.fault_of(case), examined.output[-4000:]
