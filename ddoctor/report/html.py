"""The report as one self-contained HTML page, to attach to a ticket."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

from ddoctor.characters import tamed
from ddoctor.evidence.section import Evidence
from ddoctor.models import Report
from ddoctor.report import details, templates

if TYPE_CHECKING:
    from markupsafe import Markup


def render(report: Report, evidence: Evidence) -> str:
    """Return the report as an HTML page that makes no request and runs only its inline script."""
    environment = templates.environment(autoescape=True)
    environment.filters["prose"] = _prose
    script = environment.get_template("page.js.j2").render()
    page = environment.get_template("page.html.j2").render(
        report=report,
        evidence=evidence,
        script=script,
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        details=details.by_title(report, evidence),
    )
    return tamed(page)


def _prose(text: str) -> Markup:
    """Return text as HTML, its backticked parts as code."""
    from markupsafe import Markup, escape

    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup().join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )
