"""The options that say where report and evidence go, and the bundles that are read."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ddoctor.report.output import Outputs

JsonPath = Annotated[
    Path | None,
    typer.Option("--json", metavar="PATH", help="Write the report as JSON; -: stdout."),
]
MarkdownPath = Annotated[
    Path | None,
    typer.Option("--markdown", metavar="PATH", help="Write the report as Markdown; -: stdout."),
]
HtmlPath = Annotated[
    Path | None,
    typer.Option("--html", metavar="PATH", help="Write the report as one HTML file; -: stdout."),
]


def _of_this_host(path: Path | None) -> Path | None:
    """In a folder that hosts share, each host writes its own file."""
    return path / f"{socket.gethostname()}.json" if path is not None and path.is_dir() else path


def _in_folders(paths: list[Path]) -> list[Path]:
    return [one for path in paths for one in sorted(path.glob("*.json")) or [path]]


BundlePath = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        metavar="PATH",
        callback=_of_this_host,
        help="Write the evidence for `ddoctor diagnose`; in a folder as HOST.json.",
    ),
]
Bundles = Annotated[
    list[Path],
    typer.Argument(
        metavar="BUNDLE", callback=_in_folders, help="Evidence bundles, or folders of them."
    ),
]


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The files that a command writes."""

    bundle: BundlePath = None
    json: JsonPath = None
    markdown: MarkdownPath = None
    html: HtmlPath = None

    def outputs(self) -> Outputs:
        """The files, checked before the work.

        Raises:
            DoctorError: a path cannot be written, or two of them are stdout.
        """
        from ddoctor.report.output import Outputs

        return Outputs(json=self.json, markdown=self.markdown, html=self.html, bundle=self.bundle)
