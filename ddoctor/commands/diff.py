"""`ddoctor diff`: compare two evidence bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddoctor.report.options import JsonPath


def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The earlier bundle.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The later bundle.")],
    json: JsonPath = None,
) -> int:
    """Compare two evidence bundles.

    Shows lower speeds, changed settings and new findings. Exits with 1 if NEW is worse.
    """
    from ddoctor.characters import tamed
    from ddoctor.evidence import bundle as bundles
    from ddoctor.report import difference
    from ddoctor.report.output import STDOUT, Outputs, put

    Outputs(json=json, reads=(old, new))
    found = difference.compare(bundles.read(old), bundles.read(new))
    if json is not None:
        put(json, found.json())
    if json != STDOUT:
        typer.echo(tamed("\n".join(found.lines())))
    return int(found.worse)
