"""Modules whose attribute ``requires_grad`` a script sets, which none of their parameters sees."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Scope, Statement

SETS = "requires_grad"
OF_MODULES = frozenset(
    {"parameters", "named_parameters", "modules", "named_modules", "children", "named_children"}
    | {"train", "eval", "state_dict", "load_state_dict", "buffers"}
)
"""Methods that a module has, and a tensor has not."""
MODULES = frozenset({"modules", "children", "named_modules", "named_children"})


def frozen_in_vain(program: Program) -> Iterator[Statement]:
    """The assignments to what is surely a module, as its methods in the same function show."""
    for statement in program.statements:
        node = statement.node
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and target.attr == SETS:
                name = variable(target.value)
                if name and _is_module(name, statement, program):
                    yield statement


def _is_module(name: str, statement: Statement, program: Program) -> bool:
    scope = statement.scope
    if any(call.on == name and call.method in OF_MODULES for call in scope.calls):
        return True
    loops = (block.node for block in statement.around if isinstance(block.node, ast.For))
    return any(_gives_modules(loop, name) for loop in loops) or _is_made(name, scope, program)


def _gives_modules(loop: ast.For, name: str) -> bool:
    """Whether a loop over modules gives the variable, as the last of each item."""
    target = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target
    called = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    return variable(target) == name and called is not None and own_name(called) in MODULES


def _is_made(name: str, scope: Scope, program: Program) -> bool:
    """Whether all that the variable is assigned from makes a module of torch or of the script."""
    made = [scope.names.of(one.func) for one in scope.shown(name) if isinstance(one, ast.Call)]
    return bool(made) and all(
        (one.startswith("torch.nn.") and not one.startswith("torch.nn.Parameter"))
        or "torch.nn.Module" in program.bases.get(one, ())
        for one in made
    )
