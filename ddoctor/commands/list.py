"""`ddoctor list`: the causes and probes of this version."""

from __future__ import annotations

import typer


def list() -> None:
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
