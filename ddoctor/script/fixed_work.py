"""What a forward pass computes in each step from buffers that nothing changes."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.values import MOST_STEPS

MODULE = "torch.nn.Module"
# Of those whose time grows with the third power of the size.
COSTLY = re.compile(
    r"torch\.(linalg\.(cholesky|eig|inv|lstsq|lu|matrix_(exp|power|rank)|pinv|qr|solve|svd|slogdet"
    r"|det)\w*|(svd|inverse|pinverse|cholesky|qr|matrix_exp|matrix_power|slogdet|logdet|det)$)"
)
RANDOM = re.compile(r"rand|normal|bernoulli|dropout|multinomial|poisson")


def fixed_work(program: Program) -> Iterator[tuple[Call, str]]:
    """The calls, each with the buffer."""
    for owner, fixed in _buffers(program).items():
        scope = program.functions.get(f"{owner}.forward")
        if MODULE not in program.bases.get(owner, ()) or scope is None:
            continue
        for call in scope.calls:
            values = (*call.node.args, *(word.value for word in call.node.keywords))
            known = all(_is_fixed(one, scope, fixed, MOST_STEPS) for one in values)
            if not COSTLY.match(call.name) or not known or _is_conditional(call):
                continue
            read = [part for one in values for part in _parts(one, scope) if part in fixed]
            if read:
                yield call, read[0]


def _is_conditional(call: Call) -> bool:
    """Such as one that keeps its result for the next step."""
    return any(block.kind == "condition" for block in call.around)


def _buffers(program: Program) -> Mapping[str, set[str]]:
    """The buffers that only the constructor of their class sets, as ``self.name``, by class."""
    found = defaultdict[str, set[str]](set)
    for call in program.calls:
        if call.method == "register_buffer" and call.on == "self":
            for given in call.node.args[:1]:
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    found[call.scope.owner].add(f"self.{given.value}")
    changed = {f"self.{name}" for name in _changed(program)} if found else set()
    return {owner: names - changed for owner, names in found.items()}


def _changed(program: Program) -> Iterator[str]:
    """Attributes of any object that a line sets, or changes in place, outside of constructors."""
    for statement in program.statements:
        node = statement.node
        if statement.scope.name.endswith("__init__"):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for part in ast.walk(target) if target is not None else ():
                if isinstance(part, ast.Attribute):
                    yield part.attr
    for call in program.calls:
        in_place = call.method.endswith("_") and not call.method.endswith("__")
        if in_place or call.method == "setattr":
            for part in ast.walk(call.node):
                if isinstance(part, ast.Attribute):
                    yield part.attr
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def _is_fixed(node: ast.expr, scope: Scope, fixed: set[str], steps: int) -> bool:
    """Whether nothing but constants and these buffers makes a value."""

    def inner(*parts: ast.expr) -> bool:
        return all(_is_fixed(one, scope, fixed, steps - 1) for one in parts)

    if not steps:
        return False
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Attribute):
        return variable(node) in fixed or scope.named(node).startswith("torch.")
    if isinstance(node, ast.Name):
        shown = scope.shown(node.id)
        return bool(shown) and inner(*shown)
    if isinstance(node, ast.BinOp):
        return inner(node.left, node.right)
    if isinstance(node, ast.UnaryOp):
        return inner(node.operand)
    if isinstance(node, ast.Tuple | ast.List):
        return inner(*node.elts)
    if isinstance(node, ast.Call):
        function = node.func
        if RANDOM.search(own_name(function)) or not isinstance(function, ast.Attribute):
            return False
        of_torch = scope.named(function).startswith("torch.")
        given = (*node.args, *(word.value for word in node.keywords))
        return (of_torch or inner(function.value)) and inner(*given)
    return False


def _parts(node: ast.expr, scope: Scope) -> Iterator[str]:
    """The attributes that a value is made of."""
    ahead, seen = [node], {node}
    for _ in range(MOST_STEPS):
        parts = [part for one in ahead for part in ast.walk(one)]
        yield from (variable(one) for one in parts if isinstance(one, ast.Attribute))
        names = [one.id for one in parts if isinstance(one, ast.Name)]
        ahead = [one for name in names for one in scope.shown(name) if one not in seen]
        seen |= {*ahead}
