"""Checks and probes behave: named by the catalogue, explained, typed, quiet without reason."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest

from ddoctor import check_catalog, engine
from ddoctor.evidence.section import Evidence, Known, Section
from ddoctor.probing import catalog
from ddoctor.probing.world import ProbeWorld
from tests.healthy import COMMANDS, healthy

CHECKS = check_catalog.discover()


@pytest.fixture(params=CHECKS, ids=lambda check: check.name)
def check(request: pytest.FixtureRequest) -> check_catalog.Check:
    assert isinstance(request.param, check_catalog.Check)
    return request.param


def test_explains_causes_that_there_are(check: check_catalog.Check) -> None:
    assert {*check.explains, *check.explained_by} <= set(check_catalog.names())
    assert not {*check.explains} & {*check.explained_by}


def test_its_docstring_is_an_explanation(check: check_catalog.Check) -> None:
    title, blank, *body = check.explanation.splitlines()
    assert title.endswith(".")
    assert len(title) <= 100
    assert blank == ""
    assert sum(map(len, body)) >= 200


def test_names_its_evidence(check: check_catalog.Check) -> None:
    assert check.ways
    for way in check.ways:
        needed = [need for need in way.needs.values() if not need.optional]
        assert any(not issubclass(need.section, Known) for need in needed), way.check


def test_is_skipped_without_evidence(check: check_catalog.Check) -> None:
    for result in engine.diagnose(Evidence(), [check]):
        assert result.findings == ()
        assert result.skipped


@pytest.mark.parametrize("command", COMMANDS)
def test_is_quiet_on_what_a_command_makes_of_a_healthy_machine(
    check: check_catalog.Check, command: str
) -> None:
    for result in engine.diagnose(healthy(command), [check]):
        assert result.crashed is None
        assert result.findings == ()


def test_every_way_of_it_runs_on_what_one_command_makes(check: check_catalog.Check) -> None:
    ran = {
        result.check
        for command in COMMANDS
        for result in engine.diagnose(healthy(command), [check])
        if result.skipped is None
    }
    assert {way.check for way in check.ways} == ran, "tests/healthy lacks what this check needs"


def test_is_quiet_on_what_all_commands_make_of_it(check: check_catalog.Check) -> None:
    for result in engine.diagnose(healthy(), [check]):
        assert result.crashed is None
        assert result.skipped is None
        assert result.findings == ()


def test_has_a_test_file(check: check_catalog.Check) -> None:
    name = f"test_{check.name.replace('-', '_')}.py"
    assert (Path(__file__).parent / "checks" / name).exists()


def test_no_causes_explain_one_another_in_a_circle() -> None:
    explains = check_catalog.explains(CHECKS)

    def beyond(cause: str) -> set[str]:
        reached: set[str] = set()
        ahead = set(explains.get(cause, ()))
        while ahead := ahead - reached:
            reached |= ahead
            ahead = set().union(*(explains.get(one, ()) for one in ahead))
        return reached

    assert [cause for cause in explains if cause in beyond(cause)] == []


@pytest.mark.parametrize("probe", catalog.names())
def test_a_probe_measures_one_section_and_says_so(probe: str) -> None:
    assert catalog.describe(probe).endswith(".")
    measure = import_module(f"{catalog.PACKAGE}.{probe}").measure
    hints = get_type_hints(measure)
    assert hints["world"] is ProbeWorld
    (section,) = set(getattr(hints["return"], "__args__", (hints["return"],))) - {type(None)}
    assert issubclass(section, Section)
    assert section.probe == probe
    assert (Path(__file__).parent / "probes" / f"test_{probe}.py").exists()
