"""Loops over epochs that a rank leaves by what it alone has measured."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddoctor.script.calls import COLLECTIVES
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.scopes import Statement

STOPS = re.compile(r"stop|patien|early|bad_epochs|no_improve|counter|wait", re.IGNORECASE)
"""What tests of an early end are called."""
AGREES = frozenset(
    {
        *("reduce", "gather", "broadcast", "synchronize", "sync"),
        *(name.rpartition(".")[2] for name in COLLECTIVES if not name.endswith("barrier")),
    }
)
"""Words of what makes a value the same on all ranks."""


def own_stops(program: Program) -> Iterator[Statement]:
    """The ``break`` statements in a script in which nothing makes a value the same on all ranks."""
    if any(_agrees(call.method) for call in program.calls):
        return
    for statement in program.statements:
        around = [block for block in statement.around if block.kind in ("condition", "loop")]
        if (
            isinstance(statement.node, ast.Break)
            and len(around) > 1
            and around[-1].test is not None
            and around[-2].node in program.epochs
            and STOPS.search(ast.unparse(around[-1].test))
        ):
            yield statement


def _agrees(method: str) -> bool:
    return bool(AGREES & {method, *lower(method)})
