"""`ddoctor diagnose`: diagnose whatever is left of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddoctor.report.options import HtmlPath, JsonPath, MarkdownPath

FEW = 10
"""Files that are named where more cannot be read."""
Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH",
        help="Log, trace, output of a command, bundle, or a folder; -: standard input; repeatable.",
    ),
]


def diagnose(
    paths: Paths,
    json: JsonPath = None,
    markdown: MarkdownPath = None,
    html: HtmlPath = None,
) -> int:
    """Diagnose logs, traces and evidence bundles of other hosts or earlier runs."""
    from ddoctor import console, engine
    from ddoctor.characters import tamed
    from ddoctor.evidence import redaction
    from ddoctor.reading import reader
    from ddoctor.report.output import Outputs

    outputs = Outputs(json=json, markdown=markdown, html=html, reads=paths)
    evidence, not_read = reader.read(paths)
    report = engine.examine(evidence, "diagnose")
    outputs.write(report, evidence)
    for one in not_read[:FEW]:
        console.say(tamed(redaction.text(f"not read: {one.name}: {one.why}")))
    if len(not_read) > FEW:
        console.say(f"not read: {len(not_read) - FEW} more files")
    return report.exit_code
