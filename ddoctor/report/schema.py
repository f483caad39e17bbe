"""The report as JSON, and its schema (``docs/report.schema.json``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

import msgspec

from ddoctor.characters import STEERING
from ddoctor.models import SCHEMA, Report


def render(report: Report | Mapping[str, Any]) -> str:
    """Return the report as indented JSON; what UTF-8 cannot encode becomes ``?``.

    Control characters are escaped: a terminal may show the text.
    """
    text = json.dumps(msgspec.to_builtins(report), indent=2, ensure_ascii=False)
    encodable = text.encode(errors="replace").decode()
    return STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", encodable) + "\n"


def document() -> dict[str, Any]:
    """Return the schema, made from the types of ``ddoctor.models`` and their docstrings."""
    schema = msgspec.json.schema(Report)
    for definition in schema["$defs"].values():
        if "description" in definition:
            words = cleandoc(definition["description"])
            definition["description"] = words.replace("``", "`")
        if "properties" in definition:
            # A field with a default is always written too.
            definition["required"] = list(definition["properties"])
            for field in definition["properties"].values():
                field.pop("default", None)
    schema["$defs"]["Report"]["properties"]["schema"] = {"const": SCHEMA}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"The report of ddoctor, schema {SCHEMA}",
        **schema,
    }


def text() -> str:
    """Return the schema as in the committed file."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=2).decode() + "\n"
