"""Which of two calls runs first, also where they are in different functions."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ddoctor.script.program import Program
from ddoctor.script.ranks import asks_if_distributed
from ddoctor.script.scopes import Call

MOST_OUTWARDS = 8
"""Functions whose only call is followed outwards."""


def precedes(first: Call, second: Call, program: Program) -> bool | None:
    """Whether a call ends before another one; None: not known, or a run makes one of them alone.

    Functions that several lines call are not followed.
    """
    outwards = {one.scope: one for one in _outwards(first, program)}
    for later in _outwards(second, program):
        earlier = outwards.get(later.scope)
        if earlier is not None:
            known = earlier is not later and not _exclude(earlier, later)
            return _end(earlier.node) < _end(later.node) if known else None
    return None


def follows(second: Call, first: Call, program: Program) -> bool:
    """Whether a run that makes the first call also makes the second one, as far as tests show.

    Tests that only ask whether there are several ranks count as true.
    """
    inside = {one.scope: one.around for one in _outwards(first, program)}
    for later in _outwards(second, program):
        shared = {block.node for block in inside.get(later.scope, ())}
        tests = [block for block in later.around if block.test and block.node not in shared]
        if not all(asks_if_distributed(block.test) for block in tests if block.test):
            return False
        if later.scope in inside:
            return True
    return False


def _outwards(call: Call, program: Program) -> Sequence[Call]:
    """The call, and those by which the run comes to it, the innermost first."""
    found, outer = [call], program.caller(call.scope)
    while outer is not None and len(found) < MOST_OUTWARDS:
        found.append(outer)
        outer = program.caller(outer.scope)
    return found


def _exclude(one: Call, other: Call) -> bool:
    """Whether they are in different branches of a test."""
    sides = {block.node: block.negated for block in one.around if block.test is not None}
    return any(sides.get(block.node, block.negated) is not block.negated for block in other.around)


def _end(node: ast.expr) -> tuple[int, int]:
    # An inner call ends before the one that gets its result.
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
