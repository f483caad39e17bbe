"""The options of a run that a source reads: ``args.bins``, ``cfg["model"]["bins"]``."""

from __future__ import annotations

import ast
import re

from ddoctor.script.names import CONFIGS, variable
from ddoctor.script.objects import arguments, defaults
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.scopes import Scope

CONVERTS = ("bool", "int", "float", "str")
READS = re.compile(r"^(?:yaml|json|OmegaConf|toml|tomllib)\.|\bparse_(?:known_)?args$")
"""What reads options: a file of them, or the command line."""
MOST_STEPS = 6
"""Assignments and calls that are followed from a value to an option."""


def changes(option: str, program: Program) -> bool:
    """Whether the source assigns an option, such as ``args.bins = 64``."""
    last = option.rpartition(".")[2]
    sets = program.attributes.get(last, ())
    return last in program.set_keys or any(not one.name.startswith("self.") for one in sets)


def held(
    node: ast.expr, scope: Scope, program: Program, steps: int = MOST_STEPS
) -> tuple[ast.expr, Scope] | None:
    """The option, the constant or the comparison that a value comes from; None: not known."""
    if not steps or isinstance(node, ast.Constant | ast.Compare | ast.BoolOp | ast.UnaryOp):
        return (node, scope) if steps else None
    if isinstance(node, ast.Call) and variable(node.func) in CONVERTS and len(node.args) == 1:
        return held(node.args[0], scope, program, steps - 1)
    name = variable(node)
    if name.startswith("self.") and name.count(".") == 1:
        own = [
            one for one in program.attributes.get(name[5:], ()) if one.scope.owner == scope.owner
        ]
        value = own[0].value if len(own) == 1 and not own[0].around else None
        return held(value, own[0].scope, program, steps - 1) if value is not None else None
    if isinstance(node, ast.Name):
        return _of_name(node, scope, program, steps)
    return (node, scope) if option_name(node, scope, program) else None


def _of_name(
    node: ast.Name, scope: Scope, program: Program, steps: int
) -> tuple[ast.expr, Scope] | None:
    values = scope.variables.get(node.id)
    if values is None or len(values) != 1:
        return None
    if values[0] is not None:
        return held(values[0], scope, program, steps - 1)
    if option_name(node, scope, program):
        return node, scope
    calls = program.calls_of(scope)
    if len(calls) != 1:
        return None
    spread = [word.value for word in calls[0].node.keywords if word.arg is None]
    if spread:
        # `Net(**cfg.model)` passes the options of a section by their names.
        named = ast.Attribute(value=spread[0], attr=node.id, ctx=ast.Load())
        known = len(spread) == 1 and option_name(named, calls[0].scope, program)
        return (named, calls[0].scope) if known else None
    passed = arguments(calls[0].node, scope).get(node.id)
    if passed is not None:
        return held(passed, calls[0].scope, program, steps - 1)
    default = defaults(scope).get(node.id)
    return (default, scope) if isinstance(default, ast.Constant) else None


def option_name(node: ast.expr, scope: Scope, program: Program, steps: int = MOST_STEPS) -> str:
    """The name of an option, such as ``model.bins`` of ``cfg.model.bins``; empty: it is none."""
    if isinstance(node, ast.Name):
        # click passes options as arguments of the function that it decorates.
        decorated = getattr(scope.node, "decorator_list", ())
        asks = any("option" in ast.unparse(one) for one in decorated)
        return node.id if asks and scope.variables.get(node.id) == [None] else ""
    path: list[str] = []
    while (key := _key(node)) and (inner := _holder(node)) is not None:
        path.append(key)
        node = inner
    path.reverse()
    if isinstance(node, ast.Name) and node.id == "self" and len(path) > 1:
        root, *path = path
        section = "" if CONFIGS & lower(root) else None
    else:
        section = _section(node, scope, program, steps) if isinstance(node, ast.Name) else None
    return ".".join(filter(None, (section, *path))) if path and section is not None else ""


def _section(root: ast.Name, scope: Scope, program: Program, steps: int) -> str | None:
    """The section of the options that a variable holds, as ``data = cfg["data"]`` does.

    Empty: all of them; None: it holds none.
    """
    found = program.values(root, scope) if steps else ()
    if len(found) == 1:
        value, where = found[0]
        if section := option_name(value, where, program, steps - 1):
            return section
        if isinstance(value, ast.Name):
            held = _section(value, where, program, steps - 1)
            if held is not None:
                return held
        if isinstance(value, ast.Call) and _reads(value, program):
            return ""
        if isinstance(value, ast.Dict | ast.DictComp):
            return None
    return "" if CONFIGS & lower(root.id) else None


def _reads(call: ast.Call, program: Program) -> bool:
    """Whether it reads options, also as a function of the script that returns them."""
    called = program.function(call)
    returned = [*program.results(called)] if called is not None else []
    calls = [one for one in (call, *returned) if isinstance(one, ast.Call)]
    return any(READS.search(variable(one.func)) for one in calls)


def _key(node: ast.expr) -> str:
    """The last name of ``cfg.bins``, ``cfg["bins"]`` and ``cfg.get("bins", 64)``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    named = node.slice if isinstance(node, ast.Subscript) else None
    if isinstance(node, ast.Call) and node.args and _gets(node.func):
        named = node.args[0]
    known = isinstance(named, ast.Constant) and isinstance(named.value, str)
    return str(named.value) if known and isinstance(named, ast.Constant) else ""


def _gets(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == "get"


def root_of(node: ast.expr) -> ast.expr:
    """The variable that holds an option and its sections."""
    while _key(node) and (inner := _holder(node)) is not None:
        node = inner
    return node


def _holder(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.Call):
        return getattr(node.func, "value", None)
    return getattr(node, "value", None)
