"""`ddoctor explain` and `ddoctor list`: the causes and probes of this version."""

from __future__ import annotations

from typing import Annotated

import typer


def _complete(typed: str) -> list[str]:
    from ddoctor import engine

    return [name for name in engine.names() if name.startswith(typed)]


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Cause, as findings name it.", autocompletion=_complete
        ),
    ],
) -> None:
    """Explain a cause: why it hurts and how to recognise it."""
    from ddoctor import engine
    from ddoctor.errors import unknown

    cause = name.strip().lower().replace("_", "-")
    if cause not in engine.names():
        raise unknown("cause", name, engine.names())
    explanation = engine.load(cause).explanation.replace("``", "`")
    typer.echo(f"{cause}\n\n{explanation}")


def list_all() -> None:
    """List all causes and probes."""
    from ddoctor import engine
    from ddoctor.probing import catalog

    width = max(map(len, engine.names()))
    typer.echo("Causes (ddoctor explain NAME)\n")
    for check in engine.discover():
        typer.echo(f"  {check.name:{width}}  {check.title}")
    typer.echo("\nProbes (ddoctor doctor --probe NAME)\n")
    for probe in catalog.names():
        typer.echo(f"  {probe:{width}}  {catalog.describe(probe)}")
