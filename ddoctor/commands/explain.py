"""`ddoctor explain`: the page of one cause."""

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
