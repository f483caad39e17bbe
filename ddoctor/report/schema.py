"""The JSON Schema of the report, made from the types of ``ddoctor.models``."""

from __future__ import annotations

from typing import Any

import msgspec

from ddoctor.models import Report


def document() -> dict[str, Any]:
    """The schema that ``docs/report.schema.json`` holds."""
    schema = msgspec.json.schema(Report)
    for definition in schema["$defs"].values():
        if "properties" in definition:
            # Every field is always written, those with a default too.
            definition["required"] = list(definition["properties"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The report of ddoctor, schema 1",
        **schema,
    }
