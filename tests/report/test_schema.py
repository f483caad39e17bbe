from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ddoctor import engine
from ddoctor.characters import STEERING
from ddoctor.evidence.host import SharedMemory
from ddoctor.evidence.section import Evidence
from ddoctor.report import schema
from tests.report.sample import SAMPLES

COMMITTED = Path(__file__).parents[2] / "docs" / "report.schema.json"


def test_the_committed_schema_is_the_one_of_the_types() -> None:
    assert COMMITTED.read_text() == schema.text(), "write schema.text() to docs/report.schema.json"


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema.document())


@pytest.mark.parametrize("name", SAMPLES)
def test_reports_keep_to_it(name: str) -> None:
    report, _ = SAMPLES[name]()
    validate(json.loads(schema.render(report)))


def test_a_report_of_the_engine_keeps_to_it() -> None:
    evidence = Evidence((SharedMemory(host="a", size=2**24, free=2**24),))
    document = json.loads(schema.render(engine.examine(evidence, "doctor")))
    validate(document)
    assert document["findings"][0]["cause"] == "shm-too-small"


@pytest.mark.parametrize(
    ("field", "value"),
    [("verdict", "fine"), ("schema", 2), ("findings", None), ("command", "cure")],
)
def test_it_refuses_what_is_no_report(field: str, value: Any) -> None:
    document = json.loads(schema.render(SAMPLES["healthy"]()[0]))
    with pytest.raises(jsonschema.ValidationError):
        validate(document | {field: value})


def test_every_field_is_promised() -> None:
    document = json.loads(schema.render(SAMPLES["sick"]()[0]))
    del document["findings"][0]["cost"]
    with pytest.raises(jsonschema.ValidationError, match="cost"):
        validate(document)


def validate(document: Any) -> None:
    jsonschema.Draft202012Validator(schema.document()).validate(document)


def test_a_terminal_that_shows_it_is_not_controlled() -> None:
    said = "\x1b[31m \x7f \x9b2J \u202e \u2028 é \n"
    text = schema.render({"said": said})
    assert not STEERING.search(text)
    assert "é" in text
    assert json.loads(text) == {"said": said}
