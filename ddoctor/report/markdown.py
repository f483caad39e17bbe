"""The report as GitHub-flavoured Markdown, for a ticket."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ddoctor.characters import tamed
from ddoctor.evidence.section import Evidence
from ddoctor.models import Report
from ddoctor.report import templates
from ddoctor.report.wording import Grid

if TYPE_CHECKING:
    from markupsafe import Markup

CODE_SPAN = re.compile(r"(`[^`\n]+`)")
SPECIAL = re.compile(r"([\\*<&\[\]|~$#`]|(?<!\w)_|_(?!\w)|(?<=:)/(?=/)|(?<=www)\.)", re.IGNORECASE)
"""What acts as Markdown, and what makes GitHub take a bare address for a link."""
MENTION = re.compile(r"(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=\bGH-)(?=\d)", re.IGNORECASE)
WORD_JOINER = "\N{WORD JOINER}"


def render(report: Report, evidence: Evidence) -> str:
    """Return the report in the terminal's order, with tables of the hosts and GPUs at the end."""
    environment = templates.environment(keep_trailing_newline=True, finalize=_text)
    environment.globals.update(table=_table, fenced=_fenced)
    page = environment.get_template("report.md.j2").render(report=report, evidence=evidence)
    return tamed(page)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table without the columns that are empty in every row."""
    from markupsafe import Markup

    grid = Grid(head=tuple(head), rows=tuple(map(tuple, rows))).without_empty_columns()
    cells = ([re.sub(r"(?<!\\)\|", r"\\|", _text(cell)) for cell in row] for row in grid.rows)
    lines = (grid.head, ["---"] * len(grid.head), *cells)
    return Markup("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _fenced(text: str, language: str) -> Markup:
    from markupsafe import Markup

    longest = max(map(len, re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    whole = text.rstrip("\n")
    return Markup(f"{fence}{language}\n{whole}\n{fence}")


def _text(value: object) -> str:
    """Escape plain text, but not code spans, so that nothing in it acts as Markdown or HTML.

    Nor does anything become a link, an e-mail address, or a mention of a user.
    """
    from markupsafe import Markup

    if isinstance(value, Markup):
        return value
    parts = CODE_SPAN.split(" ".join(str(value).split()))
    return "".join(
        part if number % 2 else SPECIAL.sub(r"\\\1", MENTION.sub(WORD_JOINER, part))
        for number, part in enumerate(parts)
    )
