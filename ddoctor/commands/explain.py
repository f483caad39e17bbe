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
            metavar="NAME", help="Name of a cause, as in findings.", autocompletion=_complete
        ),
    ],
) -> None:
    """Explain a cause: why it hurts and how to recognise it."""
    from ddoctor import engine
    from ddoctor.errors import unknown

    cause = name.strip().lower().replace("_", "-")
    try:
        check = engine.load(cause)
    except KeyError:
        raise unknown("cause", name, engine.names()) from None
    explanation = check.explanation.replace("``", "`")
    typer.echo(f"{cause}\n\n{explanation}")


def list_all() -> None:
    """List all causes and probes."""
    from ddoctor import discovery, engine
    from ddoctor.probing import catalog

    width = max(map(len, engine.names()))
    typer.echo("Causes (ddoctor explain NAME)\n")
    for check in engine.discover():
        typer.echo(f"  {check.name:{width}}  {check.title}{_from(check.package)}")
    typer.echo("\nProbes (ddoctor doctor --probe NAME)\n")
    for probe in catalog.names():
        package = _from(discovery.package(catalog.PACKAGE, probe))
        typer.echo(f"  {probe:{width}}  {catalog.describe(probe)}{package}")
    if broken := engine.broken():
        typer.echo("\nBroken, not used\n")
        for crash in broken:
            typer.echo(f"  {crash.check}: {crash.error}")


def _from(package: str) -> str:
    """The installed package that offers a check or probe; empty: it ships with ddoctor."""
    return f" (from {package})" if package else ""
