"""Command-line options: output files of the report, and the bundles to read."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ddoctor.report.output import Outputs

JsonPath = Annotated[
    Path | None,
    typer.Option("--json", metavar="PATH", help="Write the report as JSON to PATH (-: stdout)."),
]
MarkdownPath = Annotated[
    Path | None,
    typer.Option(
        "--markdown", metavar="PATH", help="Write the report as Markdown to PATH (-: stdout)."
    ),
]
HtmlPath = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="PATH", help="Write the report as one HTML file to PATH (-: stdout)."
    ),
]


def _of_this_host(path: Path | None) -> Path | None:
    """Return HOST.json in a folder that hosts share, so that each host writes its own file."""
    # A name may have any characters.
    name = platform.node().replace("/", "_")
    return path / f"{name}.json" if path is not None and os.path.isdir(path) else path


def _in_folders(paths: list[Path]) -> list[Path]:
    return [one for path in paths for one in _within(path) or [path]]


def _within(path: Path) -> list[Path]:
    # Of what cannot be listed, reading it tells why.
    return sorted(path.glob("*.json")) if os.path.isdir(path) else []


BundlePath = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        metavar="PATH",
        callback=_of_this_host,
        help="Write the evidence for `ddoctor diagnose` to PATH, or to HOST.json in a folder PATH.",
    ),
]
Bundles = Annotated[
    list[Path],
    typer.Argument(
        metavar="BUNDLE",
        callback=_in_folders,
        help="Evidence bundle, or a folder of bundles; repeatable.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The output files of a command."""

    bundle: BundlePath = None
    json: JsonPath = None
    markdown: MarkdownPath = None
    html: HtmlPath = None

    def outputs(self, *reads: Path) -> Outputs:
        """Return the output files, checked before the work starts; ``reads``: no output files.

        Raises:
            DoctorError: a path cannot be written, two of them are the same file, or one is read.
        """
        from ddoctor.report.output import Outputs

        return Outputs(
            json=self.json,
            markdown=self.markdown,
            html=self.html,
            bundle=self.bundle,
            reads=reads,
        )
