"""`ddoctor explain` and `ddoctor list`: the causes and probes of this version."""

from __future__ import annotations

from typing import Annotated

import typer


def _complete(typed: str) -> list[str]:
    from ddoctor import check_catalog

    return [name for name in check_catalog.names() if name.startswith(typed)]


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of a cause, as in findings.", autocompletion=_complete
        ),
    ],
) -> None:
    """Explain a cause: why it hurts and how to recognise it."""
    from ddoctor import check_catalog
    from ddoctor.errors import unknown

    cause = name.strip().lower().replace("_", "-")
    try:
        check = check_catalog.load(cause)
    except KeyError:
        raise unknown("cause", name, check_catalog.names()) from None
    explanation = check.explanation.replace("``", "`")
    typer.echo(f"{cause}\n\n{explanation}")


def list_all() -> None:
    """List all causes and probes."""
    from ddoctor import check_catalog, discovery
    from ddoctor.probing import catalog

    width = max(map(len, check_catalog.names()))
    typer.echo("Causes (ddoctor explain NAME)\n")
    for check in check_catalog.discover():
        typer.echo(f"  {check.name:{width}}  {check.title}{_from(check.package)}")
    typer.echo("\nProbes (ddoctor doctor --probe NAME)\n")
    for probe in catalog.names():
        package = _from(discovery.offer(catalog.PACKAGE, probe).package)
        typer.echo(f"  {probe:{width}}  {catalog.describe(probe)}{package}")
    if broken := check_catalog.broken():
        typer.echo("\nBroken, not used\n")
        for crash in broken:
            typer.echo(f"  {crash.check}: {crash.error}")


def _from(package: str) -> str:
    """The installed package that offers a check or probe; empty: it ships with ddoctor."""
    return f" (from {package})" if package else ""
