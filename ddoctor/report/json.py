"""The report as JSON, schema 1 (``docs/report.schema.json``), for other programs."""

from __future__ import annotations

import msgspec

from ddoctor.models import Report


def render(report: Report) -> str:
    """The report as indented JSON, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
