"""What a statement sets: an attribute, a variable of the environment, or a setting of torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.scopes import Statement

ENVIRONMENT = "os.environ"


def assigned(statement: Statement) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement sets, each with its value.

    A variable of the environment is named ``os.environ[NAME]``. What ``setdefault`` gives it counts
    only where nothing else has set it: its value is then the whole call.
    """
    node, names = statement.node, statement.scope.names
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
        yield names.of(node.target), node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            of_environment = isinstance(target, ast.Subscript) and (
                names.of(target.value) == ENVIRONMENT
            )
            if not of_environment:
                yield names.of(target), node.value
            elif name := _text(target.slice):  # type: ignore[attr-defined]
                yield f"{ENVIRONMENT}[{name}]", node.value
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        for name, value in _by_method(node.value, names.of(node.value.func)):
            yield f"{ENVIRONMENT}[{name}]", value


def _by_method(call: ast.Call, called: str) -> Iterator[tuple[str, ast.expr]]:
    if called == f"{ENVIRONMENT}.setdefault" and call.args and (name := _text(call.args[0])):
        yield name, call
    elif called == f"{ENVIRONMENT}.update":
        yield from ((word.arg, word.value) for word in call.keywords if word.arg)
        for given in call.args:
            if isinstance(given, ast.Dict):
                pairs = zip(given.keys, given.values, strict=True)
                yield from ((_text(key), value) for key, value in pairs if _text(key))


def _text(node: ast.expr | None) -> str:
    known = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if known else ""  # type: ignore[union-attr]
