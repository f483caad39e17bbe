"""Embeddings of which a batch can use few rows, and with dense gradients."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

from ddoctor.script.constants import constants
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope

TABLES = ("torch.nn.Embedding", "torch.nn.EmbeddingBag")
LINEAR = "torch.nn.Linear"
FEWEST_ROWS = 100_000
OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: lambda left, right: left * 2**right,
}
MOST_BITS = 40
"""Of a power: a larger one is no number of rows."""


def large_tables(program: Program) -> Iterator[Call]:
    """What makes them, where the source shows their number of rows.

    Not the vocabularies of language models: an output layer with as many rows uses all of them.
    """
    tables = [call for name in TABLES for call in program.by_name.get(name, ())]
    options = _option_defaults(program) if tables else {}
    outputs = {
        _number(one, call.scope, program, options)
        for call in (program.by_name.get(LINEAR, ()) if tables else ())
        for one in _given(call.node, 1, "out_features")
    }
    for call in tables:
        for rows in _given(call.node, 0, "num_embeddings") if not _is_sparse(call.node) else ():
            number = _number(rows, call.scope, program, options)
            if number >= FEWEST_ROWS and number not in outputs:
                yield call


def _given(node: ast.Call, position: int, keyword: str) -> Sequence[ast.expr]:
    """An argument; empty: it is not given."""
    named = [one.value for one in node.keywords if one.arg == keyword]
    return [*node.args[position : position + 1], *named][:1]


def _is_sparse(node: ast.Call) -> bool:
    given = next((one.value for one in node.keywords if one.arg in ("sparse", None)), None)
    return given is not None and ast.unparse(given) != "False"


def _number(node: ast.expr, scope: Scope, program: Program, options: Mapping[str, str]) -> float:
    """The least value of an expression; 0: not known. ``options``: those of the script."""
    if isinstance(node, ast.BinOp):
        compute = OPERATORS.get(type(node.op))
        left, right = (_number(one, scope, program, options) for one in (node.left, node.right))
        if compute is None or not left or not right:
            return 0
        powers = isinstance(node.op, ast.Pow | ast.LShift)
        return 0 if powers and right > MOST_BITS else compute(left, right)
    found = constants(node, scope, program)
    return min((_of_constant(one, options) for one in found), default=0)


def _of_constant(shown: str, options: Mapping[str, str]) -> float:
    """A constant, or what an argument of the script, such as ``args.items``, is by default."""
    if shown.isdecimal():
        return int(shown)
    holder, _, option = shown.partition(".")
    found = options.get(option) if holder else None
    return int(found) if found is not None and found.isdecimal() else 0


def _option_defaults(program: Program) -> Mapping[str, str]:
    """The defaults of argparse's options, by the names of their values."""
    found: dict[str, str] = {}
    for call in program.calls:
        if call.method == "add_argument" and call.node.args:
            name = ast.unparse(call.node.args[-1]).strip("\"'").lstrip("-").replace("-", "_")
            for one in call.node.keywords:
                if one.arg == "default" and isinstance(one.value, ast.Constant):
                    found[name] = str(one.value.value)
    return found
