"""`ddoctor diagnose`: diagnose whatever is left of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddoctor.report.options import HtmlPath, JsonPath, MarkdownPath

Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH",
        help="Log, evidence bundle, or a folder of them; -: standard input; repeatable.",
    ),
]


def diagnose(
    paths: Paths,
    json: JsonPath = None,
    markdown: MarkdownPath = None,
    html: HtmlPath = None,
) -> int:
    """Diagnose logs and evidence bundles of other hosts or earlier runs."""
    from ddoctor import engine
    from ddoctor.reading import reader
    from ddoctor.report.output import Outputs

    outputs = Outputs(json=json, markdown=markdown, html=html, reads=paths)
    evidence, not_read = reader.read(paths)
    report = engine.examine(evidence, "diagnose")
    outputs.write(report, evidence)
    for one in not_read:
        typer.echo(f"not read: {one.name}: {one.why}", err=True)
    return report.exit_code
