"""How many parameters a script's own models have at least, with the options of a launch."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.named_models import NamedModel
from ddoctor.analysis.script_source import shown
from ddoctor.analysis.source_options import in_launch
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceSize
from ddoctor.evidence.source_text import syntax_tree

OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
MOST = 1e15
"""Parameters of no model of 2026; a number above it is none of them."""


def own_models(plan: LaunchPlan, script: Script | None) -> Iterator[NamedModel]:
    """The models that the script makes itself, and wraps."""
    for one in script.own_sizes if script is not None else ():
        count = _count(one, plan.launch)
        if 0 < count < MOST:
            yield NamedModel(
                place=shown(one.at), billions=count / 1e9, halves=one.halves, at_least=True
            )


def _count(size: SourceSize, launch: Launch) -> float:
    return sum(_product(term, size, launch) for term in size.terms)


def _product(term: str, size: SourceSize, launch: Launch) -> float:
    """The value of a term; 0: an option in it is not known, or no number."""
    try:
        return _value(syntax_tree(term).body[0], size, launch)
    except (ValueError, SyntaxError, ArithmeticError, RecursionError):
        return 0.0


def _value(node: ast.AST, size: SourceSize, launch: Launch) -> float:
    """The value of a term.

    Raises:
        ValueError: an option in it is not known, or is no number.
        ArithmeticError: it divides by zero, or is too large.
    """
    if isinstance(node, ast.Expr):
        return _value(node.value, size, launch)
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.BinOp):
        left, right = (_value(one, size, launch) for one in (node.left, node.right))
        if isinstance(node.op, ast.Pow) and 0 <= right <= 3:
            return float(left**right)
        if type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](left, right)
        raise ValueError("an operator that numbers of layers do not have")
    option = ast.unparse(node)
    _, value = in_launch(option, size.defaults.get(option.rpartition(".")[2], ""), launch)
    if value is None:
        raise ValueError(f"{option} is not known")
    return float(value.replace("_", ""))
