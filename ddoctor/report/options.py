"""The options that several commands have: where the report goes, and the evidence."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

JsonPath = Annotated[
    Path | None,
    typer.Option("--json", metavar="PATH", help="Write the report as JSON; - : stdout."),
]
MarkdownPath = Annotated[
    Path | None,
    typer.Option("--markdown", metavar="PATH", help="Write the report as Markdown; - : stdout."),
]
HtmlPath = Annotated[
    Path | None, typer.Option("--html", metavar="PATH", help="Write the report as one HTML file.")
]


def _of_this_host(path: Path | None) -> Path | None:
    """In a folder that hosts share, each of them has a file of its own."""
    return path / f"{socket.gethostname()}.json" if path is not None and path.is_dir() else path


def _in_folders(paths: list[Path]) -> list[Path]:
    return [one for path in paths for one in sorted(path.glob("*.json")) or [path]]


BundlePath = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        metavar="PATH",
        callback=_of_this_host,
        help="Write the evidence, to be diagnosed elsewhere; into a folder as HOST.json.",
    ),
]
Bundles = Annotated[
    list[Path],
    typer.Argument(
        metavar="BUNDLE...", callback=_in_folders, help="Evidence, a bundle per host; or a folder."
    ),
]
